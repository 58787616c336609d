"""Decides what a signed decision is, and whether a signature is one: DSSE over exact payload bytes, Ed25519, no choice.

The envelope is `{"payloadType", "payload" (base64), "signatures": [{"keyid", "sig"}]}`. What is signed is DSSE's
pre-authentication encoding of type and payload, so that nothing is written again before it is verified. The algorithm
follows from the registered key; whatever a sender would say of it is an unknown field.
"""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache
from typing import Annotated, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import Field, StringConstraints, ValidationError

from placet import limits, strict_json
from placet.canonical import canonical_bytes, canonical_text, digest_of_text
from placet.errors import Code, ContractError
from placet.keys import FirstVersion, PrivateKeyFile, RegisteredKey, key_bytes, key_id_of, key_text
from placet.messages import DecideApproval, invalid
from placet.values import Name, Principal, PrincipalKind, RunId, Text, Value

PAYLOAD_TYPE = "application/vnd.placet.decision.v1+json"
SIGNATURE_BYTES = 64
REMEMBERED_MAX = 4_096
"""Checks that are remembered. Opener, rules and every fold after a lost race look at the same envelope."""
REMEMBERED_BYTES_MAX = 4 * limits.KIB
"""Of a payload, so that what strangers send cannot fill the memory. Nearly all decisions are shorter."""

V = TypeVar("V", bound=Value)
Word = Annotated[str, StringConstraints(max_length=limits.NAME_CHARS_MAX, pattern=r"^[^\x00]*$")]
"""Whether it is the right one is for the rules to say, once the signature has been believed."""


class Evidence(Value):
    """How a gateway knows whose decision it signs."""

    method: Name
    """Such as `token`: whoever has it is believed to be whom the header names."""
    detail: Text | None = None


class DecisionStatement(Value):
    """What is signed: one person's word on one request, here and now and nowhere else."""

    version: FirstVersion = 1
    environment: Name
    """The installation it is meant for, such as production."""
    tenant: Name
    run_id: RunId
    request_id: Name
    request_hash: Word
    """Of the content that the person saw: 64 lower-case hexadecimal digits."""
    decision: Word
    """`approve` or `reject`; `edit`, `respond`, `request_changes`; `executed` or `not_executed` where the question is
    whether something happened."""
    decision_id: Name
    """Minted by whoever decides, and kept until there is a receipt: a repeat under it is the same decision."""
    person: Name
    reason: Text | None = None
    shown_digest: Word | None = None
    value_digest: Word | None = None
    """Of the value that an `edit` or `respond` comes with: SHA-256 of its canonical JSON. The value travels beside."""
    issued_at_ms: Annotated[int, Field(ge=0, lt=limits.INTEGER_MAX)]
    not_after_ms: Annotated[int, Field(ge=0, lt=limits.INTEGER_MAX)]
    """From then on it is not taken any more, unless it had been recorded before."""
    evidence: Evidence | None = None
    """Required of a gateway, which signs for others; not taken from a person, who signs alone."""


class Signature(Value):
    """One signature."""

    keyid: Name
    """A hint at the key; what is believed is the key that is registered under it."""
    sig: Annotated[str, StringConstraints(max_length=128)]


class SignedEnvelope(Value):
    """The envelope. Of several signatures nobody could say whose decision it is: exactly one is taken.

    Where a decision comes alone, its value stands beside these as `value` (`split_value`).
    """

    payloadType: str  # noqa: N815  as DSSE spells it
    payload: str
    signatures: Annotated[tuple[Signature, ...], Field(min_length=1, max_length=1)]


class SigningKey:
    """A private key that signs decisions."""

    def __init__(self, seed: bytes, person: str | None = None) -> None:
        """`seed`: its 32 bytes. `person`: whose it is; None: a gateway's."""
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.person = person
        self.public = self._private.public_key().public_bytes_raw()
        self.keyid = key_id_of(self.public)

    @classmethod
    def of(cls, file: PrivateKeyFile) -> SigningKey:
        """The key in a file."""
        return cls(key_bytes(file.private_key), file.person)

    @classmethod
    def generate(cls, person: str | None = None) -> SigningKey:
        """A new key, from the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw(), person)

    def file(self) -> PrivateKeyFile:
        """As it is kept: a secret."""
        return PrivateKeyFile(private_key=key_text(self._private.private_bytes_raw()), person=self.person)

    def entry(self, *, tenants: tuple[str, ...], label: str | None = None) -> RegisteredKey:
        """As it is registered: public."""
        return RegisteredKey(
            keyid=self.keyid,
            public_key=key_text(self.public),
            kind="gateway" if self.person is None else "person",
            person=self.person,
            tenants=tenants,
            label=label,
        )

    def sign(self, statement: DecisionStatement) -> str:
        """The envelope, as JSON text on one line."""
        return self.sign_bytes(canonical_bytes(statement.model_dump(mode="json", exclude_none=True)))

    def sign_bytes(self, payload: bytes, payload_type: str = PAYLOAD_TYPE) -> str:
        """The envelope around exactly these bytes."""
        signature = self._private.sign(pre_authentication(payload_type, payload))
        return SignedEnvelope(
            payloadType=payload_type,
            payload=base64.b64encode(payload).decode(),
            signatures=(Signature(keyid=self.keyid, sig=base64.b64encode(signature).decode()),),
        ).model_dump_json()


def pre_authentication(payload_type: str, payload: bytes) -> bytes:
    """DSSE's encoding of what is signed: each part with its length, so that no part can be taken for another."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


class OpenedEnvelope:
    """An envelope that has been read, and not been believed yet."""

    __slots__ = ("keyid", "payload", "signature", "text")

    def __init__(self, text: str, payload: bytes, keyid: str, signature: bytes) -> None:
        self.text = text
        """The envelope verbatim."""
        self.payload = payload
        self.keyid = keyid
        self.signature = signature

    def verified(self, key: RegisteredKey) -> DecisionStatement:
        """What the key's owner has signed.

        Raises ContractError: SIGNATURE_INVALID where this key did not sign these bytes; JSON_* or MESSAGE_INVALID, with
        a pointer into the payload, where it did sign them but they are no decision.
        """
        if key.keyid != self.keyid or not _is_signed(key.public_key, self.payload, self.signature):
            raise ContractError(Code.SIGNATURE_INVALID, f"the signature is not that of the key {key.keyid}")
        return _statement(self.payload)


def open_envelope(text: str) -> OpenedEnvelope:
    """The parts of an envelope; not even its payload is read before the signature has been verified.

    Raises ContractError: TOO_LARGE, JSON_*, MESSAGE_INVALID with a pointer, SIGNATURE_INVALID for another payload type.
    """
    envelope = _closed(text, SignedEnvelope)
    if envelope.payloadType != PAYLOAD_TYPE:
        told = f"a decision has the payload type {PAYLOAD_TYPE}"
        raise ContractError(Code.SIGNATURE_INVALID, told, pointer="/payloadType")
    (signature,) = envelope.signatures
    sig = _base64(signature.sig, "/signatures/0/sig")
    if len(sig) != SIGNATURE_BYTES:
        told = f"a signature has {SIGNATURE_BYTES} bytes"
        raise ContractError(Code.SIGNATURE_INVALID, told, pointer="/signatures/0/sig")
    return OpenedEnvelope(text, _base64(envelope.payload, "/payload"), signature.keyid, sig)


def split_value(text: str) -> tuple[str, str | None]:
    """An envelope as it was published, and the canonical JSON of the value beside it; None where there is none.

    Raises ContractError: TOO_LARGE, JSON_*.
    """
    if '"value"' not in text:
        return text, None
    plain = strict_json.parse(text, bytes_max=limits.SIGNED_BYTES_MAX + limits.VALUE_BYTES_MAX)
    if not isinstance(plain, dict) or "value" not in plain:
        return text, None
    value_text = canonical_text(plain.pop("value"), depth_max=limits.CONTENT_DEPTH_MAX)
    if len(value_text.encode()) > limits.VALUE_BYTES_MAX:
        raise ContractError(Code.TOO_LARGE, f"more than {limits.VALUE_BYTES_MAX} bytes", pointer="/value")
    return canonical_text(plain), value_text


def with_value(signed: str, value_text: str | None) -> str:
    """An envelope with its value beside it: what `split_value` takes apart."""
    return signed if value_text is None else f'{signed.rstrip().removesuffix("}")},"value":{value_text}}}'


def message_of(statement: DecisionStatement, signed: str, value_text: str | None = None) -> DecideApproval:
    """The message that says what was signed, nothing else and nothing less; a voice is always a human's.

    Raises ContractError(SIGNATURE_MISMATCH) for a value that is not the signed one.
    """
    if (None if value_text is None else digest_of_text(value_text)) != statement.value_digest:
        told = "the value_text beside the signature is not the one that was signed"
        raise ContractError(Code.SIGNATURE_MISMATCH, told, pointer="/value")
    return DecideApproval(
        tenant=statement.tenant,
        run_id=statement.run_id,
        request_id=statement.request_id,
        decision_id=statement.decision_id,
        request_hash=statement.request_hash,
        decision=statement.decision,
        reviewer=Principal(kind=PrincipalKind.HUMAN, id=statement.person),
        reason=statement.reason,
        shown_digest=statement.shown_digest,
        value_text=value_text,
        signed=signed,
    )


def _is_signed(public_key: str, payload: bytes, signature: bytes) -> bool:
    verify = _verifies if len(payload) > REMEMBERED_BYTES_MAX else _verifies_remembered
    return verify(public_key, payload, signature)


def _verifies(public_key: str, payload: bytes, signature: bytes) -> bool:
    try:
        public = Ed25519PublicKey.from_public_bytes(key_bytes(public_key))
        public.verify(signature, pre_authentication(PAYLOAD_TYPE, payload))
    except (InvalidSignature, ValueError):
        return False
    return True


def _statement(payload: bytes) -> DecisionStatement:
    return (_read if len(payload) > REMEMBERED_BYTES_MAX else _read_remembered)(payload)


def _read(payload: bytes) -> DecisionStatement:
    return _closed(payload, DecisionStatement)


_verifies_remembered = lru_cache(maxsize=REMEMBERED_MAX)(_verifies)
_read_remembered = lru_cache(maxsize=REMEMBERED_MAX)(_read)


def _closed(data: bytes | str, model: type[V]) -> V:
    strict_json.parse(data, bytes_max=limits.SIGNED_BYTES_MAX)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise invalid(error, Code.MESSAGE_INVALID) from error


def _base64(text: str, pointer: str) -> bytes:
    """Standard base64 in its one form: two texts for the same bytes would be two envelopes for one signature."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = None
    if data is None or base64.b64encode(data).decode() != text:
        raise ContractError(Code.MESSAGE_INVALID, f"{pointer}: not base64 in its one form", pointer=pointer)
    return data
