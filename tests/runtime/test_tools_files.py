"""A tool that takes a file is given a copy with the reviewed content, or is not called."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from placet import App, FileRef, ToolContext, calls
from placet.canonical import canonical_text
from placet.errors import Code, ErrorClass, Failure
from placet.runtime.files import ToolFiles
from placet.runtime.tools import ToolRunner
from tests.runtime.test_tools import NOW, an_attempt, failure_in, in_time


class Shipyard:
    """A tool that ships a file, another in a list, and reads what it was given."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self.shipped: list[bytes] = []
        self.paths: list[Path] = []
        self.before: Callable[[], object] = lambda: None
        self.app = App("shipyard", version="1")

        @self.app.tool(effect="non_retriable", consequential=True)
        def act(ctx: ToolContext, image: FileRef, more: list[FileRef] = []) -> int:  # noqa: B006
            """Ship."""
            self.before()
            for file in (image, *more):
                with ctx.open(file) as opened:
                    self.shipped.append(opened.read())
                self.paths.append(Path(ctx.path_of(file)))
                assert self.paths[-1].read_bytes() == self.shipped[-1]
            return len(self.shipped)

        @self.app.tool(effect="read_only")
        def look(ctx: ToolContext, path: str) -> FileRef:
            """Look."""
            return ctx.refer(path)

    async def ran(self, *refs: FileRef | dict[str, Any]) -> Any:
        named = [ref if isinstance(ref, dict) else ref.model_dump() for ref in refs]
        text = canonical_text({"image": named[0], "more": named[1:]})
        return await self.runner().run(an_attempt(text), in_time)

    def runner(self) -> ToolRunner:
        return ToolRunner(self.app, now_ms=lambda: NOW, files=ToolFiles(self.root))


def ref_of(path: str, content: bytes) -> FileRef:
    return FileRef(path=path, sha256=hashlib.sha256(content).hexdigest(), size=len(content))


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Shipyard]:
    root = tmp_path / "files"
    (root / "dist").mkdir(parents=True)
    (root / "dist" / "app.tar").write_bytes(b"reviewed")
    (root / "notes").write_bytes(b"")
    yard = Shipyard(root)
    yield yard
    assert not any(path.exists() for path in yard.paths), "the copies go with the attempt"


async def test_a_tool_gets_a_copy_with_the_reviewed_content(yard: Shipyard) -> None:
    outcome = await yard.ran(ref_of("dist/app.tar", b"reviewed"), ref_of("notes", b""))
    assert outcome == calls.Executed(result_text="2")
    assert yard.shipped == [b"reviewed", b""]
    assert [path.name for path in yard.paths] == ["app.tar", "notes"]


async def test_what_a_tool_refers_to_is_what_another_may_be_given(yard: Shipyard) -> None:
    seen = await yard.runner().run(an_attempt('{"path":"dist/app.tar"}', tool="look"), in_time)
    assert isinstance(seen, calls.Executed)
    assert seen.result_text == canonical_text(ref_of("dist/app.tar", b"reviewed").model_dump())


@pytest.mark.parametrize("content", [b"Reviewed", b"reviewed!", b"review", b""])
async def test_a_file_with_another_content_is_stale_and_the_tool_is_not_called(yard: Shipyard, content: bytes) -> None:
    assert yard.root is not None
    (yard.root / "dist" / "app.tar").write_bytes(content)
    outcome = await yard.ran(ref_of("notes", b""), ref_of("dist/app.tar", b"reviewed"))
    assert isinstance(outcome, calls.NotExecuted)
    failure = failure_in(outcome)
    assert (failure.code, failure.error_class) == (Code.APPROVAL_STALE_DECISION, ErrorClass.APPROVAL)
    assert yard.shipped == []


async def test_a_size_that_is_not_the_files_is_stale(yard: Shipyard) -> None:
    for size in (7, 9):
        outcome = await yard.ran(ref_of("dist/app.tar", b"reviewed").model_copy(update={"size": size}))
        assert failure_in(outcome).code is Code.APPROVAL_STALE_DECISION


async def test_what_happens_to_the_original_after_the_check_does_not_reach_the_tool(yard: Shipyard) -> None:
    assert yard.root is not None
    place = yard.root / "dist" / "app.tar"

    def swap() -> None:
        place.unlink()
        place.symlink_to("/etc/hostname")

    yard.before = swap
    assert isinstance(await yard.ran(ref_of("dist/app.tar", b"reviewed")), calls.Executed)
    assert yard.shipped == [b"reviewed"]


def _a_link(root: Path) -> None:
    (root / "dist" / "app.tar").rename(root / "real")
    (root / "dist" / "app.tar").symlink_to(root / "real")


def _a_folder_that_is_a_link(root: Path) -> None:
    (root / "dist").rename(root / "real")
    (root / "dist").symlink_to(root / "real")


def _a_pipe(root: Path) -> None:
    (root / "dist" / "app.tar").unlink()
    os.mkfifo(root / "dist" / "app.tar")


def _a_folder(root: Path) -> None:
    (root / "dist" / "app.tar").unlink()
    (root / "dist" / "app.tar").mkdir()


def _nothing(root: Path) -> None:
    (root / "dist" / "app.tar").unlink()


@pytest.mark.parametrize("change", [_a_link, _a_folder_that_is_a_link, _a_pipe, _a_folder, _nothing])
async def test_what_is_no_plain_file_below_the_folder_is_not_shipped(
    yard: Shipyard, change: Callable[[Path], None]
) -> None:
    """Also where its content is the reviewed one: nobody looks elsewhere than was said."""
    assert yard.root is not None
    change(yard.root)
    async with asyncio.timeout(5):  # a pipe that nobody writes to holds up nobody
        outcome = await yard.ran(ref_of("dist/app.tar", b"reviewed"))
    assert failure_in(outcome).code is Code.APPROVAL_STALE_DECISION
    assert yard.shipped == []
    seen = await yard.runner().run(an_attempt('{"path":"dist/app.tar"}', tool="look"), in_time)
    assert isinstance(seen, calls.NotExecuted)


@pytest.mark.parametrize(
    "change",
    [
        {"path": "/etc/hostname"},
        {"path": "../secret"},
        {"path": "dist/../../secret"},
        {"path": "dist//app.tar"},
        {"path": "./notes"},
        {"path": ""},
        {"path": "a\u0000b"},
        {"path": "a\\b"},
        {"sha256": "A" * 64},
        {"sha256": "0" * 63},
        {"size": -1},
        {"size": "8"},
        {"mode": 0o777},
    ],
)
async def test_a_reference_that_is_none_is_refused_when_it_is_proposed(yard: Shipyard, change: dict[str, Any]) -> None:
    given = ref_of("dist/app.tar", b"reviewed").model_dump() | change
    checked = yard.app.validate_input("act", {"image": given})
    assert isinstance(checked, Failure)
    assert checked.code is Code.TOOL_INPUT_INVALID
    assert failure_in(await yard.ran(given)).code is Code.TOOL_INPUT_INVALID


async def test_an_executor_without_a_folder_has_no_files(tmp_path: Path) -> None:
    yard = Shipyard(None)
    outcome = await yard.ran(ref_of("dist/app.tar", b"reviewed"))
    assert isinstance(outcome, calls.NotExecuted)
    assert "PLACET_TOOL_FILES" in failure_in(outcome).message
    assert yard.shipped == []


async def test_only_files_of_the_input_can_be_opened(yard: Shipyard) -> None:
    other = ref_of("notes", b"")
    app = App("other", version="1")

    @app.tool(effect="read_only")
    def act(ctx: ToolContext, image: FileRef) -> None:
        """Look."""
        ctx.open(other)

    text = canonical_text({"image": ref_of("dist/app.tar", b"reviewed").model_dump()})
    outcome = await ToolRunner(app, now_ms=lambda: NOW, files=ToolFiles(yard.root)).run(an_attempt(text), in_time)
    assert "no file of the reviewed input" in failure_in(outcome).message


async def test_a_signal_while_files_are_copied_leaves_no_copy(yard: Shipyard, monkeypatch: pytest.MonkeyPatch) -> None:
    copying, go = threading.Event(), threading.Event()
    made: list[Path] = []
    real = ToolFiles._copy

    def slow(self: ToolFiles, ref: FileRef, folder: Path) -> Path:
        made.append(folder.parent)
        copying.set()
        go.wait(5)
        return real(self, ref, folder)

    monkeypatch.setattr(ToolFiles, "_copy", slow)
    work = asyncio.ensure_future(yard.ran(ref_of("dist/app.tar", b"reviewed")))
    await asyncio.to_thread(copying.wait, 5)
    work.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert made
    assert not any(folder.exists() for folder in made)
    assert yard.shipped == []
