"""Decides what a service brings to the process that hosts it, and where the parts of each queue's service are found."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from placet import topology
from placet.application import App
from placet.errors import Code, TerminalError
from placet.machine import Machine
from placet.runtime.ports import Gates, Models, Tools
from placet.settings import Settings
from placet.voices import Voices

PACKAGES = {
    topology.DISPATCHER: "placet_dispatcher",
    topology.RESUME: "placet_dispatcher",
    topology.PLANNER: "placet_planner",
    topology.TOOL_EXECUTOR: "placet_tool_executor",
    topology.APPROVALS: "placet_approval",
}
"""Which distribution has the parts for a queue. By name: the library imports no service."""


@dataclass(frozen=True)
class Parts:
    """What one service is made of, beside the adapters that every service has."""

    service: str
    queues: tuple[str, ...]
    """What it takes from, unless it is told its role or its hosts. The first is its only one by default."""
    machine: Callable[[Settings], Machine[Any]]
    application: bool
    """Whether its rules ask the application: its code is loaded then."""
    models: Callable[[App], Awaitable[Models]] | None = None
    """What calls models. Only here are a model's keys needed."""
    tools: Callable[[App, Settings], Tools] | None = None
    """What runs tools. Only here are a tool's credentials needed."""
    gates: Callable[[App], Gates | None] | None = None
    """What asks the gates outside, where the application has any."""
    decides: Callable[[Voices], Machine[Any]] | None = None
    """Where people's decisions are taken: the machine, told whom to believe. It stands in place of `machine`."""
    arbiter: bool = False
    """Whether races of reviewers are sorted out here."""


def parts_of(queues: Iterable[str], own: Parts) -> Sequence[Parts]:
    """The parts of each service that these queues belong to, each once.

    Raises TerminalError(SETTING_INVALID) for a service that is not installed.
    """
    found: dict[str, Parts] = {}
    for queue in queues:
        package = PACKAGES[queue]
        found[package] = own if queue in own.queues else _load(queue, package)
    return list(found.values())


def _load(queue: str, package: str) -> Parts:
    try:
        parts: Parts = importlib.import_module(f"{package}.__main__").PARTS
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(package):
            raise
        what = f"{queue} cannot be hosted here: install the distribution {package.replace('_', '-')}"
        raise TerminalError(Code.SETTING_INVALID, what) from error
    return parts
