"""What people type: `placet`. Every command is in the module of its subject; nothing heavy is imported before it runs."""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    from placet.cli.program import run

    sys.exit(run(sys.argv[1:]))
