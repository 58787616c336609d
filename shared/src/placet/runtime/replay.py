"""Decides whether a journal is true: replayed through the machine, it must give the stored state, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from placet.calls import ToolSpec
from placet.errors import Code, Failure, InvariantError, TerminalError
from placet.facts import Facts
from placet.gates import Boundary, Judgement, Subject
from placet.keys import Keys, RegisteredKey
from placet.machine import Machine, State
from placet.messages import decode_envelope
from placet.plans import TeamSpec
from placet.rows import ROWS, STATE, FactKey, Row, StateRow
from placet.runtime.ports import JournalEntry


class RecordedAnswers:
    """An application that gives the answers the journal holds, in their order."""

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = list(reversed(answers))

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

    def key(self, keys: Keys, keyid: str) -> RegisteredKey | None:
        """As Facts."""
        return self._recorded.key()


def recorded_facts(text: str) -> Facts:
    """The facts of one journal entry, as the machine saw them."""
    value = json.loads(text)
    rows: dict[FactKey, Row | None] = {}
    for table, run_id, key, sub, row in value["rows"]:
        model = StateRow if table == STATE else ROWS[table]
        rows[FactKey(table, run_id, key, sub)] = None if row is None else _from_json(model)(row)
    return RecordedFacts(rows, RecordedAnswers(value["answers"]), value["incarnation"])


def replay(machine: Machine[Any], entries: Sequence[JournalEntry], *, upto: int | None = None) -> State | None:
    """The state after the entries (up to version `upto`).

    Raises TerminalError(CHECKPOINT_CORRUPT) when an entry is missing, out of order, or no longer moves the machine.
    """
    state: State | None = None
    for version, entry in enumerate(entries, start=1):
        if upto is not None and version > upto:
            break
        if entry.version != version:
            raise _corrupt(entry, f"entry {version} is missing")
        message = decode_envelope(entry.message).message
        transition = machine.transition(state, message, recorded_facts(entry.facts), entry.at_ms)
        if transition.kind != "moved" or transition.state is None:
            raise _corrupt(entry, f"entry {version} ({entry.message_id}) is {transition.kind} on replay")
        state = transition.state
    return state


def _corrupt(entry: JournalEntry, what: str) -> TerminalError:
    return TerminalError(Code.CHECKPOINT_CORRUPT, f"the journal of {entry.address.text()} is not whole: {what}")


def _from_json(model: type[Any]) -> Callable[[Any], Any]:
    return lambda value: model.model_validate_json(json.dumps(value))


def _input_or_failure(value: Any) -> Any:
    return _from_json(Failure)(value["failure"]) if "failure" in value else value["input"]
