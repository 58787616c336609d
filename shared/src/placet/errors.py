"""Decides how a failure is named: stable codes, four families, and the value that crosses wires.

Exceptions live inside one process; what leaves it is a `Failure`. Machines see values, never exceptions.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict


class Code(StrEnum):
    """Every stable error code. A code never changes its meaning; new meanings get new codes."""

    # The sender is wrong.
    JSON_SYNTAX = "JSON_SYNTAX"
    JSON_DUPLICATE_KEY = "JSON_DUPLICATE_KEY"
    JSON_NUMBER = "JSON_NUMBER"
    JSON_TEXT = "JSON_TEXT"
    JSON_TYPE = "JSON_TYPE"
    TOO_DEEP = "TOO_DEEP"
    TOO_LARGE = "TOO_LARGE"
    MESSAGE_INVALID = "MESSAGE_INVALID"
    MESSAGE_UNEXPECTED = "MESSAGE_UNEXPECTED"
    VERSION_UNSUPPORTED = "VERSION_UNSUPPORTED"
    NOT_FOUND = "NOT_FOUND"
    SUBMISSION_INVALID = "SUBMISSION_INVALID"
    PLAN_INVALID = "PLAN_INVALID"
    INVALID_TASK_REQUIREMENTS = "INVALID_TASK_REQUIREMENTS"
    APP_INVALID = "APP_INVALID"
    APP_UNKNOWN = "APP_UNKNOWN"
    SETTING_INVALID = "SETTING_INVALID"
    # Runs.
    RUN_NOT_FOUND = "RUN_NOT_FOUND"
    RUN_EXISTS = "RUN_EXISTS"
    RUN_OWNED = "RUN_OWNED"
    RUN_ACTIVE = "RUN_ACTIVE"
    RUN_TERMINAL = "RUN_TERMINAL"
    PLAN_CHANGED = "PLAN_CHANGED"
    PLAN_BUSY = "PLAN_BUSY"
    PATCH_EXISTS = "PATCH_EXISTS"
    TURN_BUSY = "TURN_BUSY"
    TURN_MISMATCH = "TURN_MISMATCH"
    TURN_FAILED = "TURN_FAILED"
    TURN_LIMIT = "TURN_LIMIT"
    TURN_INTERRUPTED = "TURN_INTERRUPTED"
    INSTRUCTION_EXISTS = "INSTRUCTION_EXISTS"
    HANDLE_LOST = "HANDLE_LOST"
    GATE_FAILED = "GATE_FAILED"
    GATE_DENIED = "GATE_DENIED"
    TASK_FAILED = "TASK_FAILED"
    CANCELLED = "CANCELLED"
    DEADLINE = "DEADLINE"
    BUDGET = "BUDGET"
    # Checkpoints.
    CHECKPOINT_CONFLICT = "CHECKPOINT_CONFLICT"
    CHECKPOINT_CORRUPT = "CHECKPOINT_CORRUPT"
    CHECKPOINT_VERSION_UNSUPPORTED = "CHECKPOINT_VERSION_UNSUPPORTED"
    # Approvals.
    APPROVAL_ATOMIC_STORE_REQUIRED = "APPROVAL_ATOMIC_STORE_REQUIRED"
    APPROVAL_VALIDATION_ERROR = "APPROVAL_VALIDATION_ERROR"
    APPROVAL_NOT_FOUND = "APPROVAL_NOT_FOUND"
    APPROVAL_STALE_DECISION = "APPROVAL_STALE_DECISION"
    APPROVAL_CONFLICT = "APPROVAL_CONFLICT"
    NO_REVIEWER = "NO_REVIEWER"
    APPROVAL_INTEGRITY_ERROR = "APPROVAL_INTEGRITY_ERROR"
    APPROVAL_EXPIRED = "APPROVAL_EXPIRED"
    APPROVAL_REVOKED = "APPROVAL_REVOKED"
    APPROVAL_CLOSED = "APPROVAL_CLOSED"
    APPROVAL_BUSY = "APPROVAL_BUSY"
    APPROVAL_REJECTED = "APPROVAL_REJECTED"
    APPROVER_NOT_ALLOWED = "APPROVER_NOT_ALLOWED"
    # Whose decision it is.
    SIGNATURE_INVALID = "SIGNATURE_INVALID"
    SIGNATURE_MISMATCH = "SIGNATURE_MISMATCH"
    SIGNATURE_EXPIRED = "SIGNATURE_EXPIRED"
    # Operations.
    OPERATION_CONSUMED = "OPERATION_CONSUMED"
    OPERATION_OUTCOME_UNKNOWN = "OPERATION_OUTCOME_UNKNOWN"
    OPERATION_NOT_APPROVED = "OPERATION_NOT_APPROVED"
    TOOL_UNKNOWN = "TOOL_UNKNOWN"
    TOOL_NOT_GRANTED = "TOOL_NOT_GRANTED"
    TOOL_INPUT_INVALID = "TOOL_INPUT_INVALID"
    TOOL_FAILED = "TOOL_FAILED"
    TOOL_TIMEOUT = "TOOL_TIMEOUT"
    TOOL_NOT_BEGUN = "TOOL_NOT_BEGUN"
    TOOL_RESULT_INVALID = "TOOL_RESULT_INVALID"
    PRECONDITION_FAILED = "PRECONDITION_FAILED"
    # Models.
    MODEL_FAILED = "MODEL_FAILED"
    MODEL_ANSWER_INVALID = "MODEL_ANSWER_INVALID"
    # The door (HTTP).
    UNAUTHENTICATED = "UNAUTHENTICATED"
    HOST_NOT_ALLOWED = "HOST_NOT_ALLOWED"
    ORIGIN_NOT_ALLOWED = "ORIGIN_NOT_ALLOWED"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    MEDIA_TYPE_UNSUPPORTED = "MEDIA_TYPE_UNSUPPORTED"
    PARAMETER_INVALID = "PARAMETER_INVALID"
    PRECONDITION_REQUIRED = "PRECONDITION_REQUIRED"
    REQUEST_TOO_SLOW = "REQUEST_TOO_SLOW"
    GATEWAY_UNREACHABLE = "GATEWAY_UNREACHABLE"
    # The world is unwell.
    CLAIM_LOST = "CLAIM_LOST"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    STORE_IN_USE = "STORE_IN_USE"
    BROKER_UNAVAILABLE = "BROKER_UNAVAILABLE"
    BROKER_MISMATCH = "BROKER_MISMATCH"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    # We are wrong.
    INVARIANT = "INVARIANT"


class ErrorClass(StrEnum):
    """What kind of failure it was; one of the inputs of the retry decision (§6)."""

    TRANSIENT = "transient"
    TIMEOUT = "timeout"
    PERMANENT = "permanent"
    INVALID = "invalid"
    DENIED = "denied"
    CANCELLED = "cancelled"
    BUDGET = "budget"
    APPROVAL = "approval"


class Certainty(StrEnum):
    """Whether the side effect happened. Independent of the error class (reliability b14)."""

    EXECUTED = "executed"
    NOT_EXECUTED = "not_executed"
    UNKNOWN = "unknown"


class Failure(BaseModel):
    """A failure as a value: what crosses wires, is stored, and is shown."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: Code
    message: str
    error_class: ErrorClass = ErrorClass.PERMANENT
    certainty: Certainty = Certainty.NOT_EXECUTED
    pointer: str | None = None
    """RFC 6901 pointer to the offending value, where there is one."""
    retry_after_ms: int | None = None
    details: dict[str, Any] = {}


class PlacetError(Exception):
    """Base of every error raised on purpose. `str(error)` is one line that says what to do."""

    def __init__(self, code: Code, message: str, *, pointer: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.pointer = pointer
        self.details = details

    def failure(self) -> Failure:
        """The same failure as a value."""
        return Failure(code=self.code, message=self.message, pointer=self.pointer, details=self.details)


class ContractError(PlacetError):
    """The sender is wrong: undecodable, unknown, too large, refused. Repeating cannot help."""


class RetryableError(PlacetError):
    """The world is unwell: store or broker away, busy. The same request may succeed later."""


class TerminalError(PlacetError):
    """No retry can help: invalid arguments, hash mismatch, denied."""


class InvariantError(PlacetError):
    """We are wrong. Nothing may be committed on the strength of a state in which this was raised."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.INVARIANT, message)


def require(condition: bool, message: str) -> None:
    """Raise `InvariantError` unless `condition`. Unlike `assert`, no interpreter flag removes it."""
    if not condition:
        raise InvariantError(message)
