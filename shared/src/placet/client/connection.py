"""Decides where the gateway is and with what right it is asked: from the environment, or from the data directory."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from placet.errors import Code, ContractError

DEFAULT_URL = "http://127.0.0.1:7300"
DEFAULT_DATA_DIR = ".placet"
TOKEN_FILE = "token"


@dataclass(frozen=True, slots=True)
class Connection:
    """An address, a token, and for whom it speaks where that is not the server's default."""

    url: str = DEFAULT_URL
    token: str | None = None
    person: str | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether the gateway is on this machine."""
        host = urlsplit(self.url).hostname or ""
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str], *, url: str | None = None, data_dir: Path | None = None
    ) -> Connection:
        """`PLACET_URL`, `PLACET_TOKEN` (or `PLACET_TOKEN_FILE`), `PLACET_PERSON`; else the token of the data directory.

        Raises ContractError(SETTING_INVALID) for a URL that is none, and for a token file that cannot be read.
        """
        address = (url or environ.get("PLACET_URL") or DEFAULT_URL).rstrip("/")
        parts = urlsplit(address)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ContractError(
                Code.SETTING_INVALID, f"PLACET_URL is {address!r}: set it to an address such as {DEFAULT_URL}"
            )
        return cls(address, _token(environ, data_dir), environ.get("PLACET_PERSON") or None)


def data_dir_of(environ: Mapping[str, str]) -> Path:
    """Where `placet dev` keeps its things, unless told otherwise."""
    return Path(environ.get("PLACET_DATA") or DEFAULT_DATA_DIR)


def _token(environ: Mapping[str, str], data_dir: Path | None) -> str | None:
    if environ.get("PLACET_TOKEN"):
        return environ["PLACET_TOKEN"].strip()
    named = environ.get("PLACET_TOKEN_FILE")
    path = Path(named) if named else (data_dir or data_dir_of(environ)) / TOKEN_FILE
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        if named:
            raise ContractError(Code.SETTING_INVALID, f"PLACET_TOKEN_FILE names {path}, which does not exist") from None
        return None
    except (OSError, UnicodeError) as error:
        raise ContractError(Code.SETTING_INVALID, f"the token in {path} cannot be read: {error}") from error
