"""Decides whether what would run today is what was reviewed, beside the hash of the content.

Effect class and consequence are part of what was said of the call, and always compared. How much of the program an
approval is bound to, the tool declares (`ToolSpec.binding`): its version and schema, the gates, the whole application.
Whatever that is, today's schema must read the raw input as the reviewed one, in its load-bearing part.
"""

from __future__ import annotations

from placet.calls import ToolSpec
from placet.facts import Facts
from placet.requests import ApprovalRequest
from placet.rows import OperationRow


def changed_since(row: OperationRow, request: ApprovalRequest | None, spec: ToolSpec, facts: Facts) -> str | None:
    """What has changed since the review; None where nothing has that counts. `request`: what was approved, if anything.

    A call that a policy allowed was allowed a moment ago: of the program it is bound to the tool alone, so that it does
    not fail while two versions of the application serve side by side.
    """
    if (spec.effect.value, spec.consequential) != (row.effect, row.consequential):
        return f"the tool {row.tool} has changed since"
    if spec.binding == "data":
        return None
    version, digest = row.tool_version, row.tool_schema_digest
    if request is not None and request.tool_version:  # the review's own, where it followed an earlier one
        version, digest = request.tool_version, request.tool_schema_digest
    if spec.version != version:
        return f"the tool {row.tool} had version {version} and has {spec.version} by now"
    if spec.schema_digest != digest:
        return f"the parameters of the tool {row.tool} have changed since"
    if request is None or spec.binding == "tool":
        return None
    reviewed, today = request.policy_version or row.policy_version, facts.policy_version
    if today != reviewed:
        return f"the gates had version {reviewed} and have {today} by now"
    if spec.binding == "policy":
        return None
    reviewed, today = request.app_version or row.app_version, facts.app_version
    return None if today == reviewed else f"the application had version {reviewed} and has {today} by now"
