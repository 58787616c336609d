"""One question to people: every message in every status has its answer, and an end is an end."""

from __future__ import annotations

import pytest

from placet.errors import Code
from placet.messages import TakeTurn
from placet.rows import OutcomeRow, VoteRow
from placet.statuses import APPROVAL_STATUSES, APPROVAL_TERMINAL
from placet_approval.machine import ApprovalMachine
from tests.machines.bench import (
    RUN_ID,
    TENANT,
    every,
    recorded,
)
from tests.machines.builders_approval import (
    CALL,
    DOUBT,
    ApprovalBench,
    a_request,
    decided,
)

# ── the whole table ─────────────────────────────────────────────────────────────────────


def in_status(status: str) -> ApprovalBench:
    """A question that has come to `status`."""
    if status in ("absent", "withdrawn"):
        bench = ApprovalBench(opened=False)
        if status == "withdrawn":
            bench.give(bench.closing())
        return bench
    bench = ApprovalBench(a_request(DOUBT) if status == "settled" else None)
    match status:
        case "approved" | "revoked":
            decided(bench)
            if status == "revoked":
                bench.give(bench.revocation())
        case "rejected":
            decided(bench, "reject")
        case "answered":
            decided(bench, "respond", value_text='"use the other one"')
        case "settled":
            decided(bench, "executed")
        case "expired":
            bench.later(60_000)
            bench.give(bench.expiry())
        case "cancelled" | "superseded":
            bench.give(bench.closing(status))
        case _:
            assert status == "open"
    return bench


_ENDED = every(["request", "decide", "revoke"], "moved") | every(["expire", "remind", "close"], "absorbed")
TABLE: dict[str, dict[str, str]] = {
    "absent": every(["request", "close"], "moved") | every(["decide", "revoke", "expire", "remind"], "absorbed"),
    "withdrawn": {"request": "moved"} | every(["decide", "revoke", "expire", "remind", "close"], "absorbed"),
    "open": every(["decide", "revoke", "expire", "remind", "close"], "moved") | {"request": "absorbed"},
    **dict.fromkeys(sorted(APPROVAL_TERMINAL), _ENDED),
}


def test_the_table_covers_every_status_and_every_message() -> None:
    assert set(TABLE) == APPROVAL_STATUSES | {"absent", "withdrawn"}
    messages = ApprovalBench().every_message()
    assert {type(message) for message in messages.values()} == ApprovalMachine.messages
    assert all(set(row) == set(messages) for row in TABLE.values())


@pytest.mark.parametrize(("status", "kind"), [(status, kind) for status in TABLE for kind in TABLE[status]])
def test_every_message_in_every_status_has_its_answer(status: str, kind: str) -> None:
    bench = in_status(status)
    before = bench.state
    assert before is None or before.status == ("cancelled" if status == "withdrawn" else status)
    transition = bench.give(bench.every_message()[kind])
    assert transition.kind == TABLE[status][kind]
    if status not in APPROVAL_TERMINAL:
        return
    taken_back = (status, kind) == ("approved", "revoke")
    assert bench.state.status == ("revoked" if taken_back else status), "terminal stays terminal"
    assert recorded(transition, OutcomeRow) == recorded(transition, VoteRow) == []
    for field in ("outcome", "decided_by", "decided_at_ms", "votes"):
        assert getattr(bench.state, field) == getattr(before, field)


@pytest.mark.parametrize("status", sorted(TABLE))
def test_a_word_that_is_not_for_an_approval_is_refused(status: str) -> None:
    stray = TakeTurn(
        tenant=TENANT, run_id=RUN_ID, thread_id="plan", turn=1, purpose="plan", team="t", agent="a", append=()
    )
    refused = in_status(status).give(stray)
    assert (refused.kind, refused.failure and refused.failure.code) == ("refused", Code.MESSAGE_UNEXPECTED)


def test_the_state_of_a_question_is_small() -> None:
    bench = ApprovalBench(a_request(CALL.model_copy(update={"input": {"text": "x" * 50_000}}), quorum=2))
    decided(bench)
    assert len(bench.state.model_dump_json()) < 700
