"""Decides whose keys may sign decisions: the registry of public keys, and the form of a file that holds a private one.

A key of kind `person` is of one person and signs in that name alone. One of kind `gateway` vouches for whoever signed
in there, and has to say how it knows. Nobody is in the registry by default. Nothing here computes a signature.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Annotated, Literal, Protocol, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from placet import strict_json
from placet.errors import Code, ContractError
from placet.instants import Instant
from placet.messages import invalid
from placet.values import Name, Text, Value

KEY_BYTES = 32
"""Of an Ed25519 key, public or private."""
TENANTS_MAX = 1_000

KeyId = Annotated[str, StringConstraints(pattern=r"^key_[0-9a-f]{32}$")]
"""Follows from the public key: it cannot be given to another one."""
KeyText = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]{43}=$")]
"""32 bytes in base64."""
FirstVersion = Annotated[int, Field(ge=1, le=1)]
"""Of the form of a document. As a literal it would take `true` for 1."""


def key_id_of(public: bytes) -> str:
    """The id of a public key: `key_` and the first 32 digits of its SHA-256."""
    return f"key_{hashlib.sha256(public).hexdigest()[:32]}"


def key_bytes(text: str) -> bytes:
    """The 32 bytes of a key. Raises ContractError(PARAMETER_INVALID), without the text, for anything else."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != KEY_BYTES or base64.b64encode(data).decode() != text:
        raise ContractError(Code.PARAMETER_INVALID, f"a key is {KEY_BYTES} bytes in base64")
    return data


def key_text(data: bytes) -> str:
    """A key as it is written down."""
    return base64.b64encode(data).decode()


class RegisteredKey(Value):
    """One public key, and what is believed because of it."""

    keyid: KeyId
    public_key: KeyText
    kind: Literal["person", "gateway"]
    person: Name | None = None
    """The one person it speaks for; only and always of kind `person`."""
    tenants: Annotated[tuple[Name, ...], Field(min_length=1, max_length=TENANTS_MAX)]
    """Whose requests it may decide."""
    not_before_ms: Annotated[int, Field(ge=0)] | None = None
    not_after_ms: Annotated[int, Field(ge=0)] | None = None
    """It counts from the first instant on, and no more at the second."""
    revoked: bool = False
    label: Text | None = None
    """For whoever looks after the registry."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        try:
            public = key_bytes(self.public_key)
        except ContractError as error:
            raise ValueError(error.message) from error
        if key_id_of(public) != self.keyid:
            raise ValueError("the keyid is not that of the public key")
        if (self.kind == "person") != (self.person is not None):
            raise ValueError("a key of kind person names its person, one of kind gateway names none")
        if self.person is not None and self.person != self.person.strip():
            raise ValueError("the person's id begins or ends with a blank")
        if None not in (self.not_before_ms, self.not_after_ms) and self.not_before_ms >= self.not_after_ms:  # type: ignore[operator]
            raise ValueError("its time ends before it begins")
        return self

    def fault(self, tenant: str, person: str, now_ms: Instant | None) -> str:
        """Why it does not speak for that person in that tenant now; empty where it does. None: at whatever time."""
        if self.revoked:
            return f"the key {self.keyid} is revoked"
        if tenant not in self.tenants:
            return f"the key {self.keyid} is of another tenant"
        if self.person is not None and self.person != person:
            return f"the key {self.keyid} is another person's"
        if now_ms is not None and self.not_before_ms is not None and now_ms < self.not_before_ms:
            return f"the key {self.keyid} is not valid yet"
        if now_ms is not None and self.not_after_ms is not None and now_ms >= self.not_after_ms:
            return f"the key {self.keyid} is not valid any more"
        return ""


class KeyRegistry(Value):
    """The document: every key that counts, each once."""

    version: FirstVersion
    keys: tuple[RegisteredKey, ...]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        seen: set[str] = set()
        for key in self.keys:
            if key.keyid in seen:
                raise ValueError(f"{key.keyid} stands twice")
            seen.add(key.keyid)
        return self


class Keys(Protocol):
    """A registry as it is now."""

    def key(self, keyid: str) -> RegisteredKey | None:
        """The key of that id, also a revoked one; None for one that nobody has registered."""


class KnownKeys:
    """Keys: a registry that stays as it is. Without one, nobody's."""

    def __init__(self, registry: KeyRegistry | None = None) -> None:
        self._keys: Mapping[str, RegisteredKey] = {key.keyid: key for key in registry.keys} if registry else {}

    def __len__(self) -> int:
        return len(self._keys)

    def key(self, keyid: str) -> RegisteredKey | None:
        """As Keys."""
        return self._keys.get(keyid)


def parse_registry(data: bytes | str) -> KeyRegistry:
    """The registry in a JSON document.

    Raises ContractError: JSON_* and TOO_* of the strict reader, PARAMETER_INVALID with a pointer for everything else.
    """
    strict_json.parse(data)
    try:
        return KeyRegistry.model_validate_json(data)
    except ValidationError as error:
        raise invalid(error, Code.PARAMETER_INVALID) from error


class PrivateKeyFile(Value):
    """What stands in the file of a private key: of a person, or of a gateway where no person is named."""

    version: FirstVersion = 1
    private_key: KeyText = Field(repr=False)
    person: Name | None = None


def parse_private_key(data: bytes | str) -> PrivateKeyFile:
    """The private key in a JSON document. Raises ContractError as `parse_registry`; no message shows the key."""
    strict_json.parse(data)
    try:
        return PrivateKeyFile.model_validate_json(data)
    except ValidationError as error:
        raise invalid(error, Code.PARAMETER_INVALID) from None
