"""Decides what a run becomes that is forked from another one: history stays, whatever was under way is asked anew.

Tasks that had ended keep their results. All others are before the plan gate again, and behind it the gates of rounds,
tasks and calls: nothing that was decided for the other run counts here, because its requests are other requests. What
the other run had ordered and not yet heard of may have happened: it is never repeated without asking a person.
"""

from __future__ import annotations

from placet.calls import EffectClass, ToolSpec, UserText
from placet.canonical import digest, digest_of_text, parse_canonical
from placet.compatibility import read_state
from placet.errors import Code, ContractError, PlacetError, require
from placet.facts import Facts
from placet.gates import Judgement
from placet.hash_scope import load_bearing_text
from placet.instants import Instant, later
from placet.messages import PLAN_THREAD, ForkRun, task_thread
from placet.plans import TeamSpec
from placet.rows import CheckpointRow, PastTurn
from placet_dispatcher.draft import Draft
from placet_dispatcher.planning import begin, put_before_gate
from placet_dispatcher.states import Call, Lineage, Past, RunState, Task


def fork_digest(message: ForkRun) -> str:
    """What tells a repeat of a fork from another run under the same id."""
    return digest(message.model_dump(mode="json", exclude={"run_id"}))


def forked(message: ForkRun, facts: Facts, now_ms: Instant) -> Draft:
    """The first draft of the fork.

    Raises ContractError: RUN_NOT_FOUND (no such run or version, whosever), RUN_TERMINAL where it had ended by then,
    SUBMISSION_INVALID without its team, NOT_FOUND where what is needed was pruned, CHECKPOINT_* for what cannot be
    read.
    """
    row = facts.checkpoint(message.run_id, message.forked_from, message.at)
    if row is None or row.tenant != message.tenant:
        told = f"there is no run {message.forked_from} with a version {message.at}"
        raise ContractError(Code.RUN_NOT_FOUND, told, pointer="/forked_from")
    past = _read(row)
    if past.is_over or past.ending is not None:
        told = f"the run {row.source} had ended, or was ending, at version {row.version}: fork it at an earlier one"
        raise ContractError(Code.RUN_TERMINAL, told, pointer="/at")
    team = facts.team(past.team)
    if team is None or not team.agents:
        raise ContractError(Code.SUBMISSION_INVALID, f"there is no team {past.team!r} with agents any more")
    draft = Draft(_begun(message, past, row, team, now_ms), facts, now_ms, team=team)
    _remember(draft, past, row)
    draft.audit(
        "run.forked",
        draft.state.run_id,
        forked_from=row.source,
        version=row.version,
        state_digest=digest_of_text(row.body_text),
        last_leaf=past.audit_last or None,
        mode=past.mode,
        team=past.team,
        initiator=message.initiator.id,
        initiator_kind=message.initiator.kind.value,
        content_digest=draft.state.content_digest,
        app_version=facts.app_version,
    )
    _go_on(draft, past, row)
    return draft


def _read(row: CheckpointRow) -> RunState:
    if row.failure is not None:
        raise ContractError(row.failure.code, row.failure.message)
    try:
        state = read_state(RunState, row.body_text.encode()).state
    except PlacetError as error:
        raise ContractError(error.code, f"{row.source} at version {row.version}: {error.message}") from error
    if not isinstance(state, RunState) or (state.tenant, state.run_id) != (row.tenant, row.source):
        raise ContractError(Code.CHECKPOINT_CORRUPT, f"{row.source} at version {row.version} says it is another run")
    return state


def _begun(message: ForkRun, past: RunState, row: CheckpointRow, team: TeamSpec, now_ms: Instant) -> RunState:
    span_ms = message.timeout_ms
    if span_ms is None and past.deadline_ms is not None:
        span_ms = past.deadline_ms - past.submitted_at_ms
    return RunState(
        tenant=message.tenant,
        run_id=message.run_id,
        status="planning",
        mode=past.mode,
        team=past.team,
        goal=past.goal,
        initiator=message.initiator,
        content_digest=fork_digest(message),
        submitted_at_ms=now_ms,
        forked=Lineage(run_id=row.source, version=row.version, state_digest=digest_of_text(row.body_text)),
        deadline_ms=None if span_ms is None else later(now_ms, span_ms),
        planner=team.planner or team.agents[0].name,
        round_gate=team.round_gate,
        tokens_max=team.tokens_max,
        release=past.release,
        phase="planning" if past.phase == "planning" else "deciding",
    )


def _remember(draft: Draft, past: RunState, row: CheckpointRow) -> None:
    """Which calls are not to be made here unasked: those that may have been made there, as today's tools read them."""
    digests = {} if past.forked is None else dict.fromkeys(past.forked.ordered)
    for call in row.ordered:
        tool = draft.tool(call.tool)
        given = parse_canonical(call.input_text)
        if tool is not None and isinstance(given, dict):
            digests[_digest(call.tool, load_bearing_text(tool, given))] = None
    lineage = draft.state.forked
    require(lineage is not None, "a fork knows where it comes from")
    if lineage is not None and digests:
        draft.change(forked=lineage.model_copy(update={"ordered": tuple(digests)}))


def _digest(tool: str, load_bearing: str) -> str:
    return digest_of_text(f"{tool}\n{load_bearing}")[:32]


def _go_on(draft: Draft, past: RunState, row: CheckpointRow) -> None:
    if past.phase == "planning":
        _plan(draft, past, row)
        return
    turns = {turn.thread_id: turn for turn in row.turns}
    draft.tasks = [_anew(task, turns.get(task_thread(task.id)), row) for task in past.tasks]
    done = tuple(at for at, task in enumerate(draft.tasks) if task.status == "succeeded")
    draft.change(planned_at_ms=draft.now_ms, round_done=done if draft.state.round_gate else ())
    if any(task.status == "pending" for task in draft.tasks) or draft.state.mode == "plan_only":
        put_before_gate(draft)
    else:
        begin(draft)


def _plan(draft: Draft, past: RunState, row: CheckpointRow) -> None:
    """The planner is asked for the same turn again."""
    asked = next((turn for turn in row.turns if turn.thread_id == PLAN_THREAD), None)
    if past.plan_turn == 1 or asked is None:
        draft.take_turn(PLAN_THREAD, 1, "plan", draft.state.planner, UserText(text=draft.state.goal))
        return
    draft.change(plan_turn=past.plan_turn)
    source = _source(asked, row)
    draft.take_turn(PLAN_THREAD, asked.turn, "plan", draft.state.planner, *asked.append, forked_from=source)


# ── tasks ──────────────────────────────────────────────────────────────────────────────


def _anew(task: Task, asked: PastTurn | None, row: CheckpointRow) -> Task:
    """A task that has ended stays as it is; any other is to be started, from where it was."""
    if task.status not in ("pending", "running"):
        return task
    fresh = {"status": "pending", "thinking": False, "turn": 0, "calls": (), "halted": False, "started_at_ms": None}
    if task.status == "pending":
        return task.model_copy(update=fresh)  # where it was forked before, it still has that past
    return task.model_copy(update={**fresh, "past": _past(task, asked, row)})


def _past(task: Task, asked: PastTurn | None, row: CheckpointRow) -> Past | None:
    open_calls = [call for call in task.calls if call.status != "done"]
    known = {call.operation_id for call in row.ordered}
    ordered = (call for call in open_calls if call.status not in ("judging", "asking") or call.operation_id in known)
    repeats = tuple(call.tool_call_id for call in ordered)
    before = task.past
    if task.call is not None:
        if before is not None:  # what is not known of the first run is not known in any fork of it
            return before
        return Past(source=row.source, turn=0, repeats=repeats) if repeats else None
    if before is not None and not task.thinking:  # it has taken no turn of its own yet
        return before.model_copy(update={"answered": _answers(task), "repeats": (*before.repeats, *repeats)})
    if asked is None or asked.turn != task.turn or (asked.calls is None) != task.thinking:
        told = f"what the task {task.id!r} of {row.source} was at in version {row.version} was pruned"
        raise ContractError(Code.NOT_FOUND, told, pointer="/at")
    if task.thinking:
        if task.turn == 1:
            return None  # it has not begun: as any other
        return Past(source=_source(asked, row), turn=task.turn, append=asked.append)
    return Past(source=row.source, turn=task.turn, calls=asked.calls or (), answered=_answers(task), repeats=repeats)


def _source(asked: PastTurn, row: CheckpointRow) -> str:
    """Where the conversation before the turn is: in a fork of a fork, in the run before that."""
    return asked.forked_from or row.source


def _answers(task: Task) -> tuple[Call, ...]:
    """What was answered stands, as history: the operation is the other run's."""
    gone = {"operation_id": "", "request_id": None, "pool": ""}
    return tuple(call.model_copy(update=gone) for call in task.calls if call.status == "done")


def answered_before(task: Task) -> dict[str, Call]:
    """Calls of the task's turn whose answer is history, by their id within the task."""
    return {} if task.past is None else {call.tool_call_id: call for call in task.past.answered}


def tightened(state: RunState, task: Task, call: Call, tool: ToolSpec, judgement: Judgement) -> Judgement:
    """What may have happened in the other run is not made here unless a person says so, knowing that.

    A read is a read. What a gate denies stays denied.
    """
    if state.forked is None or tool.effect is EffectClass.READ_ONLY or judgement.verdict not in ("allow", "suspend"):
        return judgement
    source = state.forked.run_id
    if task.past is not None and call.tool_call_id in task.past.repeats:
        source = task.past.source
    elif _digest(call.tool, call.same_as or call.input_text) not in state.forked.ordered:
        return judgement
    told = f"the run {source}, of which this one is a fork, has ordered this call: it may have happened there"
    reason = f"{told}; {judgement.reason}" if judgement.reason else told
    rule = judgement.rule if judgement.verdict == "suspend" else "fork"
    return judgement.model_copy(update={"verdict": "suspend", "rule": rule, "reason": reason})
