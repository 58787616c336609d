"""Every invariant holds in every simulated world: recorded seeds first, then fresh ones; a seed repeats exactly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.cases import case
from tests.simulation.__main__ import INTERRUPTED
from tests.simulation.differential import differential
from tests.simulation.faults import FAULTS, Faults
from tests.simulation.many import Tally, judge_of, run_many
from tests.simulation.workload import PREDICTABLE, Workload
from tests.simulation.world import Report, simulate

SEEDS = Path(__file__).with_name("seeds.txt")
BLOCKS, PER_BLOCK = 10, 10
"""100 fresh seeds, in blocks so that they spread over the processes of a test run."""


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


@pytest.mark.parametrize("number", range(2, 42, 5))
def test_what_is_written_is_true_although_faults_never_end(seed, number):
    report = simulate(seed + number, mode="safety")
    must_hold(report)
    assert report.mode == "safety"


@case("F55")
@pytest.mark.parametrize("block", range(3))
def test_the_referee_decides_nothing(seed, block):
    """Without it, with an honest one, and with every lie: as true, and the same ends; and the same journals."""
    sometimes: Counter[str] = Counter()
    for number in range(seed + 3 * block, seed + 3 * block + 3):
        report = differential(number)
        must_hold(report)
        sometimes += report.sometimes
    assert sometimes["the journals are the same with and without a referee"]


def test_many_seeds_run_in_several_processes_and_come_to_one_sum():
    """As one process runs them, block by block."""
    judge = judge_of(None, against=False)
    tally, interrupted = run_many(1, 30, judge, processes=2)
    alone = Tally()
    for number in range(1, 31):
        alone.take(judge(number))
    assert not interrupted
    assert (tally.seeds, tally.failed) == (30, {})
    assert (tally.faults, tally.sometimes, tally.runs) == (alone.faults, alone.sometimes, alone.runs)


def test_ctrl_c_ends_all_processes_and_shows_what_was_found():
    program = [sys.executable, "-u", "-m", "tests.simulation", "--base", "1", "--seeds", "1000000", "--processes", "2"]
    with subprocess.Popen(
        program, cwd=SEEDS.parents[2], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("seeds 1 to 1000000")
        while "a minute" not in (progress := running.stdout.read(40)):
            assert progress, "it has ended by itself"
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to all of them
        output, errors = running.communicate(timeout=30)
    assert running.returncode == INTERRUPTED
    assert "interrupted" in output
    assert "faults injected" in output
    assert "Traceback" not in errors
    with pytest.raises(ProcessLookupError):  # nobody of them is left
        os.killpg(running.pid, 0)


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
