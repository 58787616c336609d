"""Proves that a process of the nursery is what the same command would be as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.live.nursery import PLACET, Nursery, nursery
from tests.live.reaper import started_at
from tests.live.system import environment_of, wait_until

MODULES = ("placet_dispatcher", "placet_planner", "placet_tool_executor", "placet_approval", "placet_gateway")


def said(log: str) -> list[dict[str, Any]]:
    """The lines of a log, but for when they were said, and by which process."""
    lines = [json.loads(line) for line in log.splitlines()]
    return [{key: value for key, value in line.items() if key not in ("at", "pid")} for line in lines]


@pytest.mark.parametrize("module", MODULES)
def test_a_service_says_and_ends_with_what_it_does_when_it_is_started_by_hand(module: str, tmp_path: Path) -> None:
    environment = environment_of({"DATABASE_URL": "nowhere", "LOG_LEVEL": "loud", "UNKNOWN": "1"})
    born = nursery().bear((module, "--check"), environment, tmp_path / "log")
    typed = subprocess.run(
        [sys.executable, "-m", module, "--check"], env=environment, capture_output=True, text=True, check=False
    )
    assert born.wait(60) == typed.returncode == 78
    lines = said((tmp_path / "log").read_text())
    assert lines == said(typed.stdout + typed.stderr)
    assert len(lines) >= 3


def test_the_command_line_says_what_it_does_when_it_is_typed(tmp_path: Path) -> None:
    environment = environment_of({})
    born = nursery().bear((PLACET, "migrate"), environment, tmp_path / "log")
    program = Path(sys.executable).parent / "placet"
    typed = subprocess.run([program, "migrate"], env=environment, capture_output=True, text=True, check=False)
    assert born.wait(60) == typed.returncode != 0
    assert (tmp_path / "log").read_text() == typed.stdout + typed.stderr != ""


def forever(tmp_path: Path) -> tuple[str, ...]:
    """A command that does not end."""
    return ("http.server", "0", "--bind", "127.0.0.1", "--directory", str(tmp_path))


def test_a_killed_process_ends_with_its_signal_and_no_other_with_it(tmp_path: Path) -> None:
    first, second = (nursery().bear(forever(tmp_path), os.environ, tmp_path / f"log-{n}") for n in range(2))
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0.1)
    assert first.poll() is None
    first.kill()
    assert first.wait(60) == -signal.SIGKILL
    assert second.poll() is None
    second.kill()
    assert second.wait(60) == -signal.SIGKILL


def test_all_end_with_their_nursery(tmp_path: Path) -> None:
    one = Nursery()
    born = [one.bear(forever(tmp_path), os.environ, tmp_path / f"log-{n}") for n in range(2)]
    assert all(each.poll() is None for each in born)
    one.close()
    wait_until(lambda: not any(started_at(each.pid) for each in born), 60)
