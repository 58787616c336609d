"""Proves that the deploy step names what is wrong in one line, and never shows a password. What it does: tests/live."""

from __future__ import annotations

import json

import pytest

from placet.cli import exits
from placet.cli.program import run

NOBODY = "127.0.0.1:9"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "AMQP_URL", "START_TIMEOUT_MS", "TOOL_POOLS"):
        monkeypatch.delenv(f"PLACET_{name}", raising=False)


@pytest.mark.parametrize(
    ("command", "variable"),
    [
        (["migrate"], "PLACET_DATABASE_URL"),
        (["topology", "declare"], "PLACET_AMQP_URL"),
        (["topology", "verify"], "PLACET_AMQP_URL"),
    ],
)
def test_an_address_that_is_not_set_is_named(
    command: list[str], variable: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command) == exits.USAGE
    told = capsys.readouterr()
    assert variable in told.err
    assert told.out == ""
    assert len(told.err.strip().splitlines()) <= 2


def test_everything_wrong_is_named_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PLACET_TOOL_POOLS", "GPU")
    monkeypatch.setenv("PLACET_START_TIMEOUT_MS", "soon")
    assert run(["topology", "verify", "--json"]) == exits.USAGE
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "SETTING_INVALID"
    assert "PLACET_TOOL_POOLS" in error["message"]
    assert "PLACET_START_TIMEOUT_MS" in error["message"]


@pytest.mark.parametrize(
    ("command", "variable", "url"),
    [
        (["migrate"], "PLACET_DATABASE_URL", f"postgresql://u:hush-hush@{NOBODY}/d"),
        (["topology", "declare"], "PLACET_AMQP_URL", f"amqp://u:hush-hush@{NOBODY}/v"),
    ],
)
def test_a_server_that_is_away_may_be_there_later_and_no_password_is_shown(
    command: list[str],
    variable: str,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, url)
    monkeypatch.setenv("PLACET_START_TIMEOUT_MS", "0")
    assert run(command) == exits.UNKNOWN
    told = capsys.readouterr()
    assert "hush" not in told.out + told.err
    assert "Traceback" not in told.err
