"""Proves that a key is made once, for its owner alone, and that only a person's key signs a command's decision."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from placet.keys import RegisteredKey
from tests.cli.conftest import Placet
from tests.gateway.world import World
from tests.signing import GATEWAY, a_key


def test_a_new_key_is_its_owner_s_alone_and_its_entry_is_what_is_registered(offline: Placet, tmp_path: Path) -> None:
    made = offline("keys", "new", "alice.json", "--person", "alice", "--tenant", "acme", "--tenant", "globex")
    assert made.code == 0
    entry = RegisteredKey.model_validate_json(made.out)
    assert (entry.kind, entry.person, entry.tenants) == ("person", "alice", ("acme", "globex"))
    file = tmp_path / "alice.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(file.read_text())["private_key"] not in made.out + made.err
    shown = offline("keys", "show", "alice.json", "--tenant", "acme", "--tenant", "globex")
    assert (shown.code, shown.out) == (0, made.out)


def test_a_key_without_a_person_is_a_gateway_s(offline: Placet) -> None:
    entry = RegisteredKey.model_validate_json(offline("keys", "new", "gateway.json").out)
    assert (entry.kind, entry.person, entry.tenants) == ("gateway", None, ("default",))


def test_a_key_that_is_there_is_never_overwritten(offline: Placet, tmp_path: Path) -> None:
    offline("keys", "new", "k.json")
    before = (tmp_path / "k.json").read_text()
    again = offline("keys", "new", "k.json", "--person", "alice")
    assert (again.code, again.out) == (2, "")
    assert "is there already" in again.err
    assert (tmp_path / "k.json").read_text() == before


@pytest.mark.parametrize("person", ["", " ", " alice", "a\nb"])
def test_a_person_who_cannot_be_named_so_gets_no_key(person: str, offline: Placet, tmp_path: Path) -> None:
    assert offline("keys", "new", "k.json", "--person", person).code == 2
    assert not (tmp_path / "k.json").exists()


@pytest.mark.parametrize("content", ["", "{", "{}", '{"private_key":"c2VjcmV0"}'])
def test_a_file_that_holds_no_key_is_named_and_not_shown(content: str, offline: Placet, tmp_path: Path) -> None:
    (tmp_path / "k.json").write_text(content)
    shown = offline("keys", "show", "k.json")
    assert shown.code == 2
    assert "k.json" in shown.err
    assert "c2VjcmV0" not in shown.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--amqp", "amqp://h/"], "only with --key"),
        (["--run", "r1", "--environment", "e"], "--environment and --run: only with --key"),
        (["--key", "gateway.json", "--amqp", "amqp://h/"], "a gateway's key"),
        (["--key", "alice.json", "--amqp", "amqp://h/", "--as", "bob"], "alice's"),
        (["--key", "alice.json"], "is not set, and this command needs it"),
        (["--key", "alice.json", "--amqp", "http://h/"], "PLACET_AMQP_URL is not valid"),
        (["--key", "none.json", "--amqp", "amqp://h/"], "none.json"),
    ],
)
def test_what_does_not_fit_together_is_said_before_anything_is_asked(
    arguments: list[str], told: str, world: World, placet: Placet, tmp_path: Path
) -> None:
    (tmp_path / "alice.json").write_text(a_key("alice").file().model_dump_json())
    (tmp_path / "gateway.json").write_text(GATEWAY.file().model_dump_json())
    row = world.add_request()
    result = placet("approve", row["request_id"], "--yes", *arguments)
    assert result.code == 2
    assert told in result.err
    assert world.asked == []


def test_a_broker_that_is_away_is_told_and_the_decision_is_kept_for_the_repeat(
    world: World, placet: Placet, tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alice.json").write_text(a_key("alice").file().model_dump_json())
    environment.setattr("placet.cli.signed.TIMEOUT_MS", 200)
    row = world.add_request()
    command = ["approve", row["request_id"], "--yes", "--key", "alice.json", "--amqp", "amqp://u:hush@127.0.0.1:9/v"]
    for _ in range(2):
        result = placet(*command)
        assert result.code == 4, "nothing was decided: the same command may be repeated"
        assert "the broker cannot be reached" in result.err
        assert "hush" not in result.err
    (kept,) = (tmp_path / "state" / "decisions").iterdir()
    assert "hush" not in kept.read_text()
    assert json.loads(kept.read_text())["person"] == "alice"
    assert world.asked == []
