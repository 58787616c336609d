"""Decides how the verbs are carried by an asynchronous HTTP client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from placet.client import calls
from placet.client.calls import Call, T
from placet.client.connection import Connection
from placet.client.events import READ_TIMEOUT_S, RECONNECTS_MAX, Ended, EventReader, pause_s
from placet.errors import RetryableError
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
    PartialText,
    Redriven,
    RequestPage,
    RequestView,
    RunEvent,
    RunPage,
    RunReceipt,
    RunView,
    Trace,
)

TIMEOUT_S = 30.0
"""More than the gateway's own patience with the machines, so that it is the gateway that says what is unknown."""


class AsyncPlacetClient:
    """Asks one gateway. Every verb raises PlacetError: ContractError (the request is wrong), TerminalError (refused),
    RetryableError (not known, not reached: the same call with the same ids may be repeated).
    """

    def __init__(
        self,
        connection: Connection | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.connection = connection or Connection.from_environment(os.environ)
        headers = {"Authorization": f"Bearer {self.connection.token}"} if self.connection.token else {}
        self._http = httpx.AsyncClient(
            base_url=self.connection.url,
            headers=headers,
            timeout=timeout_s,
            transport=transport,
            # Without TLS there is nothing to verify, and loading the authorities takes longer than the request.
            verify=self.connection.url.startswith("https:"),
            # A proxy of the environment is not asked to reach this machine itself.
            trust_env=not self.connection.is_loopback,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Closing twice is harmless."""
        await self._http.aclose()

    async def call(self, call: Call[T], *, person: str | None = None) -> T:
        """Carry one request."""
        try:
            answer = await self._http.request(
                call.method,
                call.path,
                content=call.content,
                params=dict(call.query),
                headers=self._headers(person, has_body=call.body is not None),
            )
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise calls.unreachable(self.connection.url, error) from error
        except httpx.TransportError as error:
            raise calls.broken_off(call.method, error) from error
        return calls.read(call, answer.status_code, answer.content)

    def _headers(self, person: str | None, *, has_body: bool) -> list[tuple[bytes, bytes]]:
        person = person or self.connection.person
        headers = [(b"Content-Type", b"application/json")] if has_body else []
        return headers + ([(b"Placet-Person", person.encode())] if person is not None else [])

    # ── runs ───────────────────────────────────────────────────────────────────────────

    async def submit_run(
        self,
        team: str,
        *,
        run_id: str,
        mode: Mode = "goal",
        goal: str = "",
        tasks: Sequence[PlannedTask | Mapping[str, Any]] = (),
        timeout_ms: int | None = None,
        release: Release | None = None,
    ) -> Receipt:
        """Start a run. The same again is the same run: `answer` is then `duplicate`."""
        return await self.call(
            calls.submit_run(
                team, run_id=run_id, mode=mode, goal=goal, tasks=tasks, timeout_ms=timeout_ms, release=release
            )
        )

    async def runs(self, *, status: str | None = None, limit: int = 50, before: str | None = None) -> RunPage:
        """A page of runs, newest first."""
        return await self.call(calls.runs(status=status, limit=limit, before=before))

    async def run(self, run_id: str) -> RunView:
        """One run."""
        return await self.call(calls.run(run_id))

    async def fork_run(self, run_id: str, *, at: int, fork_id: str, timeout_ms: int | None = None) -> Receipt:
        """Start a run from what another one was at a version. Its gates are asked anew; what was under way is not
        repeated without a person's word. The same again is the same run."""
        return await self.call(calls.fork_run(run_id, at=at, fork_id=fork_id, timeout_ms=timeout_ms))

    async def cancel_run(self, run_id: str, reason: str = "") -> Receipt:
        """End a run for good."""
        return await self.call(calls.cancel_run(run_id, reason))

    async def continue_run(
        self,
        run_id: str,
        instruction: str,
        *,
        instruction_id: str,
        task: str | None = None,
        after: str | None = None,
        timeout_ms: int | None = None,
    ) -> Receipt:
        """Give a run that has ended, or was interrupted, a further instruction in the same conversation.

        The same `instruction_id` again is the same instruction: `answer` is then `duplicate`. Raises TerminalError:
        TURN_BUSY while another turn is in work, TURN_MISMATCH where its last turn is not `after`, RUN_TERMINAL.
        """
        return await self.call(
            calls.continue_run(
                run_id, instruction, instruction_id=instruction_id, task=task, after=after, timeout_ms=timeout_ms
            )
        )

    async def interrupt_run(
        self, run_id: str, *, interrupt_id: str, turn: str | None = None, reason: str = ""
    ) -> Receipt:
        """Stop the turn in work; the run waits for its next instruction. `answer` is `nothing_interrupted` where none
        is, and `duplicate` for the same `interrupt_id`, which stops no later turn. Raises TerminalError TURN_MISMATCH
        for a turn that is not in work."""
        return await self.call(calls.interrupt_run(run_id, interrupt_id=interrupt_id, turn=turn, reason=reason))

    async def patch_plan(
        self,
        run_id: str,
        *,
        patch_id: str,
        base: str = "",
        add: Sequence[PlannedTask | Mapping[str, Any]] = (),
        change: Sequence[PlannedTask | Mapping[str, Any]] = (),
        remove: Sequence[str] = (),
        reason: str = "",
    ) -> Receipt:
        """Propose a change of the plan under way: tasks to add, and tasks that have not begun to change (in whole) or
        to remove. `outcome` is `applied`, or `request_id` names the question that people are asked.

        The same `patch_id` again is the same patch. `base`: the run's `plan_digest`, where only that plan is meant.
        Raises TerminalError: PLAN_CHANGED, PLAN_BUSY while something about the plan is decided, PLAN_INVALID with a
        pointer, GATE_DENIED, RUN_TERMINAL.
        """
        return await self.call(
            calls.patch_plan(run_id, patch_id=patch_id, base=base, add=add, change=change, remove=remove, reason=reason)
        )

    async def run_receipt(self, run_id: str) -> RunReceipt:
        """Every side effect of a run, and on whose word it ran."""
        return await self.call(calls.run_receipt(run_id))

    async def trace(self, run_id: str) -> Trace:
        """Every fact of a run by time."""
        return await self.call(calls.trace(run_id))

    async def journal(self, run_id: str, *, after: str | None = None) -> JournalPage:
        """A page of a run's journals, exactly as they are kept."""
        return await self.call(calls.journal(run_id, after=after))

    async def facts(self, run_id: str) -> RunFacts:
        """Every state and fact of a run, exactly as they are kept."""
        return await self.call(calls.facts(run_id))

    async def watch(
        self, run_id: str, *, after: int = 0, on_text: Callable[[PartialText], None] | None = None
    ) -> AsyncIterator[RunEvent]:
        """What happens to a run, from the event after number `after` on, until it ends. Reconnects by itself.

        `on_text`: gets what models are saying, while they say it; some of it may be missed, and nothing is made of it.
        """
        failures = 0
        while True:
            try:
                async for event in self._stream(run_id, after, partial=on_text is not None):
                    if isinstance(event, Ended):
                        return
                    if isinstance(event, PartialText):
                        if on_text is not None:
                            on_text(event)
                        continue
                    failures, after = 0, event.seq
                    yield event
                # Ended before the run did: the gateway is stopping.
                lost = calls.broken_off("GET", EOFError())
            except RetryableError as error:
                lost = error
            failures += 1
            if failures > RECONNECTS_MAX:
                raise lost
            await asyncio.sleep(pause_s(failures))

    async def _stream(self, run_id: str, after: int, *, partial: bool) -> AsyncIterator[RunEvent | PartialText | Ended]:
        reader = EventReader()
        headers = [*self._headers(None, has_body=False), (b"Last-Event-ID", str(after).encode())]
        timeout = httpx.Timeout(TIMEOUT_S, read=READ_TIMEOUT_S)
        path = calls.events_path(run_id, partial=partial)
        try:
            async with self._http.stream("GET", path, headers=headers, timeout=timeout) as answer:
                if answer.status_code == httpx.codes.NO_CONTENT:
                    yield Ended(status="")
                    return
                if not answer.is_success:
                    raise calls.refusal("GET", answer.status_code, await answer.aread())
                async for line in answer.aiter_lines():
                    event = reader.line(line)
                    if event is not None:
                        yield event
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise calls.unreachable(self.connection.url, error) from error
        except httpx.TransportError as error:
            raise calls.broken_off("GET", error) from error

    # ── requests ───────────────────────────────────────────────────────────────────────

    async def requests(self, *, state: str = "open", limit: int = 50, after: str | None = None) -> RequestPage:
        """A page of the inbox, oldest first; `state` is `open` or `all`."""
        return await self.call(calls.requests(state=state, limit=limit, after=after))

    async def request(self, request_id: str) -> RequestView:
        """One request in full."""
        return await self.call(calls.request(request_id))

    async def decide(
        self,
        request_id: str,
        *,
        decision: DecisionWord,
        request_hash: str,
        decision_id: str,
        reason: str | None = None,
        shown_digest: str | None = None,
        value: JsonValue = None,
        person: str | None = None,
    ) -> Receipt:
        """Decide. Mint `decision_id` once and keep it until there is a receipt."""
        return await self.call(
            calls.decide(
                request_id,
                decision=decision,
                request_hash=request_hash,
                decision_id=decision_id,
                reason=reason,
                shown_digest=shown_digest,
                value=value,
            ),
            person=person,
        )

    async def revoke(self, request_id: str, reason: str = "", *, person: str | None = None) -> Receipt:
        """Take an approval back before it is used."""
        return await self.call(calls.revoke(request_id, reason), person=person)

    # ── the system ─────────────────────────────────────────────────────────────────────

    async def operation(self, operation_id: str) -> OperationRecord:
        """Everything that is known of one side effect, from its id alone."""
        return await self.call(calls.operation(operation_id))

    async def frozen(self) -> FreezeView:
        """Which operations are not started now, by whom it is, why and since when."""
        return await self.call(calls.frozen())

    async def freeze(self, reason: str, tool: str | None = None) -> Receipt:
        """Start nothing more, of all tools or of one. What has started goes on; nothing loses its approval by it."""
        return await self.call(calls.freeze(reason, tool))

    async def thaw(self, tool: str | None = None) -> Receipt:
        """Lift the freeze of all tools, or the one of this tool."""
        return await self.call(calls.thaw(tool))

    async def dead_letters(self, *, run_id: str | None = None, limit: int = 100) -> DeadLetterPage:
        """Messages that no rule accepted, newest first."""
        return await self.call(calls.dead_letters(run_id=run_id, limit=limit))

    async def dead_letter(self, letter_id: str) -> DeadLetter:
        """One of them, and whether its message has been applied since."""
        return await self.call(calls.dead_letter(letter_id))

    async def redrive(self, letter_id: str) -> Redriven:
        """Send the message of a dead letter again, as the same message. Repeating it is harmless."""
        return await self.call(calls.redrive(letter_id))

    async def app(self) -> AppView:
        """Teams, agents and tools."""
        return await self.call(calls.app())
