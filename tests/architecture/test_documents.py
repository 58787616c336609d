"""Proves that ARCHITECTURE.md says what the code says: messages, exchanges, queues, files, HTTP routes."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from placet import topology
from placet.asyncapi import asyncapi_text
from placet.messages import AnyMessage
from tests.architecture.sources import ROOT

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
TYPES = {kind.model_fields["type"].default for kind in get_args(get_args(AnyMessage)[0])}
ACTIVITIES = {"model.call", "tool.run", "tool.probe", "gate.ask"}
EXCHANGES = {exchange.name for exchange in topology.make_topology().exchanges}
QUEUES = {queue.name for queue in topology.make_topology(["pool"]).queues}
MACHINES = "run|turn|gate|model|thread|operation|tool|approval"


def test_every_message_that_is_named_exists() -> None:
    named = set(re.findall(rf"(?<![\w./])(?:{MACHINES})\.[a-z_]+\b(?!\.py|\()", TEXT)) - {"operation.initiator"}
    assert named <= TYPES | ACTIVITIES
    assert {"run.submit", "turn.take", "approval.decide", "approval.decided", "operation.execute"} <= named


def test_every_exchange_is_named_and_every_queue_that_is_named_exists() -> None:
    named = set(re.findall(r"placet\.[a-z]+(?:\.[a-z]+)*\b(?!\.py)", TEXT))
    assert named - {"placet.watch"} <= EXCHANGES | QUEUES
    assert named >= EXCHANGES


def test_every_file_that_is_named_exists() -> None:
    folders = [ROOT / "shared/src/placet", ROOT / "shared/src", ROOT, *ROOT.glob("services/*/src")]
    folders += [ROOT / "shared/src/placet/runtime", ROOT / "shared/src/placet/adapters", ROOT / "tests/live"]
    for name in re.findall(r"`([a-z_/-]+\.(?:py|json|md))`", TEXT):
        assert any((folder / name).is_file() for folder in folders), name


@pytest.mark.parametrize("name", ["submissions", "decisions", "events"])
def test_what_outsiders_may_use_is_in_the_document_for_them(name: str) -> None:
    assert f"placet.{name}" in asyncapi_text("1")


def test_every_proof_of_a_promise_is_a_test() -> None:
    promised = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")))
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    assert len(promised) > 30
    assert {name for name in promised if f"def {name}(" not in tests} == set()
