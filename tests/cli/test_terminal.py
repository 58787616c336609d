"""Confirming on a real terminal: only the typed word decides, and only if it was typed after the question."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from placet.messages import DecideApproval
from tests.gateway.world import TOKEN, World

QUESTION = b"anything else leaves it undecided: "
PATIENCE_S = 30


class Terminal:
    """`placet` on a terminal of its own."""

    def __init__(self, url: str, home: Path, *arguments: str, typed_ahead: bytes = b"") -> None:
        self.keyboard, its_end = pty.openpty()
        os.write(self.keyboard, typed_ahead)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "PLACET_URL": url,
            "PLACET_TOKEN": TOKEN,
            "PYTHONUTF8": "1",
        }
        program = [sys.executable, "-c", "from placet.cli import main; main()", *arguments]
        self.process = subprocess.Popen(
            program, stdin=its_end, stdout=its_end, stderr=its_end, cwd=home, env=environment, start_new_session=True
        )
        os.close(its_end)
        self.screen = b""

    def wait_until(self, seen: bytes) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while seen not in self.screen:
            assert time.monotonic() < deadline, self.screen.decode(errors="replace")
            assert self._read(), self.screen.decode(errors="replace")

    def type(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    def ended(self) -> int:
        while self._read():
            pass
        os.close(self.keyboard)
        return self.process.wait(PATIENCE_S)

    def _read(self) -> bool:
        ready, _, _ = select.select([self.keyboard], [], [], PATIENCE_S)
        try:
            some = os.read(self.keyboard, 65_536) if ready else b""
        except OSError:  # Linux tells the end of a terminal so.
            some = b""
        self.screen += some
        return bool(some)


def decisions(world: World) -> list[str]:
    return [message.decision for message, _ in world.asked if isinstance(message, DecideApproval)]


@pytest.mark.parametrize("word", ["approve", "reject"])
def test_the_word_itself_decides(world: World, url: str, tmp_path: Path, word: str) -> None:
    row = world.add_request()
    terminal = Terminal(url, tmp_path, word, row["request_id"])
    terminal.wait_until(QUESTION)
    assert row["request_hash"].encode() in terminal.screen
    assert decisions(world) == []
    terminal.type(word.encode() + b"\n")
    assert terminal.ended() == 0, terminal.screen
    assert decisions(world) == [word]


@pytest.mark.parametrize("typed", [b"y\n", b"\n", b"Approve\n", b"approve it\n", b"\x04"])
def test_nothing_else_does(world: World, url: str, tmp_path: Path, typed: bytes) -> None:
    row = world.add_request()
    terminal = Terminal(url, tmp_path, "approve", row["request_id"])
    terminal.wait_until(QUESTION)
    terminal.type(typed)
    assert terminal.ended() == 1
    assert b"Nothing was decided." in terminal.screen
    assert decisions(world) == []


def test_what_was_typed_before_the_question_does_not_count(world: World, url: str, tmp_path: Path) -> None:
    row = world.add_request()
    terminal = Terminal(url, tmp_path, "approve", row["request_id"], typed_ahead=b"approve\n")
    terminal.wait_until(QUESTION)
    terminal.type(b"\n")
    assert terminal.ended() == 1
    assert decisions(world) == []


def test_ctrl_c_leaves_it_undecided_without_a_traceback(world: World, url: str, tmp_path: Path) -> None:
    row = world.add_request()
    terminal = Terminal(url, tmp_path, "approve", row["request_id"])
    terminal.wait_until(QUESTION)
    terminal.process.send_signal(2)
    assert terminal.ended() == 130
    assert b"Traceback" not in terminal.screen
    assert decisions(world) == []


def test_what_is_decided_already_is_not_asked_about(world: World, url: str, tmp_path: Path) -> None:
    row = world.add_request()
    world.put(
        "approval_outcome", run_id="r1", request_id=row["request_id"], outcome="rejected", decided_by="alice",
        decided_at_ms=1, decision_id="d0", reason=None,
    )  # fmt: skip
    terminal = Terminal(url, tmp_path, "approve", row["request_id"])
    assert terminal.ended() == 1
    assert QUESTION not in terminal.screen
    assert b"already rejected by alice [APPROVAL_CONFLICT]" in terminal.screen
    assert decisions(world) == []
