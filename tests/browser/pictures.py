"""Takes the pictures of the web inbox that the documents show, with the data of the browser tests.

python -m tests.browser.pictures docs/images
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.chromium import program
from tests.browser.conftest import Office, settle

GOALS = {
    "mail": "Tell customer c-1 about the lost parcel: Read the mail",
    "first": "Settle complaint 4712: Refund c-18 4900",
    "second": "Settle complaint 4713: Refund c-19 12900",
    "look-alike": "Pay the right customer: Pay the look-alike",
    "tidy": "Free space on the log host",
    "hidden": "Look around: Look at the page",
    "question": "Send the replacement: Ask",
}
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 860}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True}
DARK: dict[str, Any] = {**DESKTOP, "color_scheme": "dark"}


def _signed_in(browser: Browser, office: Office, settings: dict[str, Any]) -> Page:
    page = browser.new_context(**settings).new_page()
    page.goto(f"{office.url}/inbox/sign-in")
    page.fill("#token", office.token)
    page.fill("#person", "alice")
    page.click("button.primary")
    page.wait_for_url(f"{office.url}/inbox")
    return page


def take(office: Office, browser: Browser, folder: Path) -> None:
    """All of them."""
    asked = {name: office.ask(goal) for name, goal in GOALS.items()}
    first = asked["first"]
    office.client("bob").decide(
        first.request_id, decision="approve", request_hash=first.request_hash, decision_id="dec-picture"
    )
    there = {name: f"/inbox/requests/{request.request_id}" for name, request in asked.items()}
    pages = {
        "queue": ("/inbox", DESKTOP),
        "queue-phone": ("/inbox", PHONE),
        "request": (there["second"], DESKTOP),
        "hidden-dark": (there["hidden"], DARK),
        "folded": (there["tidy"], DESKTOP),
        "edit": (f"{there['second']}/edit", DESKTOP),
        "question": (there["question"], DESKTOP),
        "run": (f"/inbox/runs/{asked['tidy'].run_id}", DESKTOP),
        "history": ("/inbox/history", DESKTOP),
        "policies-dark": ("/inbox/policies", DARK),
    }
    for name, (path, settings) in pages.items():
        page = _signed_in(browser, office, settings)
        page.goto(office.url + path)
        settle(page)
        page.screenshot(path=folder / f"inbox-{name}.png")
        page.context.close()


def main(folder: Path) -> None:
    """Start everything, take the pictures, end everything."""
    path, reason = program()
    if not path:
        raise SystemExit(reason)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data:
        placet = str(Path(sys.executable).parent / "placet")
        command = [placet, "dev", "tests.browser.office:app", "--data", data, "--port", "0", "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            office = Office(told["url"], told["inbox"], (Path(data) / "token").read_text().strip())
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
                take(office, browser, folder)
                browser.close()
        finally:
            process.terminate()
            process.wait(30)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
