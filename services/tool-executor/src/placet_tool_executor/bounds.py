"""Decides how long a tool may take here, whatever it asks for itself: an operator's bound on the author's."""

from __future__ import annotations

import logging

from placet.activities import ProbeTool, RunTool
from placet.application import App
from placet.calls import ToolOutcome
from placet.runtime.ports import BeginLeft, Tools

log = logging.getLogger("placet.tools")


class BoundedTools:
    """Runs tools for at most `limit_ms`. A tool that asks for more is told on in the log, once, at the start."""

    def __init__(self, tools: Tools, app: App, limit_ms: int) -> None:
        self._tools = tools
        self._limit_ms = limit_ms
        for name, tool in app.tools.items():
            if tool.spec.timeout_ms > limit_ms:
                what = f"{name} may take {tool.spec.timeout_ms} ms by itself, here it is stopped after {limit_ms} ms"
                log.warning("tool.bounded", extra={"tool": name, "what": what})

    async def run(self, activity: RunTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        """As ports.Tools. The lease was made for the tool's own time, so it outlasts the shorter one."""
        return await self._tools.run(self._bounded(activity), begin_left_ms)

    async def probe(self, activity: ProbeTool, begin_left_ms: BeginLeft) -> ToolOutcome:
        """As ports.Tools."""
        limit_ms = min(activity.timeout_ms, self._limit_ms)
        return await self._tools.probe(activity.model_copy(update={"timeout_ms": limit_ms}), begin_left_ms)

    def _bounded(self, activity: RunTool) -> RunTool:
        return activity.model_copy(update={"timeout_ms": min(activity.timeout_ms, self._limit_ms)})
