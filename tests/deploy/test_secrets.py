"""Proves that secrets are made once, fit together, are nobody else's to read, and open no more than they should."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from placet.adapters.sql.postgres_migrating import SERVICES, role_of
from placet.keys import KeyRegistry, RegisteredKey, parse_private_key, parse_registry
from placet.settings import parse_settings
from placet.signatures import SigningKey
from placet.topology import DEAD_QUEUE, DECISIONS_EXCHANGE, STOPS_EXCHANGE, SUBMISSIONS_EXCHANGE, make_topology
from tests.architecture.sources import ROOT

SCRIPT = ROOT / "deploy" / "make_secrets.py"


def make(folder: Path) -> str:
    done = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deploy") / "secrets"
    make(path)
    return path


def text(folder: Path, name: str) -> str:
    return (folder / name).read_text().strip()


def test_they_are_made_once_and_what_is_missing_is_made_again(folder: Path) -> None:
    before = files(folder)
    assert "all there" in make(folder)
    (folder / "tools.env").unlink()
    assert "1 made" in make(folder)
    assert files(folder) == before


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_password_that_is_made_anew_reaches_everything_that_follows_from_it(tmp_path: Path) -> None:
    make(tmp_path)
    for name in ("rabbitmq_password_planner", "postgres_password_planner", "redis_password"):
        (tmp_path / name).unlink()
    make(tmp_path)
    assert text(tmp_path, "rabbitmq_password_planner") in text(tmp_path, "amqp_url_planner")
    assert text(tmp_path, "postgres_password_planner") in text(tmp_path, "database_url_planner")
    assert f"planner={text(tmp_path, 'postgres_password_planner')}" in text(tmp_path, "role_passwords").splitlines()
    test_the_broker_knows_every_user_by_a_salted_hash_of_the_right_password(tmp_path)
    test_the_referee_lets_nobody_in_without_the_password_but_to_ask_whether_it_lives(tmp_path)


def test_nobody_else_gets_as_far_as_the_files_and_nobody_changes_them(folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()} == {0o444}


def test_no_two_installations_share_a_password(folder: Path, tmp_path: Path) -> None:
    make(tmp_path / "other")
    names = [path.name for path in folder.iterdir() if "password" in path.name or path.name == "token"]
    assert len(names) > 15
    assert all(text(folder, name) != text(tmp_path / "other", name) for name in names)
    assert len({text(folder, name) for name in names}) == len(names)


@pytest.mark.parametrize("service", [*SERVICES, "migrate"])
def test_every_service_can_read_its_addresses(service: str, folder: Path) -> None:
    environ = {
        "PLACET_DATABASE_URL_FILE": str(folder / f"database_url_{service}"),
        "PLACET_AMQP_URL_FILE": str(folder / f"amqp_url_{service}"),
        "PLACET_REDIS_URL_FILE": str(folder / "redis_url_approval"),
        "PLACET_TOKEN_FILE": str(folder / "token"),
        "PLACET_SIGNING_KEY_FILE": str(folder / "gateway_key"),
        "PLACET_DECISION_KEYS_FILE": str(folder / "decision_keys" / "registry.json"),
        "PLACET_ROLE_PASSWORDS_FILE": str(folder / "role_passwords"),
    }
    settings, findings = parse_settings(environ, lambda path: Path(path).read_text())
    assert findings == ()
    assert settings is not None
    if service != "migrate":
        database = urlsplit(settings.database_url or "")
        assert database.username == role_of(service)
        assert settings.role_passwords[service] == database.password


def test_the_broker_knows_every_user_by_a_salted_hash_of_the_right_password(folder: Path) -> None:
    definitions = json.loads(text(folder, "rabbitmq_definitions"))
    for user in definitions["users"]:
        password = text(folder, f"rabbitmq_password_{user['name']}")
        kept = base64.b64decode(user["password_hash"])
        assert kept[4:] == hashlib.sha256(kept[:4] + password.encode()).digest()
        assert password not in text(folder, "rabbitmq_definitions")
    assert "guest" not in {user["name"] for user in definitions["users"]}


def may(folder: Path, user: str, what: str, name: str) -> bool:
    rights = {each["user"]: each for each in json.loads(text(folder, "rabbitmq_definitions"))["permissions"]}
    return re.search(rights[user][what], name) is not None


def test_every_service_may_consume_its_own_queues_and_no_other(folder: Path) -> None:
    topology = make_topology(("gpu",))
    owners = {
        source.queue: service.partition(".")[0] for service, found in topology.sources.items() for source in found
    }
    for queue in topology.queues:
        for service in SERVICES:
            allowed = may(folder, service, "read", queue.name)
            owners.setdefault(DEAD_QUEUE, "dispatcher")  # where dead letters are collected
            assert allowed is (owners.get(queue.name) == service), (service, queue.name)


def test_no_service_may_declare_anything_but_the_queue_of_what_it_hears(folder: Path) -> None:
    topology = make_topology(("gpu",))
    names = [*(queue.name for queue in topology.queues), *(exchange.name for exchange in topology.exchanges)]
    assert not [(service, name) for service in SERVICES for name in names if may(folder, service, "configure", name)]
    assert [service for service in SERVICES if may(folder, service, "configure", "placet.watch.ab12")] == ["gateway"]
    hearing = [service for service in SERVICES if may(folder, service, "configure", f"{STOPS_EXCHANGE}.ab12")]
    assert sorted(hearing) == ["planner", "tool-executor"]


def test_only_who_makes_calls_to_the_world_says_which_are_to_be_stopped_and_hears_it(folder: Path) -> None:
    for what in ("write", "read"):
        allowed = {service for service in SERVICES if may(folder, service, what, STOPS_EXCHANGE)}
        assert allowed == {"planner", "tool-executor"}, what


def test_no_service_may_speak_as_an_outsider_but_the_gateway_which_speaks_for_people_anyway(folder: Path) -> None:
    for exchange in (SUBMISSIONS_EXCHANGE, DECISIONS_EXCHANGE):
        assert [service for service in SERVICES if may(folder, service, "write", exchange)] == ["gateway"]
    users = {user["name"]: user["tags"] for user in json.loads(text(folder, "rabbitmq_definitions"))["users"]}
    assert [name for name, tags in users.items() if tags] == ["gateway", "operator"]
    assert users["gateway"] == ["impersonator"], "it sends again what they said, as they said it"
    assert not may(folder, "planner", "write", "amq.default"), "nobody publishes past the exchanges who need not"


def test_a_reviewer_may_publish_decisions_and_do_nothing_else(folder: Path) -> None:
    topology = make_topology(("gpu",))
    names = [*(queue.name for queue in topology.queues), *(exchange.name for exchange in topology.exchanges), ""]
    found = {
        (what, name)
        for what in ("configure", "write", "read")
        for name in [*names, "amq.default", "amq.gen-x", "placet.decisions2", "xplacet.decisions"]
        if may(folder, "reviewer", what, name)
    }
    # An empty name is matched by ^$: there is no queue or exchange of that name but the one called amq.default above.
    assert found - {("configure", ""), ("read", "")} == {("write", DECISIONS_EXCHANGE)}


def test_the_gateway_has_a_key_and_the_approval_service_knows_its_public_half(folder: Path) -> None:
    key = SigningKey.of(parse_private_key(text(folder, "gateway_key")))
    (entry,) = registered(folder)
    assert entry == key.entry(tenants=("default",), label=entry.label)
    assert text(folder, "gateway_key") not in text(folder, "decision_keys/registry.json")


def registered(folder: Path) -> tuple[RegisteredKey, ...]:
    return parse_registry(text(folder, "decision_keys/registry.json")).keys


def test_a_new_key_of_the_gateway_takes_the_place_of_the_old_one_and_people_s_keys_stay(tmp_path: Path) -> None:
    make(tmp_path)
    (before,) = registered(tmp_path)
    alice = SigningKey(bytes(32), "alice").entry(tenants=("default",)).model_copy(update={"revoked": True})
    registry = tmp_path / "decision_keys" / "registry.json"
    registry.unlink()
    registry.write_text(KeyRegistry(version=1, keys=(before, alice)).model_dump_json())
    assert "all there" in make(tmp_path)
    assert registered(tmp_path) == (before, alice)
    (tmp_path / "gateway_key").unlink()
    make(tmp_path)
    gateway, other = registered(tmp_path)
    assert other == alice
    assert gateway.kind == "gateway"
    assert gateway.keyid == SigningKey.of(parse_private_key(text(tmp_path, "gateway_key"))).keyid != before.keyid


def test_the_public_half_is_computed_as_the_library_does() -> None:
    spec = importlib.util.spec_from_file_location("make_secrets", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for number in range(40):
        seed = hashlib.sha256(b"%d" % number).digest()
        assert script.ed25519_public(seed) == SigningKey(seed).public


def test_the_referee_lets_nobody_in_without_the_password_but_to_ask_whether_it_lives(folder: Path) -> None:
    default, approval = text(folder, "redis_acl").splitlines()
    assert default == "user default on nopass resetkeys resetchannels -@all +ping"
    hashed = hashlib.sha256(text(folder, "redis_password").encode()).hexdigest()
    assert approval.startswith(f"user approval on #{hashed} ")
    assert "+@all" not in approval
