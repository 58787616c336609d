"""What people type: `placet`. Each command is in the module of its subject, and imports what it needs when it runs."""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    from placet.cli.program import run

    sys.exit(run(sys.argv[1:]))
