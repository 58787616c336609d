"""Decides the words in which a person is told what is asked: one plain sentence, then the exact content.

Everything is made from the hashed content itself. Values are written as JSON; a character that cannot be seen, or
that moves others, is written as its JSON escape, so that the text shown reads back as exactly the value that is hashed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from placet.canonical import canonical_text, parse_canonical
from placet.characters import Hazard, findings, visible
from placet.contents import (
    Content,
    OperationOutcomeContent,
    PlanContent,
    PlanPatchContent,
    QuestionContent,
    TaskDispatchContent,
    TaskRoundContent,
    TaskSnapshot,
    ToolCallContent,
    read_content,
)
from placet.errors import ContractError
from placet.strict_json import JsonValue, pointer_of

VALUE_CHARS_MAX = 60
"""A value in a sentence; longer ones are folded, with their size. Nothing is folded in `pretty`."""
HEAD_CHARS, TAIL_CHARS = 28, 32
"""What is left of a folded text."""
ITEMS_MAX = 8
"""Arguments or tasks in a sentence."""
BLANKS_MAX = 20
"""More blanks in a row than this may push what matters out of view."""

_READABLE = frozenset({Hazard.MIXED_ALPHABETS, Hazard.ESCAPE_LIKE})
"""Hazards that need no escape here: look-alike letters are only warned of, and JSON doubles every backslash."""
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PADDING = re.compile(rf"[ \n\t\r]{{{BLANKS_MAX + 1},}}")


class Warned(NamedTuple):
    """Something in the content that a reader would not see, or would take for something else."""

    pointer: str
    """RFC 6901, into the content; a key is named by the pointer of its value."""
    hazard: str
    position: int
    code_point: str
    name: str


def literal(value: JsonValue) -> str:
    """A value as one line of JSON, every hidden character as `\\u202E`. Reads back as the same value."""
    if isinstance(value, str):
        return _text_literal(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text_literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    return canonical_text(value)


def _text_literal(text: str) -> str:
    hidden = {found.position for found in findings(text) if found.hazard not in _READABLE}
    shown = (
        _SHORT.get(character) or (_escape(character) if at in hidden else character)
        for at, character in enumerate(text)
    )
    return '"' + "".join(shown) + '"'


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex().upper()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def pretty(value: JsonValue, indent: str = "") -> str:
    """A value as indented JSON, whole: nothing is cut, hidden characters are escaped."""
    inner = indent + "  "
    if isinstance(value, Mapping) and value:
        lines = [f"{inner}{_text_literal(key)}: {pretty(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return "[\n" + ",\n".join(f"{inner}{pretty(item, inner)}" for item in value) + f"\n{indent}]"
    return literal(value)


def warnings(value: JsonValue) -> list[Warned]:
    """Every hazard in every text and key of a value, in document order."""
    return list(_warnings(value, []))


def _warnings(value: JsonValue, path: list[str | int]) -> Iterator[Warned]:
    if isinstance(value, str):
        yield from _of_text(value, path)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _of_text(key, [*path, key])
            yield from _warnings(item, [*path, key])
    elif isinstance(value, Sequence):
        for at, item in enumerate(value):
            yield from _warnings(item, [*path, at])


def _of_text(text: str, path: Sequence[str | int]) -> Iterator[Warned]:
    pointer = pointer_of(path)
    for found in findings(text):
        # Line feeds and tabs are how people write; JSON shows each as its escape.
        if text[found.position] not in "\n\t" and found.hazard is not Hazard.ESCAPE_LIKE:
            yield Warned(pointer, found.hazard.value, found.position, found.code_point, found.name)
    for match in _PADDING.finditer(text):
        yield Warned(pointer, "padding", match.start(), "U+0020", f"{len(match.group())} blanks in a row")


# ── the sentence ───────────────────────────────────────────────────────────────────────


def sentence(content_text: str, *, run_id: str, reason: str | None = None) -> str:
    """One plain sentence about a request, from its canonical content. What cannot be read is said to be so."""
    try:
        value = parse_canonical(content_text)
        content = read_content(value) if isinstance(value, Mapping) else None
    except ContractError:
        content = None
    if content is None:
        told = (
            f"Run {visible(run_id)} asks something that this version of Placet cannot read: look at the content itself"
        )
    else:
        told = _told(content, visible(run_id))
    if not told.endswith(("?", ".")):
        told += "."
    return told if not reason else f"{told} Reason: {_prose(reason).rstrip('.')}."


def _told(content: Content, run: str) -> str:
    match content:
        case ToolCallContent():
            call = call_text(content.tool_name, content.input)
            weight = "consequential" if content.consequential else "not consequential"
            return f"{visible(content.agent_name)} wants to run {call} in run {run} — {weight}"
        case OperationOutcomeContent():
            call = call_text(content.tool_name, content.input)
            return f"Did {call} happen? Run {run} started it at {content.started_at} and never learned the outcome"
        case QuestionContent():
            options = (
                "" if content.options is None else f" (one of {', '.join(map(_folded, content.options[:ITEMS_MAX]))})"
            )
            return f"{visible(content.agent_name)} asks in run {run}{options}: {_prose(content.question)}"
        case PlanContent(continuation="plan_only"):
            return f"Run {run} wants to give out this plan as its result: {_tasks(content.tasks)}"
        case PlanContent():
            return f"Run {run} wants to carry out this plan: {_tasks(content.tasks)}"
        case TaskRoundContent():
            done = _tasks(content.completed_tasks)
            return f"Run {run} has finished {done} and wants to go on with {_tasks(content.next_tasks)}"
        case PlanPatchContent():
            parts = (
                ("adding", content.added),
                ("changing", content.changed),
                ("removing", content.removed),
            )
            what = "; ".join(f"{word} {_tasks(tasks)}" for word, tasks in parts if tasks)
            return f"{visible(content.proposed_by)} wants to change the plan of run {run}, {what}"
        case TaskDispatchContent():
            return f"Run {run} wants to start {_task(content.task)}"


def call_text(tool: str, arguments: Mapping[str, JsonValue]) -> str:
    """`create_tag(name="v1.2.0", commit="4f2a…")`: long values folded, with their size."""
    shown = [
        f"{key if _PLAIN_KEY.fullmatch(key) else _folded(key)}={_folded(value)}" for key, value in arguments.items()
    ]
    return f"{visible(tool)}({', '.join(_first(shown, 'arguments'))})"


def _tasks(tasks: Sequence[TaskSnapshot]) -> str:
    if not tasks:
        return "no tasks"
    count = "1 task" if len(tasks) == 1 else f"{len(tasks)} tasks"
    return f"{count}, " + "; ".join(_first([_task(task) for task in tasks], "tasks"))


def _task(task: TaskSnapshot) -> str:
    if task.call is not None:
        what = f" ({call_text(task.call.tool_name, task.call.input)})"
    else:
        what = f" (by {visible(task.assignee)})" if task.assignee else ""
    return f"{visible(task.id)} {_folded(task.title)}{what}"


def _first(items: Sequence[str], noun: str) -> list[str]:
    more = len(items) - ITEMS_MAX
    return [*items] if more <= 0 else [*items[:ITEMS_MAX], f"… {more} more {noun}"]


def _folded(value: JsonValue) -> str:
    """A value in a sentence. Of a long text head and tail: what is dangerous likes to stand at the end."""
    if isinstance(value, str):
        if len(value) <= VALUE_CHARS_MAX:
            return literal(value)
        head, tail = literal(value[:HEAD_CHARS]), literal(value[-TAIL_CHARS:])
        return f"{head[:-1]} … {tail[1:]} ({len(value):,} characters)"
    size = len(canonical_text(value))
    if size <= VALUE_CHARS_MAX:
        return literal(value)
    if isinstance(value, Mapping):
        return f"{{… {len(value)} keys, {size:,} characters}}"
    return f"[… {len(value) if isinstance(value, Sequence) else 1} items, {size:,} characters]"


def _prose(text: str) -> str:
    """Somebody's words, folded likewise."""
    if len(text) <= VALUE_CHARS_MAX * 3:
        return visible(text)
    return f"{visible(text[: VALUE_CHARS_MAX * 2])} … {visible(text[-VALUE_CHARS_MAX:])} ({len(text):,} characters)"
