"""Decides how an outside gate is asked: one POST with the subject, one strict answer, a failure for all else.

The address is the author's own. No redirect is followed, no proxy or credential is taken from the environment, and no
answer is read beyond its bound. It is asked once: whatever goes wrong is an answer, `failed`, which lets nothing pass.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Literal

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from placet import limits, strict_json
from placet.activities import AskGate
from placet.errors import ContractError
from placet.gates import OutsideAnswer, OutsideGate
from placet.values import Name, Text

_TOLD_CHARS_MAX = 300


class _Answer(BaseModel):
    """What an outside gate may say: a verdict; a reason; which version of its rules it is."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    verdict: Literal["allow", "deny", "suspend"]
    reason: Text | None = None
    version: Name | None = None


class HttpGates:
    """ports.Gates over HTTP."""

    def __init__(self, gates: Mapping[str, OutsideGate], *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._gates = gates
        self._transport = transport
        self._client: httpx.AsyncClient | None = None

    async def ask(self, activity: AskGate) -> OutsideAnswer:
        """As ports.Gates."""
        gate = self._gates.get(activity.gate)
        if gate is None:
            return _failed(f"there is no outside gate {activity.gate!r} here")
        try:
            async with asyncio.timeout(activity.timeout_ms / 1_000):
                return await self._asked(gate, activity)
        except TimeoutError:
            return _failed(f"it did not answer within {activity.timeout_ms} ms")
        except httpx.HTTPError as error:
            return _failed(f"it cannot be reached: {type(error).__name__}")

    async def close(self) -> None:
        """End every connection. Closing twice is harmless."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _asked(self, gate: OutsideGate, activity: AskGate) -> OutsideAnswer:
        if self._client is None:
            self._client = httpx.AsyncClient(
                transport=self._transport, follow_redirects=False, trust_env=False, timeout=None
            )
        question: dict[str, Any] = {
            "gate": activity.gate,
            "boundary": "tool_call",
            "tenant": activity.tenant,
            "operation_id": activity.operation_id,
            "subject": json.loads(activity.subject_text),
        }
        headers = {**dict(gate.headers), "Idempotency-Key": f"{activity.operation_id}/{activity.gate}"}
        async with self._client.stream("POST", gate.url, json=question, headers=headers) as response:
            if response.status_code != 200:
                return _failed(f"it answered with status {response.status_code}")
            data = bytearray()
            async for part in response.aiter_bytes():
                data += part
                if len(data) > limits.GATE_ANSWER_BYTES_MAX:
                    return _failed(f"its answer is longer than {limits.GATE_ANSWER_BYTES_MAX} bytes")
        return _read(bytes(data))


def _read(data: bytes) -> OutsideAnswer:
    try:
        strict_json.parse(data)
        answer = _Answer.model_validate_json(data)
    except ContractError as error:
        return _failed(f"its answer is not JSON: {error.message}")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return _failed(f"its answer is none: {'/'.join(map(str, first['loc']))}: {first['msg']}")
    return OutsideAnswer(verdict=answer.verdict, reason=answer.reason, version=answer.version or "")


def _failed(reason: str) -> OutsideAnswer:
    return OutsideAnswer(verdict="failed", reason=reason[:_TOLD_CHARS_MAX])
