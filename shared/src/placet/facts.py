"""Decides what a machine may know besides its state and the message: declared rows, and the application's answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from placet.calls import ToolSpec
from placet.errors import Failure, InvariantError
from placet.gates import Boundary, Judgement, Subject
from placet.keys import Keys, RegisteredKey
from placet.plans import TeamSpec
from placet.requests import ApprovalRequest
from placet.rows import (
    CHECKPOINT,
    CONVERSATION,
    STATE,
    CheckpointRow,
    ConversationRow,
    DecisionAttemptRow,
    FactKey,
    OperationRow,
    OutcomeRow,
    RequestRow,
    RevocationRow,
    Row,
    StateRow,
)

T = TypeVar("T")


class Application(Protocol):
    """What the rules may ask the application. Answers are journalled, so a replay asks nobody."""

    @property
    def version(self) -> str: ...

    @property
    def policy_version(self) -> str: ...

    def team_spec(self, name: str) -> TeamSpec | None: ...

    def tool_spec(self, name: str) -> ToolSpec | None: ...

    def model_timeout_ms(self, agent: str) -> int:
        """How long one call of the agent's model may take."""

    def validate_input(self, tool: str, raw_input: dict[str, Any]) -> dict[str, Any] | Failure:
        """The input as today's schema reads it, with defaults, or TOOL_INPUT_INVALID."""

    def judge(self, boundary: Boundary, subject: Subject) -> Judgement | None:
        """The strictest verdict of the gates at that boundary; None when no gate applies."""


class Facts:
    """What one message's fold may know: the rows it declared to read, and the application's answers.

    Raises InvariantError when a machine looks at a row it did not declare: what was not read is not guarded.
    """

    def __init__(self, rows: Mapping[FactKey, Row | None], application: Application, incarnation: int = 0) -> None:
        self._rows = rows
        self._application = application
        self.incarnation = incarnation
        """How many exclusive owners the store has had; work begun under an earlier one is dead. 0: shared store."""
        self.seen: dict[FactKey, Row | None] = {}
        self.answers: list[Any] = []

    def row(self, key: FactKey) -> Row | None:
        """The row, or None when it does not exist."""
        if key not in self._rows:
            raise InvariantError(f"{key} was not declared in reads()")
        self.seen[key] = self._rows[key]
        return self._rows[key]

    def request(self, run_id: str, request_id: str) -> ApprovalRequest | None:
        """The frozen question."""
        row = self.row(FactKey("approval_request", run_id, request_id))
        return row.request if isinstance(row, RequestRow) else None

    def outcome(self, run_id: str, request_id: str) -> OutcomeRow | None:
        """The one outcome."""
        row = self.row(FactKey("approval_outcome", run_id, request_id))
        return row if isinstance(row, OutcomeRow) else None

    def revocation(self, run_id: str, request_id: str) -> RevocationRow | None:
        """The stop."""
        row = self.row(FactKey("approval_revocation", run_id, request_id))
        return row if isinstance(row, RevocationRow) else None

    def decision_attempt(self, run_id: str, request_id: str, decision_id: str) -> DecisionAttemptRow | None:
        """The first answer given under this decision id."""
        row = self.row(FactKey("decision_attempt", run_id, request_id, decision_id))
        return row if isinstance(row, DecisionAttemptRow) else None

    def operation(self, run_id: str, operation_id: str) -> OperationRow | None:
        """The sealed proposal."""
        row = self.row(FactKey("operation", run_id, operation_id))
        return row if isinstance(row, OperationRow) else None

    def status(self, run_id: str, machine: str, key: str) -> str | None:
        """The status of another machine's state."""
        row = self.row(FactKey(STATE, run_id, machine, key))
        return row.status if isinstance(row, StateRow) else None

    def checkpoint(self, run_id: str, source: str, version: int) -> CheckpointRow | None:
        """What another run was at a version."""
        row = self.row(FactKey(CHECKPOINT, run_id, source, str(version)))
        return row if isinstance(row, CheckpointRow) else None

    def conversation(self, run_id: str, thread_id: str, source: str, turn: int) -> ConversationRow | None:
        """What was said in another run's conversation up to the reply of a turn."""
        row = self.row(FactKey(CONVERSATION, run_id, thread_id, f"{turn}@{source}"))
        return row if isinstance(row, ConversationRow) else None

    def key(self, keys: Keys, keyid: str) -> RegisteredKey | None:
        """A registered key as it is now. Written to the journal with the message, as the application's answers are."""
        return self._note(keys.key(keyid))

    # The application's answers, written to the journal with the message.

    @property
    def app_version(self) -> str:
        return self._note(self._application.version)

    @property
    def policy_version(self) -> str:
        return self._note(self._application.policy_version)

    def team(self, name: str) -> TeamSpec | None:
        return self._note(self._application.team_spec(name))

    def tool(self, name: str) -> ToolSpec | None:
        return self._note(self._application.tool_spec(name))

    def model_timeout_ms(self, agent: str) -> int:
        return self._note(self._application.model_timeout_ms(agent))

    def validate_input(self, tool: str, raw_input: dict[str, Any]) -> dict[str, Any] | Failure:
        answer = self._application.validate_input(tool, raw_input)
        self.answers.append({"failure": answer} if isinstance(answer, Failure) else {"input": answer})
        return answer

    def judge(self, boundary: Boundary, subject: Subject) -> Judgement | None:
        return self._note(self._application.judge(boundary, subject))

    def _note(self, answer: T) -> T:
        self.answers.append(answer)
        return answer
