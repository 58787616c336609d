"""Proves that the registry that counts is the file as it is now, and the last good one while the file is broken."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from placet.errors import Code, TerminalError
from placet.hosting.watched_keys import SETTLED_NS, WatchedKeys, keys_of
from placet.keys import KeyRegistry, RegisteredKey
from placet.settings import Settings
from tests.signing import a_key, an_entry

ALICE, BOB = (an_entry(a_key(name), tenants=("t",)) for name in ("alice", "bob"))
REVOKED = ALICE.model_copy(update={"revoked": True})


def text(*entries: RegisteredKey) -> str:
    return KeyRegistry(version=1, keys=entries).model_dump_json()


def aged(path: Path) -> None:
    """As if it had been written long ago: its times tell every change from now on."""
    then_ns = path.stat().st_mtime_ns - 10 * SETTLED_NS
    os.utime(path, ns=(then_ns, then_ns))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "keys.json"
    file.write_text(text(ALICE))
    aged(file)
    return file


@pytest.fixture
def keys(path: Path) -> WatchedKeys:
    return WatchedKeys(path.read_text(), path)


def test_a_key_counts_as_the_file_says_now(path: Path, keys: WatchedKeys) -> None:
    assert keys.key(ALICE.keyid) == ALICE
    assert keys.key(BOB.keyid) is None
    path.write_text(text(REVOKED, BOB))
    assert keys.key(ALICE.keyid) == REVOKED
    assert keys.key(BOB.keyid) == BOB
    new = path.with_suffix(".new")
    new.write_text(text(BOB))
    aged(new)
    new.replace(path)
    assert keys.key(ALICE.keyid) is None


def test_two_changes_of_one_moment_are_both_seen(path: Path, keys: WatchedKeys) -> None:
    now_ns = time.time_ns()
    for n in range(20):
        entry = ALICE.model_copy(update={"label": f"{n:02}"})  # of one size
        path.write_text(text(entry))
        os.utime(path, ns=(now_ns, now_ns))  # as on a file system whose times are coarse
        assert keys.key(ALICE.keyid) == entry


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"version":2,"keys":[]}', text(ALICE)[:-1], text(ALICE) * 2])
def test_a_broken_file_keeps_the_keys_that_were_known_and_says_so_until_it_is_repaired(
    broken: str, path: Path, keys: WatchedKeys
) -> None:
    assert keys.trouble is None
    path.write_text(broken)
    assert keys.key(ALICE.keyid) == ALICE
    assert str(path) in str(keys.trouble)
    path.write_text(text(REVOKED))
    assert keys.trouble is None
    assert keys.key(ALICE.keyid) == REVOKED


def test_a_file_that_is_gone_is_told_and_its_return_is_seen(path: Path, keys: WatchedKeys) -> None:
    path.rename(path.with_suffix(".away"))
    assert keys.key(ALICE.keyid) == ALICE
    assert "No such file" in str(keys.trouble)
    path.with_suffix(".away").rename(path)
    assert keys.trouble is None


def test_what_is_wrong_is_logged_once_and_not_at_every_look(
    path: Path, keys: WatchedKeys, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text("{")
    for _ in range(5):
        keys.key(ALICE.keyid)
    assert [record.getMessage() for record in caplog.records].count("keys.not_taken") == 1


def test_a_registry_that_is_given_as_a_text_stays_as_it_is() -> None:
    keys = keys_of(Settings(decision_keys=text(ALICE)), {})
    assert keys.key(ALICE.keyid) == ALICE
    assert keys.trouble is None


def test_a_registry_that_is_broken_from_the_start_is_named_with_its_file(path: Path) -> None:
    with pytest.raises(TerminalError, match=r"PLACET_DECISION_KEYS_FILE names .*keys\.json") as caught:
        keys_of(Settings(decision_keys="{"), {"PLACET_DECISION_KEYS_FILE": str(path)})
    assert caught.value.code is Code.SETTING_INVALID
