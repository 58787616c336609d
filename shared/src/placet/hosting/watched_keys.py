"""Decides which registry of keys counts now: that of the file as it is, or the last good one while it is broken.

A key that is revoked while a message lies in a queue must not vote any more, so the file is looked at whenever a key is
asked for; that takes about two microseconds. It is read again when it has changed, without a restart.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from placet import limits
from placet.errors import Code, PlacetError, TerminalError
from placet.keys import KnownKeys, RegisteredKey, parse_registry
from placet.settings import FILE, Settings, variable_of

log = logging.getLogger("placet.hosting")

SETTLED_NS = 100_000_000
"""A file that changed less than so long before it was read may change again without a trace of it in its times."""

Mark = tuple[int, int, int]


class WatchedKeys:
    """Keys: those of a file, or of a text that stays as it is."""

    def __init__(self, text: str, path: Path | None = None) -> None:
        """`text`: the registry as it was read at the start. `path`: the file, where there is one.

        Raises ContractError as `placet.keys.parse_registry`.
        """
        self._path = path
        self._known = KnownKeys(parse_registry(text))
        self._data: bytes | None = None
        """What the file held when it was last read."""
        self._mark: Mark | None = None
        self._trouble: str | None = None

    def key(self, keyid: str) -> RegisteredKey | None:
        """As Keys."""
        self.look()
        return self._known.key(keyid)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def trouble(self) -> str | None:
        """Why the file does not count as it is now; None when all is well."""
        self.look()
        return self._trouble

    def look(self) -> None:
        """Read the file if it has changed. What is wrong with it is told, and the keys that were known stay."""
        if self._path is None:
            return
        try:
            if _mark(self._path.stat()) == self._mark:
                return
            with self._path.open("rb") as file:
                mark = _mark(os.fstat(file.fileno()))
                data = file.read(limits.JSON_BYTES_MAX + 1)
        except OSError as error:
            self._mark = self._data = None
            self._tell(f"{self._path} cannot be read ({error.strerror or error}): the keys known before still count")
            return
        self._mark = _settled(mark)
        if data == self._data:
            return
        self._data = data
        try:
            self._known = KnownKeys(parse_registry(data))
        except PlacetError as error:
            self._tell(f"{self._path} is not taken ({error.message}): the keys known before still count")
            return
        self._trouble = None
        log.info("keys.read", extra={"file": str(self._path), "keys": len(self._known)})

    def _tell(self, what: str) -> None:
        if what != self._trouble:
            log.error("keys.not_taken", extra={"code": Code.SETTING_INVALID.value, "what": what})
        self._trouble = what


def keys_of(settings: Settings, environ: Mapping[str, str]) -> WatchedKeys:
    """The registry that is set. Raises TerminalError(SETTING_INVALID) for one that cannot be used from the start."""
    variable = variable_of("decision_keys")
    path = environ.get(variable + FILE, "").strip()
    try:
        keys = WatchedKeys(settings.decision_keys or "", Path(path) if path else None)
    except PlacetError as error:
        named = f"{variable}{FILE} names {path}, which" if path else f"{variable}"
        what = f"{named} is no registry of keys: {error.message}. See `placet keys new --help`"
        raise TerminalError(Code.SETTING_INVALID, what) from error
    if not len(keys):
        log.warning("keys.none", extra={"what": "no key is registered: nobody can decide anything here"})
    return keys


def _mark(found: os.stat_result) -> Mark:
    return found.st_mtime_ns, found.st_size, found.st_ino


def _settled(mark: Mark) -> Mark | None:
    """The mark, if a change after it would show."""
    return mark if time.time_ns() - mark[0] > SETTLED_NS else None
