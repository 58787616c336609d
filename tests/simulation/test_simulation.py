"""Every invariant holds in every simulated world: recorded seeds first, then fresh ones; a seed repeats exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.cases import case
from tests.simulation.faults import FAULTS, Faults
from tests.simulation.workload import PREDICTABLE, Workload
from tests.simulation.world import Report, simulate

SEEDS = Path(__file__).with_name("seeds.txt")
BLOCKS, PER_BLOCK = 10, 20
"""200 fresh seeds, in blocks so that they spread over the processes of a test run."""


def recorded() -> list[int]:
    """The seeds of seeds.txt."""
    lines = (line.partition("#")[0].split() for line in SEEDS.read_text().splitlines())
    return [int(words[0]) for words in lines if words]


def must_hold(report: Report) -> None:
    """Fail with everything that is needed to repeat and to understand."""
    if report.failed:
        pytest.fail(f"{report}\nagain: make simulate SEED={report.seed}", pytrace=False)


@pytest.mark.parametrize("number", recorded())
def test_a_seed_that_failed_once_holds_now(number):
    must_hold(simulate(number))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_invariant_holds_under_fresh_seeds(seed, block):
    ends: Counter[str] = Counter()
    sometimes: Counter[str] = Counter()
    for number in range(seed + block * PER_BLOCK, seed + (block + 1) * PER_BLOCK):
        report = simulate(number)
        must_hold(report)
        ends += report.runs
        sometimes += report.sometimes
    # A world in which nothing fails because nothing happens proves nothing.
    assert ends["succeeded"] >= 3, ends
    assert sometimes["an attempt was started"] >= 5, sometimes
    assert sometimes["decision: accepted"] >= 5, sometimes


def test_the_same_seed_gives_the_same_history():
    for number in range(4):
        first, second = simulate(number), simulate(number)
        assert first.events == second.events
        assert first.digest == second.digest
        assert len(first.events) > 10


def test_a_seed_gives_the_same_history_in_another_process_with_other_string_hashes():
    program = "from tests.simulation.world import simulate; print(*(simulate(n).digest for n in range(3)))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            cwd=SEEDS.parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert runs[0].split() == [simulate(number).digest for number in range(3)]


def test_different_seeds_give_different_histories():
    assert len({simulate(number).digest for number in range(5)}) == 5


@case("F21")
@pytest.mark.parametrize("number", range(3, 60, 8))
def test_what_processes_and_messages_suffer_changes_nothing_about_how_a_run_ends(number):
    """Crashes, lost commits, repeats, a clock that goes back: the end is computed beforehand."""
    report = simulate(number, profile=PREDICTABLE, temper="many")
    must_hold(report)
    told = report.sometimes["a run ended as computed"] + report.sometimes["a person was asked whether it happened"]
    assert told >= len(Workload(number, PREDICTABLE).runs)


def test_leaving_one_fault_out_leaves_the_others_their_chances():
    whole = Faults(7, temper="storm")
    part = Faults(7, temper="storm", without=["crash"])
    assert set(whole.rates) - set(part.rates) == {"crash"}
    strikes = [[faults.hits("lost") for _ in range(200)] for faults in (whole, part)]
    assert strikes[0] == strikes[1]
    assert any(strikes[0])


def test_some_seeds_have_no_faults_some_a_few_and_some_all():
    shares = {len(Faults(number).rates) for number in range(60)}
    assert 0 in shares
    assert len(FAULTS) in shares
    assert any(0 < share < 12 for share in shares)
