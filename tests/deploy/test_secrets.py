"""Proves that secrets are made once, fit together, are nobody else's to read, and open no more than they should."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from placet.adapters.sql.postgres_migrating import SERVICES, role_of
from placet.settings import parse_settings
from placet.topology import DECISIONS_EXCHANGE, SUBMISSIONS_EXCHANGE, make_topology
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
    before = {path.name: path.read_text() for path in folder.iterdir()}
    assert "all there" in make(folder)
    (folder / "tools.env").unlink()
    assert "1 made" in make(folder)
    assert {path.name: path.read_text() for path in folder.iterdir()} == before


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
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o444}


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
            assert allowed is (owners.get(queue.name) == service), (service, queue.name)


def test_no_service_may_declare_anything_but_the_gateway_its_hints(folder: Path) -> None:
    topology = make_topology(("gpu",))
    names = [*(queue.name for queue in topology.queues), *(exchange.name for exchange in topology.exchanges)]
    assert not [(service, name) for service in SERVICES for name in names if may(folder, service, "configure", name)]
    assert [service for service in SERVICES if may(folder, service, "configure", "placet.watch.ab12")] == ["gateway"]


def test_no_service_may_speak_as_an_outsider(folder: Path) -> None:
    for exchange in (SUBMISSIONS_EXCHANGE, DECISIONS_EXCHANGE):
        assert not [service for service in SERVICES if may(folder, service, "write", exchange)]
    assert not may(folder, "planner", "write", "amq.default"), "nobody publishes past the exchanges who need not"


def test_the_referee_lets_nobody_in_without_the_password_but_to_ask_whether_it_lives(folder: Path) -> None:
    default, approval = text(folder, "redis_acl").splitlines()
    assert default == "user default on nopass resetkeys resetchannels -@all +ping"
    hashed = hashlib.sha256(text(folder, "redis_password").encode()).hexdigest()
    assert approval.startswith(f"user approval on #{hashed} ")
    assert "+@all" not in approval
