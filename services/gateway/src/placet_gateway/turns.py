"""Decides how a run's turns are shown: those in work, and the last one of a conversation that did not end well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from placet.ids import Address
from placet.messages import ANSWER_THREAD, PLAN_THREAD, THREAD, task_thread, turn_name
from placet.runtime.reading import Reader
from placet.views import TurnView
from placet_gateway.reading import Columns

SHOWN_MAX = 64
"""Conversations that are looked at for one view: as many as can be at work."""


async def turns_of(reader: Reader, tenant: str, run_id: str, run: Columns, now_ms: int) -> list[TurnView]:
    """The turns of a stored run that are worth a look."""
    found: list[TurnView] = []
    for thread_id in list(_threads(run["body"]))[:SHOWN_MAX]:
        stored = await reader.state(tenant, Address(run_id, THREAD, thread_id))
        if stored is not None:
            found.append(_turn(thread_id, stored["status"], stored["body"], now_ms))
    return found


def _threads(body: Columns) -> Iterator[str]:
    phase = body.get("phase")
    tasks = [task for task in body.get("tasks") or () if task.get("turn")]
    if phase == "planning" or not tasks:
        yield PLAN_THREAD
    if phase == "answering":
        yield ANSWER_THREAD
    for task in tasks:
        if task["status"] in ("running", "failed", "skipped"):
            yield task_thread(task["id"])


def _turn(thread_id: str, status: str, body: dict[str, Any], now_ms: int) -> TurnView:
    turn = int(body.get("turn") or 0)
    is_lost = status == "calling" and now_ms >= int(body.get("lease_until_ms") or now_ms + 1)
    is_stopped = status in ("failed", "closed") and body.get("stop") == turn and turn > 0
    words = {"idle": "done", "closed": "interrupted"}
    return TurnView(
        turn=turn_name(thread_id, turn),
        status="interrupted" if is_lost or is_stopped else words.get(status, status),
        attempt=int(body.get("attempt") or 0),
        interruptions=int(body.get("lost") or 0),
        partial_text=body.get("partial_text") or None,
    )
