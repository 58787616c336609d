"""Decides that no server outlives the run that started it, however the run ends.

Run as a program, it waits for one process, its owner, to be gone, then kills what is noted below a folder and removes
the folder: `reaper.py OWNER_PID FOLDER`. A server is noted as a file `*/pids` with lines "pid start", a container as a
file `*/container` with its id. Standard library only: it must start in no time and depend on nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

POLL_S = 0.2


def started_at(pid: int) -> str:
    """When a process began, so that a number given out again is not taken for it; empty when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "" if Path("/proc/self/stat").exists() or not _answers(pid) else "?"
    return "" if fields[0] in "ZX" else fields[19]


def _answers(pid: int) -> bool:
    """Whether there is such a process, where there is no /proc."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, but there
    return True


def family(pid: int) -> list[int]:
    """A process and all its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, ())
    return found


def send_signal(pids: list[int], number: signal.Signals) -> None:
    """To each that still is there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # ended meanwhile, which is as good
            os.kill(pid, number)


def _wait_for_end(pid: int) -> None:
    since = started_at(pid)
    if since and hasattr(os, "pidfd_open"):
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        select.select([descriptor], [], [])
        return
    while since and started_at(pid) == since:
        time.sleep(POLL_S)


def reap(folder: Path) -> None:
    """Kill and remove what is noted below the folder, and the folder."""
    for note in sorted(folder.glob("*/pids")):
        for line in note.read_text().splitlines():
            pid, _, since = line.partition(" ")
            if since and started_at(int(pid)) == since:
                send_signal(family(int(pid)), signal.SIGKILL)
    for note in folder.glob("*/container"):
        subprocess.run(["docker", "rm", "--force", "--volumes", note.read_text()], capture_output=True, check=False)
    for _ in range(50):  # a dying server may still write a file
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(POLL_S / 4)


def main(arguments: list[str]) -> None:
    """Wait, then reap."""
    owner, folder = arguments
    _wait_for_end(int(owner))
    reap(Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
