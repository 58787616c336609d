"""What the tests of the web inbox share: one running `placet dev`, one Chromium, and windows of signed-in people."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from placet.client import Connection, PlacetClient
from placet.views import RequestView
from tests.browser.chromium import program

PATIENCE_S = 30.0
MS = 1_000


@dataclass
class Office:
    """A running system, asked over HTTP like by anybody."""

    url: str
    way_in: str
    token: str
    runs: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def client(self, person: str | None = None) -> PlacetClient:
        """Who speaks for a person."""
        return PlacetClient(Connection(self.url, self.token, person))

    def ask(self, goal: str, *, starter: str = "developer") -> RequestView:
        """Start a run, and wait for the question that comes of it."""
        run_id = f"run-{next(self._numbers)}"
        self.runs.append(run_id)
        client = self.client(starter)
        client.submit_run("desk", run_id=run_id, goal=goal)
        return self.waiting(run_id)

    def waiting(self, run_id: str) -> RequestView:
        """The question that a run waits for."""
        client = self.client()
        until = time.monotonic() + PATIENCE_S
        while not (waits := client.run(run_id).waiting_for):
            assert time.monotonic() < until, f"{run_id} asks nothing: {client.run(run_id)}"
            time.sleep(0.02)
        return client.request(waits[0].request_id)

    def request(self, request_id: str) -> RequestView:
        """How it stands."""
        return self.client().request(request_id)

    def open_ids(self) -> list[str]:
        """What waits, as the API has it."""
        return [item.request_id for item in self.client().requests(limit=200).items]

    def end(self) -> None:
        """Cancel what a test has left."""
        client = self.client()
        for run_id in self.runs:
            if not client.run(run_id).terminal:
                client.cancel_run(run_id)
        self.runs.clear()


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """`placet dev` on the office of these tests."""
    data = tmp_path_factory.mktemp("data")
    placet = str(Path(sys.executable).parent / "placet")
    command = [placet, "dev", "tests.browser.office:app", "--data", str(data), "--port", "0", "--json"]
    process = subprocess.Popen(command, env={**os.environ}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    told: dict[str, Any] = json.loads(line)
    try:
        yield Office(told["url"], told["inbox"], (data / "token").read_text().strip())
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.fixture
def office(running: Office) -> Iterator[Office]:
    """The same, with nothing waiting at the end."""
    yield running
    running.end()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A real browser; where there is none and none may be installed the tests are skipped, in CI they fail."""
    path, reason = program()
    if not path:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


Window = Callable[..., Page]


@pytest.fixture
def window(chromium: Browser, office: Office) -> Iterator[Window]:
    """Opens a window in which somebody is signed in; `settings` are those of a browser context."""
    contexts: list[BrowserContext] = []

    def opened(person: str = "alice", **settings: Any) -> Page:
        context = chromium.new_context(viewport=settings.pop("viewport", {"width": 1280, "height": 800}), **settings)
        contexts.append(context)
        context.set_default_timeout(10 * MS)
        page = context.new_page()
        page.goto(f"{office.url}/inbox/sign-in")
        page.fill("#token", office.token)
        page.fill("#person", person)
        page.click("button.primary")
        page.wait_for_url(f"{office.url}/inbox")
        return page

    yield opened
    for context in contexts:
        context.close()


def go(page: Page, office: Office, request: RequestView) -> None:
    """Open a request's page and wait until keys are taken."""
    page.goto(f"{office.url}/inbox/requests/{request.request_id}")
    settle(page)


def settle(page: Page) -> None:
    """Past the moment in which a new page takes no key."""
    page.wait_for_timeout(700)
