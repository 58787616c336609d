"""A run is watched while its agents speak; who watches learns how it ended, or that the server goes."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from placet.client import AsyncPlacetClient, Connection
from placet.client.events import EventReader
from placet.errors import Code, RetryableError
from placet.partials import Overhearing, Partial
from placet.views import PartialText, RunEvent
from placet_gateway.streams import PIECES_MAX, Streams, spoken
from tests.cases import case
from tests.gateway.test_runs import events_in
from tests.gateway.world import TOKEN, World


def a_piece(at: int = 0, text: str = "Hel", run_id: str = "r1") -> Partial:
    return Partial(tenant="default", run_id=run_id, turn="task:a/1", attempt=1, at=at, text=text)


class Watching:
    """Reads one stream, with pieces or without."""

    def __init__(self, world: World, *, partial: bool = True) -> None:
        self.world = world
        self.overhearing = Overhearing()
        self.streams = Streams(world, heartbeat_s=60, overheard=self.overhearing)
        self.told: list[str] = []
        self.more = asyncio.Event()
        self.looks = 0
        self.task = asyncio.create_task(self._read(partial=partial))

    async def _look(self, after: int) -> tuple[list[RunEvent], str | None]:
        self.looks += 1
        status = self.world.states["r1", "run", ""]["status"]
        leaves = [leaf for leaf in self.world.tables.get("audit_leaf", []) if leaf["seq"] > after]
        found = [RunEvent(seq=leaf["seq"], kind=leaf["kind"], at_ms=leaf["at_ms"]) for leaf in leaves]
        return found, status if status in ("succeeded", "cancelled") else None

    async def _read(self, *, partial: bool) -> None:
        async for text in self.streams.follow("r1", 0, self._look, partial=partial):
            self.told.append(text)
            self.more.set()

    async def until(self, count: int) -> list[tuple[str, str]]:
        """The first so many events."""
        async with asyncio.timeout(5):
            while len(found := events_in("".join(self.told))) < count:
                self.more.clear()
                await self.more.wait()
        return found

    async def ended(self) -> list[tuple[str, str]]:
        await asyncio.wait_for(self.task, 5)
        return events_in("".join(self.told))


async def watching(world: World, *, partial: bool = True) -> Watching:
    world.add_run()
    world.add_leaf("task.started")
    made = Watching(world, partial=partial)
    await made.until(1)
    return made


async def test_pieces_come_between_the_events_without_a_number_and_ask_the_store_nothing(world: World) -> None:
    made = await watching(world)
    looks = made.looks
    for at, text in ((0, "Hel"), (3, "lo\n\nevent: end")):
        made.overhearing.tell(a_piece(at, text))
    assert await made.until(3) == [("1", "task.started"), ("", "turn.partial"), ("", "turn.partial")]
    assert made.looks == looks
    world.add_leaf("task.succeeded")
    world.end_run()
    assert (await made.ended())[3:] == [("2", "task.succeeded"), ("", "end")]
    made.overhearing.tell(a_piece())
    assert not made.overhearing._watchers, "nobody is left listening"


async def test_who_has_not_asked_for_pieces_gets_none(world: World) -> None:
    made = await watching(world, partial=False)
    made.overhearing.tell(a_piece())
    world.end_run()
    assert await made.ended() == [("1", "task.started"), ("", "end")]


async def test_a_slow_reader_misses_the_oldest_pieces_and_no_event(world: World) -> None:
    made = await watching(world)
    for at in range(PIECES_MAX + 10):
        made.overhearing.tell(a_piece(at, "x"))
    world.end_run()
    events = await made.ended()
    assert len(events) == PIECES_MAX + 2
    assert events[-1] == ("", "end")


@case("J11")
async def test_a_watcher_is_told_the_end_of_a_cancelled_run_and_is_cut_off_without_one_by_a_shutdown(
    world: World,
) -> None:
    made = await watching(world)
    made.streams.close()
    assert await made.ended() == [("1", "task.started")], "no end: it may look again elsewhere"
    world.tables.clear()
    made = await watching(world)
    world.add_leaf("run.ended", "cancelled")
    world.end_run(status="cancelled")
    assert (await made.ended())[-1] == ("", "end")
    assert '"status":"cancelled"' in made.told[-1]


@case("J21")
async def test_a_watcher_that_goes_away_ends_nothing_but_its_stream(world: World) -> None:
    made = await watching(world)
    made.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await made.task
    assert world.asked == [], "nobody is told to stop anything"
    assert world.states["r1", "run", ""]["status"] == "suspended"
    assert (world.watchers, made.overhearing._watchers) == (0, {})


async def test_the_client_tells_pieces_apart_from_events(world: World) -> None:
    world.add_run()
    for kind in ("run.submitted", "run.ended"):
        world.add_leaf(kind)
    world.end_run()
    pieces: list[PartialText] = []
    transport = httpx.ASGITransport(app=world.app())
    async with AsyncPlacetClient(Connection("http://localhost:7300", TOKEN), transport=transport) as client:
        kinds = [event.kind async for event in client.watch("r1", on_text=pieces.append)]
        assert kinds == ["run.submitted", "run.ended"]
        world.broken = RetryableError(Code.STORE_UNAVAILABLE, "away")
    reader = EventReader()
    [piece] = [read for line in spoken(a_piece(3, "lo")).split("\n") if (read := reader.line(line)) is not None]
    assert piece == PartialText(turn="task:a/1", attempt=1, at=3, text="lo")
    assert json.loads(spoken(a_piece()).split("data: ")[1]) == {
        "turn": "task:a/1", "attempt": 1, "at": 0, "text": "Hel",
    }  # fmt: skip
