"""Decides how whoever started a run, and whoever answers for the tools, behave while runs are under way.

They give further instructions, stop a turn in work, fork a run from a version of its own, and freeze and thaw tools.
What they were told is kept: an instruction that was taken in is said once, and what is frozen starts nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from placet.errors import Code
from placet.freezing import THAWED, FreezeOperations, freeze_run
from placet.ids import Address
from placet.messages import OPERATION, RUN, ContinueRun, ForkRun, InterruptRun
from placet.values import Principal, PrincipalKind
from tests.simulation.workload import INITIATOR, TENANT, Freeze, RunPlan

if TYPE_CHECKING:
    from tests.simulation.world import World

OPERATOR = Principal(kind=PrincipalKind.HUMAN, id="olga")
LATER = frozenset({Code.TURN_BUSY, Code.TURN_MISMATCH})
NEVER = frozenset({Code.RUN_TERMINAL, Code.RUN_NOT_FOUND, Code.TURN_LIMIT, Code.BUDGET, Code.SUBMISSION_INVALID})
"""Why an instruction may rightly be refused."""


class Instructing:
    """Everybody who has more to say about a run than that it is to begin."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.taken: dict[tuple[str, str], str] = {}
        """The words of every instruction that somebody was told is taken in, by run and id."""
        self._tail = 0

    def begin(self) -> None:
        """Let everybody come who will."""
        world = self._world
        for run in list(world.workload.runs):
            for at, after_ms in enumerate(run.instructions):
                world.clients.spawn(f"instruct {run.run_id}", self._instruct_after, run, after_ms, f"more-{at}")
            for after_ms in run.interrupts:
                world.clients.spawn(f"interrupt {run.run_id}", self._interrupt, run, after_ms)
            if run.fork_after_ms is not None:
                world.clients.spawn(f"fork {run.run_id}", self._fork, run, run.fork_after_ms)
        for freeze in world.workload.freezes:
            world.clients.spawn("freeze", self._freeze, freeze)

    # ── instructions ───────────────────────────────────────────────────────────────────

    async def _instruct_after(self, run: RunPlan, after_ms: int, instruction_id: str) -> None:
        await self._world.scheduler.sleep(run.after_ms + after_ms)
        await self.instruct(run, instruction_id)

    async def instruct(self, run: RunPlan, instruction_id: str) -> None:
        """Say it, and say it again under the same id: it is taken in once."""
        history, words = self._world.history, f"and also {instruction_id} of {run.run_id}"
        message = ContinueRun(tenant=TENANT, run_id=run.run_id, instruction_id=instruction_id, text=words, by=INITIATOR)
        for again in ("", "-again"):
            answer = await self._world.clients.ask(message, f"instruct-{run.run_id}-{instruction_id}{again}")
            if answer is None:
                return
            told = answer["answer"]
            history.sometimes[f"instruction: {told}"] += 1
            if told in ("accepted", "duplicate", "joined"):
                self.taken[run.run_id, instruction_id] = words
                continue
            code = answer["failure"]["code"]
            known = (run.run_id, instruction_id) in self.taken
            history.check(not known, "I6", f"{instruction_id} of {run.run_id} was taken in, and then {told}: {code}")
            history.check(code in LATER | NEVER, "I5", f"{instruction_id} of {run.run_id} was {told}: {code}")
            return

    async def _interrupt(self, run: RunPlan, after_ms: int) -> None:
        await self._world.scheduler.sleep(run.after_ms + after_ms)
        name = f"interrupt-{after_ms}"
        message = InterruptRun(tenant=TENANT, run_id=run.run_id, interrupt_id=name, by=INITIATOR, reason="wait")
        answer = await self._world.clients.ask(message, f"interrupt-{run.run_id}-{after_ms}")
        if answer is not None:
            self._world.history.sometimes[f"interrupt: {answer['answer']}"] += 1

    def held(self, run_id: str) -> bool:
        """Whether the run waits for an instruction, and for nothing else."""
        body = self._world.checker.body(Address(run_id, RUN, ""))
        return body.get("status") == "suspended" and any(held["over"] for held in body["held"])

    def go_on(self, run: RunPlan) -> None:
        """In the end somebody says how it goes on."""
        self._tail += 1
        task = next(
            held["thread_id"].removeprefix("task:") if held["thread_id"].startswith("task:") else ""
            for held in self._world.checker.body(Address(run.run_id, RUN, ""))["held"]
            if held["over"]
        )
        message = ContinueRun(
            tenant=TENANT,
            run_id=run.run_id,
            instruction_id=f"tail-{self._tail}",
            text=f"go on, {self._tail}",
            by=INITIATOR,
            task=task,
        )
        self._world.clients.spawn(
            f"go on {run.run_id}", self._world.clients.ask, message, f"tail-{run.run_id}-{self._tail}"
        )

    # ── forks ──────────────────────────────────────────────────────────────────────────

    async def _fork(self, run: RunPlan, after_ms: int) -> None:
        world = self._world
        await world.scheduler.sleep(run.after_ms + after_ms)
        state = world.ledger.states.get(Address(run.run_id, RUN, ""))
        if state is None:
            return
        fork_id = f"{run.run_id}-fork"
        at = max(1, int(state.version * run.fork_share))
        message = ForkRun(tenant=TENANT, run_id=fork_id, forked_from=run.run_id, at=at, initiator=INITIATOR)
        fork = replace(run, submit=run.submit.model_copy(update={"run_id": fork_id}), fork_after_ms=None, is_fork=True)
        world.workload.add(fork, run.run_id)
        world.ledger.will_fork(fork_id, run.run_id, at)
        await self.fork(message)

    async def fork(self, message: ForkRun) -> None:
        """Ask for it; who was not answered asks again in the end."""
        world, fork_id = self._world, message.run_id
        answer = await world.clients.ask(message, f"fork-{fork_id}")
        told = "unanswered" if answer is None else answer["answer"]
        world.history.sometimes[f"fork: {told}"] += 1
        if told in ("refused", "not_found"):
            world.refused.add(fork_id)
        if told == "unanswered":
            world.forking[fork_id] = message
        else:
            world.forking.pop(fork_id, None)

    # ── freezes ────────────────────────────────────────────────────────────────────────

    async def _freeze(self, freeze: Freeze) -> None:
        scheduler = self._world.scheduler
        await scheduler.sleep(freeze.after_ms)
        await self._switch("freeze", freeze.tool, f"freeze-{freeze.after_ms}")
        await scheduler.sleep(freeze.for_ms)
        await self._switch("thaw", freeze.tool, f"thaw-{freeze.after_ms}")

    async def _switch(self, word: str, tool: str | None, name: str) -> None:
        message = FreezeOperations(
            tenant=TENANT,
            run_id=freeze_run(TENANT),
            word=word,  # type: ignore[arg-type]
            tool=tool,
            by=OPERATOR,
            reason="something is wrong",
            order_id=name,
        )
        answer = await self._world.clients.ask(message, name)
        if answer is not None:
            self._world.history.sometimes[f"{word}: {answer['answer']}"] += 1

    def thaw(self) -> None:
        """In the end every switch is lifted."""
        self._tail += 1
        for tool in (None, *self._world.workload.profile.tools):
            self._world.clients.spawn("thaw", self._switch, "thaw", tool, f"thaw-{tool}-{self._tail}")

    @property
    def frozen(self) -> bool:
        """Whether anything is frozen."""
        state = self._world.ledger.states.get(Address(freeze_run(TENANT), OPERATION, "freeze"))
        return state is not None and state.status != THAWED

    # ── in the end ─────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """Every instruction that was taken in is said once, in one conversation of its run; no other is said."""
        world = self._world
        for (run_id, instruction_id), words in self.taken.items():
            said = [
                thread
                for (run, thread), bodies in world.ledger.said.items()
                for body in bodies
                if run == run_id and words in body
            ]
            ended = world.ledger.states[Address(run_id, RUN, "")].status
            name = f"{instruction_id} of {run_id}, which is {ended},"
            world.history.check(len(said) <= 1, "I17", f"{name} was said in {said}")
            world.history.check(bool(said) or ended != "succeeded", "I15", f"{name} was never said")
