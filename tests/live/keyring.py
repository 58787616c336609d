"""Decides which keys a system under test knows: a gateway's, and those of the people whom a test enrols."""

from __future__ import annotations

from pathlib import Path

from placet.keys import KeyRegistry, RegisteredKey, parse_private_key, parse_registry
from placet.signatures import SigningKey

TENANT = "default"


class Keyring:
    """The keys in a folder: the gateway's private one, and the registry, which the approval service watches."""

    def __init__(self, folder: Path) -> None:
        self.registry = folder / "decision_keys.json"
        self.gateway_file = folder / "gateway_key.json"
        if not self.registry.exists():
            gateway = SigningKey.generate()
            self.gateway_file.write_text(gateway.file().model_dump_json(exclude_none=True))
            self.write(gateway.entry(tenants=(TENANT,), label="gateway"))

    @property
    def gateway(self) -> SigningKey:
        """The gateway's key."""
        return SigningKey.of(parse_private_key(self.gateway_file.read_bytes()))

    def entries(self) -> tuple[RegisteredKey, ...]:
        """What is registered."""
        return parse_registry(self.registry.read_bytes()).keys

    def write(self, *entries: RegisteredKey) -> None:
        """Register these and no others: whole or not at all, as a watched file has to be written."""
        draft = self.registry.with_suffix(".new")
        draft.write_text(KeyRegistry(version=1, keys=entries).model_dump_json(exclude_none=True))
        draft.replace(self.registry)

    def enrol(self, person: str, *, tenants: tuple[str, ...] = (TENANT,)) -> SigningKey:
        """A new key of a person."""
        key = SigningKey.generate(person)
        self.write(*self.entries(), key.entry(tenants=tenants))
        return key

    def revoke(self, key: SigningKey) -> None:
        """From now on it does not count."""
        self.write(
            *(
                entry.model_copy(update={"revoked": True}) if entry.keyid == key.keyid else entry
                for entry in self.entries()
            )
        )
