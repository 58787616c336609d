"""A reviewer is told which fields an approval rests on; where nothing is known of the tool, on all of them."""

from __future__ import annotations

from typing import Any

import pytest

from placet.views import AppView, ToolView
from tests.cli.conftest import Placet, environment, offline, placet, server, url
from tests.gateway.world import World

__all__ = ["environment", "offline", "placet", "server", "url"]

TOOL = ToolView(
    name="create_tag",
    version="7",
    effect="reconcilable",
    consequential=True,
    schema_digest="0" * 64,
    advisory=["commit"],
)


def app_view(**changes: Any) -> AppView:
    return AppView(version="1", tools=[TOOL.model_copy(update=changes)])


@pytest.mark.parametrize(
    ("application", "load_bearing", "advisory", "volatile"),
    [
        (None, ["commit", "name"], [], []),
        (app_view(), ["name"], ["commit"], []),
        (app_view(advisory=[], volatile=["name", "nobody"]), ["commit"], [], ["name"]),
        (app_view(version="8"), ["commit", "name"], [], []),
        (app_view(schema_digest="1" * 64), ["commit", "name"], [], []),
        (app_view(name="other"), ["commit", "name"], [], []),
    ],
)
async def test_every_field_is_load_bearing_unless_that_very_tool_says_otherwise(
    world: World, application: Any, load_bearing: list[str], advisory: list[str], volatile: list[str]
) -> None:
    request = world.add_request(tool_version="7", tool_schema_digest="0" * 64)
    async with world.http(application=application) as http:
        shown = (await http.get(f"/v1/requests/{request['request_id']}")).json()
    assert (sorted(shown["load_bearing"]), shown["advisory"], shown["volatile"]) == (load_bearing, advisory, volatile)
    assert shown["content_text"] == request["content_text"], "and all of it is shown"


async def test_other_questions_have_no_such_fields(world: World) -> None:
    content = {"kind": "plan", "tasks": [], "continuation": "execute"}
    request = world.add_request(content, boundary="coordinator-plan")
    async with world.http(application=app_view()) as http:
        shown = (await http.get(f"/v1/requests/{request['request_id']}")).json()
    assert (shown["load_bearing"], shown["advisory"], shown["volatile"]) == ([], [], [])


def test_a_person_is_told_by_command_which_fields_nothing_rests_on(world: World, server: Any, placet: Placet) -> None:
    request = world.add_request(tool_version="7", tool_schema_digest="0" * 64)
    server.application = world.app(application=app_view())
    assert "advisory:     commit\n" in placet("show", request["request_id"]).out
