"""Proves that `make up` makes containers anew when what they read only at their start has changed, and only then."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

DOCKER = """#!/bin/sh
echo "$@" >> "$CALLS"
test ! -e "$CALLS.fails"
"""


class Host:
    """A machine on which `docker` notes what it is told, and fails where it is told to."""

    def __init__(self, folder: Path) -> None:
        self.secrets, self.calls = folder / "secrets", folder / "calls"
        programs = folder / "bin"
        programs.mkdir()
        docker = programs / "docker"
        docker.write_text(DOCKER)
        docker.chmod(0o755)
        (programs / "python3").symlink_to(sys.executable)
        own = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "CALLS": str(self.calls),
            "PLACET_SECRETS": str(self.secrets),
        }
        self.environment = os.environ | own

    def up(self, *, fails: bool = False) -> bool:
        """Whether containers were to be made anew."""
        marker = Path(f"{self.calls}.fails")
        marker.touch() if fails else marker.unlink(missing_ok=True)
        done = subprocess.run(
            ["make", "--no-print-directory", "up"],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return "--force-recreate" in self.calls.read_text().splitlines()[-1]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    return Host(tmp_path)


def test_a_second_up_leaves_containers_alone(host: Host) -> None:
    host.up()
    assert not host.up()


@pytest.mark.parametrize("name", ["gateway_key", "rabbitmq_password_planner", "redis_password", "token"])
def test_a_secret_that_is_made_anew_makes_the_containers_anew_once(host: Host, name: str) -> None:
    host.up()
    (host.secrets / name).unlink()
    assert host.up()
    assert not host.up()


def test_an_up_that_failed_is_not_taken_for_one(host: Host) -> None:
    host.up()
    (host.secrets / "gateway_key").unlink()
    assert host.up(fails=True)
    assert host.up(), "the containers may still have the old one"


def test_a_key_of_a_person_needs_nothing_to_be_made_anew(host: Host) -> None:
    host.up()
    registry = host.secrets / "decision_keys" / "registry.json"
    draft = registry.with_suffix(".new")
    draft.write_text(registry.read_text() + "\n")
    draft.replace(registry)
    assert not host.up()
