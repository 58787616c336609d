"""Decides what a gate may answer, and which answer counts when several gates speak: the strictest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from placet.errors import Code, ContractError
from placet.values import Name, Value


class Boundary(StrEnum):
    """Where a run can be stopped."""

    PLAN = "plan"
    ROUND = "round"
    DISPATCH = "dispatch"
    TOOL_CALL = "tool_call"
    PLAN_PATCH = "plan_patch"


class Allow(Value):
    """Go on."""

    action: Literal["allow"] = "allow"
    reason: str | None = None

    def __init__(self, reason: str | None = None, **data: Any) -> None:
        super().__init__(reason=reason, **data)  # type: ignore[call-arg]


class Deny(Value):
    """Do not, and do not ask."""

    action: Literal["deny"] = "deny"
    reason: str | None = None

    def __init__(self, reason: str | None = None, **data: Any) -> None:
        super().__init__(reason=reason, **data)  # type: ignore[call-arg]


class Suspend(Value):
    """Stop durably and ask a person."""

    action: Literal["suspend"] = "suspend"
    reason: str | None = None

    def __init__(self, reason: str | None = None, **data: Any) -> None:
        super().__init__(reason=reason, **data)  # type: ignore[call-arg]


Verdict = Allow | Deny | Suspend
_STRICTNESS = {"allow": 0, "suspend": 1, "deny": 2}


def verdict_of(answer: object) -> Verdict:
    """A gate's answer as a verdict; `True` and `False` stand for Allow and Deny.

    Raises ContractError(GATE_FAILED) for anything else, also None and a reason that is not text (E07):
    a gate that answers nonsense must not be taken for a yes.
    """
    if answer is True:
        return Allow()
    if answer is False:
        return Deny()
    if isinstance(answer, Allow | Deny | Suspend):
        return answer
    raise ContractError(
        Code.GATE_FAILED, f"a gate must answer Allow, Deny, Suspend, True or False, not {type(answer).__name__}"
    )


OnExpiry = Literal["tell", "fail", "ask_again"]
"""What follows when nobody decides in time: the agent is told, the run ends, or people are asked once more."""


def _is_none(value: object) -> bool:
    return value is None


def _is_empty(value: object) -> bool:
    return not value


OnError = Literal["suspend", "deny"]
"""What an outside gate that cannot be asked, or answers nonsense, stands for."""


class OutsideAnswer(Value):
    """What an outside gate said, or that it said nothing that counts: `failed`."""

    verdict: Literal["allow", "deny", "suspend", "failed"]
    reason: str | None = None
    version: str = ""
    """Of its rules, as it calls it."""


@dataclass(frozen=True, slots=True)
class OutsideGate:
    """Where an outside gate is."""

    url: str
    timeout_ms: int
    on_error: OnError
    headers: tuple[tuple[str, str], ...] = ()


class Asked(Value):
    """An outside gate that has to be asked before a call can be judged."""

    name: str
    timeout_ms: int


class Judgement(Value):
    """The verdict that counts, the rule that gave it, and the version of the policy it belongs to."""

    verdict: Literal["allow", "deny", "suspend", "failed"]
    reason: str | None = None
    rule: str
    """Which gates or rules gave it, by name."""
    policy_version: str
    policy_digest: str = ""
    """Of everything that the policy consists of, whatever its version is called."""
    quorum: int = 1
    expires_after_ms: int | None = None
    use_within_ms: int | None = None
    remind_before_ms: int | None = None
    """How long before it expires people are reminded once."""
    on_expiry: OnExpiry = "tell"
    editor_may_approve: bool = False
    """Whether who has edited the input may approve it as well."""
    reviewers: Annotated[tuple[str, ...] | None, Field(exclude_if=_is_none)] = None
    """Ids of the persons who may decide; None: anybody who is let in; none at all: nobody, so that it is refused."""
    outside: Annotated[tuple[Asked, ...], Field(exclude_if=_is_empty)] = ()
    """Gates outside that are to be asked first: then this is no judgement yet."""


def strictest(judgements: Iterable[Judgement]) -> Judgement | None:
    """Failed > deny > suspend > allow; the first of equals. None when nobody spoke."""
    order = {**_STRICTNESS, "failed": 3}
    best: Judgement | None = None
    for judgement in judgements:
        if best is None or order[judgement.verdict] > order[best.verdict]:
            best = judgement
    return best


def common_reviewers(*given: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Whoever may decide by each of several gates."""
    lists = [each for each in given if each is not None]
    if not lists:
        return None
    return tuple(person for person in lists[0] if all(person in others for others in lists))


def stricter(judgement: Judgement, rule: str, reason: str) -> Judgement:
    """The judgement, with a person asked in any case because of `rule`. A denial or a failure stays what it is."""
    if judgement.verdict == "allow":
        return judgement.model_copy(update={"verdict": "suspend", "rule": rule, "reason": reason})
    if judgement.verdict == "suspend":
        together = f"{reason} {judgement.reason}" if judgement.reason else reason
        return judgement.model_copy(update={"rule": f"{judgement.rule}, {rule}", "reason": together})
    return judgement


# ── what a gate looks at ───────────────────────────────────────────────────────────────


class CallSubject(Value):
    """A tool call about to be made; `input` is validated and has its defaults filled in."""

    run_id: str
    team: Name
    agent: Name
    task_id: str
    tool: Name
    input: dict[str, Any]
    raw_input: dict[str, Any]
    consequential: bool
    effect: str
    initiator: str
    findings: tuple[str, ...] = ()
    """What a model's provider, or whoever watches it, found alarming about the call. Each of them asks for a person."""
    outside: dict[str, OutsideAnswer] = {}
    """What gates outside have said so far, by name."""


class TaskSubject(Value):
    """A task as gates see it."""

    id: str
    title: str
    description: str
    assignee: str | None
    depends_on: tuple[str, ...]


class PlanSubject(Value):
    """A whole plan."""

    run_id: str
    team: Name
    goal: str
    tasks: tuple[TaskSubject, ...]
    continuation: Literal["execute", "plan_only"]
    initiator: str


class RoundSubject(Value):
    """What is done and what would come next."""

    run_id: str
    team: Name
    completed: tuple[TaskSubject, ...]
    next: tuple[TaskSubject, ...]
    initiator: str


class DispatchSubject(Value):
    """One task about to start."""

    run_id: str
    team: Name
    task: TaskSubject
    initiator: str


class PlanPatchSubject(Value):
    """A change of a plan under way."""

    run_id: str
    team: Name
    goal: str
    tasks: tuple[TaskSubject, ...]
    """The plan as it stands."""
    added: tuple[TaskSubject, ...]
    changed: tuple[TaskSubject, ...]
    """As they would be."""
    removed: tuple[TaskSubject, ...]
    reason: str
    proposed_by: str
    initiator: str


Subject = CallSubject | PlanSubject | RoundSubject | DispatchSubject | PlanPatchSubject
