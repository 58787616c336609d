"""Proves what each service brings to a process: only planners call models, only tool executors run tools, and so on."""

from __future__ import annotations

import pytest

from placet import App, topology
from placet.adapters.http_gates import HttpGates
from placet.errors import Code, TerminalError
from placet.hosting.parts import PACKAGES, Parts, parts_of
from placet.hosting.serving import needed_by
from placet.settings import Settings
from placet_approval.__main__ import PARTS as APPROVAL
from placet_dispatcher.__main__ import PARTS as DISPATCHER
from placet_planner.__main__ import PARTS as PLANNER
from placet_tool_executor.__main__ import PARTS as TOOL_EXECUTOR
from tests.machines.builders_operation import OperationBench

ALL = (APPROVAL, DISPATCHER, PLANNER, TOOL_EXECUTOR)


def test_only_the_planner_calls_models_and_only_the_tool_executor_runs_tools() -> None:
    assert [parts.service for parts in ALL if parts.models] == ["planner"]
    assert [parts.service for parts in ALL if parts.tools] == ["tool-executor"]


def test_only_the_dispatcher_asks_gates_outside_and_only_where_there_are_any() -> None:
    assert [parts.service for parts in ALL if parts.gates] == ["dispatcher"]
    app = App("desk", version="1")
    assert DISPATCHER.gates is not None
    assert DISPATCHER.gates(app) is None
    app.http_gate("fraud", "https://gates.example/fraud")
    assert isinstance(DISPATCHER.gates(app), HttpGates)


def test_the_approval_service_loads_no_application_and_alone_has_a_referee() -> None:
    assert [parts.service for parts in ALL if not parts.application] == ["approval"]
    assert [parts.service for parts in ALL if parts.arbiter] == ["approval"]


def test_every_queue_is_served_by_the_machine_it_is_for() -> None:
    served = {queue: parts.machine(Settings()).name for parts in ALL for queue in parts.queues}
    assert served == topology.QUEUES
    assert set(PACKAGES) == set(topology.QUEUES)


def test_a_host_of_several_has_the_parts_of_each_once() -> None:
    hosted = parts_of(("dispatcher", "resume", "planner"), DISPATCHER)
    assert [parts.service for parts in hosted] == ["dispatcher", "planner"]
    assert hosted[0] is DISPATCHER, "its own are not loaded a second time"


def test_a_service_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGES, topology.PLANNER, "placet_nowhere")
    with pytest.raises(TerminalError, match="install the distribution placet-nowhere") as raised:
        parts_of(("planner",), DISPATCHER)
    assert raised.value.code is Code.SETTING_INVALID


@pytest.mark.parametrize("parts", ALL, ids=lambda parts: parts.service)
def test_the_application_is_needed_where_its_code_runs(parts: Parts) -> None:
    needed = needed_by(parts, parts.queues)
    assert {"database_url", "amqp_url"} <= set(needed)
    assert ("app" in needed) is parts.application


def test_an_executor_begins_the_calls_of_its_own_pool() -> None:
    for settings, pool in ((Settings(), ""), (Settings(tool_pools=("gpu",), tool_pool="gpu"), "gpu")):
        bench = OperationBench(pool="gpu")
        bench.machine = TOOL_EXECUTOR.machine(settings)
        assert bench.look(bench.execute()).kind == ("moved" if pool == "gpu" else "passed")
