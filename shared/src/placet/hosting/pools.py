"""Decides whether an application's tools and an installation's pools of tool executors fit together."""

from __future__ import annotations

import logging

from placet.application import App
from placet.errors import Code, TerminalError
from placet.settings import Settings, variable_of

log = logging.getLogger("placet.hosting")


def check_pools(app: App, settings: Settings) -> None:
    """Raises TerminalError(SETTING_INVALID) that names each tool whose pool no queue is for: its calls would wait in
    the outbox for ever. That this process serves a pool which no tool names is only told.
    """
    pools = {name: tool.spec.pool for name, tool in app.tools.items() if tool.spec.pool}
    if homeless := {name: pool for name, pool in pools.items() if pool not in settings.tool_pools}:
        what = ", ".join(f"the tool {name!r} runs in {pool!r}" for name, pool in homeless.items())
        all_of_them = ",".join(dict.fromkeys([*settings.tool_pools, *homeless.values()]))
        variable = variable_of("tool_pools")
        raise TerminalError(
            Code.SETTING_INVALID,
            f"{variable} does not name a pool that the application needs: {what}. Set it to {all_of_them} for every"
            " service and for the deploy step, which then declares their queues",
            findings=[variable],
        )
    if settings.tool_pool is not None and settings.tool_pool not in pools.values():
        what = f"no tool of the application runs in {settings.tool_pool!r}: this executor gets nothing to do"
        log.warning("check.note", extra={"check": "pools", "what": what})
