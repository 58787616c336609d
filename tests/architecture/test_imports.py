"""The import rules of DESIGN §9 hold in the repository, and each of them bites on a small bad source."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.architecture import imports
from tests.architecture.imports import Rule, flat, machines, within
from tests.architecture.sources import Source, library, services, shipped

WHERE: list[tuple[Rule, Callable[[], list[Source]]]] = [
    (imports.flat_imports, lambda: flat(library())),
    (imports.library_imports, library),
    (imports.runtime_imports, lambda: within(library(), "placet.runtime")),
    (imports.adapter_imports, lambda: within(library(), "placet.adapters")),
    (imports.machine_imports, lambda: machines(shipped())),
    (imports.service_imports, services),
    (imports.trusted_imports, lambda: within(services(), "placet_approval")),
]


@pytest.mark.parametrize(("rule", "where"), WHERE, ids=[rule.__name__ for rule, _ in WHERE])
def test_every_file_keeps_the_import_rule(rule: Rule, where: Callable[[], list[Source]]) -> None:
    assert [str(finding) for source in where() for finding in rule(source)] == []


def test_every_adapter_keeps_to_one_foreign_library() -> None:
    assert [str(f) for f in imports.one_library_each(within(library(), "placet.adapters"))] == []


FLAT = "shared/src/placet/plans.py"
CANONICAL = "shared/src/placet/canonical.py"
ENGINE = "shared/src/placet/runtime/engine.py"
TELEMETRY = "shared/src/placet/runtime/telemetry.py"
REDIS = "shared/src/placet/adapters/redis.py"
SQL = "shared/src/placet/adapters/sql/store.py"
MACHINE = "services/tool-executor/src/placet_tool_executor/machine.py"
GATEWAY = "services/gateway/src/placet_gateway/__main__.py"
EMBEDDED = "services/embedded/src/placet_embedded/system.py"
APPROVAL = "services/approval/src/placet_approval/doors.py"

BAD = [
    (imports.flat_imports, FLAT, "import redis"),
    (imports.flat_imports, FLAT, "import rfc8785"),
    (imports.flat_imports, FLAT, "import cryptography"),
    (imports.flat_imports, FLAT, "from placet.runtime import ports"),
    (imports.flat_imports, FLAT, "from placet import runtime"),
    (imports.flat_imports, FLAT, "from .runtime.ports import Store"),
    (imports.flat_imports, FLAT, "from . import adapters"),
    (imports.flat_imports, FLAT, "def late():\n    import sqlalchemy.orm"),
    (imports.flat_imports, FLAT, "from placet.anything.deeper import x"),
    (imports.flat_imports, FLAT, "from placet_dispatcher.machine import Run"),
    (imports.library_imports, ENGINE, "import placet_approval"),
    (imports.library_imports, ENGINE, "from tests import cases"),
    (imports.runtime_imports, ENGINE, "import aio_pika"),
    (imports.runtime_imports, ENGINE, "import structlog"),
    (imports.runtime_imports, ENGINE, "import asyncio"),
    (imports.runtime_imports, ENGINE, "from concurrent.futures import ThreadPoolExecutor"),
    (imports.runtime_imports, ENGINE, "from placet.adapters.memory import MemoryStore"),
    (imports.runtime_imports, ENGINE, "from ..cli import main"),
    (imports.adapter_imports, REDIS, "from placet.adapters import memory"),
    (imports.adapter_imports, REDIS, "from .memory import MemoryStore"),
    (imports.adapter_imports, REDIS, "from placet.runtime.engine import Engine"),
    (imports.adapter_imports, REDIS, "from placet.cli import main"),
    (imports.machine_imports, MACHINE, "import httpx"),
    (imports.machine_imports, MACHINE, "from placet.adapters.clocks import SystemClock"),
    (imports.machine_imports, MACHINE, "from placet.runtime.ports import Store"),
    (imports.service_imports, GATEWAY, "from placet_approval.machine import Approvals"),
    (imports.service_imports, GATEWAY, "import examples.release"),
    (imports.trusted_imports, APPROVAL, "import importlib"),
    (imports.trusted_imports, APPROVAL, "from pydantic_ai import Agent"),
]

GOOD = [
    (
        imports.flat_imports,
        FLAT,
        "import hashlib\nfrom pydantic import BaseModel\nfrom placet.errors import Code\nfrom placet import limits",
    ),
    (imports.flat_imports, FLAT, "from . import limits\nfrom .errors import Code"),
    (imports.flat_imports, CANONICAL, "import rfc8785"),
    (imports.flat_imports, "shared/src/placet/signatures.py", "import cryptography"),
    (
        imports.runtime_imports,
        ENGINE,
        "from placet.runtime.ports import Store\nfrom placet import limits\nfrom . import ports",
    ),
    (imports.runtime_imports, "shared/src/placet/runtime/process.py", "import asyncio"),
    (imports.runtime_imports, TELEMETRY, "import structlog"),
    (
        imports.adapter_imports,
        REDIS,
        "import redis.asyncio\nfrom placet.runtime.ports import Arbiter\nfrom placet.runtime import ports",
    ),
    (imports.adapter_imports, SQL, "from placet.adapters.sql.tables import state\nfrom . import tables"),
    (
        imports.machine_imports,
        MACHINE,
        "from placet.machine import Transition\nfrom placet_tool_executor.states import Started",
    ),
    (imports.service_imports, EMBEDDED, "from placet_approval.machine import Approvals"),
    (imports.service_imports, GATEWAY, "from placet_gateway.routes import routes\nimport fastapi"),
    (imports.trusted_imports, APPROVAL, "from placet.runtime.process import run"),
]


@pytest.mark.parametrize(("rule", "path", "text"), BAD)
def test_the_rule_bites(rule: Rule, path: str, text: str) -> None:
    assert len(list(rule(Source(path, text)))) >= 1


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_the_rule_lets_good_code_pass(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text))) == []


def test_a_second_foreign_library_in_one_adapter_is_found() -> None:
    store = Source(SQL, "import sqlalchemy\nimport alembic")
    assert list(imports.one_library_each([store, Source(REDIS, "import redis")])) == []
    stray = Source("shared/src/placet/adapters/sql/cache.py", "import redis")
    assert [finding.path for finding in imports.one_library_each([store, stray])] == [stray.path]


def test_what_a_machine_imports_of_its_own_service_is_held_to_the_same_rules() -> None:
    machine = Source(
        MACHINE, "from placet_tool_executor.states import Started\nfrom placet_tool_executor import fences"
    )
    states = Source(MACHINE.replace("machine", "states"), "from .deeper import x")
    deeper = Source(MACHINE.replace("machine", "deeper"), "import httpx")
    fences = Source(MACHINE.replace("machine", "fences"), "")
    unrelated = Source(MACHINE.replace("machine", "__main__"), "import httpx")
    found = machines([machine, states, deeper, fences, unrelated])
    assert {source.path for source in found} == {machine.path, states.path, deeper.path, fences.path}
    assert [f.path for source in found for f in imports.machine_imports(source)] == [deeper.path]


def test_the_selections_find_what_they_are_for() -> None:
    assert FLAT.replace("plans", "errors") in {source.path for source in flat(library())}
    assert not any("/runtime/" in source.path for source in flat(library()))
    assert {source.package for source in services()} >= {"placet_tool_executor", "placet_embedded"}
