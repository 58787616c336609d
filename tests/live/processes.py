"""Decides how a test holds a server of its own: a process with a folder and a port, to be killed, frozen or wiped."""

from __future__ import annotations

import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import Any, ClassVar

from tests.live.kinds import Kind, MissingServerError
from tests.live.probes import answers
from tests.live.reaper import family, send_signal, started_at

PORTS = range(20_000, 32_000)
"""Below what kernels hand out to outgoing connections: no client can take the port of a server that is down."""
_GIVEN: set[int] = set()
"""Whoever was told of one may not listen yet."""
LOG_LINES_SHOWN = 30
LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port of loopback on which nobody listens, and that was not given out here before."""
    for port in random.sample(PORTS, 200):
        if port in _GIVEN:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        _GIVEN.add(port)
        return port
    raise MissingServerError(f"no free port between {PORTS.start} and {PORTS.stop}")


def find_program(name: str, *patterns: str) -> str | None:
    """The newest of the files that match a pattern, else what PATH has under the name."""
    for pattern in patterns:
        found = [path for path in glob(pattern) if os.access(path, os.X_OK)]
        if found:
            return max(found, key=lambda path: [int(part) for part in re.findall(r"\d+", path)])
    return shutil.which(name)


class PrivateServer:
    """One server process on loopback. Everything it writes is in `folder`; `wipe` forgets all of it.

    Every method blocks until the server is where it was asked to be.
    """

    kind: ClassVar[Kind]
    user: ClassVar[str]
    """Runs as this user where the tests run as root."""
    start_timeout_s: ClassVar[float] = 60
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._log_from = 0
        self._prepared = False
        self._runs_as: pwd.struct_passwd | None = None
        if os.geteuid() == 0:
            try:
                self._runs_as = pwd.getpwnam(self.user)
            except KeyError:
                self._runs_as = pwd.getpwnam("nobody")
        folder.mkdir(parents=True, exist_ok=True)
        self.give_away(folder)

    # ── what each kind says ────────────────────────────────────────────────────────────

    @property
    def url(self) -> str:
        """Where clients connect."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Write what the server needs before its first start and after a wipe."""

    def command(self) -> Sequence[str]:
        """The server in the foreground."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """What its environment has besides PATH."""
        return {}

    def is_ready(self) -> bool:
        """Whether it serves clients."""
        return answers(self.kind, LOOPBACK, self.port)

    # ── its life ───────────────────────────────────────────────────────────────────────

    @property
    def alive(self) -> bool:
        """Whether the process runs, frozen or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The server's own process, not a shell's around it."""
        if self._process is None:
            raise RuntimeError(f"{self.kind} does not run")
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        """Begin, on the same port and with the same data as before."""
        if self.alive:
            raise RuntimeError(f"{self.kind} runs already")
        if not self._prepared:
            self.data.mkdir(exist_ok=True)
            self.give_away(self.data)
            self.prepare()
            self._prepared = True
        self._log_from = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = self.spawn(self.command(), stdout=log, stderr=log)
        self.note_pids(self._process.pid)
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Until it serves clients; what it logged is in the error when it does not come to that."""
        end_s = time.monotonic() + self.start_timeout_s
        while not self.is_ready():
            if not self.alive or time.monotonic() > end_s:
                told = "\n".join(self.new_log().splitlines()[-LOG_LINES_SHOWN:])
                self.kill()
                raise MissingServerError(f"the private {self.kind} did not start:\n{told}")
            time.sleep(0.02)

    def kill(self) -> None:
        """A crash: SIGKILL. Returns when the server and all its children are gone."""
        self._end(signal.SIGKILL, 5)

    def stop(self, timeout_s: float = 20) -> None:
        """An orderly end; SIGKILL for whatever is left after that time."""
        self._end(self.stop_signal, timeout_s)

    def restart(self) -> None:
        """A crash and a recovery from what had reached the disk."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP to the server and its children: sockets stay open, connections are taken in, nothing answers."""
        send_signal(family(self.pid), signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on after a freeze."""
        send_signal(family(self.pid), signal.SIGCONT)

    def wipe(self) -> None:
        """A crash that loses every byte: starts again as on its first day."""
        self.kill()
        shutil.rmtree(self.data)
        self._prepared = False
        self.start()

    def heal(self) -> None:
        """Running and not frozen, whatever a test did to it."""
        if self.alive:
            self.thaw()
        else:
            self.start()

    def close(self) -> None:
        """End for good; the folder goes as well."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ── helpers for the kinds ──────────────────────────────────────────────────────────

    def new_log(self) -> str:
        """What it said since its last start."""
        with self.log.open("rb") as log:
            log.seek(self._log_from)
            return log.read().decode(errors="replace")

    def spawn(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, **how: Any
    ) -> subprocess.Popen[bytes]:
        """A process in the server's environment or another, as its user, out of reach of a Ctrl-C at the terminal."""
        own = self.environment() if environment is None else environment
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
        if self._runs_as is not None:
            how |= {"user": self._runs_as.pw_uid, "group": self._runs_as.pw_gid, "extra_groups": []}
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={**kept, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", **own},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **how,
        )

    def run(self, *command: str) -> str:
        """A client program in the server's environment; what it printed. Raises MissingServerError when it fails."""
        done = self.spawn(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        told = done.communicate()[0].decode(errors="replace")
        if done.returncode:
            raise MissingServerError(f"{command[0]} failed: {told}")
        return told

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        """A file below the folder that the server may read."""
        path = self.folder / name
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, mode), "w", encoding="utf-8") as file:
            file.write(text)
        self.give_away(path)
        return path

    def note_pids(self, *pids: int) -> None:
        """Where the reaper finds what it has to end."""
        (self.folder / "pids").write_text("".join(f"{pid} {started_at(pid)}\n" for pid in pids))

    def give_away(self, path: Path) -> None:
        if self._runs_as is not None:
            os.chown(path, self._runs_as.pw_uid, self._runs_as.pw_gid)

    def _end(self, number: signal.Signals, timeout_s: float) -> None:
        if self._process is None:
            return
        members = family(self._process.pid)
        send_signal(members, signal.SIGCONT)
        if self._process.poll() is None:
            self._process.send_signal(number)
        end_s = time.monotonic() + timeout_s
        while any(started_at(pid) for pid in members):
            self._process.poll()
            if time.monotonic() > end_s or number is signal.SIGKILL:
                send_signal(members, signal.SIGKILL)
            time.sleep(0.005)
        self._process.wait()
        self._process = None
