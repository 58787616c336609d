"""Starts a tool executor: acts. The only service that runs tools, and the only one that needs their credentials.

PLACET_APP=examples.release:app python -m placet_tool_executor
"""

from __future__ import annotations

import sys
from pathlib import Path

from placet.application import App
from placet.hosting.parts import Parts
from placet.hosting.program import main
from placet.runtime.files import ToolFiles
from placet.runtime.ports import Tools
from placet.runtime.tools import ToolRunner
from placet.settings import Settings
from placet.topology import TOOL_EXECUTOR
from placet_tool_executor.bounds import BoundedTools
from placet_tool_executor.machine import OperationMachine


def tools(app: App, settings: Settings) -> Tools:
    """Runs the application's tools."""
    files = ToolFiles(Path(settings.tool_files) if settings.tool_files is not None else None)
    runner = ToolRunner(app, threads_max=settings.tools_max, files=files)
    return BoundedTools(runner, app, settings.tool_timeout_ms_max)


def machine(settings: Settings) -> OperationMachine:
    """The rules of an executor that serves one pool."""
    return OperationMachine(settings.tool_pool or "")


PARTS = Parts(service="tool-executor", queues=(TOOL_EXECUTOR,), machine=machine, application=True, tools=tools)

if __name__ == "__main__":
    sys.exit(main(PARTS))
