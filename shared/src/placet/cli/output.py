"""Decides how things are printed: one JSON document, or text for a person, never both, and never raw bytes of others.

Everything that came from an agent, a tool or a person is escaped: what is printed cannot move the cursor, change the
title, or hide what stands beside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

    from placet.errors import PlacetError
    from placet.views import PartialText

COLUMN_CHARS_MAX = 100
"""A cell that may be cut; the whole is one command away."""


def document(value: BaseModel | dict[str, Any] | list[Any]) -> None:
    """The one JSON document of a command, on standard output."""
    sys.stdout.write(_json(value, indent=2) + "\n")


def json_line(value: BaseModel | dict[str, Any]) -> None:
    """One JSON document of many, on a line of its own."""
    sys.stdout.write(_json(value, indent=None) + "\n")
    sys.stdout.flush()


def _json(value: Any, indent: int | None) -> str:
    plain = value if isinstance(value, dict | list) else value.model_dump(mode="json")
    # ASCII: a terminal shows even this document without acting on it.
    return json.dumps(plain, indent=indent)


class Speaking:
    """Writes pieces of replies as they come, each turn's on a line that begins with its name."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._turn = ""
        self._seen: dict[str, tuple[int, int]] = {}
        """Of each turn: the attempt, and how much of it was written."""

    def heard(self, piece: PartialText) -> None:
        """The next piece; what was written already, before a reconnect, is not written again."""
        if (piece.attempt, piece.at) < self._seen.get(piece.turn, (0, 0)):
            return
        self._seen[piece.turn] = (piece.attempt, piece.at + len(piece.text))
        if self._as_json:
            json_line(piece)
            return
        if piece.turn != self._turn or piece.at == 0:
            self.pause()
            self._turn = piece.turn
            sys.stdout.write(f"       {safe(piece.turn)}: ")
        sys.stdout.write(" ".join(safe(part) for part in piece.text.split("\n")))
        sys.stdout.flush()

    def pause(self) -> None:
        """Something else is written next."""
        if self._turn:
            sys.stdout.write("\n")
            self._turn = ""


def line(text: str = "") -> None:
    """A line of our own making; what is not ours goes through `safe` first."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """A line beside the result, on standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def safe(text: object) -> str:
    """Somebody's text, with everything escaped that cannot be seen or that a terminal would act on."""
    from placet.characters import visible

    return visible(str(text))


def shortened(text: str, chars_max: int = COLUMN_CHARS_MAX) -> str:
    """A cell of a table; says how much is missing."""
    return text if len(text) <= chars_max else f"{text[: chars_max - 12]}… (+{len(text) - chars_max + 12:,})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Aligned columns; on a terminal wrapped to its width. Cells must be safe already."""
    cells = [list(row) for row in rows]
    if not sys.stdout.isatty():
        widths = [max(len(row[at]) for row in [head, *cells]) for at in range(len(head))]
        for row in [head, *cells]:
            line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="dim", show_edge=False)
    for title in head:
        made.add_column(title, overflow="fold", no_wrap=title == head[0])
    for row in cells:
        made.add_row(*(Text(cell) for cell in row))
    Console(file=sys.stdout, highlight=False).print(made)


def error(failure: PlacetError, exit_code: int, next_step: str | None, *, as_json: bool) -> None:
    """An error, on standard error: one line and the next step, or one JSON document."""
    if as_json:
        told: dict[str, Any] = {
            "code": failure.code.value,
            "message": failure.message,
            "pointer": failure.pointer,
            "details": failure.details,
            "exit_code": exit_code,
            "next_step": next_step,
        }
        note(json.dumps({"error": {name: value for name, value in told.items() if value is not None}}, default=str))
        return
    note(f"error: {safe(failure.message)} [{failure.code.value}]")
    for found in (failure.details.get("errors") or [])[1:]:
        note(f"       {safe(found.get('pointer'))}: {safe(found.get('detail'))}")
    if next_step is not None:
        note(f"  next: {next_step}")
