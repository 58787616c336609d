"""Decides how a refusal is told over HTTP: RFC 9457 problems, one status per stable code.

Every answer that is not a success is one of these, whoever gives it: a route, the framework, or the machines.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from placet.errors import Code, Failure, InvariantError, PlacetError
from placet.machine import Receipt

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1

_STATUS: dict[Code, int] = {
    Code.JSON_SYNTAX: 400,
    Code.JSON_DUPLICATE_KEY: 400,
    Code.JSON_NUMBER: 400,
    Code.JSON_TEXT: 400,
    Code.TOO_DEEP: 400,
    Code.TOO_LARGE: 413,
    Code.UNAUTHENTICATED: 401,
    Code.SIGNATURE_INVALID: 403,
    Code.ORIGIN_NOT_ALLOWED: 403,
    Code.APPROVER_NOT_ALLOWED: 403,
    Code.NOT_FOUND: 404,
    Code.RUN_NOT_FOUND: 404,
    Code.APPROVAL_NOT_FOUND: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.REQUEST_TOO_SLOW: 408,
    Code.RUN_EXISTS: 409,
    Code.RUN_OWNED: 409,
    Code.RUN_ACTIVE: 409,
    Code.RUN_TERMINAL: 409,
    Code.PLAN_CHANGED: 409,
    Code.PLAN_BUSY: 409,
    Code.PATCH_EXISTS: 409,
    Code.GATE_DENIED: 403,
    Code.TURN_BUSY: 409,
    Code.TURN_MISMATCH: 409,
    Code.INSTRUCTION_EXISTS: 409,
    Code.APPROVAL_CONFLICT: 409,
    Code.APPROVAL_CLOSED: 409,
    Code.APPROVAL_BUSY: 409,
    Code.APPROVAL_REVOKED: 409,
    Code.APPROVAL_INTEGRITY_ERROR: 409,
    Code.OPERATION_CONSUMED: 409,
    Code.APPROVAL_EXPIRED: 410,
    Code.SIGNATURE_EXPIRED: 410,
    Code.APPROVAL_STALE_DECISION: 412,
    Code.MEDIA_TYPE_UNSUPPORTED: 415,
    Code.HOST_NOT_ALLOWED: 421,
    Code.PRECONDITION_REQUIRED: 428,
    Code.INVARIANT: 500,
    Code.APP_UNKNOWN: 501,
    Code.CHECKPOINT_CORRUPT: 500,
    Code.CLAIM_LOST: 503,
    Code.STORE_UNAVAILABLE: 503,
    Code.STORE_IN_USE: 503,
    Code.BROKER_UNAVAILABLE: 503,
    Code.OUTCOME_UNKNOWN: 503,
}
"""Every other code is a request that was understood and cannot be met: 422."""

_ANSWERS: dict[str, tuple[int, Code]] = {
    "conflict": (409, Code.APPROVAL_CONFLICT),
    "busy": (409, Code.APPROVAL_BUSY),
    "closed": (409, Code.APPROVAL_CLOSED),
    "expired": (410, Code.APPROVAL_EXPIRED),
    "stale": (412, Code.APPROVAL_STALE_DECISION),
    "not_allowed": (403, Code.APPROVER_NOT_ALLOWED),
    "invalid": (422, Code.APPROVAL_VALIDATION_ERROR),
    "not_found": (404, Code.APPROVAL_NOT_FOUND),
}
"""The status of a receipt's answer, and the code where the receipt names none. `refused` goes by its code."""

_log = logging.getLogger("placet.gateway")


def status_of(code: Code) -> int:
    """The HTTP status that goes with a code."""
    return _STATUS.get(code, 422)


def problem(
    code: Code,
    detail: str,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    **members: Any,
) -> JSONResponse:
    """One problem. `members` that are None are left out; `final` says whether asking again can change the answer."""
    status = status_of(code) if status is None else status
    body: dict[str, Any] = {
        "type": f"urn:placet:problem:{code.value}",
        "title": code.value.replace("_", " ").capitalize(),
        "status": status,
        "detail": detail,
        "code": code.value,
        "final": status not in {408, 503} and code is not Code.INVARIANT,
        **{name: value for name, value in members.items() if value is not None},
    }
    extra = dict(headers or {})
    if not body["final"]:
        extra.setdefault("Retry-After", str(RETRY_AFTER_S))
    return JSONResponse(body, status, extra, MEDIA_TYPE)


def problem_of_failure(failure: Failure, *, status: int | None = None, **members: Any) -> JSONResponse:
    """A failure as a problem: its details become members, never over one that stands."""
    details = {name: value for name, value in failure.details.items() if name not in members}
    details = {name: value for name, value in details.items() if name not in _RESERVED}
    return problem(failure.code, failure.message, status=status, pointer=failure.pointer, **members, **details)


_RESERVED = {"type", "title", "status", "detail", "code", "instance", "pointer", "final", "headers", "receipt"}


def problem_of_receipt(receipt: Receipt) -> JSONResponse:
    """The refusal in a receipt; the receipt itself, with winner and times, is the member `receipt`."""
    status, code = _ANSWERS.get(receipt.answer, (None, Code.INVARIANT))
    failure = receipt.failure or Failure(code=code, message=_told(receipt))
    members: dict[str, Any] = {"receipt": receipt.model_dump(mode="json", exclude_none=True)}
    if not receipt.final:
        members["final"] = False
    return problem_of_failure(failure, status=status, **members)


def _told(receipt: Receipt) -> str:
    if receipt.outcome is not None and receipt.decided_by is not None:
        return f"already {receipt.outcome} by {receipt.decided_by}"
    if receipt.answer == "busy":
        return "another decision is being recorded: ask again with the same decision_id"
    return f"answered {receipt.answer}"


def outcome_unknown(what: str) -> JSONResponse:
    """No answer in time: it may or may not have happened (reliability b5)."""
    return problem(Code.OUTCOME_UNKNOWN, f"no answer in time, so the outcome is unknown: repeat with {what}")


def install(app: FastAPI) -> None:
    """Make every error that routes raise on purpose a problem; the rest is for `guards`, which calls `bug`."""
    app.add_exception_handler(PlacetError, _on_placet_error)
    app.add_exception_handler(RequestValidationError, _on_parameter)
    app.add_exception_handler(HTTPException, _on_http)


async def _on_placet_error(_request: Request, error: Exception) -> Response:
    if isinstance(error, InvariantError) or not isinstance(error, PlacetError):
        return bug(error)
    headers = {"WWW-Authenticate": "Bearer"} if error.code is Code.UNAUTHENTICATED else None
    return problem_of_failure(error.failure(), headers=headers)


async def _on_parameter(_request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        return bug(error)
    first = error.errors()[0]
    where, *path = (str(part) for part in first["loc"])
    name = ".".join(path) or where
    return problem(Code.PARAMETER_INVALID, f"{name}: {first['msg']}", parameter=name)


async def _on_http(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return bug(error)
    code = {404: Code.NOT_FOUND, 405: Code.METHOD_NOT_ALLOWED}.get(error.status_code, Code.MESSAGE_INVALID)
    detail = {404: "no such resource: see /v1/openapi.json for those there are"}.get(error.status_code, error.detail)
    return problem(code, detail, status=error.status_code, headers=error.headers)


def bug(error: Exception) -> Response:
    """The log gets the error, the caller an id to ask about: no stack, path or statement leaves the process (S59)."""
    error_id = f"err_{secrets.token_hex(8)}"
    _log.error("gateway.bug %s", error_id, exc_info=error)
    return problem(
        Code.INVARIANT,
        f"Placet has a defect; the operator finds it in the log as {error_id}. What became of the request is unknown.",
        error_id=error_id,
    )
