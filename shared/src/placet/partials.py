"""Decides what whoever watches a run is told of a reply that is still coming: never a fact, and none is made of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from placet.activities import CallModel
from placet.messages import turn_name
from placet.values import Name, RunId, Value

_WORD = re.compile(r"\S+\s*|\s+")


class Partial(Value):
    """A piece of a reply's text. The whole reply comes as a fact, or not at all."""

    tenant: Name
    run_id: RunId
    turn: str
    """As `turn_name` gives it."""
    attempt: int
    """Another attempt begins the reply anew."""
    at: int
    """How many characters of it came before."""
    text: str


def partial_of(call: CallModel, at: int, text: str) -> Partial:
    """A piece of the reply to a call."""
    return Partial.trusted(
        tenant=call.tenant,
        run_id=call.run_id,
        turn=turn_name(call.thread_id, call.turn),
        attempt=call.attempt,
        at=at,
        text=text,
    )


def words_of(text: str) -> Iterator[tuple[int, str]]:
    """A text word by word, each with its place: together they are the text."""
    for word in _WORD.finditer(text):
        yield word.start(), word.group()


Heard = Callable[[Partial], None]


class Overhearing:
    """Tells pieces to those who watch their run. It keeps nothing: who comes later has missed what was said."""

    def __init__(self) -> None:
        self._watchers: dict[str, list[Heard]] = {}

    def listens(self, run_id: str) -> bool:
        """As ports.Partials."""
        return run_id in self._watchers

    def tell(self, partial: Partial) -> None:
        """As ports.Partials."""
        for heard in self._watchers.get(partial.run_id, ()):
            heard(partial)

    def overhear(self, run_id: str, heard: Heard) -> Callable[[], None]:
        """As ports.Overheard."""
        self._watchers.setdefault(run_id, []).append(heard)

        def end() -> None:
            watchers = self._watchers.get(run_id, [])
            if heard in watchers:
                watchers.remove(heard)
            if not watchers:
                self._watchers.pop(run_id, None)

        return end
