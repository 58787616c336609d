"""Measures Placet on this machine and prints figures with their spread; `--json` for one document.

python -m tests.benchmarks [--runs 1000] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sqlite3

from rich.console import Console
from rich.table import Table

from tests.benchmarks import embedded


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench", description="Measures Placet on this machine.")
    parser.add_argument("--runs", type=int, default=1_000, help="runs in each round")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the median is quoted")
    parser.add_argument("--json", action="store_true", help="one JSON document and nothing else")
    given = parser.parse_args()
    console = Console(stderr=given.json)
    console.print(f"embedded: {given.rounds} rounds of {given.runs} runs, {embedded.IN_FLIGHT} in flight …")
    figures = asyncio.run(embedded.measure(given.runs, given.rounds))
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    if given.json:
        print(json.dumps({"machine": machine, "embedded": figures}))
        return
    table = Table("figure", "value", "of")
    low, high = figures["runs_per_s_min_max"]
    table.add_row("runs/s", f"{figures['runs_per_s']}", f"median of {given.rounds} rounds, {low}–{high}")
    table.add_row("CPU ms/run", f"{figures['cpu_ms_per_run']}", "the whole process, with the client in it")
    table.add_row("decisions/s", f"{figures['decisions_per_s']}", "until the receipt is there")
    latency = f"{figures['approve_to_start_ms_p50']} / {figures['approve_to_start_ms_p99']}"
    table.add_row("approve → tool started, ms", latency, "p50 / p99, one run in flight")
    table.add_row("doubled or missing effects", f"{figures['doubled_effects']}", f"{figures['runs']} runs and more")
    console.print(table)
    console.print(f"{machine['cores']} cores, Python {machine['python']}, SQLite {machine['sqlite']}, synchronous=FULL")


if __name__ == "__main__":
    main()
