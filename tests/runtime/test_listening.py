"""Replies are heard while they come; of one that is stopped, what it had said is kept once, and that is all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from placet import limits
from placet.activities import CallModel, Stop
from placet.adapters.memory import MemoryStore
from placet.calls import ChatMessage, ModelReply, UserText
from placet.errors import Code
from placet.messages import Envelope, ModelAnswered, ModelFailed
from placet.partials import Overhearing, Partial, words_of
from placet.rows import ThreadMessageRow
from placet.runtime.invoker import TaskInvoker
from placet.runtime.ports import StateWrite, Unit, handle_lost
from placet.runtime.refusing import NoTools
from tests.cases import case
from tests.runtime.test_engine import SetClock

CALL = CallModel(
    tenant="acme",
    run_id="run-1",
    thread_id="task:a",
    turn=2,
    attempt=1,
    purpose="work",
    team="t",
    agent="clerk",
    messages=0,
    timeout_ms=10_000,
)
STOP = Stop(tenant="acme", run_id="run-1", machine="thread", key="task:a", reason="the run is cancelled")


class Speaker:
    """A model that says one piece, and then only goes on when it is let."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces or ("I have ", "found it.")
        self.spoken = asyncio.Event()
        self.go = asyncio.Event()
        self.cleanups = 0

    async def call(self, activity: CallModel, conversation: Sequence[ChatMessage]) -> ModelReply:
        raise AssertionError("a model that can stream is asked to")

    async def stream(
        self, activity: CallModel, conversation: Sequence[ChatMessage], said: Callable[[str], None]
    ) -> ModelReply:
        try:
            said(self.pieces[0])
            self.spoken.set()
            await self.go.wait()
            for piece in self.pieces[1:]:
                said(piece)
            return ModelReply(text="".join(self.pieces))
        finally:
            self.cleanups += 1

    async def close(self) -> None: ...


class Hall:
    """An invoker with one speaker, and somebody who listens."""

    def __init__(self, *pieces: str) -> None:
        self.speaker = Speaker(*pieces)
        self.results: asyncio.Queue[Envelope] = asyncio.Queue()
        self.overhearing = Overhearing()
        self.heard: list[Partial] = []
        self.leave = self.overhearing.overhear("run-1", self.heard.append)
        store = MemoryStore(SetClock())
        self.invoker = TaskInvoker(self.speaker, NoTools(), store, self.results.put_nowait, partials=self.overhearing)

    async def begin(self) -> None:
        self.invoker.start([CALL], self.invoker.monotonic_ms())
        await asyncio.wait_for(self.speaker.spoken.wait(), 5)

    async def result(self) -> Any:
        return (await asyncio.wait_for(self.results.get(), 5)).message


async def test_pieces_are_told_in_order_with_their_place_and_the_reply_is_whole() -> None:
    hall = Hall()
    await hall.begin()
    assert [(piece.at, piece.text) for piece in hall.heard] == [(0, "I have ")]
    hall.speaker.go.set()
    message = await hall.result()
    assert isinstance(message, ModelAnswered)
    assert message.reply.text == "I have found it."
    assert [(piece.turn, piece.attempt, piece.at, piece.text) for piece in hall.heard] == [
        ("task:a/2", 1, 0, "I have "),
        ("task:a/2", 1, 7, "found it."),
    ]


async def test_who_does_not_listen_any_more_and_who_watches_another_run_hears_nothing() -> None:
    hall = Hall()
    others: list[Partial] = []
    hall.overhearing.overhear("run-2", others.append)
    hall.leave()
    hall.leave()
    await hall.begin()
    hall.speaker.go.set()
    await hall.result()
    assert (hall.heard, others) == ([], [])


@case("J08", "L02")
async def test_of_a_reply_that_is_stopped_what_was_said_is_reported_once_and_it_is_cleaned_up_once() -> None:
    hall = Hall()
    await hall.begin()
    for _ in range(3):
        hall.invoker.start([STOP], 0)
    message = await hall.result()
    await hall.invoker.settled()
    assert isinstance(message, ModelFailed)
    assert (message.failure.code, message.partial_text) == (Code.CANCELLED, "I have ")
    assert (hall.speaker.cleanups, hall.results.qsize(), hall.invoker.running) == (1, 0, 0)
    hall.speaker.go.set()
    assert len(hall.heard) == 1, "nothing is said afterwards"


@case("J02", "J11")
async def test_a_shutdown_is_no_cancel_and_reports_nothing() -> None:
    hall = Hall()
    await hall.begin()
    await hall.invoker.stop()
    assert (hall.speaker.cleanups, hall.results.qsize()) == (1, 0)


async def test_of_a_call_that_had_said_nothing_nothing_is_reported() -> None:
    hall = Hall("", "x")
    await hall.begin()
    hall.invoker.start([STOP], 0)
    await hall.invoker.settled()
    assert hall.results.qsize() == 0


async def test_what_is_kept_is_bounded_and_what_is_told_is_not() -> None:
    hall = Hall("é" * limits.PARTIAL_BYTES_MAX)
    await hall.begin()
    hall.invoker.start([STOP], 0)
    message = await hall.result()
    assert len(message.partial_text.encode()) == limits.PARTIAL_BYTES_MAX
    assert len(hall.heard[0].text) == limits.PARTIAL_BYTES_MAX


@pytest.mark.parametrize("text", ["", "one", "one two", "  one\n\ntwo ", "\n"])
def test_the_words_of_a_text_together_are_the_text(text: str) -> None:
    words = list(words_of(text))
    assert "".join(word for _, word in words) == text
    assert [at for at, _ in words] == [sum(len(word) for _, word in words[:n]) for n in range(len(words))]


# ── a live session elsewhere ───────────────────────────────────────────────────────────


class Sessions:
    """A model that keeps the conversation in sessions of its own, as agents that are hosted elsewhere do."""

    def __init__(self) -> None:
        self.alive: set[str] = set()
        self.opened = 0

    async def call(self, activity: CallModel, conversation: Sequence[ChatMessage]) -> ModelReply:
        name = activity.handle
        if not name:
            self.opened += 1
            name = f"session-{self.opened}"
            self.alive.add(name)
        if name not in self.alive:
            raise handle_lost(f"there is no session {name}")
        return ModelReply(text=f"in {name}", handle=name)

    async def close(self) -> None: ...


@case("K04")
async def test_a_session_that_is_gone_is_told_as_lost_and_no_other_is_opened() -> None:
    sessions, results = Sessions(), asyncio.Queue[Envelope]()
    store = MemoryStore(SetClock())
    invoker = TaskInvoker(sessions, NoTools(), store, results.put_nowait)
    invoker.start([CALL], invoker.monotonic_ms())
    first: Any = (await asyncio.wait_for(results.get(), 5)).message
    assert first.reply.handle == "session-1"
    again = CALL.model_copy(update={"turn": 3, "handle": first.reply.handle})
    invoker.start([again], invoker.monotonic_ms())
    second: Any = (await asyncio.wait_for(results.get(), 5)).message
    assert second.reply.handle == "session-1"
    sessions.alive.clear()
    invoker.start([again.model_copy(update={"turn": 4})], invoker.monotonic_ms())
    lost: Any = (await asyncio.wait_for(results.get(), 5)).message
    assert (lost.failure.code, sessions.opened) == (Code.HANDLE_LOST, 1)


def _said(text: str) -> Unit:
    """A conversation with one message, as it would be stored."""
    row = ThreadMessageRow(
        tenant="acme", run_id="run-1", thread_id="task:a", n=1, role="user",
        body_text=UserText(text=text).model_dump_json(), said_at_ms=1,
    )  # fmt: skip
    state = StateWrite(address=row.owner(), tenant="acme", expected=0, version=1, status="calling", body=b"{}")
    return Unit(states=[state], rows=[row])


async def test_a_model_hears_the_conversation_as_it_was_committed_also_when_it_streams() -> None:
    hall = Hall()
    heard: list[Sequence[ChatMessage]] = []
    inner = hall.speaker.stream

    async def stream(activity: CallModel, conversation: Sequence[ChatMessage], said: Callable[[str], None]) -> Any:
        heard.append(conversation)
        return await inner(activity, conversation, said)

    hall.speaker.stream = stream  # type: ignore[method-assign]
    store = MemoryStore(SetClock())
    await store.commit([_said("hello")])
    invoker = TaskInvoker(hall.speaker, NoTools(), store, hall.results.put_nowait)
    hall.speaker.go.set()
    invoker.start([CALL.model_copy(update={"messages": 1})], invoker.monotonic_ms())
    await hall.result()
    assert [[said.text for said in conversation] for conversation in heard] == [["hello"]]  # type: ignore[union-attr]
