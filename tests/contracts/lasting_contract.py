"""Decides what time, second thoughts and other calls do to what people are asked, on every store."""

from __future__ import annotations

import json
from typing import Any

import pytest

from placet.errors import Code
from placet.messages import RevokeApproval
from placet.plans import DirectCall, PlannedTask
from placet.script import call
from placet.values import Principal, PrincipalKind
from tests.cases import case
from tests.contracts.paying_desk import OPEN_S, PAID, AtDesk, Desk, a_desk
from tests.rebuilding import TENANT, Office


class LastingContract(AtDesk):
    """Whole runs, and what becomes of their questions and approvals."""

    # ── time ───────────────────────────────────────────────────────────────────────────

    async def run_out(self, office: Desk, clock: Any) -> str:
        """Nobody decides."""
        clock.at_ms += OPEN_S * 1_000
        return await office.to_rest()

    @case("M01")
    @pytest.mark.parametrize(("path", "ends"), [("tell", "succeeded"), ("fail", "expired")])
    async def test_what_nobody_decided_in_time_is_not_made_and_the_run_takes_its_path(self, store, clock, path, ends):
        office, first = await self.paying(store, clock, expires_after_s=OPEN_S, on_expiry=path)
        assert await self.run_out(office, clock) == ends
        assert not PAID
        (outcome,) = await office.store.rows(TENANT, "approval_outcome", "r1")
        assert (outcome["outcome"], outcome["decided_by"]) == ("expired", None)
        late = await office.say_of(first, "reject")
        assert late["failure"]["code"] == Code.APPROVAL_EXPIRED
        if path == "tell":
            assert await office.told() == ["Nobody decided on this call in time. It was not made."]

    @case("M01", "M23")
    async def test_asked_once_more_and_then_no_further(self, store, clock):
        office, first = await self.paying(store, clock, expires_after_s=OPEN_S, on_expiry="ask_again")
        assert await self.run_out(office, clock) == "suspended"
        second = await office.one()
        assert second["request_id"] != first["request_id"]
        assert second["content_text"] == first["content_text"]
        assert "asked once more" in second["reason"]
        assert (await office.say_of(first, "approve"))["failure"]["code"] == Code.APPROVAL_EXPIRED
        assert await self.run_out(office, clock) == "succeeded"
        assert not PAID

    @case("M01")
    async def test_who_decides_the_second_time_decides(self, store, clock):
        office, _ = await self.paying(store, clock, expires_after_s=OPEN_S, on_expiry="ask_again")
        await self.run_out(office, clock)
        await office.say_of(await office.one(), "approve")
        assert await office.to_rest() == "succeeded"
        assert list(PAID.values()) == [1]

    @case("M02")
    async def test_a_yes_after_the_deadline_and_before_the_timer_is_too_late(self, store, clock):
        office, first = await self.paying(store, clock, expires_after_s=OPEN_S)
        clock.at_ms += OPEN_S * 1_000
        late = await office.say_of(first, "approve")
        assert late["failure"]["code"] == Code.APPROVAL_EXPIRED
        assert await office.to_rest() == "succeeded"
        assert not PAID
        (outcome,) = await office.store.rows(TENANT, "approval_outcome", "r1")
        assert outcome["outcome"] == "expired"

    @case("M05")
    async def test_people_are_reminded_once_whatever_is_restarted(self, store, clock):
        office = Desk(store, clock, a_desk(expires_after_s=OPEN_S, remind_before_s=1_200), reopen=self.reopen)
        await office.submit(tasks=(PlannedTask(id="t", title="Pay c-1"),))
        await office.work(until=lambda: is_asked(office))
        clock.at_ms += 5_990_000
        assert "approval.expiring" not in await office.kinds()
        clock.at_ms += 11_000
        for _ in range(3):
            await office.work(until=lambda: told_of_the_end(office))
            await office.rebuild()
        assert (await office.kinds()).count("approval.expiring") == 1
        assert await office.to_rest() == "succeeded", "and it expires all the same"
        assert (await office.kinds()).count("approval.expiring") == 1
        await office.store.close()

    @case("M05")
    async def test_what_was_decided_is_not_reminded_of(self, store, clock):
        office, first = await self.paying(store, clock, expires_after_s=OPEN_S, remind_before_s=1_200)
        await office.say_of(first, "approve")
        await self.run_out(office, clock)
        assert "approval.expiring" not in await office.kinds()

    @case("M07", "M08")
    async def test_an_approval_that_was_not_used_in_time_is_asked_for_anew(self, store, clock):
        office, first = await self.paying(store, clock, use_within_s=60)
        await office.say_of(first, "approve")
        clock.at_ms += 61_000  # nobody was at work
        assert await office.to_rest() == "suspended"
        assert not PAID
        second = await office.one()
        assert (second["generation"], second["operation_id"]) == (2, first["operation_id"])
        assert "was not used in time" in second["reason"]
        await office.say_of(second, "approve")
        assert await office.to_rest() == "succeeded"
        assert dict(PAID) == {f"{first['operation_id']} c-1 100": 1}

    @case("M07")
    async def test_only_the_executor_was_late(self, store, clock):
        office, first = await self.paying(store, clock, use_within_s=60)
        await office.say_of(first, "approve")
        await office.work(until=lambda: is_released(office))
        clock.at_ms += 61_000
        assert await office.to_rest() == "suspended"
        assert not PAID
        second = await office.one()
        assert second["supersedes"] == first["request_id"]
        await office.say_of(second, "approve")
        assert await office.to_rest() == "succeeded"
        assert dict(PAID) == {f"{first['operation_id']} c-1 100": 1}

    # ── taking back ────────────────────────────────────────────────────────────────────

    async def revoke(self, office: Desk, request: dict[str, Any]) -> dict[str, Any]:
        message = RevokeApproval(
            tenant=TENANT,
            run_id="r1",
            request_id=request["request_id"],
            operation_id=request["operation_id"],
            by=Principal(kind=PrincipalKind.HUMAN, id="bob"),
            reason="wrong one",
        )
        Desk.said += 1
        await office.say(message, f"revoke-{Desk.said}")
        return dict(json.loads(office.answers[-1]))

    @case("M25", "M26", "M28", "M29")
    async def test_an_approval_that_is_taken_back_in_time_lets_nothing_happen_ever(self, store, clock):
        office, first = await self.paying(store, clock)
        await office.say_of(first, "approve")
        await office.work(until=lambda: is_released(office))
        assert (await self.revoke(office, first))["answer"] == "accepted"
        assert (await self.revoke(office, first))["answer"] == "duplicate"
        again = await office.say_of(first, "approve", by="carol")
        assert again["failure"]["code"] == Code.APPROVAL_REVOKED
        assert await office.to_rest() == "succeeded"
        assert not PAID
        (result,) = await office.told()
        assert result.startswith("APPROVAL_REVOKED")

    @case("M27")
    async def test_what_has_happened_is_not_undone_by_taking_back_and_that_is_said(self, store, clock):
        office, first = await self.paying(store, clock)
        await office.say_of(first, "approve")
        await office.to_rest()
        refused = await self.revoke(office, first)
        assert refused["failure"]["code"] == Code.OPERATION_CONSUMED
        assert "already consumed" in refused["failure"]["message"]
        answers = [row["answer"] for row in await office.store.rows(TENANT, "decision_attempt", "r1")]
        assert answers == ["accepted", "refused"]
        assert list(PAID.values()) == [1]

    # ── partial release ────────────────────────────────────────────────────────────────

    def two(self, run_id: str = "r1") -> tuple[PlannedTask, ...]:
        """Two calls that depend on nothing."""
        return tuple(
            PlannedTask(id=name, title="Pay", call=DirectCall(tool="pay", input={"customer": name}))
            for name in ("a", "b")
        )

    @case("M56")
    @pytest.mark.parametrize("by", ["team", "run"])
    async def test_with_each_an_approved_call_is_made_while_the_other_waits(self, store, clock, by):
        office = Desk(store, clock, a_desk(release="each" if by == "team" else "all"))
        await office.submit(tasks=self.two(), **({"release": "each"} if by == "run" else {}))
        await office.work()
        first, second = await office.open_requests()
        await office.say_of(first, "approve")
        assert await office.to_rest() == "suspended"
        assert list(PAID) == [f"{first['operation_id']} a 100"]
        assert [task["status"] for task in (await office.state())["tasks"]] == ["succeeded", "running"]
        assert [request["request_id"] for request in await office.open_requests()] == [second["request_id"]]
        await office.say_of(second, "approve")
        assert await office.to_rest() == "succeeded"
        assert sorted(PAID.values()) == [1, 1]

    @case("M56")
    async def test_with_each_the_model_still_waits_for_every_result_of_its_turn(self, store, clock):
        steps = ([call("pay", customer="a"), call("pay", customer="b")], "Done.")
        office = Desk(store, clock, a_desk(*steps, release="each"))
        await office.submit(tasks=(PlannedTask(id="t", title="Pay both"),))
        await office.work()
        first, second = await office.open_requests()
        await office.say_of(first, "approve")
        assert await office.to_rest() == "suspended"
        assert len(PAID) == 1
        assert await office.told() == []
        await office.say_of(second, "reject")
        assert await office.to_rest() == "succeeded"
        assert await office.told() == ['"paid a 100"', "A reviewer refused this call."]
        assert len(PAID) == 1

    @case("D04", "M56")
    async def test_without_it_nothing_is_made_while_anything_is_undecided(self, store, clock):
        office = Desk(store, clock, a_desk())
        await office.submit(tasks=self.two())
        await office.work()
        first, _ = await office.open_requests()
        await office.say_of(first, "approve")
        assert await office.to_rest() == "suspended"
        assert not PAID

    # ── ends ───────────────────────────────────────────────────────────────────────────

    @case("M50")
    async def test_cancelling_the_run_closes_what_was_edited_and_asked_as_well(self, store, clock):
        from placet.messages import CancelRun

        office, first = await self.paying(store, clock)
        await office.say_of(first, "edit", value={"customer": "c-2"})
        await office.work()
        second = await office.one()
        by = Principal(kind=PrincipalKind.HUMAN, id="alice")
        await office.say(CancelRun(tenant=TENANT, run_id="r1", by=by), "cancel")
        assert await office.to_rest() == "cancelled"
        assert await office.open_requests() == []
        late = await office.say_of(second, "approve", by="carol")
        assert late["failure"]["code"] == Code.APPROVAL_CLOSED
        assert not PAID


async def is_asked(office: Office) -> bool:
    return bool(await office.open_requests())


async def is_released(office: Office) -> bool:
    """Whether the order to start is on its way, and no further."""
    state = await office.state()
    return any(call["status"] == "running" for task in state["tasks"] for call in task["calls"])


async def told_of_the_end(office: Office) -> bool:
    return "approval.expiring" in await office.kinds()
