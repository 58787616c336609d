"""Decides what of a request a person is shown before deciding, and what proves that it was shown.

All of it is made from the hashed content. Whatever bears on the decision is a *part*; a long part is folded, with its
size, its beginning and its end. Who opens one is given a token with its full text, and only a decision that comes with
the tokens of all folded parts is handed on: that the button was off is a courtesy, this is the rule. The digest covers
every part in full, and the version of this renderer: another version, or other content, is another digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from placet.canonical import digest
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
)
from placet.errors import ContractError
from placet.requests import hash_of_text
from placet.sentences import Warned, literal, pretty, sentence, warnings
from placet.strict_json import JsonValue, pointer_of
from placet_gateway.inbox.cards import Columns, content_of, distinct
from placet_gateway.inbox.sessions import Session

RENDERER = "placet-web-1"
"""A new one with every change of what is shown, or how: pages that are open then have to be loaded anew."""
FOLD_CHARS = 400
FOLD_LINES = 16
"""A part longer than either is folded."""
HEAD_CHARS, TAIL_CHARS = 160, 120
"""What is left of it: what is dangerous likes to stand at the end."""
FINDINGS_MAX = 100
"""Warnings that are written out; the others are counted."""


@dataclass(frozen=True, slots=True)
class Part:
    """One thing to look at. `n` from 0."""

    n: int
    pointer: str
    label: str
    text: str
    is_json: bool
    """Whether the text is JSON; else it is the text itself."""
    is_folded: bool
    group: str = ""

    @property
    def head(self) -> str:
        """The beginning of a folded one."""
        return "\n".join(self.text[:HEAD_CHARS].split("\n")[:6])

    @property
    def tail(self) -> str:
        """The end of a folded one."""
        return "\n".join(self.text[-TAIL_CHARS:].split("\n")[-6:])

    @property
    def is_short(self) -> bool:
        """Whether it stands beside its label."""
        return len(self.text) <= 60 and "\n" not in self.text

    @property
    def chars(self) -> int:
        """Its length."""
        return len(self.text)

    @property
    def lines(self) -> int:
        """How many lines it has."""
        return self.text.count("\n") + 1


@dataclass(frozen=True, slots=True)
class Shown:
    """A request as it is shown. `fault`: why it is not to be believed; then nothing can be decided about it."""

    request_id: str
    request_hash: str
    sentence: str
    content: Content | None
    value: JsonValue
    content_text: str
    parts: tuple[Part, ...]
    findings: tuple[Warned, ...]
    fault: str
    digest: str

    @property
    def folded(self) -> tuple[Part, ...]:
        """What has to be opened before a decision."""
        return tuple(part for part in self.parts if part.is_folded)

    def token(self, session: Session, part: Part) -> str:
        """What goes with the full text of a part."""
        return session.token("part", self.request_id, self.digest, str(part.n))

    def unopened(self, session: Session, tokens: Sequence[str]) -> list[Part]:
        """The folded parts that nobody in this session has been given in full."""
        given = set(tokens)
        return [part for part in self.folded if self.token(session, part) not in given]

    @property
    def exact(self) -> str:
        """The hashed content as indented JSON, nothing left out."""
        return pretty(self.value) if self.value is not None else self.content_text


def shown(row: Columns) -> Shown:
    """A stored request as it is shown."""
    text, request_hash = row["content_text"], row["request_hash"]
    content: Content | None = None
    value: JsonValue = None
    fault = ""
    try:
        content, value = content_of(text)
        if hash_of_text(row["scope"], row["boundary"], text) != request_hash:
            fault = "the hash is not that of the content"
        elif content is None:
            fault = "this version of Placet cannot read the content"
    except ContractError as error:
        fault = f"the content is no canonical JSON: {error.message}"
    parts = tuple(_numbered(_parts(content))) if content is not None else ()
    told = sentence(text, run_id=row["run_id"], reason=row.get("reason"))
    found = distinct(warnings(value)) if value is not None else ()
    proof: dict[str, Any] = {
        "renderer": RENDERER,
        "request": row["request_id"],
        "hash": request_hash,
        "sentence": told,
        "parts": [[part.pointer, part.label, part.text] for part in parts],
        "findings": [list(finding) for finding in found],
    }
    return Shown(
        request_id=row["request_id"],
        request_hash=request_hash,
        sentence=told,
        content=content,
        value=value,
        content_text=text,
        parts=parts,
        findings=found,
        fault=fault,
        digest=f"{RENDERER}:{digest(proof)}",
    )


_Raw = tuple[str, str, JsonValue, str]
"""Pointer, label, value, group."""


def _numbered(raw: Iterable[_Raw]) -> Iterator[Part]:
    for n, (pointer, label, value, group) in enumerate(raw):
        is_json = not isinstance(value, str)
        text = pretty(value) if is_json else str(value)
        is_folded = len(text) > FOLD_CHARS or text.count("\n") >= FOLD_LINES
        yield Part(n, pointer, label, text, is_json, is_folded, group)


def _parts(content: Content) -> Iterator[_Raw]:
    match content:
        case ToolCallContent():
            yield from _fields(content.input, "input")
            raw = {
                name: value
                for name, value in content.raw_input.items()
                if name not in content.input or literal(content.input[name]) != literal(value)
            }
            for name, value in raw.items():
                yield pointer_of(["rawInput", name]), name, value, "As the agent wrote it, before the tool's schema"
        case OperationOutcomeContent():
            yield from _fields(content.input, "input")
            yield "/startedAt", "started at", content.started_at, ""
            yield "/reason", "why nobody knows", content.reason, ""
        case QuestionContent():
            # The form of the answer is shown as one.
            yield "/question", "question", content.question, ""
            if content.options is not None:
                yield "/options", "to choose from", list(content.options), ""
        case PlanContent():
            for at, task in enumerate(content.tasks):
                yield pointer_of(["tasks", at]), task.id, _task(task), ""
        case TaskRoundContent():
            for at, task in enumerate(content.next_tasks):
                yield pointer_of(["nextTasks", at]), task.id, _task(task), "Would begin"
            for at, task in enumerate(content.completed_tasks):
                yield pointer_of(["completedTasks", at]), task.id, _task(task), "Is finished"
        case PlanPatchContent():
            if content.reason:
                yield "/reason", "reason given by who proposes it", content.reason, ""
            for where, tasks, title in (
                ("added", content.added, "Would be added"),
                ("changed", content.changed, "Would become"),
                ("replaced", content.replaced, "Is now"),
                ("removed", content.removed, "Would be removed"),
            ):
                for at, task in enumerate(tasks):
                    yield pointer_of([where, at]), task.id, _task(task), title
        case TaskDispatchContent():
            yield "/task", content.task.id, _task(content.task), ""


def _fields(given: dict[str, JsonValue], where: str) -> Iterator[_Raw]:
    for name, value in given.items():
        yield pointer_of([where, name]), name, value, ""


def _task(task: TaskSnapshot) -> str:
    """A task for reading: every word of it that says what will be done."""
    lines = [task.title]
    if task.description.strip():
        lines += ["", task.description]
    about = {
        "by": task.assignee or "",
        "after": ", ".join(task.depends_on or ()),
        "priority": "" if task.priority is None else str(task.priority),
        "role": task.role or "",
        "result": task.result or "",
    }
    told = [f"{name}: {value}" for name, value in about.items() if value]
    if task.call is not None:
        told.append(f"calls {task.call.tool_name} with {pretty(task.call.input)}")
    if task.metadata:
        told.append(f"metadata: {pretty(task.metadata)}")
    return "\n".join([*lines, *([""] if told else []), *told])
