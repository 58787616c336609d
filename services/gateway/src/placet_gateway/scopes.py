"""Decides which fields of a call an approval rests on, as a reviewer is told: all, unless the tool says otherwise.

The gateway need not run the application's code. Where it knows nothing of the tool, or another version of it than the
request names, every field is load-bearing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placet.canonical import parse_canonical
from placet.describing import Described, described
from placet.errors import ContractError
from placet.views import AppView, ToolView


def of_request(request: Mapping[str, Any], application: Described | AppView | None) -> dict[str, list[str]]:
    """`load_bearing`, `advisory` and `volatile` of the input of the call in question; empty for other questions."""
    try:
        content = parse_canonical(request["content_text"])
    except ContractError:  # it is shown as unreadable
        return {}
    given = content.get("input") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(given, dict) or request["scope"] != "tool_call":
        return {}
    tool = _tool(content.get("toolName"), request, application)
    advisory = [name for name in given if tool is not None and name in tool.advisory]
    volatile = [name for name in given if tool is not None and name in tool.volatile]
    rest = [name for name in given if name not in {*advisory, *volatile}]
    return {"load_bearing": rest, "advisory": advisory, "volatile": volatile}


def _tool(name: object, request: Mapping[str, Any], application: Described | AppView | None) -> ToolView | None:
    if application is None:
        return None
    view = application if isinstance(application, AppView) else described(application)
    reviewed = (name, request.get("tool_version"), request.get("tool_schema_digest"))
    return next((tool for tool in view.tools if (tool.name, tool.version, tool.schema_digest) == reviewed), None)
