"""Decides how a stream of server-sent events is read back into a run's events."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from placet.views import PartialText, RunEvent

RECONNECTS_MAX = 8
"""Broken streams in a row, without an event in between, before it is given up."""
READ_TIMEOUT_S = 60.0
"""Silence for this long, four heartbeats, means that the connection is dead."""


def pause_s(failures: int) -> float:
    """How long to wait before the next try."""
    return min(0.25 * 2.0**failures, 5.0)


@dataclass(slots=True)
class Ended:
    """The run reached an end; no event follows."""

    status: str


@dataclass(slots=True)
class EventReader:
    """Takes the lines of a stream and gives each event when it is whole."""

    _event: str = ""
    _data: list[str] = field(default_factory=list)

    def line(self, line: str) -> RunEvent | PartialText | Ended | None:
        """One line, without its end. Comments and fields that are not known are ignored, as the standard says."""
        if line == "":
            return self._whole()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        return None

    def _whole(self) -> RunEvent | PartialText | Ended | None:
        event, data = self._event, "\n".join(self._data)
        self._event, self._data = "", []
        if not data:
            return None
        if event == "end":
            return Ended(status=str(json.loads(data)["status"]))
        if event == "turn.partial":
            return PartialText.model_validate_json(data)
        return RunEvent.model_validate_json(data)
