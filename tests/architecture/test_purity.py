"""Flat files and machines are pure: no clock, chance, waiting, logging, I/O. Each rule bites on a bad source."""

from __future__ import annotations

import pytest

from tests.architecture import purity
from tests.architecture.imports import Rule, flat, machines
from tests.architecture.sources import Source, library, shipped

RULES: list[Rule] = [purity.no_outside, purity.no_waiting, purity.no_global_state]
PATH = "shared/src/placet/plans.py"

BAD = [
    (purity.no_outside, "import time"),
    (purity.no_outside, "from time import monotonic"),
    (purity.no_outside, "import random"),
    (purity.no_outside, "import secrets"),
    (purity.no_outside, "from os import urandom"),
    (purity.no_outside, "import logging"),
    (purity.no_outside, "def late():\n    import asyncio"),
    (purity.no_outside, "from datetime import datetime\nx = datetime.now()"),
    (purity.no_outside, "from datetime import datetime as d, UTC\nx = d.now(UTC)"),
    (purity.no_outside, "import datetime\nx = datetime.datetime.utcnow()"),
    (purity.no_outside, "import datetime as d\nx = d.date.today()"),
    (purity.no_outside, "import uuid\nx = uuid.uuid4()"),
    (purity.no_outside, "from uuid import uuid4\nfield = dict(default_factory=uuid4)"),
    (purity.no_outside, "import urllib.request\nurllib.request.urlopen('x')"),
    (purity.no_outside, "def f(x):\n    print(x)"),
    (purity.no_outside, "def f(x):\n    return open(x)"),
    (purity.no_outside, "def f(x):\n    return hash(x)"),
    (purity.no_waiting, "async def f():\n    return 1"),
    (purity.no_waiting, "async def f():\n    await g()"),
    (purity.no_waiting, "async def f():\n    async with g():\n        ..."),
    (purity.no_waiting, "async def f():\n    return [x async for x in g()]"),
    (purity.no_global_state, "n = 0\ndef f():\n    global n\n    n += 1"),
]

GOOD = [
    (purity.no_outside, "from datetime import UTC, datetime\ndef f(x):\n    return datetime.fromtimestamp(x, UTC)"),
    (purity.no_outside, "import uuid\nx = uuid.uuid5(uuid.NAMESPACE_URL, 'x')"),
    (purity.no_outside, "from urllib.parse import quote\ndef f(time, random):\n    return time.now(random.x)"),
    (
        purity.no_waiting,
        "class Tool(Protocol):\n    async def __call__(self) -> str:\n        '''Run it.'''\n        ...",
    ),
]


def pure_sources() -> list[Source]:
    """Everything that must be pure."""
    return [*flat(library()), *machines(shipped())]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_pure_file_keeps_the_rule(rule: Rule) -> None:
    assert [str(finding) for source in pure_sources() for finding in rule(source)] == []


@pytest.mark.parametrize(("rule", "text"), BAD)
def test_the_rule_bites(rule: Rule, text: str) -> None:
    assert len(list(rule(Source(PATH, text)))) >= 1


@pytest.mark.parametrize(("rule", "text"), GOOD)
def test_the_rule_lets_good_code_pass(rule: Rule, text: str) -> None:
    assert list(rule(Source(PATH, text))) == []
