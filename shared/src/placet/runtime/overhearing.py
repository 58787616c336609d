"""Decides how pieces of replies reach whoever watches a run in this process: at once, or never, and in nobody's way."""

from __future__ import annotations

from collections.abc import Callable

from placet.partials import Partial

Heard = Callable[[Partial], None]


class Overhearing:
    """Tells pieces to those who watch their run. It keeps nothing: who comes later has missed what was said."""

    def __init__(self) -> None:
        self._watchers: dict[str, list[Heard]] = {}

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
