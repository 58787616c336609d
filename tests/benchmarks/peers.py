"""Decides how Placet is compared with its peers: by a harness that measures all alike, in interleaved rounds.

The harness is not part of this project. `--peers DIR` names its folder: `DIR/run.sh PEER OPTIONS` prints one JSON line,
and DIR/common is what `tests/benchmarks/peer` stands on.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.plant import ROOT

LIMIT_S = 400
OWN = Path(__file__).with_name("peer") / "peer.py"
FIGURES = ("runs_per_s", "suspends_per_s", "resumes_per_s", "latency_ms_p50", "latency_ms_p99", "cpu_ms_per_run")
Rows = dict[str, list[dict[str, Any]]]


def compare(
    folder: Path, peers: Sequence[str], modes: Sequence[str], rounds: int, runs: int, say: Callable[[str], None]
) -> Rows:
    """What each round found, by system: `placet-MODE` first. One that fails is told, and has no row for that round.

    Raises FileNotFoundError for a folder that holds no harness.
    """
    for needed in ("run.sh", "common/job.py"):
        if not (folder / needed).is_file():
            raise FileNotFoundError(f"{folder} is no harness for peers: it has no {needed}")
    rows: Rows = {}
    for number in range(rounds):
        for system in [*(f"placet-{mode}" for mode in modes), *peers]:
            say(f"round {number + 1} of {rounds}: {system} …")
            found = _measured(folder, system, runs)
            if isinstance(found, str):
                say(f"{system} was not measured: {found}")
            else:
                rows.setdefault(system, []).append(found)
    return rows


def _measured(folder: Path, system: str, runs: int) -> dict[str, Any] | str:
    """The harness's JSON, or why there is none."""
    command, variables = _how(folder, system)
    options = ("--n", str(runs), "--repeat", "1", "--lat", "100", "--crash", "5")
    with subprocess.Popen(
        [*command, *options],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            told, wrong = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()  # not killed: it has servers to stop
            process.communicate()
            return f"it took more than {LIMIT_S} s"
    lines = [line for line in told.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        last = wrong.strip().splitlines()[-1:] or ["it said nothing"]
        return f"exit code {process.returncode}: {last[0]}"
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _how(folder: Path, system: str) -> tuple[list[str], Mapping[str, str]]:
    name, _, mode = system.partition("-")
    if name != "placet":
        return [str(folder / "run.sh"), system], {}
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return [sys.executable, str(OWN)], {"BENCH_ROOT": str(folder), "BENCH_MODE": mode, "PYTHONPATH": paths}


def summary(rows: Rows) -> dict[str, dict[str, Any]]:
    """The median of each figure by system, its least and greatest, and the ratio of Placet's rate to each peer's,
    round by round."""
    told: dict[str, dict[str, Any]] = {}
    for system, found in rows.items():
        told[system] = {
            figure: {"median": statistics.median(values), "min": min(values), "max": max(values)}
            for figure in FIGURES
            if (values := [row[figure] for row in found if row.get(figure) is not None])
        }
    ours = [system for system in rows if system.startswith("placet-")]
    for system in ours:
        told[system]["rate_ratio"] = {
            peer: [round(a["runs_per_s"] / b["runs_per_s"], 2) for a, b in zip(rows[system], rows[peer], strict=False)]
            for peer in rows
            if peer not in ours
        }
    return told


def rows(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Lines of the table for people: figure, value, of what."""
    told = [
        (figure, f"{found['median']:g}", f"{found['min']:g}–{found['max']:g}")
        for figure, found in figures.items()
        if figure in FIGURES
    ]
    for peer, ratios in figures.get("rate_ratio", {}).items():
        if ratios:
            told.append((f"× the rate of {peer}", f"{statistics.median(ratios):g}", f"round by round: {ratios}"))
    return told
