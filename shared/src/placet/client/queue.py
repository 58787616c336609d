"""Decides how a person's own program decides by the queue: a signed decision, published, and its receipt awaited.

It needs the right to write to one exchange of the broker, and a key that the approval service knows. Nobody has to be
trusted on the way: whoever could change the message could not sign it.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from placet.adapters.rabbitmq import Asker
from placet.canonical import digest_of_text
from placet.decision_words import check_said, value_text_of
from placet.errors import Code, ContractError, RetryableError, TerminalError
from placet.machine import Receipt
from placet.messages import DecisionWord, invalid
from placet.signatures import DecisionStatement, SigningKey, with_value
from placet.strict_json import JsonValue
from placet.topology import DECIDE_KEY, DECISIONS_EXCHANGE

JSON = "application/json"
VALID_MS = 24 * 3_600_000
"""How long a decision counts that lies in the queue while nobody takes it."""
TIMEOUT_MS = 30_000


class DecisionPublisher:
    """Publishes the decisions of one person on one connection. `async with` opens and closes it."""

    def __init__(self, url: str, key: SigningKey, *, environment: str = "development", tenant: str = "default") -> None:
        """`url`: of the broker, amqp or amqps. `environment`, `tenant`: where the decision shall count, nowhere else.

        Raises ContractError(PARAMETER_INVALID) for a key that is no person's.
        """
        if key.person is None:
            told = f"{key.keyid} is a gateway's key: decisions are signed with one that names its person"
            raise ContractError(Code.PARAMETER_INVALID, told)
        self._key = key
        self._person = key.person
        self._environment = environment
        self._tenant = tenant
        self._asker = Asker(url, f"placet decisions of {key.keyid}")

    async def __aenter__(self) -> Self:
        self._asker.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._asker.close()

    async def decide(
        self,
        request_id: str,
        *,
        run_id: str,
        decision: DecisionWord,
        request_hash: str,
        decision_id: str,
        reason: str | None = None,
        value: JsonValue = None,
        valid_ms: int = VALID_MS,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Receipt:
        """The receipt: `accepted`, or `duplicate` for a repeat. Mint `decision_id` once, keep it until there is one.

        `request_hash`: of what the person has seen. `value`: with `edit` the whole input, with `respond` the answer; it
        is signed by its digest and travels beside the envelope.

        Raises ContractError(PARAMETER_INVALID): nothing was sent; RetryableError BROKER_UNAVAILABLE: nothing was sent;
        OUTCOME_UNKNOWN: no receipt in time, repeat with the same `decision_id`; and, with the code of the receipt,
        TerminalError where it was refused and RetryableError where it is not final.
        """
        now_ms = time.time_ns() // 1_000_000
        takes_value = decision in ("edit", "respond") or value is not None
        try:
            value_text = value_text_of(value) if takes_value else None
            check_said(decision, value_text, reason)
        except ContractError as error:
            raise ContractError(Code.PARAMETER_INVALID, error.message, pointer=error.pointer) from error
        try:
            statement = DecisionStatement(
                environment=self._environment,
                tenant=self._tenant,
                run_id=run_id,
                request_id=request_id,
                request_hash=request_hash,
                decision=decision,
                decision_id=decision_id,
                person=self._person,
                reason=reason,
                value_digest=None if value_text is None else digest_of_text(value_text),
                issued_at_ms=now_ms,
                not_after_ms=now_ms + valid_ms,
            )
        except ValidationError as error:
            raise invalid(error, Code.PARAMETER_INVALID) from error
        published = with_value(self._key.sign(statement), value_text)
        return await self.publish(published, decision_id=decision_id, timeout_ms=timeout_ms)

    async def publish(self, signed: str, *, decision_id: str, timeout_ms: int = TIMEOUT_MS) -> Receipt:
        """The receipt for a decision that was signed before. Raises as `decide`."""
        await self._asker.wait_until_ready(timeout_ms)
        text = await self._asker.ask(
            DECISIONS_EXCHANGE,
            DECIDE_KEY,
            signed.encode(),
            content_type=JSON,
            timeout_ms=timeout_ms,
            message_id=decision_id,
        )
        if text is None:
            why = f" ({trouble})" if (trouble := self._asker.trouble) else ""
            told = f"no receipt in time{why}: unknown, repeat with the same decision id, {decision_id}"
            raise RetryableError(Code.OUTCOME_UNKNOWN, told, decision_id=decision_id)
        return told_by(Receipt.model_validate_json(text))


def told_by(receipt: Receipt) -> Receipt:
    """The receipt of a decision that counts; another one is raised, as the client of the gateway does."""
    if receipt.answer in ("accepted", "duplicate"):
        return receipt
    failure = receipt.failure
    code = failure.code if failure is not None else _CODES.get(receipt.answer, Code.APPROVAL_CONFLICT)
    what = failure.message if failure is not None else f"answered {receipt.answer}"
    kind = TerminalError if receipt.final else RetryableError
    raise kind(code, what, receipt=receipt.model_dump(mode="json", exclude_none=True))


_CODES = {"busy": Code.APPROVAL_BUSY}
