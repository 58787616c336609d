"""Proves what the benchmarks count with: CPU of what has ended, effects, a sample's shares, and peers that fail."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks import counting, peers
from tests.benchmarks.application import started
from tests.benchmarks.distributed import lanes, percentile


def test_cpu_of_children_that_have_ended_is_counted_with_their_parent() -> None:
    burn = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    before_s = counting.cpu_s({"here": os.getpid()})["here"]
    subprocess.run([sys.executable, "-I", "-c", burn], check=True)
    assert counting.cpu_s({"here": os.getpid()})["here"] - before_s >= 0.19


def test_memory_of_a_process_is_counted_with_its_children() -> None:
    hold = "import sys; held = bytearray(64_000_000); print(flush=True); sys.stdin.read()"
    before_mb = counting.rss_mb(os.getpid())
    with subprocess.Popen([sys.executable, "-I", "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert counting.rss_mb(os.getpid()) - before_mb >= 64
        child.communicate()


def test_effects_are_told_by_run_each_time_the_tool_ran(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    assert started(effects) == {}
    effects.write_text("one 5\ntwo 6\none 7\n")
    assert started(effects) == {"one": [5, 7], "two": [6]}


def test_a_percentile_is_a_sample() -> None:
    samples = [float(number) for number in range(100, 0, -1)]
    assert (percentile(samples, 0.5), percentile(samples, 0.99), percentile([3.0], 0.99)) == (51.0, 100.0, 3.0)


async def test_lanes_do_each_run_once_and_no_more_at_a_time_than_there_are_lanes() -> None:
    busy: set[str] = set()
    most: list[int] = []

    async def one(run_id: str) -> None:
        busy.add(run_id)
        most.append(len(busy))
        await asyncio.sleep(0)  # the other lanes' turn
        busy.remove(run_id)

    assert await lanes(4, [str(number) for number in range(20)], one) >= 0
    assert len(most) == 20
    assert max(most) == 4


async def test_a_run_that_fails_ends_all_lanes() -> None:
    async def one(run_id: str) -> None:
        raise RuntimeError(run_id)

    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        await lanes(2, ["a", "b", "c"], one)


HARNESS = """#!/bin/sh
test "$1" = good || { echo "no such peer: $1" >&2; exit 2; }
echo '{"peer": "good", "runs_per_s": 20.0, "cpu_ms_per_run": 3.0}'
"""


def test_a_peer_that_fails_is_told_and_the_others_are_measured(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "job.py").touch()
    run = tmp_path / "run.sh"
    run.write_text(HARNESS)
    run.chmod(0o755)
    said: list[str] = []
    rows = peers.compare(tmp_path, ["good", "bad"], [], 2, 10, said.append)
    assert [row["runs_per_s"] for row in rows["good"]] == [20.0, 20.0]
    assert "bad" not in rows
    assert said.count("bad was not measured: exit code 2: no such peer: bad") == 2
    assert peers.summary(rows)["good"]["cpu_ms_per_run"] == {"median": 3.0, "min": 3.0, "max": 3.0}


def test_a_folder_without_a_harness_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"is no harness for peers: it has no run\.sh"):
        peers.compare(tmp_path, ["restate"], ["five"], 1, 10, print)


def test_ratios_are_of_the_same_round() -> None:
    rows = {
        "placet-five": [{"runs_per_s": 10.0}, {"runs_per_s": 30.0}],
        "restate": [{"runs_per_s": 20.0}, {"runs_per_s": 20.0}],
    }
    told = peers.summary(rows)
    assert told["placet-five"]["rate_ratio"] == {"restate": [0.5, 1.5]}
    assert "rate_ratio" not in told["restate"]
    assert ("× the rate of restate", "1", "round by round: [0.5, 1.5]") in peers.rows(told["placet-five"])


def test_cpu_of_this_process_grows_with_its_work() -> None:
    before_s = counting.own_cpu_s()
    end_s = time.process_time() + 0.1
    while time.process_time() < end_s:
        pass
    assert counting.own_cpu_s() - before_s >= 0.05
