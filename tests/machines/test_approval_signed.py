"""Proves that only a signed voice decides: the signature first, every field of it, in its time, by its key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from placet import limits
from placet.believing import SignedVoices
from placet.errors import Code
from placet.instants import Instant
from placet.keys import KnownKeys, RegisteredKey
from placet.messages import DecideApproval
from placet.rows import DecisionAttemptRow, OutcomeRow, VoteRow
from placet.runtime.replay import RecordedAnswers, RecordedFacts
from placet.signatures import SigningKey, message_of
from placet.values import Principal, PrincipalKind
from placet_approval.machine import ApprovalMachine
from tests.machines.bench import ELSEWHERE, TENANT, code, recorded, reply, reply_text
from tests.machines.builders_approval import CALL, WRONG_HASH, ApprovalBench, a_request
from tests.signing import ENVIRONMENT, EVIDENCE, GATEWAY, VALID_MS, a_key, an_entry, registered, signed

ALICE, BOB = a_key("alice"), a_key("bob")
LONG_MS = 30 * 24 * 3_600_000


class Registry:
    """Keys that change while a test runs."""

    def __init__(self, *keys: SigningKey) -> None:
        self.known = registered(*keys, tenants=(TENANT,))

    def key(self, keyid: str) -> RegisteredKey | None:
        return self.known.key(keyid)


class SignedBench(ApprovalBench):
    """One open question without a deadline, to services that know alice, bob and the gateway."""

    def __init__(self, **changes: Any) -> None:
        self.registry = Registry(ALICE, BOB, GATEWAY)
        request = a_request(**{"expires_at_ms": None, "use_by_ms": None, **changes})
        super().__init__(request, voices=SignedVoices(ENVIRONMENT, self.registry))

    def signed(
        self, word: str = "approve", by: str = "alice", key: SigningKey | None = None, **changes: Any
    ) -> DecideApproval:
        """One voice, as it is signed now; `changes` are of what is signed."""
        return signed(self.decision(word, by), self.now_ms, key, **changes)

    def signed_as(self, message: DecideApproval, **changes: Any) -> DecideApproval:
        """A voice as its person has signed it now."""
        return signed(message, self.now_ms, **changes)

    def refuses(self, message: DecideApproval, why: Code) -> None:
        """Nothing is written or changed, whoever asked is told, and it is kept where operators see it."""
        before = self.state, list(self.written)
        refused = self.give(message)
        assert (refused.kind, code(refused), reply(refused).answer) == ("refused", why, "refused")
        assert refused.keep
        assert (self.state, self.written) == before


def test_a_signed_decision_counts_and_the_vote_keeps_the_envelope() -> None:
    bench = SignedBench()
    message = bench.signed()
    decided = bench.give(message)
    assert reply(decided).answer == "accepted"
    [vote] = recorded(decided, VoteRow)
    assert (vote.person_id, vote.evidence_text) == ("alice", message.signed)
    assert decided.before_ms == bench.now_ms + VALID_MS + limits.SIGNATURE_SKEW_MS, "its time holds at commit too"
    assert reply(bench.give(bench.signed("reject", "bob"))).answer == "conflict"


def test_a_machine_that_was_not_told_whom_to_believe_believes_nobody() -> None:
    bench = SignedBench()
    bench.machine = ApprovalMachine()
    bench.refuses(bench.signed(), Code.SIGNATURE_INVALID)
    bench.refuses(bench.decision(), Code.SIGNATURE_INVALID)


def test_an_unsigned_decision_is_refused_whoever_it_names() -> None:
    bench = SignedBench()
    bench.refuses(bench.decision(), Code.SIGNATURE_INVALID)
    bench.refuses(bench.decision(by="carol"), Code.SIGNATURE_INVALID)
    assert reply(bench.give(bench.signed())).answer == "accepted"


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "\x00", '{"payloadType":"x","payload":"","signatures":[]}'])
def test_what_is_no_envelope_is_refused(text: str) -> None:
    bench = SignedBench()
    refused = bench.give(bench.decision(signed=text))
    assert refused.kind == "refused"
    assert bench.all_written(DecisionAttemptRow) == []


def test_the_signature_comes_before_anything() -> None:
    bench = SignedBench()
    bench.refuses(bench.decision("perhaps", request_hash=WRONG_HASH), Code.SIGNATURE_INVALID)
    absent = ApprovalBench(opened=False, voices=SignedVoices(ENVIRONMENT, bench.registry))
    assert code(absent.give(absent.decision())) is Code.SIGNATURE_INVALID
    assert reply(absent.give(signed(absent.decision(), absent.now_ms))).answer == "not_found"


# ── what was signed is what counts ──────────────────────────────────────────────────────

_OTHER: dict[str, Any] = {
    "tenant": ELSEWHERE,
    "run_id": "run-2",
    "request_id": "apr_other",
    "decision_id": "d-other",
    "request_hash": WRONG_HASH,
    "decision": "reject",
    "reviewer": Principal(kind=PrincipalKind.HUMAN, id="bob"),
    "reason": "another",
    "shown_digest": "another",
    "value_text": '"another"',
}


def test_every_field_of_a_decision_is_tried() -> None:
    assert set(_OTHER) == set(DecideApproval.model_fields) - {"type", "signed"}


@pytest.mark.parametrize("field", sorted(_OTHER))
def test_a_field_that_says_something_else_than_what_was_signed_is_refused(field: str) -> None:
    bench = SignedBench()
    honest = bench.signed(reason="so be it", shown_digest="ab" * 32)
    forged = honest.model_copy(update={field: _OTHER[field]})
    refused = bench.look(forged)
    assert (refused.kind, code(refused)) == ("refused", Code.SIGNATURE_MISMATCH)
    assert field in str(refused.failure)
    assert reply(bench.give(honest)).answer == "accepted"


def test_a_signed_voice_is_a_human_s_without_ornaments() -> None:
    bench = SignedBench()
    honest = bench.signed()
    for other in (
        Principal(kind=PrincipalKind.SERVICE, id="alice"),
        Principal(kind=PrincipalKind.HUMAN, id="alice", display_name="The Auditor"),
        Principal(kind=PrincipalKind.HUMAN, id=" alice"),
    ):
        bench.refuses(honest.model_copy(update={"reviewer": other}), Code.SIGNATURE_MISMATCH)


def test_another_installation_s_decision_is_refused() -> None:
    bench = SignedBench()
    bench.refuses(bench.signed(environment="staging"), Code.SIGNATURE_MISMATCH)


def test_another_request_s_decision_is_none_of_this_one() -> None:
    bench, other = SignedBench(), SignedBench(content=CALL.model_copy(update={"input": {"env": "production"}}))
    assert other.request.request_hash != bench.request.request_hash
    theirs = other.signed()
    bench.refuses(theirs.model_copy(update={"request_id": bench.request.request_id}), Code.SIGNATURE_MISMATCH)
    # Signed for this request with the hash of that one: it is a stale decision, as any other.
    assert reply(bench.give(bench.signed(request_hash=other.request.request_hash))).answer == "stale"


# ── by its key ──────────────────────────────────────────────────────────────────────────


def test_nobody_signs_for_somebody_else() -> None:
    bench = SignedBench()
    bench.refuses(bench.signed(by="bob", key=ALICE), Code.SIGNATURE_INVALID)
    stranger = SigningKey(bytes(32), "alice")
    bench.refuses(bench.signed(key=stranger), Code.SIGNATURE_INVALID)


def test_a_gateway_vouches_for_anybody_if_it_says_how_it_knows() -> None:
    bench = SignedBench()
    bench.refuses(bench.signed(by="dora", key=GATEWAY, evidence=None), Code.SIGNATURE_INVALID)
    bench.refuses(bench.signed(evidence=EVIDENCE), Code.SIGNATURE_INVALID)
    assert reply(bench.give(bench.signed(by="dora", key=GATEWAY))).answer == "accepted"


def test_a_gateway_does_not_make_the_initiator_a_reviewer() -> None:
    bench = SignedBench()
    assert reply(bench.give(bench.signed(by="carol", key=GATEWAY))).answer == "not_allowed"


@pytest.mark.parametrize(
    "changes",
    [
        {"revoked": True},
        {"tenants": (ELSEWHERE,)},
        {"person": "bob"},
        {"not_after_ms": 1},
        {"not_before_ms": LONG_MS * 10_000},
    ],
)
def test_a_key_that_does_not_count_here_and_now_decides_nothing(changes: dict[str, Any]) -> None:
    bench = SignedBench()
    bench.registry.known = registered(ALICE, **({"tenants": (TENANT,)} | changes))
    bench.refuses(bench.signed(), Code.SIGNATURE_INVALID)


def test_a_key_that_is_revoked_while_the_message_waits_votes_no_more_not_even_in_a_repeat() -> None:
    bench = SignedBench(quorum=2)
    waiting = bench.signed(by="bob")
    assert reply(bench.give(bench.signed())).answer == "accepted"
    bench.registry.known = registered(BOB, tenants=(TENANT,), revoked=True)
    bench.refuses(waiting, Code.SIGNATURE_INVALID)
    bench.registry.known = KnownKeys()
    bench.refuses(waiting, Code.SIGNATURE_INVALID)
    assert len(bench.all_written(VoteRow)) == 1


def test_a_replay_judges_by_the_key_that_counted_then() -> None:
    bench = SignedBench()
    message = bench.signed()
    entry = an_entry(ALICE, tenants=(TENANT,))
    answers = RecordedAnswers([json.loads(entry.model_dump_json())])
    found = {key: bench.rows.get(key) for key in bench.machine.reads(message)}
    now = bench.look(message)
    bench.registry.known = KnownKeys()
    facts = RecordedFacts(found, answers, 0)
    assert bench.machine.transition(bench.state, message, facts, bench.now_ms) == now


# ── in its time ─────────────────────────────────────────────────────────────────────────


def test_a_decision_counts_from_its_signing_to_its_end_by_the_store_s_clock_and_a_minute_around() -> None:
    for offset_ms, counts in ((-2, False), (0, True), (VALID_MS + 2 * limits.SIGNATURE_SKEW_MS - 1, True)):
        bench = SignedBench()
        message = bench.signed()
        bench.now_ms = Instant(bench.now_ms - limits.SIGNATURE_SKEW_MS + offset_ms)
        if counts:
            assert reply(bench.give(message)).answer == "accepted", offset_ms
        else:
            bench.refuses(message, Code.SIGNATURE_EXPIRED)
    bench = SignedBench()
    message = bench.signed()
    bench.later(VALID_MS + limits.SIGNATURE_SKEW_MS)
    bench.refuses(message, Code.SIGNATURE_EXPIRED)


def test_after_its_time_the_same_decision_can_be_signed_anew_under_its_id() -> None:
    bench = SignedBench()
    unsigned = bench.decision()
    old = signed(unsigned, bench.now_ms)
    bench.later(LONG_MS)
    bench.refuses(old, Code.SIGNATURE_EXPIRED)
    assert reply(bench.give(signed(unsigned, bench.now_ms))).answer == "accepted"


@pytest.mark.parametrize("valid_ms", [0, -1, limits.SIGNATURE_VALID_MS_MAX + 1])
def test_a_signature_without_an_end_or_for_too_long_is_refused(valid_ms: int) -> None:
    bench = SignedBench()
    bench.refuses(bench.signed(not_after_ms=bench.now_ms + valid_ms), Code.SIGNATURE_MISMATCH)


def test_a_repeat_gets_the_same_receipt_and_no_new_vote_also_long_after_its_time() -> None:
    bench = SignedBench()
    message = bench.signed()
    first = reply_text(bench.give(message))
    for wait_ms in (0, LONG_MS):
        bench.later(wait_ms)
        again = bench.give(message)
        assert reply_text(again) == first
        assert recorded(again, VoteRow) == recorded(again, OutcomeRow) == []
        anew = bench.give(signed(message, bench.now_ms))
        assert reply_text(anew) == first


def test_an_envelope_under_another_decision_id_is_another_decision_and_not_signed() -> None:
    bench = SignedBench()
    message = bench.signed()
    bench.give(message)
    bench.refuses(message.model_copy(update={"decision_id": "d-99"}), Code.SIGNATURE_MISMATCH)


def test_a_statement_of_somebody_else_inside_a_known_envelope_is_not_found() -> None:
    bench = SignedBench()
    mine, theirs = bench.signed(), bench.signed("reject", "bob")
    mixed = message_of(_statement(theirs), mine.signed or "")
    bench.refuses(mixed, Code.SIGNATURE_MISMATCH)


def _statement(message: DecideApproval) -> Any:
    from placet.signatures import open_envelope

    key = an_entry(a_key(message.reviewer.id), tenants=(TENANT,))
    return open_envelope(message.signed or "").verified(key)
