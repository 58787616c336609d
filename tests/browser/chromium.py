"""Decides which Chromium the tests use: the one that is named, else an installed one, else Debian's, installed now."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tests.live.kinds import MissingServerError
from tests.live.packages import install, may_not_install

VARIABLE = "PLACET_TEST_CHROMIUM"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def found() -> str | None:
    """The program, where there is one."""
    named = os.environ.get(VARIABLE)
    return named or next((path for program in PROGRAMS if (path := shutil.which(program))), None)


def program() -> tuple[str, str]:
    """The program, or empty and why there is none."""
    if path := found():
        return path, ""
    if reason := may_not_install():
        return "", f"there is no Chromium ({VARIABLE} names one), and {reason}"
    try:
        install(["chromium"], Path(tempfile.gettempdir()) / "placet-browser-apt-updated")
    except MissingServerError as error:
        return "", str(error)
    return found() or "", "the package chromium brought no program of that name"
