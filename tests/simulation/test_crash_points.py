"""A run survives a crash at every point: at each await of each process, and after each applied step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random

import pytest

from placet.topology import APPROVALS, DISPATCHER, PLANNER, QUEUES, RESUME, TOOL_EXECUTOR
from tests.cases import case
from tests.simulation.application import LEDGER, UPSERT
from tests.simulation.expected import expected
from tests.simulation.faults import Faults
from tests.simulation.processes import Layout
from tests.simulation.test_simulation import must_hold
from tests.simulation.workload import PREDICTABLE, Workload
from tests.simulation.world import Report, World

ONE_RUN = replace(
    PREDICTABLE,
    runs_max=1,
    tools=(UPSERT, LEDGER),
    gates=("ask",),
    modes=("goal",),
    teams=("solo",),
    outer=1.0,
    plan_gates=("ask",),
    task_gates=("none",),
    depends=1.0,
    moods=("plain",),
    approve=1.0,
)
"""Plan, suspend, approve, tool, answer."""
STRIDE = 5
"""Which awaits are taken differs from run to run; over a few runs it is all of them."""
EMBEDDED = Layout("embedded", (("host", tuple(QUEUES)),), confirming=False, exclusive=True, hand_over=True)
SERVICES = Layout(
    "services", tuple((queue, (queue,)) for queue in QUEUES), confirming=True, exclusive=False, hand_over=True
)


class CrashAt(Faults):
    """One crash, of the `nth` process to start, in place of its `step`-th resumption, and nothing else."""

    def __init__(self, seed: int, step: int, nth: int = 0) -> None:
        super().__init__(seed, temper="calm")
        self._step = step
        self._nth = nth
        self._started = 0

    def steps_until(self, name: str) -> int | None:
        if name != "crash":
            return None
        self._started += 1
        return self._step if self._started == self._nth + 1 else None


def a_seed(*, at_hand: bool = False) -> int:
    """A workload with several turns and calls, so that there is something to interrupt; is its model at hand?"""
    for seed in count():
        if (Random(f"{seed}/at hand").random() < 0.5) is not at_hand:
            continue
        work = Workload(seed, ONE_RUN)
        calls = [said for says in work.runs[0].says.values() for said in says if not isinstance(said, str)]
        if sum(expected(work, work.runs[0]).effects.values()) != 2 or work.runs[0].submit.timeout_ms is not None:
            continue
        if len(calls) == 2 and len(work.runs[0].plan) == 2 and all(task.call is None for task in work.runs[0].plan):
            return seed
    raise AssertionError


def crash_at_many_awaits(layout: Layout, nth: int, chance: int, *, at_hand: bool = False) -> int:
    """Run once for each point, of which every STRIDE-th is taken; how often the crash struck."""
    seed = a_seed(at_hand=at_hand)
    for struck, step in enumerate(count(1 + chance % STRIDE, STRIDE)):
        report = World(seed, CrashAt(seed, step, nth), ONE_RUN, layout).run()
        must_hold(report)
        assert report.sometimes["a run ended as computed"] == 1
        if not report.faults["crash"]:
            return struck
    raise AssertionError


@case("F02", "F04")
def test_one_process_with_everything_may_be_killed_at_any_await(seed):
    assert crash_at_many_awaits(EMBEDDED, 0, seed) > 100 // STRIDE


@case("F02", "F04")
def test_the_same_where_the_model_is_at_hand(seed):
    assert crash_at_many_awaits(EMBEDDED, 0, seed, at_hand=True) >= 10


@case("F02", "F04", "F09")
@pytest.mark.parametrize("nth", range(5), ids=[DISPATCHER, RESUME, PLANNER, TOOL_EXECUTOR, APPROVALS])
def test_each_service_may_be_killed_at_any_await(nth, seed):
    assert crash_at_many_awaits(SERVICES, nth, seed) >= 1


def undisturbed_or_torn_down(seed: int, after_commit: int | None) -> tuple[Report, Counter[str], int]:
    """One run; everything is torn down right after one commit. The report, model calls by thread, and commits."""
    world = World(seed, Faults(seed, temper="calm"), ONE_RUN, EMBEDDED)
    asked: Counter[str] = Counter()
    call, committed = world.models.call, world.ledger.committed

    async def counted(activity, conversation):
        asked[f"{activity.thread_id}/{activity.turn}"] += 1
        return await call(activity, conversation)

    def dying(process, task):
        process.die()

    def struck(unit, now_ms):
        committed(unit, now_ms)
        if world.ledger.commits == after_commit:
            for process in world.processes:
                assert process.group is not None
                process.group.countdown = 1
                process.group.on_countdown = partial(dying, process)

    world.models.call = counted  # type: ignore[method-assign]
    world.ledger.committed = struck  # type: ignore[method-assign]
    return world.run(), asked, world.ledger.commits


@case("F21", "F06")
def test_everything_may_be_torn_down_after_every_applied_step():
    """The answer and every effect are as computed, and no model is asked twice for what was committed."""
    seed = a_seed()
    report, undisturbed, commits = undisturbed_or_torn_down(seed, None)
    must_hold(report)
    assert commits > 5
    for after_commit in range(1, commits):
        report, asked, _ = undisturbed_or_torn_down(seed, after_commit)
        must_hold(report)
        assert report.sometimes["a run ended as computed"] == 1
        assert asked == undisturbed, f"torn down after commit {after_commit}"


def test_the_crash_is_where_it_is_said_to_be():
    seed = a_seed()
    reports = [World(seed, CrashAt(seed, step), ONE_RUN, EMBEDDED).run() for step in (10, 11)]
    assert all(report.faults["crash"] == 1 for report in reports)
    assert reports[0].digest != reports[1].digest
