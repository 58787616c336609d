"""Proves that the compose file says what it must: secrets where they belong, nothing published by accident."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from placet import limits
from placet.settings import Settings, is_secret, variable_of
from tests.architecture.sources import ROOT

COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
EXAMPLE = (ROOT / "deploy" / "env.example").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")


def services() -> dict[str, str]:
    """Each service and its part of the file."""
    part = COMPOSE.partition("\nservices:\n")[2].partition("\nnetworks:\n")[0]
    found = re.split(r"(?m)^  ([a-z-]+):\n", part)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


def secrets_of(service: str) -> set[str]:
    match = re.search(r"(?m)^    secrets: \[(.*)\]$", services()[service])
    return {name.strip() for name in match[1].split(",")} if match else set()


def test_only_the_gateway_is_published_and_on_loopback() -> None:
    assert [name for name, part in services().items() if re.search(r"(?m)^    ports:", part)] == ["gateway"]
    assert '"${PLACET_BIND:-127.0.0.1}:${PLACET_PORT:-7300}:7300"' in services()["gateway"]
    assert "  inside: {internal: true}" in COMPOSE


def test_the_servers_are_the_ones_that_are_promised() -> None:
    images = {match[1] for match in re.finditer(r"(?m)^    image: (.+)$", COMPOSE)}
    assert {"rabbitmq:4-management", "redis:8", "postgres:17"} <= images
    assert {f"placet-{name}" for name in ("gateway", "approval", "dispatcher", "planner", "tool-executor")} <= images


def test_keys_of_models_reach_the_planner_alone_and_credentials_of_tools_the_executor_alone() -> None:
    assert [name for name, part in services().items() if "models.env" in part] == ["planner"]
    assert [name for name, part in services().items() if "tools.env" in part] == ["tool-executor"]
    assert [name for name in services() if "token" in secrets_of(name)] == ["gateway"]
    assert [name for name in services() if "gateway_key" in secrets_of(name)] == ["gateway"]
    assert [name for name, part in services().items() if "decision_keys" in part] == ["approval"]
    assert [name for name in services() if "redis_url_approval" in secrets_of(name)] == ["approval"]


@pytest.mark.parametrize("service", ["gateway", "approval", "dispatcher", "resume", "planner", "tool-executor"])
def test_each_service_gets_its_own_addresses_and_no_other(service: str) -> None:
    urls = {name for name in secrets_of(service) if "url" in name and not name.startswith("redis")}
    assert urls == {f"database_url_{service}", f"amqp_url_{service}"}
    assert all(f"/run/secrets/{name}" in services()[service] for name in secrets_of(service))


def test_code_of_an_application_is_in_no_image_of_approval_gateway_or_migrate() -> None:
    for name in ("approval", "gateway", "migrate"):
        assert "target: bare" in services()[name]
    bare = DOCKERFILE.partition("AS bare")[2].partition("\nFROM ")[0]
    assert "APPLICATION" not in bare


def test_every_secret_that_is_used_is_declared_and_made(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "deploy" / "make_secrets.py", tmp_path], check=True, capture_output=True)
    declared = {
        match[1]: match[2]
        for match in re.finditer(r'(?m)^  (\S+): \{file: "\$\{PLACET_SECRETS:-[^}]+\}/(\S+)"\}$', COMPOSE)
    }
    used = {name for service in services() for name in secrets_of(service)}
    assert used == set(declared)
    assert {(tmp_path / file).exists() for file in declared.values()} == {True}


def test_no_password_is_written_anywhere() -> None:
    assert not re.search(r"(?i)guest|(password|secret|token)[a-z_]*: +[^\s/{$\[]", COMPOSE.partition("\nsecrets:")[0])


def test_services_are_locked_in() -> None:
    shared = COMPOSE.partition("x-service: &service\n")[2].partition("\nx-")[0]
    for line in (
        "read_only: true",
        "cap_drop: [ALL]",
        'security_opt: ["no-new-privileges:true"]',
        "restart: unless-stopped",
    ):
        assert line in shared
    merged = [name for name, part in services().items() if "<<: *service" in part]
    assert merged == ["gateway", "approval", "dispatcher", "resume", "planner", "tool-executor"]
    assert "USER 10001:10001" in DOCKERFILE


def test_the_dockerfile_needs_no_front_end_from_a_registry() -> None:
    assert not re.search(r"(?m)^# *syntax *=|<<", DOCKERFILE)


def test_no_secret_and_no_history_gets_into_an_image() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {".*", "deploy/*", "tests"} <= set(ignored), "secrets, .env, .git and .venv are below these"
    assert [line for line in ignored if line.startswith("!")] == ["!deploy/healthy"]


def test_the_referee_keeps_what_it_promised_and_the_broker_has_no_default_user() -> None:
    redis = (ROOT / "deploy" / "redis" / "redis.conf").read_text(encoding="utf-8")
    assert {"appendonly yes", "maxmemory-policy noeviction"} <= set(redis.splitlines())
    rabbitmq = (ROOT / "deploy" / "rabbitmq" / "rabbitmq.conf").read_text(encoding="utf-8")
    assert "load_definitions = /run/secrets/rabbitmq_definitions" in rabbitmq
    assert "default_user" not in rabbitmq
    assert f"max_message_size = {limits.JSON_BYTES_MAX}" in rabbitmq.splitlines()


def shown(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def test_everything_that_can_be_set_is_in_the_example_with_its_meaning_and_default() -> None:
    for name, field in Settings.model_fields.items():
        default = field.default
        plain = ",".join(default) if isinstance(default, tuple) else "" if default in (None, {}) else shown(default)
        told = f"# {field.description}{' (a secret)' if is_secret(name) else ''}\n#{variable_of(name)}={plain}\n"
        assert told in EXAMPLE + "\n", name


def test_every_variable_of_the_compose_file_is_in_the_example() -> None:
    used = set(re.findall(r"\$\{([A-Z_]+)", COMPOSE))
    assert used <= set(re.findall(r"(?m)^#([A-Z_]+)=", EXAMPLE))
    handed_on = set(re.findall(r"PLACET_[A-Z_]+", EXAMPLE.partition("It hands on")[2].partition("\n\n")[0]))
    settings = {variable_of(name) for name in Settings.model_fields}
    assert used & settings == handed_on


def test_a_setting_that_a_service_is_given_is_one() -> None:
    given = {match[1].removesuffix("_FILE") for match in re.finditer(r"(?m)^ +(PLACET_[A-Z_]+):", COMPOSE)}
    assert given <= {variable_of(name) for name in Settings.model_fields}


def test_the_referee_keeps_nobody_from_starting() -> None:
    assert "redis: {condition: service_started, required: false}" in services()["approval"]
    assert [name for name, part in services().items() if re.search(r"(?m)^      redis:", part)] == ["approval"]
