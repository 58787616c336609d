"""Requests for tests of the vocabulary: the fixtures of the hash cases, and how a refusal looks."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest

from placet.errors import Code, ContractError, TerminalError
from placet.requests import ApprovalRequest, create_request, request_from_row, verify_request

AT_MS = 1_786_147_200_000
HASH_A01 = "b5b9bf760877c2598f8b2f0c91388c0ccdd315bfe563efe4086b26717052d11c"
ID_A01 = "apr_bafd2aacb31356cb1983f094d33dd91e"


def tool_call(given: object, **changed: object) -> dict[str, Any]:
    """TC(x) of the fixtures."""
    return {
        "kind": "tool_call", "toolName": "deploy", "rawInput": given, "input": given, "agentName": "operator",
        "taskId": "task-1", "toolCallId": "call-1", "consequential": True, **changed,
    }  # fmt: skip


def task(name: str, **extra: object) -> dict[str, Any]:
    """TASK(i, extra) of the fixtures."""
    at = "2026-08-08T00:00:00.000Z"
    return {
        "id": name, "title": f"T {name}", "description": f"do {name}", "status": "pending",
        "createdAt": at, "updatedAt": at, **extra,
    }  # fmt: skip


def plan(continuation: object, *tasks: object) -> dict[str, Any]:
    return {"kind": "plan", "tasks": list(tasks), "continuation": continuation}


CONTENTS: dict[str, dict[str, Any]] = {
    "plan": plan("execute", task("a")),
    "task_round": {"kind": "task_round", "completedTasks": [task("a"), task("b")], "nextTasks": [task("c")]},
    "task_dispatch": {"kind": "task_dispatch", "task": task("a")},
    "tool_call": tool_call({"env": "staging"}),
    "operation_outcome": {
        "kind": "operation_outcome", "operationId": "op_1", "toolName": "deploy", "input": {}, "agentName": "operator",
        "taskId": "task-1", "toolCallId": "call-1", "startedAt": "2026-08-08T00:00:00.000Z", "reason": "lease ended",
    },
}  # fmt: skip
BOUNDARIES = {
    "plan": "coordinator-plan", "task_round": "a,b->c", "task_dispatch": "a", "tool_call": "task-1:call-1",
    "operation_outcome": "outcome:op_1",
}  # fmt: skip


def create(content: Any = None, **fields: Any) -> ApprovalRequest:
    arguments: dict[str, Any] = {
        "tenant": "acme", "run_id": "run-1", "scope": "tool_call", "boundary": "task-1:call-1",
        "content": tool_call({"env": "staging"}) if content is None else content, "requested_at_ms": AT_MS,
    }  # fmt: skip
    return create_request(**arguments | fields)


def create_kind(kind: str, content: Any = None, **fields: Any) -> ApprovalRequest:
    return create(
        CONTENTS[kind] if content is None else content, **{"scope": kind, "boundary": BOUNDARIES[kind]} | fields
    )


def refused(pointer: str, content: Any = None, **fields: Any) -> str:
    """Creation is refused as invalid at that pointer; the message."""
    with pytest.raises(ContractError) as caught:
        create(content, **fields)
    assert (caught.value.code, caught.value.pointer) == (Code.APPROVAL_VALIDATION_ERROR, pointer)
    return caught.value.message


def broken(row: ApprovalRequest) -> None:
    """The row is refused, as a model and as columns."""
    for read in (lambda: verify_request(row), lambda: request_from_row(row.model_dump())):
        with pytest.raises(TerminalError) as caught:
            read()
        assert caught.value.code == Code.APPROVAL_INTEGRITY_ERROR


class Word(StrEnum):
    """Text that is not of type str."""

    A = "a"
