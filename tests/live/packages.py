"""Decides how missing servers are installed where that is allowed: Debian's packages, none of whose services start."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.live.kinds import MissingServerError

POLICY = Path("/usr/sbin/policy-rc.d")
"""Debian's switch: a program that answers 101 forbids packages to start their services."""
VARIABLE = "PLACET_TEST_INSTALL"


def may_not_install() -> str:
    """Why nothing may be installed here; empty when it may."""
    if os.environ.get(VARIABLE, "").lower() in {"no", "0", "false"}:
        return f"{VARIABLE} forbids to install"
    if os.geteuid() != 0:
        return "only root may install packages"
    if shutil.which("apt-get") is None:
        return "there is no apt-get to install with"
    return ""


def install(packages: Sequence[str], updated: Path) -> None:
    """Install Debian packages without what they merely recommend; `updated` remembers that the lists are fresh.

    Raises MissingServerError with apt's own words.
    """
    if reason := may_not_install():
        raise MissingServerError(reason)
    with _alone(), _no_services():
        if not updated.exists():
            _apt_get("update", "-qq")
            updated.touch()
        _apt_get("install", "-qq", "--yes", "--no-install-recommends", *packages)


def _apt_get(*command: str) -> None:
    done = subprocess.run(
        ("apt-get", "-o", "DPkg::Lock::Timeout=300", *command),
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        told = (done.stderr or done.stdout).strip()
        raise MissingServerError(f"apt-get {command[0]} failed:\n{told[-2_000:]}")


@contextmanager
def _alone() -> Iterator[None]:
    """One test process at a time."""
    with Path(tempfile.gettempdir(), "placet-live-install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _no_services() -> Iterator[None]:
    """Debian's own services stay down, unless the machine has a policy of its own for that."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
