"""Decides how a person says more than a word by command: an edited input, an answer, what should be changed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from placet.cli import output

if TYPE_CHECKING:
    from placet.machine import Receipt
    from placet.strict_json import JsonValue
    from placet.views import RequestView

ID_CHARS = 12


def edited_input(given: str | None) -> Callable[[RequestView | None], JsonValue]:
    """The input as it should be: JSON, or the name of a file with it; without either, from the person's editor."""

    def made(view: RequestView | None) -> JsonValue:
        if given is not None:
            return parsed(given if given.lstrip().startswith("{") else _file(given))
        return _from_editor(_before(view))

    return made


def answer(text: str | None, value: str | None) -> Callable[[RequestView | None], JsonValue]:
    """What a person answers: plain text, or a JSON value. Raises ContractError(PARAMETER_INVALID) for both or none."""
    from placet.errors import Code, ContractError

    if (text is None) == (value is None):
        raise ContractError(Code.PARAMETER_INVALID, "say the answer as TEXT, or as --value JSON")
    said: JsonValue = text if value is None else parsed(value)
    return lambda _: said


def parsed(text: str) -> JsonValue:
    """JSON, strictly read. Raises ContractError(PARAMETER_INVALID) with the reader's own words."""
    from placet.errors import Code, ContractError
    from placet.strict_json import parse

    try:
        return parse(text)
    except ContractError as error:
        raise ContractError(Code.PARAMETER_INVALID, f"no JSON: {error.message}", pointer=error.pointer) from error


def _file(name: str) -> str:
    from placet.errors import Code, ContractError

    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        told = f"--input is JSON, or a file that can be read as text: {error}"
        raise ContractError(Code.PARAMETER_INVALID, told) from error


def _before(view: RequestView | None) -> JsonValue:
    from placet.contents import read_content
    from placet.decision_words import editable
    from placet.errors import Code, ContractError
    from placet.strict_json import parse

    if view is None:
        raise ContractError(Code.PARAMETER_INVALID, "name the input by --input: what is asked was not looked at here")
    plain = parse(view.content_text, long_integers_are_doubles=True)
    before = editable(read_content(plain)) if isinstance(plain, dict) else None
    if before is None:
        raise ContractError(Code.APPROVAL_VALIDATION_ERROR, f"of a request of scope {view.scope} nothing can be edited")
    return before


def _from_editor(before: JsonValue) -> JsonValue:
    """The input as a person leaves it in $VISUAL or $EDITOR. Raises ContractError(PARAMETER_INVALID)."""
    from placet.errors import Code, ContractError
    from placet.sentences import pretty

    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor or sys.stdin is None or not sys.stdin.isatty():
        raise ContractError(Code.PARAMETER_INVALID, "there is no editor here: set EDITOR, or say --input JSON or FILE")
    with tempfile.TemporaryDirectory(prefix="placet-") as folder:
        file = Path(folder, "input.json")
        file.write_text(pretty(before) + "\n", encoding="utf-8")
        try:
            subprocess.run([*shlex.split(editor), str(file)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise ContractError(Code.PARAMETER_INVALID, f"the editor failed, so nothing was said: {error}") from error
        return parsed(file.read_text(encoding="utf-8"))


def tell_value(word: str, value: JsonValue, view: RequestView | None) -> None:
    """What is about to be said, whole; of an edit also which arguments differ."""
    from placet.sentences import pretty

    output.line()
    if word != "edit":
        output.line(f"answer: {pretty(value)}")
        return
    output.line(f"edited: {pretty(value)}")
    before = _before(view) if view is not None else None
    if isinstance(before, dict) and isinstance(value, dict):
        names = sorted({*before, *value})
        differing = [name for name in names if name not in before or name not in value or before[name] != value[name]]
        output.line(f"differs in: {', '.join(map(output.safe, differing)) or 'nothing'}")


def next_step(word: str, receipt: Receipt) -> str:
    """What comes next, and by which command it is seen."""
    run = output.safe(receipt.run_id)
    if receipt.successor is not None:
        return f"Somebody else has to look at it: placet show {receipt.successor[:ID_CHARS]}"
    match word:
        case "approve" if receipt.outcome is None:
            return "More people have to approve it: placet inbox"
        case "request_changes":
            return "What is proposed next is another request: placet inbox"
        case _:
            return f"See what comes of it: placet run show {run}"
