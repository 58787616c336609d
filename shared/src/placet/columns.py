"""Decides how a fact lies flat in a table: its columns, its key there, and what a column may hold.

Every table of facts is described once, here, for every store: SQL tables are tested against it, the store in memory is
built on it. A row's fields are its columns; a request's row is the request itself, and the end of an attempt fills
columns of the attempt.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, get_args

from placet.messages import DecisionWord, OutcomeWord
from placet.requests import ApprovalRequest
from placet.rows import ROWS, AttemptEndRow, AttemptRow, OperationRow, RequestRow, Row

ENDED = ("ended", "ended_at_ms", "evidence_text")
"""Columns of `operation_attempt` that are empty while it is open, and filled once."""

KEYS: Mapping[str, tuple[str, ...]] = {
    "approval_request": ("run_id", "request_id"),
    "approval_vote": ("run_id", "request_id", "person_id"),
    "approval_outcome": ("run_id", "request_id"),
    "approval_revocation": ("run_id", "request_id"),
    "decision_attempt": ("run_id", "request_id", "n"),
    "operation": ("run_id", "operation_id"),
    "operation_attempt": ("run_id", "operation_id", "n"),
    "retry_decision": ("run_id", "subject", "attempt"),
    "thread_message": ("run_id", "thread_id", "n"),
    "audit_leaf": ("run_id", "seq"),
}
"""The primary key of each table of facts: violated as `pk_<table>`."""

VOTE_ONCE = ("run_id", "request_id", "decision_id")
"""A repeated decision is the same vote: violated as `uq_approval_vote_decision`."""
ONE_OPEN = ("run_id", "operation_id")
"""Unique among attempts that have not ended: violated as `uq_operation_attempt_open`."""

WORDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "approval_outcome": ("outcome", get_args(OutcomeWord)),
    "approval_vote": ("decision", get_args(DecisionWord)),
    "operation": ("authority", ("approval", "policy")),
}
"""A column of closed vocabulary: violated as `ck_<table>_<column>`."""
COUNTED: Mapping[str, str] = {
    "approval_request": "quorum",
    "decision_attempt": "n",
    "operation_attempt": "n",
    "retry_decision": "attempt",
    "thread_message": "n",
    "audit_leaf": "seq",
}
"""A column that counts from 1: violated as `ck_<table>_<column>`."""

_INTEGER_MAX = 2**63 - 1


def _names(row: type[Row]) -> tuple[str, ...]:
    fields = ApprovalRequest.model_fields if row is RequestRow else row.model_fields
    return tuple(fields)


FIELDS: Mapping[str, tuple[str, ...]] = {table: _names(row) for table, row in ROWS.items()}
"""What a row of each kind fills in, in order."""
COLUMNS: Mapping[str, tuple[str, ...]] = {
    table: (*names, *ENDED) if table == AttemptRow.table else names
    for table, names in FIELDS.items()
    if table != AttemptEndRow.table
}
"""The columns of each table, in order."""

_GET: Mapping[str, Callable[[Any], tuple[Any, ...]]] = {table: attrgetter(*names) for table, names in FIELDS.items()}


def values_of(row: Row) -> tuple[Any, ...]:
    """The row's values, in the order of `FIELDS[row.table]`."""
    return _GET[row.table](row.request if isinstance(row, RequestRow) else row)


def row_of(table: str, values: Sequence[Any]) -> Row:
    """The row that `values`, in the order of `FIELDS[table]`, are.

    Nothing is checked: what a store hands out is believed only after its reader has verified it, and a row that
    somebody has tampered with must reach whoever says so.
    """
    named = dict(zip(FIELDS[table], values, strict=True))
    if table == RequestRow.table:
        request = ApprovalRequest.unchecked(named, set(named))
        row = {"tenant": request.tenant, "run_id": request.run_id, "request": request}
        return RequestRow.unchecked(row, set(row))
    if table == OperationRow.table:
        named["consequential"] = bool(named["consequential"])
    return ROWS[table].unchecked(named, set(named))


def shown_body(body: bytes, length: int) -> dict[str, Any]:
    """The body of a dead letter, or its beginning, as people are shown it: what is no text is escaped. `bytes`: how
    long all of it is."""
    return {"bytes": length, "body": body.decode(errors="backslashreplace")}


def exact(body: bytes) -> dict[str, Any]:
    """`body_base64` of a body that is no text, from which it can be had as it was; None for one that is."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
    return {"body_base64": None}


def unstorable(values: Iterable[Any]) -> str | None:
    """What keeps a value out of every store, as the name of a constraint; None when nothing does.

    `text_nul`: U+0000, which PostgreSQL's text cannot hold. `unstorable`: half of a surrogate pair, an integer of more
    than 64 bits, a value of a type that no column has.
    """
    for value in values:
        if isinstance(value, str):
            if "\x00" in value:
                return "text_nul"
            if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
                return "unstorable"
        elif isinstance(value, int):
            if not -_INTEGER_MAX - 1 <= value <= _INTEGER_MAX:
                return "unstorable"
        elif value is not None and type(value) is not bytes:
            return "unstorable"
    return None


def broken_check(table: str, values: Sequence[Any]) -> str | None:
    """The CHECK constraint that `values`, in the order of `FIELDS[table]`, break; None when they keep all."""
    if table in WORDS:
        column, words = WORDS[table]
        if values[FIELDS[table].index(column)] not in words:
            return f"ck_{table}_{column}"
    if table in COUNTED:
        column = COUNTED[table]
        if values[FIELDS[table].index(column)] < 1:
            return f"ck_{table}_{column}"
    return None
