"""Decides how a request's body is read: bounded while it arrives, strict JSON, a closed model.

The framework's own reading would take a doubled key and NaN, and would hold a body of any size before refusing it.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from placet import limits, strict_json
from placet.errors import Code, ContractError
from placet.messages import invalid

M = TypeVar("M", bound=BaseModel)

ARRIVAL_TIMEOUT_S = 30.0
"""A body that takes longer to arrive is cut off."""
_FINDINGS_MAX = 20


async def body_of(request: Request, model: type[M], code: Code, *, may_be_absent: bool = False) -> M:
    """The body as a `model`. `may_be_absent`: no body at all stands for `{}`.

    Raises ContractError: MEDIA_TYPE_UNSUPPORTED, TOO_LARGE, REQUEST_TOO_SLOW, what `strict_json.parse` raises, and
    `code` with a pointer for what the model refuses; `details["errors"]` then names every finding.
    """
    data = await bytes_of(request)
    if not data and may_be_absent:
        return model.model_validate({})
    _require_json(request)
    strict_json.parse(data)
    try:
        # Not from the parsed value: only from text does a strict model take an array for a tuple.
        return model.model_validate_json(data)
    except ValidationError as error:
        raise _refused(error, code) from error


async def bytes_of(request: Request) -> bytes:
    """The body as it came. Raises ContractError TOO_LARGE, REQUEST_TOO_SLOW."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limits.JSON_BYTES_MAX:
        raise _too_large()
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
            async for part in request.stream():
                size += len(part)
                if size > limits.JSON_BYTES_MAX:
                    raise _too_large()
                parts.append(part)
    except TimeoutError as error:
        raise ContractError(
            Code.REQUEST_TOO_SLOW, f"the body did not arrive within {ARRIVAL_TIMEOUT_S:.0f} s"
        ) from error
    return b"".join(parts)


def _too_large() -> ContractError:
    return ContractError(
        Code.TOO_LARGE, f"more than {limits.JSON_BYTES_MAX} bytes of JSON", bytes_max=limits.JSON_BYTES_MAX
    )


def _require_json(request: Request) -> None:
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.replace(" ", "").replace('"', "").lower()
    if kind.strip().lower() != "application/json" or charset not in {"", "charset=utf-8"}:
        raise ContractError(Code.MEDIA_TYPE_UNSUPPORTED, "the body must be application/json in UTF-8")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ContractError(Code.MEDIA_TYPE_UNSUPPORTED, "compressed bodies are not read")


def _refused(error: ValidationError, code: Code) -> ContractError:
    refusal = invalid(error, code)
    findings = error.errors(include_url=False, include_input=False, include_context=False)[:_FINDINGS_MAX]
    refusal.details["errors"] = [
        {"pointer": strict_json.pointer_of(finding["loc"]), "detail": finding["msg"]} for finding in findings
    ]
    return refusal


def takes(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """What a route says about its body in the OpenAPI document; `openapi.py` adds the model itself."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}
