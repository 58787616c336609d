"""Decides what gates outside promise on every store: asked once, never taken for a yes, their answer kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from placet import App, Suspend, ToolContext, scripted
from placet.activities import AskGate
from placet.adapters.http_gates import HttpGates
from placet.gates import OutsideAnswer
from placet.messages import CancelRun, GateAnswered
from placet.plans import PlannedTask
from placet.script import call
from tests.cases import case
from tests.contracts.gating_contract import assert_replays
from tests.contracts.on_store import OnStore
from tests.contracts.paying_desk import Desk
from tests.rebuilding import ALICE, TENANT

SENT: Counter[str] = Counter()
ASKED: list[dict[str, Any]] = []
"""What the gate outside was asked."""
Answer = Callable[[httpx.Request], httpx.Response]
TASK = (PlannedTask(id="t", title="Send it"),)


def a_desk(*steps: Any, on_error: Any = "suspend", consequential: bool = False, gate: Any = None) -> Callable[[], App]:
    """A desk whose sending is judged outside."""

    def made() -> App:
        app = App("desk", version="1")

        @app.tool(effect="idempotent", consequential=consequential)
        async def send(ctx: ToolContext, cents: int = 5) -> str:
            """Send money."""
            SENT[ctx.operation_id] += 1
            return f"sent {cents}"

        app.http_gate("fraud", "https://gates.example/fraud", tools=[send], on_error=on_error, timeout_s=1, quorum=1)
        if gate is not None:
            app.gate("tool_call", tools=[send])(gate)
        model = scripted(*(steps or (call("send", cents=5), "Told.")))
        app.team("desk", agents=[app.agent("clerk", model=model, tools=[send])])
        return app

    return made


class OutsideDesk(Desk):
    """A desk in whose world the gate answers as it is told."""

    def __init__(self, store: Any, clock: Any, made: Callable[[], App], answer: Answer | None) -> None:
        self.answer = answer
        super().__init__(store, clock, made)

    def _build(self) -> None:
        super()._build()

        def said(request: httpx.Request) -> httpx.Response:
            ASKED.append({**json.loads(request.content), "key": request.headers["idempotency-key"]})
            assert self.answer is not None
            return self.answer(request)

        gates = HttpGates(self.app.http_gates, transport=httpx.MockTransport(said))
        self._invoker._gates = None if self.answer is None else gates


def says(verdict: str, **more: Any) -> Answer:
    """A gate that says this."""
    return lambda request: httpx.Response(200, json={"verdict": verdict, **more})


class OutsideContract(OnStore):
    """Whole runs, one of whose gates is elsewhere."""

    @pytest.fixture(autouse=True)
    def nobody_asked_outside(self) -> None:
        SENT.clear()
        ASKED.clear()

    async def test_a_call_that_the_gate_allows_is_made_and_its_rule_is_recorded(self, store, clock):
        office, status = await at_rest(store, clock, a_desk(consequential=True), says("allow", version="7"))
        assert (status, len(SENT), len(ASKED)) == ("succeeded", 1, 1)
        [asked] = ASKED
        assert (asked["gate"], asked["boundary"], asked["tenant"]) == ("fraud", "tool_call", TENANT)
        assert (asked["subject"]["input"], asked["subject"]["tool"]) == ({"cents": 5}, "send")
        [row] = await office.store.rows(TENANT, "operation", "r1")
        assert (row["rule"], row["authority"], asked["key"]) == ("fraud@7", "policy", f"{row['operation_id']}/fraud")
        assert "gate.answered" in [leaf["kind"] for leaf in await office.store.rows(TENANT, "audit_leaf", "r1")]
        await assert_replays(office)

    async def test_a_call_that_the_gate_suspends_is_put_to_a_person_with_its_reason(self, store, clock):
        office, status = await at_rest(store, clock, a_desk(), says("suspend", reason="odd hour", version="7"))
        request = await office.one()
        assert (status, request["rule"], request["reason"]) == ("suspended", "fraud@7", "odd hour")
        await office.say_of(request, "approve")
        assert await office.to_rest() == "succeeded"
        assert (len(SENT), len(ASKED)) == (1, 1), "a decided call is not judged again"

    @case("E35")
    async def test_a_call_that_the_gate_denies_is_not_made_and_nobody_is_asked(self, store, clock):
        office, status = await at_rest(store, clock, a_desk(gate=lambda_gate(True)), says("deny", reason="fraud"))
        assert (status, dict(SENT), await office.open_requests()) == ("succeeded", {}, [])
        assert (await office.told())[0].startswith("GATE_DENIED: fraud denies this call: fraud")

    async def test_what_a_gate_here_denies_is_not_asked_about_elsewhere(self, store, clock):
        await at_rest(store, clock, a_desk(gate=lambda_gate(False)), says("allow"))
        assert (ASKED, dict(SENT)) == ([], {})

    async def test_what_a_gate_here_suspends_stays_suspended_though_the_gate_outside_allows(self, store, clock):
        office, status = await at_rest(store, clock, a_desk(gate=lambda_gate(Suspend("mine"))), says("allow"))
        assert (status, (await office.one())["reason"], dict(SENT)) == ("suspended", "mine", {})

    @case("E28")
    @pytest.mark.parametrize("on_error", ["suspend", "deny"])
    @pytest.mark.parametrize(
        "answer",
        [
            lambda request: httpx.Response(500, json={"verdict": "allow"}),
            lambda request: httpx.Response(302, headers={"location": "https://gates.example/allow"}),
            lambda request: httpx.Response(204),
            lambda request: httpx.Response(200, text="allow"),
            lambda request: httpx.Response(200, json="allow"),
            lambda request: httpx.Response(200, json={}),
            lambda request: httpx.Response(200, json={"verdict": "yes"}),
            lambda request: httpx.Response(200, json={"verdict": True}),
            lambda request: httpx.Response(200, json={"verdict": "allow", "note": "x"}),
            lambda request: httpx.Response(200, json={"verdict": "allow", "reason": 5}),
            lambda request: httpx.Response(200, content=b'{"verdict":"deny","verdict":"allow"}'),
            lambda request: httpx.Response(200, content=b'{"verdict":"allow"}' + b" " * 70_000),
            lambda request: httpx.Response(200, content=b'{"verdict":"allow","reason":"\\ud800"}'),
            lambda request: (_ for _ in ()).throw(httpx.ConnectError("away")),
            lambda request: (_ for _ in ()).throw(ValueError("a defect")),
            None,
        ],
    )
    async def test_whatever_is_no_answer_lets_nothing_pass(self, store, clock, answer, on_error):
        office, status = await at_rest(store, clock, a_desk(on_error=on_error, gate=lambda_gate(True)), answer)
        assert not SENT
        if on_error == "deny":
            assert (status, await office.open_requests()) == ("succeeded", [])
            assert "could not be asked" in (await office.told())[0]
        else:
            assert status == "suspended"
            assert "Gate 'fraud' could not be asked, so a person decides" in (await office.one())["reason"]

    async def test_an_answer_that_comes_late_or_twice_or_from_nowhere_changes_nothing(self, store, clock):
        office, _ = await at_rest(store, clock, a_desk(), says("suspend"))
        request = await office.one()
        told = {"tenant": TENANT, "run_id": "r1", "operation_id": request["operation_id"], "gate": "fraud"}
        before = await office.state()
        await office.say(GateAnswered(**told, answer=OutsideAnswer(verdict="allow")), "late")
        assert (await office.to_rest(), dict(SENT)) == ("suspended", {})
        assert await office.state() == before

    async def test_an_edit_cannot_pass_by_the_gate_outside(self, store, clock):
        office, _ = await at_rest(store, clock, a_desk(), says("suspend"))
        first = await office.one()
        await office.say_of(first, "edit", value={"cents": 900})
        assert await office.to_rest() == "suspended"
        second = await office.one()
        assert (second["request_hash"], dict(SENT)) == (first["request_hash"], {})
        assert "GATE_FAILED" in second["reason"]

    async def test_a_run_that_is_cancelled_while_a_gate_is_asked_makes_no_call(self, store, clock):
        office = OutsideDesk(store, clock, a_desk(), says("allow"))
        await office.submit(tasks=TASK)

        async def is_waiting() -> bool:
            return "judging" in json.dumps(await office.state())

        office.hold = False
        office._is_begun = lambda activity: not isinstance(activity, AskGate)  # type: ignore[method-assign]
        await office.work(until=is_waiting)
        assert (await office.state())["status"] == "running"
        await office.say(CancelRun(tenant=TENANT, run_id="r1", by=ALICE), "cancel")
        assert (await office.to_rest(), dict(SENT)) == ("cancelled", {})

    async def test_a_gate_that_nobody_asks_any_more_has_failed_after_its_time(self, store, clock):
        office = OutsideDesk(store, clock, a_desk(), says("allow"))
        office._is_begun = lambda activity: not isinstance(activity, AskGate)  # type: ignore[method-assign]
        await office.submit(tasks=TASK)
        assert (await office.to_rest(), dict(SENT), ASKED) == ("suspended", {}, [])
        assert "it did not answer in time" in (await office.one())["reason"]


def lambda_gate(answer: Any) -> Any:
    """A gate here with one answer."""

    def here(subject: Any) -> Any:
        return answer

    return here


async def at_rest(store: Any, clock: Any, made: Callable[[], App], answer: Any) -> tuple[OutsideDesk, str]:
    """A run that only waits for people, and its status."""
    office = OutsideDesk(store, clock, made, answer)
    await office.submit(tasks=TASK)
    return office, await office.to_rest()
