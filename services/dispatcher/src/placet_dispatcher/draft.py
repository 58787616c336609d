"""Decides how one step of a run is put together: a state in the making, its effects, and the audit leaves of both.

A draft lives within one transition and is the only thing in this package that is changed in place. From outside the
step stays a pure function: a state goes in, a new one comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from placet.activities import Activity
from placet.calls import ChatMessage, ToolSpec
from placet.errors import Code, ErrorClass, Failure
from placet.facts import Facts
from placet.gates import Judgement
from placet.instants import Instant
from placet.machine import Effect, Invoke, Record, Reply, Send, Transition, move
from placet.messages import (
    ANSWER_THREAD,
    PLAN_THREAD,
    CancelOperation,
    CloseApproval,
    CloseThread,
    Message,
    Purpose,
    TakeTurn,
    task_thread,
)
from placet.plans import TeamSpec
from placet.rows import Row, audit_leaf
from placet_dispatcher.states import PER_CALL, Call, Ending, PendingRequest, RunState, Task
from placet_dispatcher.words import cut, share

_TASK_MARKS = {"succeeded": "task.succeeded", "failed": "task.failed", "skipped": "task.skipped"}


class Draft:
    """The next state of one run, and what is to happen with it."""

    def __init__(self, state: RunState, facts: Facts, now_ms: Instant, *, team: TeamSpec | None = None) -> None:
        self.state = state
        self.facts = facts
        self.now_ms = now_ms
        self.tasks = list(state.tasks)
        self.ready = list(state.ready)
        self.cleared = list(state.cleared)
        self.active = list(state.active)
        self.requests = list(state.requests)
        self._effects: list[Effect] = []
        self._audit_seq = state.audit_seq
        self._audit_last = state.audit_last
        self._team = team
        self._team_known = team is not None
        self._tools: dict[str, ToolSpec | None] = {}
        self._index: dict[str, int] = {}

    # ── what the application says, asked once a step ───────────────────────────────────

    def team(self) -> TeamSpec | None:
        """The run's team as it is today."""
        if not self._team_known:
            self._team = self.facts.team(self.state.team)
            self._team_known = True
        return self._team

    def tool(self, name: str) -> ToolSpec | None:
        """The tool as it is today."""
        if name not in self._tools:
            self._tools[name] = self.facts.tool(name)
        return self._tools[name]

    # ── changes ────────────────────────────────────────────────────────────────────────

    def change(self, **fields: Any) -> None:
        """Set fields of the run."""
        self.state = self.state.model_copy(update=fields)

    def change_task(self, position: int, **fields: Any) -> Task:
        """Set fields of a task."""
        task = self.tasks[position].model_copy(update=fields)
        self.tasks[position] = task
        return task

    def change_call(self, position: int, at: int, **fields: Any) -> Call:
        """Set fields of a call."""
        calls = list(self.tasks[position].calls)
        calls[at] = calls[at].model_copy(update=fields)
        self.change_task(position, calls=tuple(calls))
        return calls[at]

    def end_task(
        self, position: int, status: str, *, output: str | None = None, failure: Failure | None = None
    ) -> None:
        """A task reached its end; the calls of its last turn are forgotten."""
        task = self.change_task(
            position,
            status=status,
            thinking=False,
            calls=(),
            output=output,
            failure=failure,
            ended_at_ms=self.now_ms,
        )
        if position in self.active:
            self.active.remove(position)
        self.audit(_TASK_MARKS[status], task.id, code=failure.code.value if failure else None)

    def answer_call(self, position: int, at: int, *, ok: bool, text: str, failure: Failure | None = None) -> None:
        """A call got its one answer; what was needed to ask for it is dropped, so that the state stays small.

        What a model will read is bounded; the output of a direct call is kept whole.
        """
        task = self.tasks[position]
        if task.call is None:
            text = cut(text, share(len(task.calls)))
        self.change_call(
            position, at, status="done", ok=ok, text=text, failure=failure, raw_input_text="", input_text="", agent=""
        )

    # ── effects ────────────────────────────────────────────────────────────────────────

    def send(self, message: Message, not_before: Instant | None = None) -> None:
        """Send a message with the commit of this step."""
        self._effects.append(Send(message, not_before))

    def invoke(self, activity: Activity) -> None:
        """Call the world after the commit of this step."""
        self._effects.append(Invoke(activity))

    def record(self, row: Row) -> None:
        """Write a row with the commit of this step."""
        self._effects.append(Record(row))

    def audit(self, kind: str, subject: str, /, **detail: Any) -> None:
        """Write the next audit leaf. Details that are None are left out."""
        leaf = audit_leaf(
            tenant=self.state.tenant,
            run_id=self.state.run_id,
            seq=self._audit_seq + 1,
            kind=kind,
            subject=subject,
            detail={name: value for name, value in detail.items() if value is not None},
            at_ms=self.now_ms,
            previous=self._audit_last,
        )
        self._audit_seq, self._audit_last = leaf.seq, leaf.leaf
        self.record(leaf)

    def take_turn(
        self,
        thread_id: str,
        turn: int,
        purpose: Purpose,
        agent: str,
        *append: ChatMessage,
        forked_from: str | None = None,
    ) -> None:
        """Ask a thread for its next turn; `forked_from`: the run whose conversation it goes on with."""
        self.send(
            TakeTurn(
                tenant=self.state.tenant,
                run_id=self.state.run_id,
                thread_id=thread_id,
                turn=turn,
                purpose=purpose,
                team=self.state.team,
                agent=agent,
                append=append,
                forked_from=forked_from,
            )
        )

    def close_request(self, request: PendingRequest, reason: str) -> None:
        """Take back an undecided question of the run's own."""
        if request.is_own and request.decision is None:
            self.send(
                CloseApproval(
                    tenant=self.state.tenant,
                    run_id=self.state.run_id,
                    request_id=request.request_id,
                    outcome="cancelled",
                    reason=reason,
                )
            )

    def moved(self, *replies: Reply) -> Transition[RunState]:
        """The step: the new state, its effects, and the answers to whoever asked."""
        state = self.state.model_copy(
            update={
                "tasks": tuple(self.tasks),
                "ready": tuple(self.ready),
                "cleared": tuple(self.cleared),
                "active": tuple(self.active),
                "requests": tuple(self.requests),
                "audit_seq": self._audit_seq,
                "audit_last": self._audit_last,
            }
        )
        return move(state, *self._effects, *replies)

    # ── questions about the draft ──────────────────────────────────────────────────────

    @property
    def is_undecided(self) -> bool:
        """Whether a person still has to decide something: then nothing is admitted and nothing released (D04)."""
        return any(request.decision is None for request in self.requests)

    @property
    def is_over_budget(self) -> bool:
        """Whether the team's tokens are spent."""
        spent = self.state.usage.input_tokens + self.state.usage.output_tokens
        return self.state.tokens_max is not None and spent > self.state.tokens_max

    @property
    def is_in_flight(self) -> bool:
        """Whether a model or a tool is at work for this run."""
        if self.state.phase in ("planning", "answering"):
            return not self.is_held
        return any(_is_in_flight(self.tasks[position]) for position in self.active)

    @property
    def is_with_a_tool(self) -> bool:
        """Whether a tool is at work for this run."""
        return any(call.status == "running" for position in self.active for call in self.tasks[position].calls)

    @property
    def is_held(self) -> bool:
        """Whether a conversation that was interrupted waits for an instruction."""
        return any(held.over for held in self.state.held)

    @property
    def is_in_doubt(self) -> bool:
        """Whether a person is asked if an effect happened: the run does not end over that question by itself."""
        return any(call.status == "doubtful" for position in self.active for call in self.tasks[position].calls)

    def positions_of(self, task_ids: Sequence[str]) -> list[int]:
        """Positions of the tasks with these ids."""
        if task_ids and not self._index:
            self._index = {task.id: position for position, task in enumerate(self.tasks)}
        return [self._index[task_id] for task_id in task_ids]

    def active_task(self, thread_id: str) -> int | None:
        """Position of the task at work whose thread it is."""
        return next((at for at in self.active if task_thread(self.tasks[at].id) == thread_id), None)

    def call_of(self, operation_id: str) -> tuple[int, int] | None:
        """Position of the task at work, and of the call within its turn, that an operation belongs to."""
        for position in self.active:
            for at, call in enumerate(self.tasks[position].calls):
                if call.operation_id == operation_id:
                    return position, at
        return None

    # ── ends ───────────────────────────────────────────────────────────────────────────

    def end_at_once(self, status: str, failure: Failure, **detail: Any) -> None:
        """Nothing more may run. Over now, or once a person has said whether something in doubt happened."""
        if not self.is_in_doubt:
            self.end_now(status, failure, **detail)
            return
        self.audit("run.ending", status, code=failure.code.value, **detail)
        self.end_soon(Ending(status=status, failure=failure, more_turns=False))

    def end_soon(self, ending: Ending) -> None:
        """Admit nothing more; end as soon as what is in flight has settled. The first reason to end stays."""
        if self.state.ending is not None:
            return
        self.change(ending=ending)
        for request in self.requests:
            self.close_request(request, f"the run ends as {ending.status}")
            if request.is_own and request.scope in PER_CALL:
                self._withhold(request)
        self.requests = [request for request in self.requests if not request.is_own]

    def _withhold(self, request: PendingRequest) -> None:
        found = self.call_of(request.operation_id or "")
        if found is not None:
            self.answer_call(*found, ok=False, text=WITHHELD.message, failure=WITHHELD)
            self.change_task(found[0], halted=True)

    def end_now(self, status: str, failure: Failure | None, **detail: Any) -> None:
        """The run is over: stop what is at work, take back what was asked, skip what was not done."""
        reason = f"the run is {status.replace('_', ' ')}"
        for request in self.requests:
            self.close_request(request, reason)
        self.requests.clear()
        if self.state.phase in ("planning", "answering"):
            self._close_thread(PLAN_THREAD if self.state.phase == "planning" else ANSWER_THREAD, reason)
        for position in list(self.active):
            self._stop(position, reason)
        if self.state.mode != "plan_only" or status != "succeeded":
            self._skip_rest()
        self.ready.clear()
        self.cleared.clear()
        self.change(held=())
        self.change(status=status, phase="ended", failure=failure, ending=None, round_done=(), ended_at_ms=self.now_ms)
        self.audit("run.ended", status, code=failure.code.value if failure else None, **detail)

    def _stop(self, position: int, reason: str) -> None:
        task = self.tasks[position]
        if task.thinking:
            self._close_thread(task_thread(task.id), reason)
        for call in task.calls:
            if call.status in ("running", "doubtful"):
                self.send(
                    CancelOperation(
                        tenant=self.state.tenant,
                        run_id=self.state.run_id,
                        operation_id=call.operation_id,
                        pool=call.pool,
                        reason=reason,
                    )
                )
        self.change_task(
            position, status="skipped", thinking=False, calls=_unanswered(task.calls), ended_at_ms=self.now_ms
        )
        self.active.remove(position)

    def _close_thread(self, thread_id: str, reason: str) -> None:
        self.send(CloseThread(tenant=self.state.tenant, run_id=self.state.run_id, thread_id=thread_id, reason=reason))

    def _skip_rest(self) -> None:
        for position, task in enumerate(self.tasks):
            if task.status == "pending":
                self.change_task(position, status="skipped", ended_at_ms=self.now_ms)


WITHHELD = Failure(
    code=Code.CANCELLED,
    message="This call was not made: it needs a person's approval, and the run is ending.",
    error_class=ErrorClass.CANCELLED,
)


def _is_in_flight(task: Task) -> bool:
    return task.thinking or any(call.status in ("judging", "running") for call in task.calls)


def _unanswered(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """The calls of a stopped task, each with its one answer (J18)."""
    told = {
        "judging": "cancelled before execution",
        "asking": "cancelled before execution",
        "running": "cancelled during execution",
        "doubtful": "cancelled while nobody knew whether it had happened",
    }
    return tuple(
        call
        if call.status == "done"
        else call.model_copy(
            update={
                "status": "done",
                "text": told[call.status],
                "failure": Failure(code=Code.CANCELLED, message=told[call.status], error_class=ErrorClass.CANCELLED),
                "raw_input_text": "",
                "input_text": "",
                "agent": "",
            }
        )
        for call in calls
    )


def gate_failure(judgement: Judgement, code: Code, what: str) -> Failure:
    """A gate's no, or its failure to answer, as a value."""
    word = "denies" if code is Code.GATE_DENIED else "could not judge"
    return Failure(
        code=code,
        message=f"{judgement.rule} {word} {what}" + (f": {judgement.reason}" if judgement.reason else ""),
        error_class=ErrorClass.DENIED if code is Code.GATE_DENIED else ErrorClass.PERMANENT,
        details={"rule": judgement.rule, "policy_version": judgement.policy_version},
    )
