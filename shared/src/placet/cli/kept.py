"""Decides how a decision survives a lost answer: its id is kept in a file until there is a receipt.

Whoever repeats the command then repeats the same decision, which cannot count twice.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from placet.canonical import digest
from placet.errors import Code, TerminalError


@dataclass(frozen=True, slots=True)
class Kept:
    """A decision on its way."""

    path: Path
    decision_id: str
    is_repeat: bool
    """Whether the id was kept from an earlier try."""

    def settled(self) -> None:
        """There is a final answer: forget the id."""
        self.path.unlink(missing_ok=True)


def state_dir(environ: Mapping[str, str]) -> Path:
    """`$PLACET_STATE_DIR`, else `placet` under `$XDG_STATE_HOME`, else under `~/.local/state`."""
    if environ.get("PLACET_STATE_DIR"):
        return Path(environ["PLACET_STATE_DIR"])
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "placet"


def earlier(directory: Path, what: Mapping[str, str | None]) -> Kept | None:
    """The decision that was kept for exactly `what` (gateway, request, hash, word, reason, person), if one was."""
    path = _path(directory, what)
    decision_id = _read(path)
    return None if decision_id is None else Kept(path, decision_id, is_repeat=True)


def kept(directory: Path, what: Mapping[str, str | None]) -> Kept:
    """The decision for exactly `what`: the one kept earlier, or a new one, which is on disk when this returns.

    Raises TerminalError(SETTING_INVALID) when it cannot be kept: then nothing may be sent.
    """
    found = earlier(directory, what)
    if found is not None:
        return found
    path = _path(directory, what)
    decision_id = f"dec_{uuid.uuid4().hex}"
    try:
        _write(path, json.dumps({"decision_id": decision_id, **what}))
    except OSError as error:
        raise TerminalError(
            Code.SETTING_INVALID,
            f"nothing was decided: the decision could not be kept in {path.parent} ({error.strerror or error}); "
            "name a directory of yours by PLACET_STATE_DIR",
        ) from error
    return Kept(path, decision_id, is_repeat=False)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)


def _path(directory: Path, what: Mapping[str, str | None]) -> Path:
    return directory / "decisions" / f"{digest(dict(what))[:40]}.json"


def _read(path: Path) -> str | None:
    try:
        kept_id = json.loads(path.read_text(encoding="utf-8")).get("decision_id")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, AttributeError):
        return None  # Cut off while it was written: nothing had been sent yet.
    return kept_id if isinstance(kept_id, str) else None
