"""Decides how instants and lengths of time are written and read by people."""

from __future__ import annotations

import re

from placet.errors import Code, ContractError
from placet.instants import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Instant, rfc3339

_UNITS_MS = {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS}
_LENGTH = re.compile(r"(\d{1,9})(ms|s|m|h|d)?")


def length_ms(text: str) -> int:
    """`90`, `90s`, `10m`, `2h`, `1d` in milliseconds. Raises ContractError(PARAMETER_INVALID)."""
    match = _LENGTH.fullmatch(text.strip())
    length = int(match.group(1)) * _UNITS_MS[match.group(2) or "s"] if match else 0
    if length <= 0:
        raise ContractError(
            Code.PARAMETER_INVALID, f"{text!r} is no length of time: write 90 (seconds), 90s, 10m, 2h or 1d"
        )
    return length


def ago(instant_ms: int, now_ms: int) -> str:
    """`5s ago`, `3m ago`, `2h ago`, `4d ago`."""
    return f"{_rough(max(now_ms - instant_ms, 0))} ago"


def ahead(instant_ms: int, now_ms: int) -> str:
    """`in 5m`, or `passed`."""
    return f"in {_rough(instant_ms - now_ms)}" if instant_ms > now_ms else "passed"


def _rough(length_ms: int) -> str:
    for unit in ("d", "h", "m"):
        if length_ms >= _UNITS_MS[unit] * (1 if unit == "m" else 2):
            return f"{length_ms // _UNITS_MS[unit]}{unit}"
    return f"{length_ms // SECOND_MS}s"


def at(instant_ms: int | None) -> str:
    """RFC 3339 in UTC."""
    return "" if instant_ms is None else rfc3339(Instant(instant_ms))
