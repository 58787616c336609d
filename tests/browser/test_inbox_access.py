"""Every page of the web inbox is looked through by axe, in both colour schemes; none has a serious finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Office, Window
from tests.browser.test_inbox import _pages

AXE = Path(__file__).parent / "axe" / "axe-4.14.1.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
SCAN = "only => axe.run(document, { runOnly: only })"
ONLY = {"light": {"type": "tag", "values": TAGS}, "dark": {"type": "rule", "values": ["color-contrast"]}}
"""What does not depend on the colours is looked at once."""


def _told(result: dict[str, Any]) -> list[str]:
    return [
        f"{found['impact']} {found['id']}: {[node['html'][:160] for node in found['nodes'][:3]]}"
        for found in result["violations"]
        if found["impact"] in ("serious", "critical", "moderate")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_keeps_anybody_out(office: Office, window: Window, scheme: str) -> None:
    request = office.ask("Free space on the log host")
    nasty = office.ask("Look around: Look at the page")
    question = office.ask("Send the replacement: Ask")
    done = office.ask("Settle a complaint: Refund c-61 5000")
    office.client("bob").decide(
        done.request_id,
        decision="approve",
        request_hash=done.request_hash,
        decision_id=f"dec-axe-{scheme}",
        reason="fine",
    )
    # Only the scan itself needs it: axe is put in from outside.
    page = window(bypass_csp=True, color_scheme=scheme)
    pages = _pages(request) + [f"/inbox/requests/{one.request_id}" for one in (nasty, question, done)]
    found: dict[str, list[str]] = {}
    for path in [*pages, f"/inbox/runs/{done.run_id}"]:
        page.goto(office.url + path)
        page.add_script_tag(path=AXE)
        if told := _told(page.evaluate(SCAN, ONLY[scheme])):
            found[path] = told
    page.get_by_role("button", name="Sign out").click()
    page.add_script_tag(path=AXE)
    if told := _told(page.evaluate(SCAN, ONLY[scheme])):
        found["sign in"] = told
    assert found == {}
