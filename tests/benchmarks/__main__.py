"""Measures Placet on this machine and prints figures with their spread; `--json` for one document.

python -m tests.benchmarks [--only embedded five three executors] [--runs N] [--rounds 3] [--json]
python -m tests.benchmarks --peers HARNESS [--with restate …]     beside what a harness of peers brings

The bounded default takes about three minutes. What needs servers that are not installed is left out, and said so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks import distributed, embedded, executors, peers
from tests.benchmarks.distributed import Amount
from tests.benchmarks.plant import MODES, planted
from tests.live.kinds import MissingServerError

Lines = list[tuple[str, str, str]]
RUNS_EMBEDDED = 500
RUNS_OF_PEERS = 800


def main() -> None:
    """Measure and print."""
    given = _given()
    console = Console(stderr=given.json)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    if given.peers is not None:
        _compare(given, console, machine)
        return
    found: dict[str, Any] = {"machine": machine}
    for name in given.only:
        console.print(f"{name} …")
        try:
            found[name] = MEASUREMENTS[name][0](given)
        except MissingServerError as error:
            console.print(f"{name} is not measured: {error}")
    if given.json:
        print(json.dumps(found))
        return
    for name, (_, lines) in MEASUREMENTS.items():
        if name in found:
            _table(console, name, lines(found[name]))
    told = ", ".join(f"{name} {value}" for name, value in machine.items())
    console.print(f"{told}; SQLite with synchronous=FULL, PostgreSQL with fsync")


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description="Measures Placet on this machine.")
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS), help="what is measured")
    parser.add_argument("--runs", type=int, help="runs in each round (default: what fits into a few seconds)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the median is quoted")
    parser.add_argument("--backlog", type=int, default=0, help="also with so many suspended runs (services only)")
    parser.add_argument("--library", action="store_true", help="ask scripts by way of the model library, as models are")
    parser.add_argument("--events", action="store_true", help="services publish events for the outside")
    parser.add_argument("--public", action="store_true", help="reviewers publish their decisions themselves")
    parser.add_argument("--json", action="store_true", help="one JSON document and nothing else")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="a harness of peers, to run side by side with")
    parser.add_argument("--with", nargs="+", dest="against", default=["restate"], metavar="PEER", help="which peers")
    return parser.parse_args()


def _embedded(given: argparse.Namespace) -> dict[str, Any]:
    return asyncio.run(embedded.measure(given.runs or RUNS_EMBEDDED, given.rounds))


def _services(mode: str) -> Callable[[argparse.Namespace], dict[str, Any]]:
    def measured(given: argparse.Namespace) -> dict[str, Any]:
        amount = Amount(runs=given.runs, rounds=given.rounds, backlog=given.backlog)
        with planted(library=given.library, events=given.events, public=given.public) as plant:
            return asyncio.run(distributed.measure(plant, mode, amount))

    return measured


MEASUREMENTS: dict[str, tuple[Callable[[argparse.Namespace], dict[str, Any]], Callable[[dict[str, Any]], Lines]]] = {
    "embedded": (_embedded, embedded.rows),
    **{mode: (_services(mode), distributed.rows) for mode in MODES},
    "executors": (lambda _: executors.measure(), executors.rows),
}
"""What can be measured: how, and as which lines of the table."""


def _compare(given: argparse.Namespace, console: Console, machine: dict[str, Any]) -> None:
    """Placet's services and its peers, in interleaved rounds of the peers' own harness."""
    modes = [mode for mode in MODES if mode in given.only]
    runs = given.runs or RUNS_OF_PEERS
    found = peers.compare(given.peers, given.against, modes, given.rounds, runs, console.print)
    told = peers.summary(found)
    if given.json:
        print(json.dumps({"machine": machine, "peers": told, "rounds": found}))
        return
    for system, figures in told.items():
        _table(console, system, peers.rows(figures))


def _table(console: Console, title: str, lines: Lines) -> None:
    table = Table("figure", "value", "of", title=title, title_justify="left")
    for line in lines:
        table.add_row(*line)
    console.print(table)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)  # what was started has been ended on the way here
