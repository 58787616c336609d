"""Decides how a tool runs another program: in a process group of its own, which is gone when the attempt is over.

Whatever ends the attempt (its time limit, a cancel, the end of the program itself), no process of that group outlives
it: each gets SIGTERM, and after TERM_MS SIGKILL. No shell is involved unless it is the program.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from placet.tooling import ToolContext, Unsure

TERM_MS = 500
"""How long a program that was asked to end may take. Below the two seconds that a signalled tool may still answer."""
OUTPUT_BYTES_MAX = 1 << 20
"""So much of each stream is kept; the rest is read and dropped, so that the program is not held up."""
DRAIN_MS = 500
"""For what a program has left in its pipes. Somebody outside its group may hold them open."""
_LOOK_S = 0.02
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended. A negative `code` is the signal that ended it."""

    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        """What it printed, as text."""
        return self.out.decode(errors="replace")


async def run_program(
    ctx: ToolContext,
    *command: str,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    output_bytes_max: int = OUTPUT_BYTES_MAX,
) -> Finished:
    """Run a program to its end, within the attempt's time, for an `async` tool.

    Raises OSError where it cannot be started, Unsure when the time is over, CancelledError when the tool is signalled;
    then the group has ended.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
    )
    out, err = bytearray(), bytearray()
    readers = [
        asyncio.ensure_future(_read(stream, into, output_bytes_max))
        for stream, into in ((process.stdout, out), (process.stderr, err))
    ]
    try:
        async with asyncio.timeout(ctx.left_s()):
            code = await process.wait()
    except TimeoutError:
        raise Unsure(f"{command[0]} was ended: its time was over", transient=False) from None
    finally:
        # To the end, also when it is interrupted once more: there is an upper bound to it.
        await asyncio.shield(asyncio.ensure_future(_end(process, readers)))
    return Finished(code, bytes(out), bytes(err))


async def _read(stream: asyncio.StreamReader | None, into: bytearray, bytes_max: int) -> None:
    while stream is not None and (chunk := await stream.read(_CHUNK)):
        into += chunk[: max(0, bytes_max - len(into))]


async def _end(process: asyncio.subprocess.Process, readers: Sequence[asyncio.Future[None]]) -> None:
    """End what is left of the group, politely first; then no more is read than what is there."""
    until_s = time.monotonic() + TERM_MS / 1_000
    _signal(process.pid, signal.SIGTERM)
    while _exists(process.pid) and time.monotonic() < until_s:  # noqa: ASYNC110 — nobody tells when a group has ended
        await asyncio.sleep(_LOOK_S)
    _signal(process.pid, signal.SIGKILL)
    await process.wait()
    await asyncio.wait(readers, timeout=DRAIN_MS / 1_000)
    for reader in readers:
        reader.cancel()


def run_program_blocking(
    ctx: ToolContext,
    *command: str,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    output_bytes_max: int = OUTPUT_BYTES_MAX,
) -> Finished:
    """The same for a plain function: it looks at `ctx.cancelled`, and raises Unsure when that is set."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    kept = [bytearray(), bytearray()]
    readers = [
        threading.Thread(target=_read_blocking, args=(stream, into, output_bytes_max), daemon=True)
        for stream, into in zip((process.stdout, process.stderr), kept, strict=True)
    ]
    for reader in readers:
        reader.start()
    ended = ""
    try:
        while process.poll() is None and not ended:
            ended = "the attempt was cancelled" if ctx.cancelled else "its time was over" if ctx.left_s() <= 0 else ""
            time.sleep(_LOOK_S)
    finally:
        _end_blocking(process)
        for reader in readers:
            reader.join(DRAIN_MS / 1_000)
    if ended:
        raise Unsure(f"{command[0]} was ended: {ended}", transient=False)
    return Finished(process.returncode, bytes(kept[0]), bytes(kept[1]))


def _read_blocking(stream: object, into: bytearray, bytes_max: int) -> None:
    with stream as file:  # type: ignore[attr-defined]
        while chunk := file.read1(_CHUNK):
            into += chunk[: max(0, bytes_max - len(into))]


def _end_blocking(process: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + TERM_MS / 1_000
    _signal(process.pid, signal.SIGTERM)
    while _exists(process.pid) and time.monotonic() < until_s:
        process.poll()
        time.sleep(_LOOK_S)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return  # nobody is left


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
