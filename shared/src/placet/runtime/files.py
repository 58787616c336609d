"""Decides which bytes a tool gets for a file of its input: a private copy that has the approved content, or none.

The content is compared while it is copied, and the copy is what the tool is given: so nothing that happens to the
original afterwards (another content, another file, a link put in its place) can reach the effect. Each part of a path
is opened without following links, each below the one before it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel, ValidationError

from placet import limits, tooling
from placet.errors import Code, TerminalError
from placet.filerefs import FileRef

_CHUNK = 1 << 20
_NO_LINK = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class ToolFiles:
    """The executor's folder of files, for one attempt at a time. `root` None: this executor has no files."""

    def __init__(self, root: Path | None) -> None:
        self._root = root

    def refer(self, path: str) -> FileRef:
        """The file as it is now. Raises NotExecuted where there is none, or none that can be referred to."""
        try:
            named = FileRef(path=path, sha256="0" * 64, size=0)
            with self._opened(named.path) as file:
                sha256, size = _copied(file, None, limits.FILE_BYTES_MAX)
        except (OSError, ValidationError, TerminalError) as error:
            raise tooling.NotExecuted(f"{path!r} cannot be referred to: {_why(error)}") from error
        return FileRef(path=path, sha256=sha256, size=size)

    @contextmanager
    def copies(self, wanted: Sequence[FileRef]) -> Iterator[Copies]:
        """Private copies of these files. Raises TerminalError(APPROVAL_STALE_DECISION) for one whose content is not the
        one named; OSError where a copy cannot be made."""
        folder = Path(tempfile.mkdtemp(prefix="placet-files-"))  # for its owner alone
        try:
            made: dict[FileRef, Path] = {}
            for ref in wanted:
                if ref not in made:
                    made[ref] = self._copy(ref, folder / str(len(made)))
            yield Copies(made)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _copy(self, ref: FileRef, folder: Path) -> Path:
        folder.mkdir(mode=0o700)
        place = folder / ref.path.rpartition("/")[2]
        try:
            file = self._opened(ref.path)
        except OSError as error:
            raise _stale(ref, f"cannot be opened: {_why(error)}") from error
        with file, place.open("xb") as copy:
            sha256, size = _copied(file, copy, ref.size)
        if (sha256, size) != (ref.sha256, ref.size):
            raise _stale(ref, "has another content")
        place.chmod(0o400)
        return place

    def _opened(self, path: str) -> BinaryIO:
        """The file itself, reached without following a link."""
        if self._root is None:
            raise TerminalError(Code.TOOL_INPUT_INVALID, "this executor has no folder of files: set PLACET_TOOL_FILES")
        *folders, name = path.split("/")
        at = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in folders:
                deeper = os.open(part, _NO_LINK | os.O_DIRECTORY, dir_fd=at)
                os.close(at)
                at = deeper
            found = os.open(name, _NO_LINK, dir_fd=at)
        finally:
            os.close(at)
        if not stat.S_ISREG(os.fstat(found).st_mode):
            os.close(found)
            raise OSError("it is no regular file")
        return os.fdopen(found, "rb")


class Copies:
    """The copies of one attempt, by what they are copies of."""

    def __init__(self, made: Mapping[FileRef, Path]) -> None:
        self._made = made

    def open(self, ref: FileRef) -> BinaryIO:
        """The copy, for reading. Raises as `path_of`."""
        return Path(self.path_of(ref)).open("rb")

    def path_of(self, ref: FileRef) -> str:
        """Where the copy is. Raises NotExecuted for a file that is not in the reviewed input."""
        if ref not in self._made:
            raise tooling.NotExecuted(f"{ref.path!r} is no file of the reviewed input")
        return str(self._made[ref])


def refs_in(value: Any) -> Iterator[FileRef]:
    """Every file in typed arguments, at any depth."""
    if isinstance(value, FileRef):
        yield value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from refs_in(getattr(value, name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from refs_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from refs_in(item)


def _copied(file: BinaryIO, copy: BinaryIO | None, bytes_max: int) -> tuple[str, int]:
    """Digest and size of what was read, and written to `copy`; no more than one byte past the bound."""
    digest, size = hashlib.sha256(), 0
    while size <= bytes_max and (chunk := file.read(min(_CHUNK, bytes_max + 1 - size))):
        digest.update(chunk)
        size += len(chunk)
        if copy is not None:
            copy.write(chunk)
    if copy is None and size > bytes_max:
        raise OSError(f"it has more than {bytes_max} bytes")
    return digest.hexdigest(), size


def _stale(ref: FileRef, what: str) -> TerminalError:
    return TerminalError(
        Code.APPROVAL_STALE_DECISION, f"the file {ref.path!r} is not the one that was reviewed: it {what}"
    )


def _why(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return str(error.errors(include_url=False)[0]["msg"])
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
