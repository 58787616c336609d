"""Proves what a person meets: `placet dev` as a process of its own, over HTTP and with the real command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.release.repository import git, scratch_repository

PLACET = str(Path(sys.executable).parent / "placet")
PATIENCE_S = 60


@dataclass
class Running:
    """A running `placet dev`."""

    process: subprocess.Popen[str]
    environment: dict[str, str]
    data: Path
    repository: Path

    def type(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Type a command."""
        return subprocess.run(
            [PLACET, *arguments],
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def ask(self, *arguments: str, code: int = 0) -> Any:
        """The answer of a command as data; errors come on stderr."""
        done = self.type(*arguments, "--json")
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout or done.stderr)

    def end(self, number: signal.Signals) -> int:
        """Signal it and wait for its exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Running]]:
    """Starts `placet dev` on the release example; several starts share one data directory."""
    repository = scratch_repository(tmp_path)
    data = tmp_path / "data"
    environment = {
        **os.environ,
        "RELEASE_REPOSITORY": str(repository),
        "PLACET_DATA": str(data),
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }
    started: list[subprocess.Popen[str]] = []

    def begin() -> Running:
        command = [PLACET, "dev", "examples.release:app", "--data", str(data), "--port", "0", "--json"]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        return Running(process, {**environment, "PLACET_URL": json.loads(line)["url"]}, data, repository)

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def suspended(running: Running) -> dict[str, Any]:
    """Start the release and return the request it waits for."""
    goal = "Cut the release v1.2.0"
    running.ask("run", "start", "release", "--id", "r1", "--goal", goal, "--wait", code=3)
    (request,) = running.ask("inbox")["items"]
    return dict(request)


def test_a_release_is_started_shown_approved_and_accounted_for_from_the_command_line(
    start: Callable[[], Running],
) -> None:
    running = start()
    request = suspended(running)
    assert git(running.repository, "tag", "--list", "v1.2.0") == ""
    shown = running.ask("show", request["request_id"])
    assert (
        running.ask("approve", request["request_id"], "--yes", "--hash", shown["request_hash"])["answer"] == "accepted"
    )
    watched = running.type("run", "watch", "r1")
    assert watched.returncode == 0
    assert "the run is succeeded" in watched.stdout
    assert running.ask("run", "show", "r1")["status"] == "succeeded"
    assert git(running.repository, "tag", "--list", "v1.2.0") == "v1.2.0"
    assert running.ask("inbox")["items"] == []
    again = running.ask("approve", request["request_id"], "--yes", code=1)
    assert again["error"]["code"] == "APPROVAL_CONFLICT"
    assert running.end(signal.SIGTERM) == 0


def test_a_rejected_release_tags_nothing_and_says_why(start: Callable[[], Running]) -> None:
    running = start()
    request = suspended(running)
    running.ask("reject", request["request_id"], "--reason", "not on a Friday", "--yes")
    running.type("run", "watch", "r1")
    run = running.ask("run", "show", "r1")
    assert "not on a Friday" in run["answer"]
    assert git(running.repository, "tag", "--list", "v1.2.0") == ""


def test_whoever_started_a_run_cannot_approve_it(start: Callable[[], Running]) -> None:
    running = start()
    request = suspended(running)
    refused = running.ask("approve", request["request_id"], "--yes", "--as", "developer", code=1)
    assert refused["error"]["code"] == "APPROVER_NOT_ALLOWED"
    assert len(running.ask("inbox")["items"]) == 1


def test_sigterm_ends_the_process_and_the_next_one_goes_on(start: Callable[[], Running]) -> None:
    first = start()
    request = suspended(first)
    assert first.end(signal.SIGTERM) == 0
    second = start()
    (waiting,) = second.ask("inbox")["items"]
    assert waiting["request_id"] == request["request_id"]
    second.ask("approve", request["request_id"], "--yes")
    second.type("run", "watch", "r1")
    assert git(second.repository, "tag", "--list", "v1.2.0") == "v1.2.0"
    assert second.end(signal.SIGINT) == 0


def test_a_second_process_on_the_same_data_is_refused_and_told_who_has_it(start: Callable[[], Running]) -> None:
    running = start()
    command = [PLACET, "dev", "examples.release:app", "--data", str(running.data), "--port", "0"]
    second = subprocess.run(
        command, env=running.environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert second.returncode == 1
    assert str(running.process.pid) in second.stderr
    assert "Traceback" not in second.stderr


def test_only_the_owner_can_read_what_is_kept(start: Callable[[], Running]) -> None:
    running = start()
    kept = {path.name: path.stat().st_mode & 0o777 for path in running.data.iterdir()}
    assert kept.pop("placet.db") == 0o600
    assert kept["token"] == 0o600
    assert running.data.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        ("no_such_module:app", "no_such_module"),
        ("examples.release:nothing", "nothing"),
        ("examples.release.tools:create_tag", "App"),
        ("examples.release", "module:"),
    ],
)
def test_an_application_that_cannot_be_loaded_is_one_clear_line(app: str, expected: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [PLACET, "dev", app, "--data", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()
