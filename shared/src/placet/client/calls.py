"""Decides which HTTP request each verb is, and what its answer means; the clients only carry them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from placet.errors import Code, ContractError, PlacetError, RetryableError, TerminalError
from placet.kept_views import JournalPage, RunFacts
from placet.machine import Receipt
from placet.messages import DecisionWord, Mode
from placet.operation_views import FreezeView, OperationRecord
from placet.plans import PlannedTask, Release
from placet.strict_json import JsonValue
from placet.views import (
    AppView,
    DeadLetter,
    DeadLetterPage,
    Redriven,
    RequestPage,
    RequestView,
    RunPage,
    RunReceipt,
    RunView,
    Trace,
)

T = TypeVar("T", bound=BaseModel)

_MALFORMED = frozenset({400, 405, 413, 415, 422, 428})
"""The request itself is wrong; other refusals are of what it asks for."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and the type of its answer."""

    method: str
    path: str
    answer: type[T]
    body: Mapping[str, Any] | None = None
    query: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def content(self) -> bytes | None:
        """The body as JSON."""
        return None if self.body is None else json.dumps(self.body, ensure_ascii=False).encode()


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _at(*parts: str) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def submit_run(
    team: str,
    *,
    run_id: str,
    mode: Mode = "goal",
    goal: str = "",
    tasks: Sequence[PlannedTask | Mapping[str, Any]] = (),
    timeout_ms: int | None = None,
    release: Release | None = None,
) -> Call[Receipt]:
    """Start a run under an id of the caller's."""
    body = _given(
        run_id=run_id,
        team=team,
        mode=mode,
        goal=goal or None,
        tasks=_plain(tasks) or None,
        timeout_ms=timeout_ms,
        release=release,
    )
    return Call("POST", _at("runs"), Receipt, body)


def runs(*, status: str | None = None, limit: int = 50, before: str | None = None) -> Call[RunPage]:
    """A page of runs, newest first."""
    return Call("GET", _at("runs"), RunPage, query=_given(status=status, limit=limit, before=before))


def run(run_id: str) -> Call[RunView]:
    """One run."""
    return Call("GET", _at("runs", run_id), RunView)


def fork_run(run_id: str, *, at: int, fork_id: str, timeout_ms: int | None = None) -> Call[Receipt]:
    """Start a run, under an id of the caller's, from what another one was at a version."""
    body = _given(at=at, run_id=fork_id, timeout_ms=timeout_ms)
    return Call("POST", _at("runs", run_id, "fork"), Receipt, body)


def cancel_run(run_id: str, reason: str = "") -> Call[Receipt]:
    """End a run for good."""
    return Call("POST", _at("runs", run_id, "cancel"), Receipt, {"reason": reason})


def continue_run(
    run_id: str,
    instruction: str,
    *,
    instruction_id: str,
    task: str | None = None,
    after: str | None = None,
    timeout_ms: int | None = None,
) -> Call[Receipt]:
    """Give a run a further instruction."""
    body = _given(instruction=instruction, instruction_id=instruction_id, task=task, after=after, timeout_ms=timeout_ms)
    return Call("POST", _at("runs", run_id, "continue"), Receipt, body)


def interrupt_run(run_id: str, *, interrupt_id: str, turn: str | None = None, reason: str = "") -> Call[Receipt]:
    """Stop the turn in work."""
    body = _given(interrupt_id=interrupt_id, turn=turn, reason=reason)
    return Call("POST", _at("runs", run_id, "interrupt"), Receipt, body)


def patch_plan(
    run_id: str,
    *,
    patch_id: str,
    base: str = "",
    add: Sequence[PlannedTask | Mapping[str, Any]] = (),
    change: Sequence[PlannedTask | Mapping[str, Any]] = (),
    remove: Sequence[str] = (),
    reason: str = "",
) -> Call[Receipt]:
    """Propose a change of the plan under way."""
    body = _given(
        patch_id=patch_id,
        base=base or None,
        add=_plain(add) or None,
        change=_plain(change) or None,
        remove=list(remove) or None,
        reason=reason or None,
    )
    return Call("POST", _at("runs", run_id, "plan"), Receipt, body)


def _plain(tasks: Sequence[PlannedTask | Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        task.model_dump(mode="json", exclude_none=True) if isinstance(task, PlannedTask) else dict(task)
        for task in tasks
    ]


def run_receipt(run_id: str) -> Call[RunReceipt]:
    """What a run came to, on whose word."""
    return Call("GET", _at("runs", run_id, "receipt"), RunReceipt)


def trace(run_id: str) -> Call[Trace]:
    """Every fact of a run."""
    return Call("GET", _at("runs", run_id, "trace"), Trace)


def journal(run_id: str, *, after: str | None = None) -> Call[JournalPage]:
    """A page of a run's journals, as they are kept."""
    return Call("GET", _at("runs", run_id, "journal"), JournalPage, query=_given(after=after))


def facts(run_id: str) -> Call[RunFacts]:
    """Every state and fact of a run, as they are kept."""
    return Call("GET", _at("runs", run_id, "facts"), RunFacts)


def events_path(run_id: str, *, partial: bool = False) -> str:
    """Where a run is watched; `partial`: with pieces of replies."""
    return _at("runs", run_id, "events") + ("?partial=true" if partial else "")


def requests(*, state: str = "open", limit: int = 50, after: str | None = None) -> Call[RequestPage]:
    """A page of the inbox, oldest first."""
    return Call("GET", _at("requests"), RequestPage, query=_given(state=state, limit=limit, after=after))


def request(request_id: str) -> Call[RequestView]:
    """One request in full."""
    return Call("GET", _at("requests", request_id), RequestView)


def decide(
    request_id: str,
    *,
    decision: DecisionWord,
    request_hash: str,
    decision_id: str,
    reason: str | None = None,
    shown_digest: str | None = None,
    value: JsonValue = None,
) -> Call[Receipt]:
    """One person's voice; a repeat under the same `decision_id` is the same voice.

    `value`: with `edit` the whole input, with `respond` the answer. The receipt of an edit names its `successor`, the
    request that somebody else has to approve.
    """
    body = _given(
        decision_id=decision_id,
        request_hash=request_hash,
        decision=decision,
        reason=reason,
        shown_digest=shown_digest,
    )
    if decision in ("edit", "respond") or value is not None:
        body["value"] = value
    return Call("POST", _at("requests", request_id, "decisions"), Receipt, body)


def revoke(request_id: str, reason: str = "") -> Call[Receipt]:
    """Take an approval back before it is used."""
    return Call("POST", _at("requests", request_id, "revocation"), Receipt, {"reason": reason})


def operation(operation_id: str) -> Call[OperationRecord]:
    """Everything that is known of one side effect."""
    return Call("GET", _at("operations", operation_id), OperationRecord)


def frozen() -> Call[FreezeView]:
    """What is not started now."""
    return Call("GET", _at("freeze"), FreezeView)


def freeze(reason: str, tool: str | None = None) -> Call[Receipt]:
    """Start nothing more, of all tools or of one."""
    return Call("POST", _at("freeze"), Receipt, _given(reason=reason, tool=tool))


def thaw(tool: str | None = None) -> Call[Receipt]:
    """Lift that."""
    return Call("DELETE", _at("freeze"), Receipt, query=_given(tool=tool))


def dead_letters(*, run_id: str | None = None, limit: int = 100) -> Call[DeadLetterPage]:
    """Messages that no rule accepted."""
    return Call("GET", _at("dead-letters"), DeadLetterPage, query=_given(run_id=run_id, limit=limit))


def dead_letter(letter_id: str) -> Call[DeadLetter]:
    """One of them."""
    return Call("GET", _at("dead-letters", letter_id), DeadLetter)


def redrive(letter_id: str) -> Call[Redriven]:
    """Send the message of a dead letter again."""
    return Call("POST", _at("dead-letters", letter_id, "redrive"), Redriven, {})


def app() -> Call[AppView]:
    """What can be submitted."""
    return Call("GET", _at("app"), AppView)


# ── answers ────────────────────────────────────────────────────────────────────────────


def read(call: Call[T], status: int, content: bytes) -> T:
    """The answer, or the refusal raised: ContractError, TerminalError or RetryableError with the problem's code."""
    if status >= 300:
        raise refusal(call.method, status, content)
    try:
        return call.answer.model_validate_json(content)
    except ValidationError as error:
        raise _not_ours(call.method, status) from error


def _not_ours(method: str, status: int) -> PlacetError:
    """An answer that no gateway gives: of a proxy, or of something else at this address."""
    if method != "GET" and (status < 300 or status >= 500):
        return RetryableError(
            Code.OUTCOME_UNKNOWN,
            f"answered {status}, but not as a Placet gateway does, so the outcome is unknown: repeat with the same ids",
            http_status=status,
        )
    return TerminalError(
        Code.MESSAGE_INVALID,
        f"answered {status}, but not as a Placet gateway does: is another server at this address?",
        http_status=status,
    )


def refusal(method: str, status: int, content: bytes) -> PlacetError:
    """A problem as an error; `details` has its other members, `http_status` among them."""
    problem = _problem(content)
    if problem is None:
        return _not_ours(method, status)
    named = str(problem.pop("code", ""))
    code = Code(named) if named in Code.__members__ else Code.MESSAGE_INVALID
    detail = str(problem.pop("detail", "") or problem.get("title", named))
    pointer = problem.pop("pointer", None)
    final = problem.get("final") is not False
    kind = RetryableError if not final else ContractError if status in _MALFORMED else TerminalError
    return kind(code, detail, pointer=pointer, **_details(problem, named, status))


def _details(problem: Mapping[str, Any], named: str, status: int) -> dict[str, Any]:
    kept = {name: value for name, value in problem.items() if name not in {"type", "title", "status", "message"}}
    return kept | {"http_status": status} | ({} if named in Code.__members__ else {"named": named})


def _problem(content: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(content)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "code" in value else None


def unreachable(url: str, error: Exception) -> RetryableError:
    """Nobody listens: nothing was asked, so nothing happened."""
    return RetryableError(
        Code.GATEWAY_UNREACHABLE,
        f"no gateway answers at {url} ({type(error).__name__}): start one with `placet dev APP`, or set PLACET_URL",
    )


def broken_off(method: str, error: Exception) -> RetryableError:
    """The connection broke after the request may have left."""
    if method == "GET":
        return RetryableError(Code.GATEWAY_UNREACHABLE, f"the connection broke off ({type(error).__name__}): ask again")
    return RetryableError(
        Code.OUTCOME_UNKNOWN,
        f"the connection broke off ({type(error).__name__}), so the outcome is unknown: repeat with the same ids",
        final=False,
    )
