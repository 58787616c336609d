"""Decides what a line of a service's log looks like: one JSON object, or text for people; no address's password."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO

from placet.settings import Settings

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PASSWORD = re.compile(r"(?<=://)([^\s:/@]*):(?!PASSWORD@)[^\s@/]*@")
TRACEBACK_CHARS_MAX = 16_000


def masked(text: str) -> str:
    """Addresses without their passwords."""
    return _PASSWORD.sub(r"\1:***@", text)


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """What was given as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD and not name.startswith("_")}


class JsonLines(logging.Formatter):
    """One object a line: at, level, logger, event, service, then the record's own fields."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """As logging.Formatter."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            "service": self._service,
            "pid": os.getpid(),
        }
        line |= {name: value for name, value in fields(record).items() if name not in line}
        if record.exc_info:
            line["error"] = _told(record)
        return masked(json.dumps(line, default=str))


class TextLines(logging.Formatter):
    """For people at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """As logging.Formatter."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told = "".join(f" {name}={value}" for name, value in fields(record).items())
        error = f"\n{_told(record)}" if record.exc_info else ""
        return masked(f"{at} {record.levelname:<7} {record.getMessage()}{told}{error}")


def _told(record: logging.LogRecord) -> str:
    text = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
    return text[-TRACEBACK_CHARS_MAX:]


def set_up(service: str, settings: Settings, stream: TextIO | None = None) -> None:
    """Send everything to standard output, one line each; our own from the level that is set, libraries' warnings."""
    handler = logging.StreamHandler(stream or sys.stdout)
    handler.setFormatter(JsonLines(service) if settings.log_format == "json" else TextLines())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)  # below that, drivers tell every frame, and with it what they sign in with
    logging.getLogger("placet").setLevel(settings.log_level.upper())
    logging.captureWarnings(True)
