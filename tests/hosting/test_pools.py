"""Proves that a tool in a pool nobody has set up is named before anything starts."""

from __future__ import annotations

import logging

import pytest

from placet import App, ToolContext
from placet.errors import Code, TerminalError
from placet.hosting.pools import check_pools
from placet.settings import Settings


def an_app() -> App:
    app = App("studio", version="1")

    @app.tool(effect="idempotent", pool="gpu")
    async def render(ctx: ToolContext, scene: str) -> str:
        """Render."""
        return scene

    @app.tool(effect="read_only")
    async def look(ctx: ToolContext) -> str:
        """Look."""
        return ""

    return app


def test_a_pool_that_is_set_up_is_all_a_tool_needs() -> None:
    check_pools(an_app(), Settings(tool_pools=("eu", "gpu")))


def test_a_pool_that_is_not_set_up_is_named_with_its_tool_and_what_to_do() -> None:
    with pytest.raises(TerminalError) as raised:
        check_pools(an_app(), Settings(tool_pools=("eu",)))
    assert raised.value.code is Code.SETTING_INVALID
    assert "PLACET_TOOL_POOLS" in raised.value.message
    assert "the tool 'render' runs in 'gpu'" in raised.value.message
    assert "Set it to eu,gpu" in raised.value.message


def test_an_executor_of_a_pool_without_a_tool_says_that_it_will_get_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "placet.hosting"):
        check_pools(an_app(), Settings(tool_pools=("eu", "gpu"), tool_pool="eu"))
        check_pools(an_app(), Settings(tool_pools=("eu", "gpu"), tool_pool="gpu"))
    assert [vars(record)["what"] for record in caplog.records] == [
        "no tool of the application runs in 'eu': this executor gets nothing to do"
    ]
