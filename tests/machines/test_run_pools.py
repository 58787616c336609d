"""Proves that a run sends what is for an operation to the pool of its tool."""

from __future__ import annotations

from placet.gates import Boundary
from placet.messages import CancelOperation
from placet.topology import queue_of
from tests.builders import FakeApplication, a_call, a_task, a_tool, suspend
from tests.machines.run_play import Play


def with_pool(**gates: object) -> FakeApplication:
    app = FakeApplication(tools={name: a_tool(name, pool="gpu") for name in ("deploy", "search")})
    if gates:
        app.gates = {Boundary.TOOL_CALL: lambda subject: suspend()}
    return app


def test_a_call_is_started_and_cancelled_in_the_pool_of_its_tool() -> None:
    play = Play(with_pool()).submit(a_task("task-1")).call("task-1", a_call())
    [execute] = play.executed()
    play.cancel()
    [cancel] = [message for message in play.sent if isinstance(message, CancelOperation)]
    assert (queue_of(execute), queue_of(cancel)) == ("tool-executor.gpu", "tool-executor.gpu")


def test_an_approved_call_is_started_in_the_pool_of_its_tool() -> None:
    play = Play(with_pool(asking=True)).submit(a_task("task-1")).call("task-1", a_call())
    [asked] = play.requests()
    play.decide(asked.request_id)
    assert [queue_of(execute) for execute in play.executed()] == ["tool-executor.gpu"]
