"""Decides whether a row may be written: the invariants over insert-only facts, at the commit that writes them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from placet import limits
from placet.canonical import canonical_text
from placet.errors import ContractError
from placet.freezing import FREEZE, freeze_run, is_frozen
from placet.ids import Address
from placet.messages import OPERATION, RUN
from placet.requests import ApprovalRequest, request_hash, request_id, successor_id
from placet.rows import (
    AttemptEndRow,
    AttemptRow,
    AuditLeafRow,
    DecisionAttemptRow,
    FactKey,
    OperationRow,
    OutcomeRow,
    RequestRow,
    RetryRow,
    RevocationRow,
    Row,
    ThreadMessageRow,
    VoteRow,
    audit_leaf,
)
from placet.runtime.ports import StateWrite
from placet.signatures import open_envelope
from placet.statuses import RUN_TERMINAL
from placet.strict_json import parse
from tests.signing import GATEWAY
from tests.simulation.application import ASKING, LOOK, heard_outside, judgement, said_outside
from tests.simulation.canaries import Spoken
from tests.simulation.history import History
from tests.simulation.workload import TENANT, answer_to


class RowLedger:
    """Every row ever committed, and the checks on each."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.states: dict[Address, StateWrite] = {}
        self._before: Mapping[Address, StateWrite | None] = {}
        """The states that the unit at hand replaces, as they were."""
        self.rows: list[Row] = []
        self.texts: dict[tuple[str, FactKey, str], str] = {}
        self.requests: dict[str, ApprovalRequest] = {}
        self.votes: dict[str, list[VoteRow]] = defaultdict(list)
        self.outcomes: dict[str, OutcomeRow] = {}
        self.revocations: dict[str, RevocationRow] = {}
        self.answers: dict[str, list[DecisionAttemptRow]] = defaultdict(list)
        self.operations: dict[str, OperationRow] = {}
        self.attempts: dict[str, list[AttemptRow]] = defaultdict(list)
        self.attempt_since_ms: dict[tuple[str, int], int] = {}
        """When each attempt was committed, by the time that does not leap."""
        self.ends: dict[tuple[str, int], AttemptEndRow] = {}
        self.retries: dict[tuple[str, str, int], RetryRow] = {}
        self.said: dict[tuple[str, str], list[str]] = defaultdict(list)
        """Every conversation, message by message."""
        self.leaves: dict[str, list[AuditLeafRow]] = defaultdict(list)
        self.spoken = Spoken()
        self.ordered_before: dict[str, set[tuple[str, str]]] = {}
        """By fork, what had been started in its origin when it began."""
        self.new_requests: list[ApprovalRequest] = []
        """For the reviewers of the world to pick up."""

    def _check(self, condition: bool, invariant: str, text: str) -> None:
        self._history.check(condition, invariant, text)

    # ── one row ────────────────────────────────────────────────────────────────────────

    def _row(self, row: Row, now_ms: int) -> None:
        text = row.model_dump_json()
        sub = str(row.n) if isinstance(row, DecisionAttemptRow) else ""  # its fact key is not its primary key
        known = self.texts.get((row.table, row.fact_key(), sub))
        self._check(known is None or known == text, "I3", f"{row.table} {row.fact_key()} was changed")
        self._check(known is None, "I3", f"{row.table} {row.fact_key()} was written twice")
        self.texts[row.table, row.fact_key(), sub] = text
        self.spoken.text(text)
        self.rows.append(row)
        match row:
            case RequestRow():
                self._request(row.request)
            case VoteRow():
                self._vote(row, now_ms)
            case OutcomeRow():
                self._outcome(row, now_ms)
            case RevocationRow():
                outcome = self.outcomes.get(row.request_id)
                self._check(
                    outcome is not None and outcome.outcome == "approved",
                    "I14",
                    f"revoked {row.request_id}, which is not approved",
                )
                self.revocations[row.request_id] = row
            case DecisionAttemptRow():
                self.answers[row.request_id].append(row)
                self._check(
                    row.n == len(self.answers[row.request_id]),
                    "I10",
                    f"answer {row.n} of {row.request_id} is not the next",
                )
            case OperationRow():
                self._operation(row)
            case AttemptRow():
                self._attempt(row, now_ms)
            case AttemptEndRow():
                self._end(row)
            case RetryRow():
                self.retries[row.run_id, row.subject, row.attempt] = row
            case ThreadMessageRow():
                said = self.said[row.run_id, row.thread_id]
                said.append(row.body_text)
                self._check(
                    row.n == len(said),
                    "I10",
                    f"message {row.n} of {row.thread_id} is not the next",
                )
            case AuditLeafRow():
                self._leaf(row)
            case _:
                self._history.violate("I32", f"a row of a kind that nobody checks: {row.table}")

    def _request(self, request: ApprovalRequest) -> None:
        content = parse(request.content_text)
        assert isinstance(content, dict)
        hashed = request_hash(request.scope, request.boundary, content)
        self._check(
            hashed == request.request_hash, "I8", f"{request.request_id} does not hash to {request.request_hash}"
        )
        if request.generation == 1:
            minted = request_id(request.run_id, request.scope, request.boundary, hashed)
        else:
            minted = successor_id(request.run_id, request.supersedes, request.generation)
            self._succession(request, content)
        self._check(minted == request.request_id, "I8", f"{request.request_id} should be {minted}")
        if request.scope == "operation_outcome":
            self._history.sometimes["a person was asked whether it happened"] += 1
        self.requests[request.request_id] = request
        self.new_requests.append(request)

    def _succession(self, request: ApprovalRequest, content: dict[str, Any]) -> None:
        """A question in another's place is about the same thing, as it was or as a person has edited it."""
        before, outcome = self.requests.get(request.supersedes), self.outcomes.get(request.supersedes)
        if before is None or outcome is None:
            self._history.violate("I8", f"{request.request_id} takes the place of {request.supersedes}, which is open")
            return
        self._history.sometimes["a question took another's place"] += 1
        self._check(outcome.outcome in ("superseded", "approved", "expired"), "I8", f"{before.request_id} was final")
        self._check(before.requesting <= request.requesting, "I20", f"{request.request_id} forgets its editors")
        if request.scope != "tool_call":
            return
        shown, asked = json.loads(before.content_text)["rawInput"], content["rawInput"]
        edited = json.loads(outcome.value_text) if outcome.value_text is not None else shown
        self._check(asked in (shown, edited), "I31", f"{request.request_id} asks what nobody proposed or edited")
        if asked != shown:
            self._history.sometimes["an edited call was asked about"] += 1
            named = asked.get("gate") == "ask_editor" or (outcome.decided_by or "") in request.requesting
            self._check(named, "I20", f"{request.request_id} does not name {outcome.decided_by}, who edited it")

    def _vote(self, row: VoteRow, now_ms: int) -> None:
        request = self.requests[row.request_id]
        expires = request.expires_at_ms
        self._check(
            expires is None or now_ms < expires, "I19", f"{row.person_id} voted on {row.request_id} after it expired"
        )
        self._check(
            row.request_id not in self.outcomes, "I1", f"{row.person_id} voted on {row.request_id} after its outcome"
        )
        self._check(row.request_hash == request.request_hash, "I8", f"a vote on {row.request_id} quotes another hash")
        persons = [vote.person_id for vote in self.votes[row.request_id]]
        self._check(row.person_id not in persons, "I20", f"{row.person_id} voted twice on {row.request_id}")
        self._check(row.person_id != request.initiator, "I20", f"{row.person_id} approved an own run")
        self._check(request.roster is None or row.person_id in request.roster, "I20", f"{row.person_id} may not vote")
        own_edit = row.decision == "approve" and row.person_id in request.requesting
        self._check(not own_edit, "I20", f"{row.person_id} approved an own edit, {row.request_id}")
        self._check(_is_signed(row), "I21", f"{row.person_id} voted on {row.request_id} without having signed it")
        self.votes[row.request_id].append(row)

    def _outcome(self, row: OutcomeRow, now_ms: int) -> None:
        known = self.outcomes.get(row.request_id)
        self._check(
            known is None, "I1", f"{row.request_id} has two outcomes, {known and known.outcome} and {row.outcome}"
        )
        request = self.requests.get(row.request_id)
        if request is None:
            self._history.violate("I7", f"an outcome of {row.request_id}, which was never asked")
            return
        self._check(
            row.request_hash == request.request_hash, "I8", f"the outcome of {row.request_id} quotes another hash"
        )
        words = Counter(vote.decision for vote in self.votes[row.request_id])
        if row.outcome == "approved":
            self._check(
                words["approve"] >= request.quorum,
                "I4",
                f"{row.request_id} approved by {dict(words)}, quorum {request.quorum}",
            )
        elif row.outcome in ("rejected", "executed", "not_executed"):
            word = "reject" if row.outcome == "rejected" else row.outcome
            self._check(words[word] >= 1, "I4", f"{row.request_id} {row.outcome} by {dict(words)}")
        elif row.outcome == "answered" or (row.outcome == "superseded" and row.decided_by is not None):
            said = words["respond"] if row.outcome == "answered" else words["edit"] + words["request_changes"]
            self._check(said >= 1, "I4", f"{row.request_id} {row.outcome} by {dict(words)}")
            if request.scope == "question":
                fits = row.value_text == canonical_text(answer_to(request.content_text))
                self._check(fits, "I4", f"{row.request_id} was answered with {row.value_text}")
        elif row.outcome == "expired":
            expires = request.expires_at_ms
            self._check(expires is not None and row.decided_at_ms >= expires, "I18", f"{row.request_id} expired early")
        self.outcomes[row.request_id] = row
        kind = "question" if request.scope == "question" else "request"
        self._history.sometimes[f"{kind}: {row.outcome}"] += 1

    def _operation(self, row: OperationRow) -> None:
        self.operations[row.operation_id] = row
        value: Any = json.loads(row.input_text)
        gate = value["gate"]
        if row.tool != LOOK and (row.tool, row.input_text) in self.ordered_before.get(row.run_id, ()):
            self._history.sometimes["a fork proposed what its origin had ordered"] += 1
            asked = row.authority == "approval"
            self._check(asked, "I12", f"{row.run_id} repeats {row.tool} {row.input_text} unasked")
        judged = judgement(gate) if gate != "outside" else heard_outside(said_outside(value))
        needs_person = judged is not None and judged.verdict == "suspend"
        if gate in ASKING or needs_person or (judged is None and row.consequential):
            self._check(row.authority == "approval", "I7", f"{row.tool} {gate} was let through by {row.authority}")
        self._check(
            judged is None or judged.verdict in ("allow", "suspend"), "I7", f"{row.tool} {gate} became an operation"
        )
        if row.request_id is not None and row.request_id in self.requests:
            shown = json.loads(self.requests[row.request_id].content_text)
            self._check(
                canonical_text(shown["input"]) == row.input_text, "I31", f"{row.request_id} shows another input"
            )

    def _attempt(self, row: AttemptRow, now_ms: int) -> None:
        attempts = self.attempts[row.operation_id]
        still_open = [a.n for a in attempts if (row.operation_id, a.n) not in self.ends]
        self._check(not still_open, "I9", f"attempt {row.n} of {row.operation_id} started while {still_open} is open")
        self._check(row.n == len(attempts) + 1, "I10", f"attempt {row.n} of {row.operation_id} follows {len(attempts)}")
        self._check(
            not attempts or row.fence > attempts[-1].fence, "I11", f"the fence of {row.operation_id} did not grow"
        )
        self._check(row.n <= limits.ATTEMPTS_MAX, "I27", f"attempt {row.n} of {row.operation_id}")
        attempts.append(row)
        self.attempt_since_ms[row.operation_id, row.n] = self._history.now_ms
        self._history.sometimes["an attempt was started"] += 1
        operation = self.operations.get(row.operation_id)
        if operation is None:
            self._history.violate("I7", f"{row.operation_id} started, but nobody proposed it")
            return
        now = self.states.get(_FREEZE)
        # Where a switch is set or lifted in the very unit, it may be before the start or after it.
        switches = (self._before.get(_FREEZE, now), now)
        held = all(switch is not None and is_frozen(switch.status, operation.tool) for switch in switches)
        self._check(not held, "I7", f"{operation.tool} {row.operation_id} started while it was frozen")
        self._authority(operation, now_ms)
        retry = self.retries.get((row.run_id, row.operation_id, row.n - 1))
        if retry is not None:
            due_ms = retry.decided_at_ms + json.loads(retry.decision_text)["delay_ms"]
            self._check(
                row.started_at_ms >= due_ms,
                "I27",
                f"attempt {row.n} of {row.operation_id} started {due_ms - row.started_at_ms} ms early",
            )

    def _authority(self, operation: OperationRow, now_ms: int) -> None:
        name = f"{operation.tool} {operation.operation_id}"
        address = Address(operation.run_id, RUN, "")
        # It may end in this very unit, after the start, or be led on, before it.
        runs = [write for write in (self._before.get(address), self.states.get(address)) if write is not None]
        at_work = any(run.status not in RUN_TERMINAL for run in runs)
        self._check(at_work, "I7", f"{name} started in a run that is {[run.status for run in runs]}")
        self._check(
            operation.deadline_ms is None or now_ms < operation.deadline_ms, "I27", f"{name} started after its deadline"
        )
        if operation.authority != "approval":
            return
        request = self.asked_last(operation)
        outcome = self.outcomes.get(request.request_id) if request is not None else None
        if request is None or outcome is None or outcome.outcome != "approved":
            self._history.violate("I7", f"{name} started without approval ({outcome and outcome.outcome})")
            return
        hashes = {request.request_hash, outcome.request_hash}
        if request.generation == 1:
            hashes.add(operation.request_hash or "")
        self._check(len(hashes) == 1, "I8", f"{name}: {hashes}")
        shown = json.loads(request.content_text)
        same = request.generation > 1 or canonical_text(shown["input"]) == operation.input_text
        self._check(same and shown["toolName"] == operation.tool, "I31", f"{name} differs from what was shown")
        self._check(request.request_id not in self.revocations, "I7", f"{name} started after it was revoked")
        for use_by_ms in (outcome.use_by_ms, request.use_by_ms):
            self._check(use_by_ms is None or now_ms < use_by_ms, "I7", f"{name} started after its use-by")

    def approved_input(self, operation: OperationRow) -> str:
        """What may be done: the input of the last question, or of the proposal where nobody was asked."""
        request = self.asked_last(operation)
        return operation.input_text if request is None else canonical_text(json.loads(request.content_text)["input"])

    def asked_last(self, operation: OperationRow) -> ApprovalRequest | None:
        """The last question about an operation: the one it was proposed with, or what came to its place."""
        request = self.requests.get(operation.request_id or "")
        while request is not None:
            after = self.requests.get(successor_id(request.run_id, request.request_id, request.generation + 1))
            if after is None:
                return request
            request = after
        return None

    def _end(self, row: AttemptEndRow) -> None:
        started = any(attempt.n == row.n for attempt in self.attempts[row.operation_id])
        self._check(started, "I9", f"attempt {row.n} of {row.operation_id} ended without a start")
        self.ends[row.operation_id, row.n] = row

    def _leaf(self, row: AuditLeafRow) -> None:
        chain = self.leaves[row.run_id]
        expected = audit_leaf(
            tenant=row.tenant,
            run_id=row.run_id,
            seq=len(chain) + 1,
            kind=row.kind,
            subject=row.subject,
            detail=json.loads(row.detail_text),
            at_ms=row.at_ms,
            previous=chain[-1].leaf if chain else row.previous,
        )
        self._check(row == expected, "I23", f"leaf {row.seq} of {row.run_id} does not continue the chain")
        chain.append(row)


_FREEZE = Address(freeze_run(TENANT), OPERATION, FREEZE)


def _is_signed(row: VoteRow) -> bool:
    """Whether the gateway has signed exactly this vote, by what the row keeps of it."""
    try:
        said = open_envelope(row.evidence_text or "").verified(GATEWAY.entry(tenants=(row.tenant,)))
    except ContractError:
        return False
    written = (row.tenant, row.run_id, row.request_id, row.person_id, row.decision_id, row.decision, row.request_hash)
    return written == (
        said.tenant, said.run_id, said.request_id, said.person, said.decision_id, said.decision, said.request_hash,
    )  # fmt: skip
