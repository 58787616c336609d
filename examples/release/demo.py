"""Shows the main job for real: a release waits for a person, the process is killed, the release is finished once.

    python -m examples.release.demo

Everything is real: a git repository made for the occasion, the embedded system as a process of its own, SIGKILL, and
the `placet` commands a person would type. It needs no network, no server and no answer; it cleans up behind itself.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from examples.release.repository import git, scratch_repository

APP = "examples.release:app"
RUN = "release-1"
READY_S = 30
"""How long the system may take to come up on a slow machine."""

console = Console(highlight=False, soft_wrap=True)


class DemoFailedError(Exception):
    """The demonstration did not go as it must."""


class System:
    """The embedded system as a process of its own, and the commands that talk to it."""

    def __init__(self, folder: Path, repository: Path) -> None:
        self._data = folder / "data"
        self._log = folder / "log"
        self._environment = {
            **os.environ,
            "RELEASE_REPOSITORY": str(repository),
            "PLACET_DATA": str(self._data),
            "NO_COLOR": "1",
            "COLUMNS": "110",
        }
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        command = [placet(), "dev", APP, "--data", str(self._data), "--port", "0", "--json"]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                command, env=self._environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise DemoFailedError(f"the system did not start:\n{self._log.read_text()}")
        self._environment["PLACET_URL"] = str(json.loads(line)["url"])
        console.print(f"  [dim]process {self._process.pid} at {self._environment['PLACET_URL']}[/dim]")

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed, nobody is told."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        console.print(f"  [dim]process {self._process.pid} is gone[/dim]")
        self._process = None

    def stop(self) -> None:
        """SIGTERM: drain and end."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(READY_S)
            self._process = None

    def type(self, *arguments: str, show: bool = True, codes: tuple[int, ...] = (0,)) -> str:
        """Type a `placet` command, show it with its output, and return the output."""
        if show:
            console.print(f"  [bold]$ placet {escape(' '.join(arguments))}[/bold]")
        done = subprocess.run([placet(), *arguments], env=self._environment, capture_output=True, text=True)
        if show:
            for line in done.stdout.rstrip().splitlines():
                console.print(f"    {escape(line)}")
        if done.returncode not in codes:
            raise DemoFailedError(
                f"placet {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def ask(self, *arguments: str) -> Any:
        """The answer of a `placet` command as data."""
        return json.loads(self.type(*arguments, "--json", show=False))


def placet() -> str:
    """The command, from the environment this runs in."""
    beside = Path(sys.executable).parent / "placet"
    return str(beside) if beside.exists() else shutil.which("placet") or "placet"


@contextmanager
def step(number: int, title: str) -> Iterator[None]:
    """A numbered step with the time it took."""
    console.print(f"\n[bold cyan]{number}  {title}[/bold cyan]")
    began = time.monotonic()
    yield
    console.print(f"  [dim]{time.monotonic() - began:.1f} s[/dim]")


def demonstrate(folder: Path) -> None:
    """The whole demonstration. Raises DemoFailedError where it does not go as it must."""
    with step(1, "A git repository with a tag v1.1.0 and three commits since"):
        repository = scratch_repository(folder)
        console.print(
            "\n".join(f"    {line}" for line in git(repository, "log", "--oneline", "--decorate").splitlines())
        )
    system = System(folder, repository)
    try:
        with step(2, "The whole system in one process, on SQLite"):
            system.start()
        with step(3, "An agent is asked to cut the release; it stops before the tag"):
            system.type(
                "run", "start", "release", "--id", RUN, "--goal", "Cut the release v1.2.0", "--wait", codes=(3,)
            )
            system.type("inbox")
            request = _only_request(system)
            system.type("show", request)
            _require(not git(repository, "tag", "--list", "v1.2.0"), "nothing may be tagged before somebody agrees")
        with step(4, "The process is killed while the release waits: kill -9"):
            system.kill()
        with step(5, "It is started again; the release still waits, for the same question"):
            system.start()
            _require(_only_request(system) == request, "the question must be the same after the crash")
        with step(6, "A person approves exactly what was shown"):
            system.type("approve", request, "--yes")
            system.type("run", "watch", RUN)
        with step(7, "What happened, once and for all"):
            _show_result(system, repository, request)
    finally:
        system.stop()


def _only_request(system: System) -> str:
    requests = system.ask("inbox")["items"]
    _require(len(requests) == 1, f"one request must wait, not {len(requests)}")
    return str(requests[0]["request_id"])


def _show_result(system: System, repository: Path, request: str) -> None:
    tags = git(repository, "tag", "--list", "v1.2.0", "--format=%(refname:short) -> %(objectname:short)").splitlines()
    _require(len(tags) == 1, f"there must be one tag, not {tags}")
    console.print(f"    tag    {tags[0]}")
    run = system.ask("run", "show", RUN)
    _require(run["status"] == "succeeded", f"the run is {run['status']}")
    system.type("run", "trace", RUN)
    system.type("run", "receipt", RUN)


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise DemoFailedError(otherwise)


def main() -> int:
    """Run the demonstration; 0 when all went as it must."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="placet-demo-"))
    try:
        demonstrate(folder)
    except DemoFailedError as error:
        console.print(f"\n[bold red]The demonstration failed:[/bold red] {escape(str(error))}")
        return 1
    except KeyboardInterrupt:
        console.print("\nStopped.")
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    took_s = time.monotonic() - began
    console.print(f"\n[bold green]Done in {took_s:.0f} s: one tag, one decision, one crash in between.[/bold green]")
    console.print("Try it yourself: make run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
