"""Decides what can be asked of approval requests over HTTP: the inbox, one in full, a decision, a revocation.

A decision is a POST that names the hash of what was shown. No GET changes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, JsonValue

from placet.decision_words import check_said, value_text_of
from placet.errors import Code, ContractError, Failure
from placet.machine import Receipt
from placet.messages import DecideApproval, DecisionWord, RevokeApproval
from placet.strict_json import parse
from placet.values import Name, Text
from placet.views import RequestPage, RequestView
from placet_gateway import reading, scopes
from placet_gateway.bodies import body_of, takes
from placet_gateway.context import Gateway, Here, Reading, Reviewing, answer
from placet_gateway.runs import PAGE_MAX, IdempotencyKey

router = APIRouter(prefix="/v1/requests", tags=["requests"])


Check = Callable[[str, dict[str, Any]], dict[str, Any] | Failure]
"""As `facts.Application.validate_input`."""


class Decision(BaseModel):
    """One person's voice. Who that is comes from the token, never from here.

    `approve` and `reject` carry nothing else: what is approved is what was shown. An `edit` is not an approval: it asks
    again, somebody else, about what is in `value`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    decision_id: Name
    """Minted by the client, and kept until it has a receipt: a repeat under it is the same decision."""
    request_hash: str | None = None
    """Of what was shown, 64 lower-case hexadecimal digits. Required, unless `If-Match` carries it."""
    decision: DecisionWord
    """`approve` or `reject`; `edit`: ask again about the input in `value`; `respond`: `value` is the answer, and the
    call is not made; `request_changes`: `reason` goes back to the agent; `executed` or `not_executed` where the
    question is whether something happened."""
    value: JsonValue = None
    """Required of `edit`, the whole input as an object, and of `respond`; not taken with any other word."""
    reason: Text | None = None
    shown_digest: str | None = None
    """Digest of what the renderer put on the reviewer's screen."""


class Revocation(BaseModel):
    """Why an approval is taken back."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    reason: Text = ""


@router.get("", operation_id="listRequests")
async def list_requests(
    here: Here,
    caller: Reading,
    state: Literal["open", "all"] = "open",
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
    after: str | None = None,
) -> RequestPage:
    """The inbox, oldest first; open requests unless `state=all`."""
    found = await here.reader.requests(caller.tenant, open_only=state == "open", limit=limit + 1, after=after)
    items = [reading.request_summary(request) for request in found[:limit]]
    more = items[-1].request_id if len(found) > limit else None
    return RequestPage(items=items, next=more, as_of_ms=here.now_ms())


async def _found(here: Gateway, tenant: str, request_id: str) -> dict[str, Any]:
    request = await here.reader.request(tenant, request_id)
    if request is None:
        raise ContractError(Code.APPROVAL_NOT_FOUND, "there is no request of that id")
    return request


@router.get("/{request_id}", operation_id="getRequest")
async def show(request_id: str, response: Response, here: Here, caller: Reading) -> RequestView:
    """A request in full: the exact content, its hash, what in it cannot be seen, what was decided, what came of it."""
    request = await _found(here, caller.tenant, request_id)
    # What a decision is conditional on is the frozen question; nothing of the answer may be cached.
    response.headers["ETag"] = f'"{request["request_hash"]}"'
    view = await reading.request_view(here.reader, caller.tenant, request, here.now_ms())
    return view.model_copy(update=scopes.of_request(request, here.application))


@router.post(
    "/{request_id}/decisions",
    operation_id="decideRequest",
    response_model=Receipt,
    openapi_extra=takes(Decision),
)
async def decide(
    request_id: str,
    request: Request,
    here: Here,
    caller: Reviewing,
    if_match: Annotated[str | None, Header()] = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Decide. The first valid decision wins, for ever; a repeat under the same `decision_id` gets the same receipt."""
    body = await body_of(request, Decision, Code.APPROVAL_VALIDATION_ERROR)
    if idempotency_key is not None and idempotency_key.strip('"') != body.decision_id:
        raise ContractError(
            Code.APPROVAL_VALIDATION_ERROR,
            "the header Idempotency-Key differs from decision_id: the key of a decision is its decision_id",
            pointer="/decision_id",
        )
    request_hash = _hash_of(body.request_hash, if_match)
    value_text = _value_text_of(body)
    found = await _found(here, caller.tenant, request_id)
    if body.decision == "edit" and found["status"] == "open" and found["request_hash"] == request_hash:
        _check_edit(here, found, body.value)
    message = DecideApproval(
        tenant=caller.tenant,
        run_id=found["run_id"],
        request_id=request_id,
        decision_id=body.decision_id,
        request_hash=request_hash,
        decision=body.decision,
        reviewer=caller.principal,
        reason=body.reason,
        shown_digest=body.shown_digest,
        value_text=value_text,
    )
    return await answer(here, message, f"the same decision_id, {body.decision_id}")


def _value_text_of(body: Decision) -> str | None:
    """What is said besides the word, as it is signed. Raises ContractError with a pointer into the body."""
    try:
        value_text = value_text_of(body.value) if "value" in body.model_fields_set else None
    except ContractError as error:
        raise ContractError(error.code, error.message, pointer=f"/value{error.pointer or ''}") from error
    check_said(body.decision, value_text, body.reason)
    return value_text


def _check_edit(here: Gateway, found: dict[str, Any], value: JsonValue) -> None:
    """Refuse an edited input that the tool could not take, where this process has the tool; else the run will."""
    check: Check | None = getattr(here.application, "validate_input", None)  # an App has it, a description has not
    content = parse(found["content_text"], long_integers_are_doubles=True)
    if check is None or found["scope"] != "tool_call" or not isinstance(content, dict) or not isinstance(value, dict):
        return
    read = check(str(content.get("toolName")), value)
    if isinstance(read, Failure):
        raise ContractError(read.code, read.message, pointer=f"/value{read.pointer or ''}", **read.details)


def _hash_of(in_body: str | None, if_match: str | None) -> str:
    """The hash that the decision rests on. Whether it is right is for the machine to say (stale, 412)."""
    in_header = if_match.strip().removeprefix('"').removesuffix('"') if if_match is not None else None
    if in_body is not None and in_header is not None and in_body != in_header:
        raise ContractError(
            Code.APPROVAL_VALIDATION_ERROR, "If-Match and request_hash name two hashes", pointer="/request_hash"
        )
    named = in_body if in_body is not None else in_header
    if not named or named == "*":
        raise ContractError(
            Code.PRECONDITION_REQUIRED,
            "request_hash is missing: send the hash that was shown (it is also the ETag of the request)",
            pointer="/request_hash",
        )
    return named


@router.post(
    "/{request_id}/revocation",
    operation_id="revokeApproval",
    response_model=Receipt,
    openapi_extra=takes(Revocation, required=False),
)
async def revoke(request_id: str, request: Request, here: Here, caller: Reviewing) -> Response:
    """Take an approval back before it is used. What has started is not stopped by it."""
    body = await body_of(request, Revocation, Code.APPROVAL_VALIDATION_ERROR, may_be_absent=True)
    found = await _found(here, caller.tenant, request_id)
    message = RevokeApproval(
        tenant=caller.tenant,
        run_id=found["run_id"],
        request_id=request_id,
        operation_id=found["operation_id"],
        by=caller.principal,
        reason=body.reason,
    )
    return await answer(here, message, "the same request; revoking twice is harmless")
