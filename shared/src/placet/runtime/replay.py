"""Decides whether a journal is true: replayed through the machine, it must give the stored state, byte for byte.

A journal begins with the first message of its state, or with a *base*: an entry that is a state itself, where somebody
saved one, or where older entries were pruned.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placet.calls import ToolSpec
from placet.compatibility import read_state
from placet.errors import Code, Failure, InvariantError, PlacetError, TerminalError
from placet.facts import Facts
from placet.gates import Boundary, Judgement, Subject
from placet.ids import Address, derived_id
from placet.instants import Instant
from placet.keys import Keys, RegisteredKey
from placet.machine import Effect, Machine, State
from placet.messages import AnyMessage, decode_envelope
from placet.plans import TeamSpec
from placet.rows import PAST, ROWS, STATE, FactKey, Row, StateRow
from placet.runtime.ports import JournalEntry


class RecordedAnswers:
    """An application that gives the answers the journal holds, in their order."""

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = list(reversed(answers))

    @property
    def left(self) -> int:
        """How many were not asked for."""
        return len(self._answers)

    def _next(self, read: Callable[[Any], Any]) -> Any:
        if not self._answers:
            raise InvariantError("the replay asks the application more than the journal holds")
        answer = self._answers.pop()
        return None if answer is None else read(answer)

    @property
    def version(self) -> str:
        return str(self._next(str))

    @property
    def policy_version(self) -> str:
        return str(self._next(str))

    def team_spec(self, name: str) -> TeamSpec | None:
        team: TeamSpec | None = self._next(_from_json(TeamSpec))
        return team

    def tool_spec(self, name: str) -> ToolSpec | None:
        tool: ToolSpec | None = self._next(_from_json(ToolSpec))
        return tool

    def model_timeout_ms(self, agent: str) -> int:
        return int(self._next(int))

    def validate_input(self, tool: str, raw_input: dict[str, Any]) -> dict[str, Any] | Failure:
        answer: dict[str, Any] | Failure = self._next(_input_or_failure)
        return answer

    def judge(self, boundary: Boundary, subject: Subject) -> Judgement | None:
        judgement: Judgement | None = self._next(_from_json(Judgement))
        return judgement

    def key(self) -> RegisteredKey | None:
        """As Facts.key."""
        key: RegisteredKey | None = self._next(_from_json(RegisteredKey))
        return key


class RecordedFacts(Facts):
    """Facts that give what the journal holds, whatever key counts today."""

    def __init__(self, rows: Mapping[FactKey, Row | None], answers: RecordedAnswers, incarnation: int) -> None:
        super().__init__(rows, answers, incarnation)
        self._recorded = answers

        self._unread = set(rows)

    def row(self, key: FactKey) -> Row | None:
        """As Facts."""
        self._unread.discard(key)
        return super().row(key)

    def key(self, keys: Keys, keyid: str) -> RegisteredKey | None:
        """As Facts."""
        return self._recorded.key()

    def is_used_up(self) -> bool:
        """Whether the machine has looked at everything that it looked at then."""
        return not self._recorded.left and not self._unread


def recorded_facts(text: str) -> RecordedFacts:
    """The facts of one journal entry, as the machine saw them."""
    return _facts_of(json.loads(text))


def _facts_of(value: Mapping[str, Any]) -> RecordedFacts:
    rows: dict[FactKey, Row | None] = {}
    for table, run_id, key, sub, row in value["rows"]:
        model = StateRow if table == STATE else PAST.get(table) or ROWS[table]
        rows[FactKey(table, run_id, key, sub)] = None if row is None else _from_json(model)(row)
    return RecordedFacts(rows, RecordedAnswers(value["answers"]), value["incarnation"])


# ── bases ──────────────────────────────────────────────────────────────────────────────

_BASE = b'{"checkpoint":'
"""How the message of a base begins. No envelope does: none has such a field."""


def base_entry(address: Address, version: int, state: State, at_ms: Instant, kind: str) -> JournalEntry:
    """The entry that says what the state is at `version`, in place of all before. `kind`: `saved` or `pruned`."""
    body = state.json_bytes().decode()
    message = {"checkpoint": body, "message": {"type": f"checkpoint.{kind}", "tenant": state.tenant}}
    return JournalEntry(
        address=address,
        version=version,
        message_id=derived_id("checkpoint", kind, address.text(), str(version)),
        message=json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(),
        facts='{"rows":[],"answers":[],"incarnation":0}',
        at_ms=at_ms,
    )


def is_base(entry: JournalEntry) -> bool:
    """Whether the entry is a state rather than a message."""
    return entry.message.startswith(_BASE)


def is_pruned(entry: JournalEntry) -> bool:
    """Whether it stands for entries that are gone."""
    return is_base(entry) and entry.message_id == derived_id(
        "checkpoint", "pruned", entry.address.text(), str(entry.version)
    )


# ── replaying ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of a journal, replayed."""

    entry: JournalEntry
    message: AnyMessage | None
    """None for a base."""
    state: State
    """After it."""
    effects: tuple[Effect, ...] = ()

    @property
    def version(self) -> int:
        """Of the state after it."""
        return self.entry.version


def steps(machine: Machine[Any], entries: Iterable[JournalEntry], *, upto: int | None = None) -> Iterator[Step]:
    """The steps of a state, one by one (up to version `upto`), from its beginning or from where it was pruned.

    Raises TerminalError(CHECKPOINT_CORRUPT) at an entry that is missing, out of order, cannot be read, or does
    something else than it did; ContractError(CHECKPOINT_VERSION_UNSUPPORTED) at a state of another program's version.
    """
    state: State | None = None
    version = 0
    for entry in entries:
        if upto is not None and entry.version > upto:
            return
        if entry.version != version + 1 and not (state is None and is_pruned(entry)):
            raise corrupt(entry.address, f"entry {version + 1} is missing")
        version = entry.version
        step = _step(machine, state, entry)
        state = step.state
        yield step


def replay(machine: Machine[Any], entries: Iterable[JournalEntry], *, upto: int | None = None) -> State | None:
    """The state after the entries (up to version `upto`); raises as `steps`."""
    state: State | None = None
    for step in steps(machine, entries, upto=upto):
        state = step.state
    return state


def _step(machine: Machine[Any], state: State | None, entry: JournalEntry) -> Step:
    which = f"entry {entry.version} ({entry.message_id})"
    try:
        if is_base(entry):
            base = json.loads(entry.message)["checkpoint"]
            return Step(entry, None, read_state(machine.state_type, str(base).encode()).state)
        told = json.loads(entry.facts)
        facts = _facts_of(told)
        if "upgraded" in told:
            state = read_state(machine.state_type, told["upgraded"].encode()).state
        message = decode_envelope(entry.message).message
        transition = machine.transition(state, message, facts, entry.at_ms)
    except PlacetError as error:
        if error.code is Code.CHECKPOINT_VERSION_UNSUPPORTED:
            raise
        raise corrupt(entry.address, f"{which} cannot be replayed: {error.message}") from error
    except Exception as error:
        raise corrupt(entry.address, f"{which} cannot be replayed: {type(error).__name__}: {error}") from error
    if transition.kind != "moved" or transition.state is None:
        raise corrupt(entry.address, f"{which} is {transition.kind} on replay")
    if not facts.is_used_up():
        raise corrupt(entry.address, f"{which} looks at less on replay than the journal holds")
    return Step(entry, message, transition.state, transition.effects)


def corrupt(address: Address, what: str) -> TerminalError:
    """A journal that is not what its machine wrote."""
    return TerminalError(Code.CHECKPOINT_CORRUPT, f"the journal of {address.text()} is not whole: {what}")


def _from_json(model: type[Any]) -> Callable[[Any], Any]:
    return lambda value: model.model_validate_json(json.dumps(value))


def _input_or_failure(value: Any) -> Any:
    return _from_json(Failure)(value["failure"]) if "failure" in value else value["input"]
