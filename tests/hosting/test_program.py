"""Proves how a service begins and ends as a process: what is wrong is named, and a second signal ends it at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from placet.hosting import exits
from placet.keys import KeyRegistry
from placet.signatures import SigningKey

SERVICES = ("planner", "dispatcher", "tool_executor", "approval", "gateway")
PATIENCE_S = 60
REFUSED = "127.0.0.1:9"
"""Nobody listens there."""


def environment(**variables: str) -> dict[str, str]:
    """This one, with no setting but these."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PLACET_")}
    return plain | {f"PLACET_{name}": value for name, value in variables.items()}


def told(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def run(service: str, *arguments: str, **variables: str) -> tuple[int, list[dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-m", f"placet_{service}", *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stderr == "", "everything is told on standard output, as JSON"
    return done.returncode, told(done.stdout)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_is_told_nothing_names_everything_it_needs(service: str) -> None:
    code, lines = run(service)
    assert code == exits.WRONG
    needed = {"PLACET_DATABASE_URL", "PLACET_AMQP_URL"}
    own = {"gateway": {"PLACET_TOKEN", "PLACET_SIGNING_KEY"}, "approval": {"PLACET_DECISION_KEYS"}}
    needed |= own.get(service, {"PLACET_APP"})
    assert {line["variable"] for line in lines} == needed
    assert all(line["event"] == "setting.wrong" for line in lines)


GIVEN = {"DATABASE_URL": f"postgresql://u:hush@{REFUSED}/d", "AMQP_URL": f"amqp://u:hush@{REFUSED}/"}
KEYS = {"DECISION_KEYS": KeyRegistry(version=1, keys=(SigningKey(bytes(32)).entry(tenants=("t",)),)).model_dump_json()}


def test_an_application_that_cannot_be_loaded_is_one_line() -> None:
    code, lines = run("planner", APP="no_such_module:app", **GIVEN)
    assert code == exits.WRONG
    assert [line["event"] for line in lines] == ["service.wrong"]
    assert "no_such_module" in lines[0]["what"]


def test_servers_that_are_away_are_waited_for_and_then_named() -> None:
    code, lines = run("approval", START_TIMEOUT_MS="4000", **GIVEN, **KEYS)
    assert code == exits.UNAVAILABLE
    assert lines[-1]["event"] == "service.unavailable"
    assert lines[-1]["code"] == "STORE_UNAVAILABLE"
    assert {line["event"] for line in lines[:-1]} == {"check.ok", "check.waits"}
    assert "hush" not in json.dumps(lines)


def test_a_port_for_the_probes_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, lines = run("approval", HEALTH_PORT=str(port), **GIVEN, **KEYS)
    assert code == exits.WRONG
    assert str(port) in lines[-1]["what"]


@pytest.mark.parametrize(
    ("service", "variables", "named"),
    [
        ("approval", {"DECISION_KEYS": '{"version":1,"keys":[],"keys":[]}'}, "stands twice"),
        ("approval", {"DECISION_KEYS": '{"version":1,"keys":[{"keyid":"me"}]}'}, "/keys/0/keyid"),
        ("gateway", {"SIGNING_KEY": '{"private_key":"hush"}'}, "/private_key"),
        ("gateway", {"SIGNING_KEY": SigningKey(bytes(32), "alice").file().model_dump_json()}, "a person's key"),
    ],
)
def test_keys_that_are_none_are_named_and_nothing_starts(service: str, variables: dict[str, str], named: str) -> None:
    token = {"TOKEN": "t" * 40} if service == "gateway" else {}
    code, lines = run(service, **GIVEN, **token, **variables)
    assert code == exits.WRONG
    assert [line["event"] for line in lines] == ["service.wrong"]
    assert named in lines[0]["what"]
    assert "hush" not in json.dumps(lines)


def test_a_host_that_is_not_there_is_named() -> None:
    code, lines = run("dispatcher", HOSTS="dispatcher,gateway", APP="examples.release:app", **GIVEN)
    assert code == exits.WRONG
    assert lines[0]["variable"] == "PLACET_HOSTS"


@pytest.fixture
def waiting() -> Iterator[subprocess.Popen[str]]:
    """A service that waits for its database, as long as nobody ends it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "placet_approval"],
        env=environment(START_TIMEOUT_MS="3600000", **GIVEN, **KEYS),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["event"] == "check.ok"
    assert json.loads(process.stdout.readline())["event"] == "check.waits"
    yield process
    process.kill()
    process.communicate()


def test_it_can_be_ended_while_it_waits_for_its_servers(waiting: subprocess.Popen[str]) -> None:
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(PATIENCE_S) == exits.OK


HANGING = """
import asyncio, sys
from placet.hosting.program import run_process

async def body(settings, ending):
    print("up", flush=True)
    await ending.wait()
    print("draining", flush=True)
    await asyncio.Event().wait()

sys.exit(run_process("hanging", lambda settings: {}, body))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "hanging.py"
    script.write_text(HANGING)
    process = subprocess.Popen(
        [sys.executable, script], env=environment(LOG_LEVEL="error"), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    assert process.stdout.readline() == "draining\n"
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == exits.SIGNALLED + number
    process.communicate()


DEFECT = """
import sys
from placet.hosting.program import run_process

async def body(settings, ending):
    raise RuntimeError("a slip")

sys.exit(run_process("slipping", lambda settings: {}, body))
"""


def test_a_defect_is_told_with_its_place_and_has_a_code_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "slipping.py"
    script.write_text(DEFECT)
    done = subprocess.run([sys.executable, script], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == exits.DEFECT
    (line,) = told(done.stdout)
    assert line["event"] == "service.defect"
    assert "a slip" in line["error"]
    assert done.stderr == ""


def test_a_role_beside_a_list_of_hosts_is_named() -> None:
    code, lines = run("dispatcher", "--role", "resume", HOSTS="resume,dispatcher", APP="examples.release:app", **GIVEN)
    assert code == exits.WRONG
    (line,) = lines
    assert (line["event"], line["variable"]) == ("setting.wrong", "PLACET_HOSTS")
    assert "--role resume" in line["what"]


def test_log_lines_carry_the_name_that_the_probes_tell() -> None:
    code, lines = run("dispatcher", HOSTS="resume,planner", APP="no_such_module:app", **GIVEN)
    assert code == exits.WRONG
    assert {line["service"] for line in lines} == {"resume+planner"}
