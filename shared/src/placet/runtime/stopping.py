"""Decides how a call is stopped that another process makes: everybody is told, and whoever makes it looks for itself.

What is said is a hint (DESIGN §7): a call is signalled only when the facts say that nobody wants it any more, because
its own state or its run has ended. So a stop may come twice, late, before the call has begun, or from anybody; and
after a gap in hearing, everything that runs here is looked at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from placet.activities import Activity, Stop
from placet.errors import RetryableError
from placet.ids import Address
from placet.messages import RUN, THREAD
from placet.runtime.invoker import TaskInvoker
from placet.runtime.ports import Loaded, Stops, Store
from placet.runtime.process import backoff_ms
from placet.statuses import OPERATION_TERMINAL, RUN_TERMINAL

log = logging.getLogger("placet.invoker")

EARLY_MAX = 1_000
"""Stops that are remembered for calls which may be about to begin here. The oldest are forgotten first."""
MISSED = "its run has ended"


class Stopping:
    """An Invoker that tells other processes of stops, and hears theirs."""

    def __init__(self, inner: TaskInvoker, store: Store, stops: Stops) -> None:
        self._inner = inner
        self._store = store
        self._stops = stops
        self._early: dict[Address, str] = {}
        self._suspects: dict[Address, str] = {}
        self._looking: asyncio.Task[None] | None = None
        stops.listen(self._heard, self._missed)

    def monotonic_ms(self) -> float:
        """As ports.Invoker."""
        return self._inner.monotonic_ms()

    def start(self, activities: Sequence[Activity], since_ms: float) -> None:
        """As ports.Invoker. A stop is told to the others even where something runs here: more may run there."""
        self._inner.start(activities, since_ms)
        for activity in activities:
            if isinstance(activity, Stop):
                self._stops.announce(activity)
            elif (reason := self._early.pop(activity.owner(), None)) is not None:
                self._suspect(activity.owner(), reason)

    async def close(self) -> None:
        """Look no more. Twice is harmless."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    def _heard(self, stop: Stop) -> None:
        owner = stop.owner()
        if self._inner.could_stop(owner):
            self._suspect(owner, stop.reason)
            return
        # It may have overtaken the call, which is committed already and begins in a moment.
        self._early.pop(owner, None)
        self._early[owner] = stop.reason
        while len(self._early) > EARLY_MAX:
            del self._early[next(iter(self._early))]

    def _missed(self) -> None:
        for owner in self._inner.owners():
            self._suspect(owner, MISSED)

    def _suspect(self, owner: Address, reason: str) -> None:
        self._suspects[owner] = reason
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="stops")
            self._looking.add_done_callback(_told)

    async def _look(self) -> None:
        """Until all suspects are looked at, or have ended; a store that is away is asked again."""
        failures = 0
        while suspects := {each: why for each, why in self._suspects.items() if self._inner.could_stop(each)}:
            self._suspects.clear()
            runs = {Address(owner.run_id, RUN, ""): None for owner in suspects}
            try:
                loaded = await self._store.load([*suspects, *runs], [])
            except RetryableError as error:
                failures += 1
                self._suspects = suspects | self._suspects
                log.warning("stop.waits", extra={"calls": len(suspects), "what": error.message})
                await asyncio.sleep(backoff_ms("stops", failures) / 1_000)
                continue
            for owner, reason in suspects.items():
                stopped = self._inner.stop_calls(owner, reason) if _is_over(owner, loaded) else 0
                log.info("stop.heard", extra={"owner": owner.text(), "reason": reason, "stopped": stopped})
        self._suspects.clear()


def _is_over(owner: Address, loaded: Loaded) -> bool:
    """Whether nobody wants the result of a call for that state, say the facts."""
    own, run = loaded.states[owner], loaded.states[Address(owner.run_id, RUN, "")]
    if run is not None and run.status in RUN_TERMINAL:
        return True
    if own is None:
        return False
    # A conversation goes on after a turn that was interrupted; but of one that calls no model, no call is wanted.
    return own.status != "calling" if owner.machine == THREAD else own.status in OPERATION_TERMINAL


def _told(looking: asyncio.Task[None]) -> None:
    if not looking.cancelled() and (error := looking.exception()) is not None:
        log.error("stop.lost", exc_info=error)
