"""Decides whether a submission can become a run, and how that run begins. What is refused leaves nothing behind."""

from __future__ import annotations

from placet.calls import UserText
from placet.canonical import digest
from placet.errors import Code, ContractError
from placet.facts import Facts
from placet.instants import Instant, later
from placet.messages import PLAN_THREAD, SubmitRun
from placet_dispatcher.draft import Draft
from placet_dispatcher.planning import check_inputs
from placet_dispatcher.states import RunState

_PLANNED = ("goal", "plan_only")
"""Modes in which the planner makes the plan; in the others it is given."""


def submission_digest(message: SubmitRun) -> str:
    """What tells a repeat of a submission from another one. Raises ContractError for what JSON cannot carry."""
    check_inputs(message.tasks)
    # A field that is not given is not counted, so that what was submitted before it existed is still the same.
    ignored = {"run_id"} if message.release is not None else {"run_id", "release"}
    return digest(message.model_dump(mode="json", exclude=ignored))


def _invalid(message: str, pointer: str) -> ContractError:
    return ContractError(Code.SUBMISSION_INVALID, message, pointer=pointer)


def _check_mode(message: SubmitRun) -> None:
    """Each mode takes what it needs and nothing else, so that nothing that was sent is ignored in silence."""
    mode = message.mode
    if mode in _PLANNED:
        if not message.goal.strip():
            raise _invalid(f"mode {mode!r} needs a goal", "/goal")
        if message.tasks:
            raise _invalid(f"mode {mode!r} makes its own plan: leave the tasks out, or use mode 'tasks'", "/tasks")
    else:
        if not message.tasks:
            raise _invalid(f"mode {mode!r} needs tasks", "/tasks")
        if message.goal:
            raise _invalid(f"mode {mode!r} plans nothing: leave the goal out, or use mode 'goal'", "/goal")


def opened(message: SubmitRun, content_digest: str, facts: Facts, now_ms: Instant) -> Draft:
    """The first draft of the run; with a goal, its planner is asked already.

    Raises ContractError SUBMISSION_INVALID: unknown team, or content that does not fit the mode.
    """
    team = facts.team(message.team)
    if team is None:
        raise _invalid(f"there is no team {message.team!r}", "/team")
    if not team.agents:
        raise _invalid(f"the team {message.team!r} has no agents", "/team")
    _check_mode(message)
    state = RunState(
        tenant=message.tenant,
        run_id=message.run_id,
        status="planning",
        mode=message.mode,
        team=message.team,
        goal=message.goal,
        initiator=message.initiator,
        content_digest=content_digest,
        submitted_at_ms=now_ms,
        deadline_ms=None if message.timeout_ms is None else later(now_ms, message.timeout_ms),
        planner=team.planner or team.agents[0].name,
        round_gate=team.round_gate,
        tokens_max=team.tokens_max,
        release=message.release or team.release,
        phase="planning" if message.mode in _PLANNED else "deciding",
    )
    draft = Draft(state, facts, now_ms, team=team)
    draft.audit(
        "run.submitted",
        state.run_id,
        mode=state.mode,
        team=state.team,
        initiator=state.initiator.id,
        initiator_kind=state.initiator.kind.value,
        content_digest=content_digest,
        app_version=facts.app_version,
    )
    if state.phase == "planning":
        draft.take_turn(PLAN_THREAD, 1, "plan", state.planner, UserText(text=state.goal))
    return draft
