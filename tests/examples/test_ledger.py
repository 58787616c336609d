"""The example of a ledger does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.architecture.sources import ROOT


def test_the_example_of_a_ledger_pays_once(tmp_path: Path) -> None:
    environment = {**os.environ, "ACCOUNTS_DATABASE": str(tmp_path / "accounts.db")}
    command = [sys.executable, "-m", "examples.ledger"]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("700") == 4
