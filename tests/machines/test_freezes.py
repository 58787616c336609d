"""What is frozen starts nothing, loses nothing, and is not counted as tried; lifted, it runs once."""

from __future__ import annotations

from typing import Any

import pytest

from placet.activities import RunTool
from placet.errors import Code
from placet.freezing import FreezeOperations, freeze_run, is_frozen
from placet.instants import Instant
from placet.machine import Send
from placet.rows import AttemptRow
from placet_tool_executor.freezes import FROZEN_MS, freeze_key
from placet_tool_executor.machine import OperationMachine
from tests.builders import ALICE, FakeApplication, a_tool
from tests.cases import case
from tests.machines.bench import TENANT, Bench, code, invoked, recorded, reply, timers
from tests.machines.builders_operation import NOT_DONE, OperationBench

# ── starts ─────────────────────────────────────────────────────────────────────────────


@case("M54")
@pytest.mark.parametrize("status", ["frozen *", "frozen deploy", "frozen a deploy z", "frozen", "melting", "FROZEN *"])
def test_what_is_frozen_is_not_started_and_comes_again_as_it_was(status: str) -> None:
    bench = OperationBench()
    bench.freeze_is(status)
    held = bench.look(bench.execute())
    assert (held.kind, held.state, invoked(held), recorded(held)) == ("passed", None, [], [])
    [(message, due_ms)] = timers(held)
    assert (message, due_ms) == (bench.execute(), bench.now_ms + FROZEN_MS)
    bench.freeze_is("thawed")
    assert len(invoked(bench.give(message), RunTool)) == 1
    assert [row.n for row in bench.all_written(AttemptRow)] == [1], "no attempt was counted"
    assert bench.give(message).kind == "absorbed", "and it runs once"


@pytest.mark.parametrize("status", ["thawed", "frozen search", "frozen dep loy", "frozen deploy2"])
def test_what_is_not_frozen_starts(status: str) -> None:
    bench = OperationBench()
    bench.freeze_is(status)
    assert len(invoked(bench.give(bench.execute()), RunTool)) == 1


def test_a_retry_of_what_is_frozen_waits_and_counts_nothing() -> None:
    bench = OperationBench().started()
    bench.give(bench.returned(NOT_DONE))
    bench.later(1_000)
    bench.freeze_is("frozen *")
    held = bench.give(bench.retry())
    [(message, due_ms)] = timers(held)
    assert (bench.state.status, bench.state.n, bench.state.failures) == ("waiting", 1, 1)
    bench.now_ms = Instant(due_ms)
    bench.freeze_is("thawed")
    assert len(invoked(bench.give(message), RunTool)) == 1
    assert bench.state.n == 2


@pytest.mark.parametrize("outcome", ["rejected", "expired"])
def test_what_may_never_start_is_refused_also_while_it_is_frozen(outcome: str) -> None:
    bench = OperationBench(outcome=outcome)
    bench.freeze_is("frozen *")
    bench.give(bench.execute())
    assert bench.state.status == "refused"


def test_the_first_start_of_a_tenant_has_the_state_made_that_later_ones_rely_on() -> None:
    bench = OperationBench()
    bench.freeze_is(None)
    begun = bench.look(bench.execute())
    assert len(invoked(begun, RunTool)) == 1
    opening = FreezeOperations(tenant=TENANT, run_id=freeze_run(TENANT), word="open")
    assert opening in [effect.message for effect in begun.effects if isinstance(effect, Send)]
    again = OperationBench()
    again.freeze_is("thawed")
    assert opening not in [effect.message for effect in again.give(again.execute()).effects if isinstance(effect, Send)]


def test_that_nothing_is_frozen_is_guarded_also_where_nobody_has_said_so() -> None:
    bench = OperationBench()
    assert freeze_key(TENANT) in bench.machine.reads(bench.execute())


# ── the switch ─────────────────────────────────────────────────────────────────────────


def switching() -> Bench:
    app = FakeApplication(tools={"deploy": a_tool("deploy"), "search": a_tool("search")})
    return Bench(OperationMachine(), app=app)


def say(word: str, tool: str | None = None, **changes: Any) -> FreezeOperations:
    fields: dict[str, Any] = {
        "tenant": TENANT,
        "run_id": freeze_run(TENANT),
        "word": word,
        "tool": tool,
        "by": ALICE,
        "reason": "smoke",
    }
    return FreezeOperations(**{**fields, **changes})


@case("M54")
def test_each_switch_is_set_and_lifted_by_itself_and_says_who_why_and_since_when() -> None:
    bench = switching()
    assert bench.give(say("open")).kind == "moved"
    assert bench.state.status == "thawed"
    assert reply(bench.give(say("freeze", "deploy"))).status == "frozen deploy"
    bench.later(5)
    assert reply(bench.give(say("freeze"))).status == "frozen * deploy"
    [one, every_one] = bench.state.frozen
    assert (one.tool, one.by, one.reason, one.since_ms) == ("deploy", "alice", "smoke", bench.now_ms - 5)
    assert (every_one.tool, every_one.since_ms) == ("*", bench.now_ms)
    assert reply(bench.give(say("thaw"))).status == "frozen deploy"
    assert reply(bench.give(say("thaw", "deploy", reason=""))).status == "thawed"
    assert bench.state.frozen is None


def test_the_same_word_again_changes_nothing() -> None:
    bench = switching()
    assert reply(bench.give(say("thaw"))).answer == "duplicate"
    bench.give(say("freeze"))
    again = bench.give(say("freeze", reason="another"))
    assert (again.kind, reply(again).answer, reply(again).status) == ("absorbed", "duplicate", "frozen *")
    assert bench.give(say("open")).kind == "absorbed", "what is frozen stays frozen"
    assert bench.state.status == "frozen *"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (say("freeze", "dploy"), Code.TOOL_UNKNOWN),
        (say("freeze", reason="  "), Code.SUBMISSION_INVALID),
        (say("freeze", by=None), Code.SUBMISSION_INVALID),
        (say("thaw", by=None), Code.SUBMISSION_INVALID),
        (say("freeze", run_id="run-1"), Code.MESSAGE_UNEXPECTED),
        (say("thaw", run_id=freeze_run("globex")), Code.MESSAGE_UNEXPECTED),
    ],
)
def test_a_switch_that_would_not_do_what_it_seems_to_is_refused(message: FreezeOperations, expected: Code) -> None:
    bench = switching()
    refused = bench.look(message)
    assert (refused.kind, code(refused)) == ("refused", expected)


def test_a_tool_that_is_gone_can_be_thawed() -> None:
    bench = switching()
    bench.give(say("freeze", "deploy"))
    del bench.app.tools["deploy"]
    assert reply(bench.give(say("thaw", "deploy"))).status == "thawed"


def test_a_status_that_is_not_understood_holds_everything_back() -> None:
    assert [is_frozen(status, "deploy") for status in ("thawed", "", "frozen ", "thawed ", "froze deploy")] == [
        False, True, True, True, True,
    ]  # fmt: skip


@case("M54")
def test_an_order_that_comes_again_undoes_nothing_that_was_ordered_after_it() -> None:
    """Also one that changed nothing when it came first."""
    bench = switching()
    bench.give(say("open"))
    assert bench.give(say("thaw", order_id="ord_1")).kind == "moved"
    bench.give(say("freeze", order_id="ord_2"))
    bench.give(say("thaw", order_id="ord_3"))
    bench.give(say("freeze", order_id="ord_4"))
    for late in ("ord_1", "ord_3"):
        assert bench.give(say("thaw", order_id=late)).kind == "absorbed"
    assert bench.state.status == "frozen *"
    bench.give(say("thaw", order_id="ord_5"))
    assert bench.give(say("freeze", order_id="ord_4")).kind == "absorbed"
    assert bench.state.status == "thawed"
