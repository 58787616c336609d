"""Decides how the cost of a measurement is counted: CPU and memory of processes with their children, by /proc."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

TICKS_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


def cpu_s(roots: Mapping[str, int]) -> dict[str, float]:
    """CPU seconds used so far by each named process and its descendants, those that have ended included."""
    used, children = _processes()
    return {name: sum(used.get(pid, 0) for pid in _family(root, children)) / TICKS_S for name, root in roots.items()}


def own_cpu_s() -> float:
    """CPU seconds used so far by this process alone."""
    spent = os.times()
    return spent.user + spent.system


def busy_s() -> float:
    """CPU seconds that the whole machine has worked, or was robbed of by others on its host, so far."""
    fields = (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, fields)
    return (user + nice + system + interrupts + soft + stolen) / TICKS_S


def rss_mb(root: int) -> float:
    """Memory of a process and its descendants, in megabytes; pages that they share count for each."""
    pages = 0
    for pid in _family(root, _processes()[1]):
        with suppress(OSError):  # it ended meanwhile
            pages += int((_PROC / str(pid) / "statm").read_text().split()[1])
    return pages * PAGE_BYTES / 1e6


def _processes() -> tuple[dict[int, int], dict[int, list[int]]]:
    """Ticks used by each process and its dead children; the children of each."""
    used: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for stat in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            used[pid] = sum(map(int, fields[11:15]))
            children.setdefault(int(fields[1]), []).append(pid)
    return used, children


def _family(root: int, children: Mapping[int, list[int]]) -> list[int]:
    found = [root]
    for parent in found:
        found += children.get(parent, ())
    return found
