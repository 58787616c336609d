"""Decides how tests get many processes quickly: each is forked from one that has imported everything already.

What is born is a process like any other: environment, log, signals and exit code are its own, and it runs the very
module that `python -m` would run, from its first line. Only the second of work that importing takes has been done.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from placet import cli

IMPORTED = (
    "placet_dispatcher.__main__",
    "placet_planner.__main__",
    "placet_tool_executor.__main__",
    "placet_approval.__main__",
    "placet_gateway.__main__",
    "placet.cli.program",
    "placet.cli.deployment",
    "placet.adapters.sql.postgres",
    "placet.adapters.sql.postgres_migrating",
    "placet.adapters.rabbitmq",
    "placet.adapters.redis",
    "pydantic_ai.direct",
    "pydantic_ai.models.function",
    "jsonschema",
    "uvicorn.loops.auto",
    "tests.live.killable",
)
PLACET = "placet"
"""Stands for the console script; it is no module that could be run."""
REQUEST_BYTES_MAX = 200_000
_DIES_WITH_PARENT = 1
"""PR_SET_PDEATHSIG."""


class Born:
    """A process of the nursery, with as much of Popen as a test needs."""

    def __init__(self, pid: int, ended: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended
        self._waiting = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it lives."""
        return self._read(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The same, once it has ended. Raises subprocess.TimeoutExpired."""
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout_s: float | None) -> int | None:
        with self._waiting:
            if self.returncode is None:
                self._ended.settimeout(timeout_s)
                try:
                    told = self._ended.recv(64)
                except (TimeoutError, BlockingIOError):
                    return None
                if not told:
                    raise RuntimeError(f"the nursery of process {self.pid} is gone")
                self.returncode = int(told)
                self._ended.close()
            return self.returncode


class Nursery:
    """The process that has imported everything; it ends with this one, and so do those that it has borne."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES_MAX)
        self._asking = threading.Lock()
        command = (sys.executable, "-m", "tests.live.nursery", str(theirs.fileno()))
        # Out of reach of a Ctrl-C at the terminal: whoever is interrupted closes the channel.
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
        )
        theirs.close()

    def bear(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> Born:
        """Run `python -m command…` with this environment; what it prints goes to the log."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps([list(command), dict(environment), os.getcwd()]).encode()
        with theirs, log.open("wb") as output, self._asking:
            socket.send_fds(self._channel, [request], [output.fileno(), theirs.fileno()])
            pid = self._channel.recv(64)
            if not pid:
                raise RuntimeError("the nursery is gone; what it said is above")
            return Born(int(pid), ours)

    def close(self) -> None:
        """End it, and all its processes."""
        self._channel.close()
        self._process.wait()


@lru_cache(maxsize=1)
def nursery() -> Nursery:
    """The one of this process."""
    one = Nursery()
    atexit.register(one.close)
    return one


# ── what it does ───────────────────────────────────────────────────────────────────────


def serve(channel: socket.socket) -> Sequence[str] | None:
    """Bear processes until the channel is closed. Returns in each of them as well, with its command."""
    children: dict[int, socket.socket] = {}
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno())
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    woken.recv(4096)
                    tell_ends(children)
                    continue
                request, fds, _, _ = socket.recv_fds(channel, REQUEST_BYTES_MAX, 2)
                if not request:
                    for pid in children:
                        os.kill(pid, signal.SIGKILL)
                    return None
                command, environment, folder = json.loads(request)
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    for each in (channel, woken, waker, *children.values()):
                        each.close()
                    begin(environment, folder, *fds)
                    return list(command)
                os.close(fds[0])
                children[pid] = socket.socket(fileno=fds[1])
                channel.send(str(pid).encode())


def tell_ends(children: dict[int, socket.socket]) -> None:
    """Collect those that have ended, and say with what."""
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with children.pop(pid) as told:
                told.send(str(os.waitstatus_to_exitcode(status)).encode())


def begin(environment: Mapping[str, str], folder: str, log: int, told: int) -> None:
    """Make the fork what a new process would be."""
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(told)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)


def main(channel: int) -> None:
    """Import everything, and serve; in a process that is borne, be that."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=channel) as served:
        command = serve(served)
    if command is not None:
        run(*command)


def run(module: str, *arguments: str) -> None:
    """As `python -m module arguments…`, or as the console script `placet`."""
    sys.argv = [module, *arguments]
    if module == PLACET:
        cli.main()
    package = importlib.import_module(module)
    sys.modules.pop(f"{module}.__main__" if hasattr(package, "__path__") else module, None)  # run from its first line
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
