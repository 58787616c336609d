"""Decides that a decision is believed because of its signature, and every field of it only as far as it was signed.

A key is a fact: the rules ask for it through `Facts`, so that the journal holds the key that was believed, and a replay
judges by it. The door for outsiders asks the same questions first (`believed`), before any store is touched.
"""

from __future__ import annotations

from placet import limits
from placet.errors import Code, ContractError, Failure
from placet.facts import Facts
from placet.instants import Instant
from placet.keys import Keys, KnownKeys, RegisteredKey
from placet.messages import DecideApproval
from placet.signatures import DecisionStatement, message_of, open_envelope
from placet.strict_json import parse
from placet.voices import Heard


class SignedVoices:
    """Voices: those of registered keys."""

    def __init__(self, environment: str, keys: Keys) -> None:
        """`environment`: the installation for which a decision must have been signed."""
        self._environment = environment
        self._keys = keys

    def hear(self, message: DecideApproval, facts: Facts, now_ms: Instant) -> Heard | Failure:
        """As Voices."""
        if message.signed is None:
            return Failure(
                code=Code.SIGNATURE_INVALID, message="the decision is not signed: nobody's word stands for it"
            )
        try:
            opened = open_envelope(message.signed)
            key = facts.key(self._keys, opened.keyid)
            statement = believed(opened.verified(key) if key else None, key, opened.keyid, self._environment, now_ms)
            signed = message_of(statement, message.signed, message.value_text)
        except ContractError as error:
            return error.failure()
        if message != signed:
            told = f"the decision says something else than what was signed: {_differing(message, signed)}"
            return Failure(code=Code.SIGNATURE_MISMATCH, message=told)
        return Heard(
            Instant(max(0, statement.issued_at_ms - limits.SIGNATURE_SKEW_MS)),
            Instant(statement.not_after_ms + limits.SIGNATURE_SKEW_MS),
        )


class ReplayedVoices:
    """Voices of a journal, whoever wrote it: a signature counts by the key that is written there, for the installation
    that it was made for. Only for replaying: nothing is decided by it."""

    def hear(self, message: DecideApproval, facts: Facts, now_ms: Instant) -> Heard | Failure:
        """As Voices. A decision without a signature is one of a single process, which believes its own door."""
        if message.signed is None:
            return Heard()
        try:
            told = parse(open_envelope(message.signed).payload.decode(errors="replace"))
        except ContractError as error:
            return error.failure()
        environment = told.get("environment") if isinstance(told, dict) else None
        return SignedVoices(str(environment), KnownKeys()).hear(message, facts, now_ms)


def believed(
    statement: DecisionStatement | None,
    key: RegisteredKey | None,
    keyid: str,
    environment: str,
    now_ms: Instant | None,
) -> DecisionStatement:
    """A verified statement, if its key may say that, here. `now_ms`: None where there is no clock to be trusted.

    Raises ContractError: SIGNATURE_INVALID where the key is unknown, revoked, another's, or out of its time, or where
    evidence is missing or out of place; SIGNATURE_MISMATCH for another environment, and for a window that is none.
    """
    if statement is None or key is None:
        raise ContractError(Code.SIGNATURE_INVALID, f"nobody has registered the key {keyid[:64]}")
    fault = key.fault(statement.tenant, statement.person, now_ms)
    if fault:
        raise ContractError(Code.SIGNATURE_INVALID, fault)
    if (key.kind == "gateway") != (statement.evidence is not None):
        told = "a gateway says how it knows the person, and a person's own key needs no evidence"
        raise ContractError(Code.SIGNATURE_INVALID, told, pointer="/evidence")
    if statement.environment != environment:
        told = "it was signed for another installation than this one"
        raise ContractError(Code.SIGNATURE_MISMATCH, told, pointer="/environment")
    if not 0 < statement.not_after_ms - statement.issued_at_ms <= limits.SIGNATURE_VALID_MS_MAX:
        told = f"it is valid from issued_at_ms to not_after_ms, for at most {limits.SIGNATURE_VALID_MS_MAX} ms"
        raise ContractError(Code.SIGNATURE_MISMATCH, told, pointer="/not_after_ms")
    return statement


def _differing(message: DecideApproval, signed: DecideApproval) -> str:
    names = [name for name in DecideApproval.model_fields if getattr(message, name) != getattr(signed, name)]
    return ", ".join(names)
