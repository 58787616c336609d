"""Decides what the gateway vouches for: that a person whom it let in has decided just this, here, a moment ago.

Between processes a decision is believed because of a signature. Whoever decides at the gateway has signed nothing, so
the gateway signs for them with its own key, and says in the signed text how it knows them.
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError

from placet.canonical import digest_of_text
from placet.errors import Code, ContractError, PlacetError, TerminalError
from placet.keys import parse_private_key
from placet.messages import DecideApproval, invalid
from placet.signatures import DecisionStatement, Evidence, SigningKey, message_of
from placet.values import PrincipalKind
from placet_gateway.context import wall_clock_ms

VALID_MS = 5 * 60_000
"""From the caller's request to the record of the decision: the caller has given up long before."""


class GatewaySigner:
    """Signs decisions with a gateway's key."""

    def __init__(
        self, key: SigningKey, environment: str, evidence: Evidence, *, now_ms: Callable[[], int] = wall_clock_ms
    ) -> None:
        """`environment`: the installation for which it signs. `evidence`: how callers are known."""
        self._key = key
        self._environment = environment
        self._evidence = evidence
        self._now_ms = now_ms

    @property
    def keyid(self) -> str:
        """The key that the approval service has to know."""
        return self._key.keyid

    def sign(self, message: DecideApproval) -> DecideApproval:
        """The same decision, signed.

        Raises ContractError: APPROVER_NOT_ALLOWED where it is not a human's, APPROVAL_VALIDATION_ERROR with a pointer
        where a field cannot be what anybody has seen, such as a hash of a thousand characters.
        """
        if message.reviewer.kind is not PrincipalKind.HUMAN:
            told = f"a {message.reviewer.kind.value} cannot decide, only a person can"
            raise ContractError(Code.APPROVER_NOT_ALLOWED, told)
        now_ms = self._now_ms()
        try:
            statement = DecisionStatement(
                environment=self._environment,
                tenant=message.tenant,
                run_id=message.run_id,
                request_id=message.request_id,
                request_hash=message.request_hash,
                decision=message.decision,
                decision_id=message.decision_id,
                person=message.reviewer.id,
                reason=message.reason,
                shown_digest=message.shown_digest,
                value_digest=None if message.value_text is None else digest_of_text(message.value_text),
                issued_at_ms=now_ms,
                not_after_ms=now_ms + VALID_MS,
                evidence=self._evidence,
            )
        except ValidationError as error:
            raise invalid(error, Code.APPROVAL_VALIDATION_ERROR) from error
        return message_of(statement, self._key.sign(statement), message.value_text)


def signer_of(text: str, environment: str, evidence: Evidence) -> GatewaySigner:
    """The signer with the key in `text`. Raises TerminalError(SETTING_INVALID) for what is no gateway's key."""
    try:
        file = parse_private_key(text)
        key = SigningKey.of(file)
    except PlacetError as error:
        what = f"PLACET_SIGNING_KEY is no private key ({error.message}): make one with `placet keys new FILE`"
        raise TerminalError(Code.SETTING_INVALID, what) from None
    if file.person is not None:
        what = "PLACET_SIGNING_KEY is a person's key: make one for the gateway, with `placet keys new FILE` alone"
        raise TerminalError(Code.SETTING_INVALID, what)
    return GatewaySigner(key, environment, evidence)
