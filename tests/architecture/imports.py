"""Decides who may import whom (DESIGN §9). Every rule takes one source and yields what breaks it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

from tests.architecture.sources import LIBRARY, Finding, Import, Source

Rule = Callable[[Source], Iterator[Finding]]

FOLDERS = {"runtime", "adapters", "client", "cli", "ledger", "programs"}
"""The folders of the library, which do I/O. A folder that is not here is taken for one as well: see `folder_of`."""
ONLY_IN = {
    "rfc8785": "placet.canonical",
    "cryptography": "placet.signatures",
    "jsonschema": "placet.forms",
    "cel": "placet.rules",
}
"""A library that one flat file may import beside pydantic."""
PORTS = ("placet.runtime.ports", "placet.runtime.reading")
"""Of the runtime, what an adapter may import."""
CONCURRENCY = {"asyncio", "anyio", "trio", "threading", "concurrent", "multiprocessing"}
_RUNTIME = ("process", "invoker", "stopping", "tools", "service", "probes", "eager")
CONCURRENCY_IN = {f"placet.runtime.{name}" for name in _RUNTIME}
"""The files of the runtime that know how things run at once; all others await ports only."""
TELEMETRY = {"structlog", "opentelemetry", "prometheus_client"}
FAMILIES = (
    {"sqlalchemy", "alembic", "asyncpg"},
    {"pydantic_ai", "openai", "anthropic"},
    {"aio_pika", "aiormq", "pamqp"},
)
"""Distributions that are one library to us: an adapter that uses one may use its relatives."""
ALWAYS = {"pydantic", "pydantic_core"}
COMPOSITIONS = {"placet_embedded"}
"""The package that lists the whole system, and so may import every service."""


def is_foreign(item: Import) -> bool:
    """Whether an import is of a third party's library, pydantic aside."""
    own = item.root == "placet" or item.root.startswith("placet_") or item.root in {"tests", "examples"}
    return not own and item.root not in sys.stdlib_module_names and item.root not in ALWAYS


def folder_of(item: Import, folders: Iterable[str] = FOLDERS) -> str | None:
    """The folder of the library that an import reaches, or None for a flat file or anything else."""
    if item.root != "placet":
        return None
    parts = item.target.split(".")
    within = parts[1] if len(parts) > 1 else ""
    deep = len(item.module.split(".")) > 2
    return within if within in folders or deep else None


def _no_folder(source: Source) -> Iterator[Finding]:
    for item in source.imports:
        if folder := folder_of(item):
            yield Finding(source.path, item.line, f"a pure file may not import the library's folder {folder}/")


def flat_imports(source: Source) -> Iterator[Finding]:
    """A flat file imports the standard library, pydantic and flat files; others only where ONLY_IN says."""
    yield from _no_folder(source)
    for item in source.imports:
        if item.root.startswith("placet_"):
            yield Finding(source.path, item.line, f"the library may not import the service {item.root}")
        elif is_foreign(item) and ONLY_IN.get(item.root) != source.module:
            yield Finding(source.path, item.line, f"a flat file may not import {item.root}")


def machine_imports(source: Source) -> Iterator[Finding]:
    """A machine, and what it imports of its own service, imports only the standard library, pydantic and flat files."""
    yield from _no_folder(source)
    for item in source.imports:
        if is_foreign(item) or item.root in {"tests", "examples"}:
            yield Finding(source.path, item.line, f"a machine may not import {item.root}")


def library_imports(source: Source) -> Iterator[Finding]:
    """No file of the library imports a service, a test or an example."""
    for item in source.imports:
        if item.root.startswith("placet_") or item.root in {"tests", "examples"}:
            yield Finding(source.path, item.line, f"the library may not import {item.root}")


def runtime_imports(source: Source) -> Iterator[Finding]:
    """The runtime imports no driver and no other folder; concurrency only where CONCURRENCY_IN says."""
    telemetry = source.module == "placet.runtime.telemetry"
    for item in source.imports:
        if (folder := folder_of(item)) and folder != "runtime":
            yield Finding(source.path, item.line, f"the runtime may not import {folder}/")
        elif is_foreign(item) and not (telemetry and item.root in TELEMETRY):
            yield Finding(source.path, item.line, f"the runtime imports no driver: {item.root}")
        elif item.root in CONCURRENCY and source.module not in CONCURRENCY_IN:
            yield Finding(source.path, item.line, f"{item.root} belongs in {' or '.join(sorted(CONCURRENCY_IN))}")


def adapter_of(module: str) -> str:
    """The adapter a module belongs to: a file in `placet.adapters`, or a folder there."""
    return ".".join(module.split(".")[:3])


def adapter_imports(source: Source) -> Iterator[Finding]:
    """An adapter imports the vocabulary, the runtime's ports and itself; never another adapter."""
    own = adapter_of(source.module)
    for item in source.imports:
        folder = folder_of(item)
        if folder == "adapters" and not item.reaches(own):
            yield Finding(source.path, item.line, f"{own} may not import another adapter: {item.target}")
        elif folder == "runtime" and not any(map(item.reaches, PORTS)):
            yield Finding(source.path, item.line, f"an adapter imports only the runtime's ports, not {item.module}")
        elif folder not in {None, "adapters", "runtime"}:
            yield Finding(source.path, item.line, f"an adapter may not import {folder}/")


def one_library_each(sources: Iterable[Source]) -> Iterator[Finding]:
    """All files of one adapter together import at most one foreign library."""
    used: dict[str, dict[str, Finding]] = {}
    for source in sources:
        for item in filter(is_foreign, source.imports):
            family = next((sorted(f)[0] for f in FAMILIES if item.root in f), item.root)
            libraries = used.setdefault(adapter_of(source.module), {})
            libraries.setdefault(family, Finding(source.path, item.line, f"a second foreign library: {item.root}"))
    for libraries in used.values():
        yield from list(libraries.values())[1:]


def service_imports(source: Source) -> Iterator[Finding]:
    """A service never imports another service, a test or an example, unless it is the composition of all."""
    for item in source.imports:
        other = item.root.startswith("placet_") and item.root != source.package
        if other and source.package not in COMPOSITIONS:
            yield Finding(source.path, item.line, f"{source.package} may not import another service: {item.root}")
        elif item.root in {"tests", "examples"}:
            yield Finding(source.path, item.line, f"a service may not import {item.root}")


def trusted_imports(source: Source) -> Iterator[Finding]:
    """The approval service imports no extension point's code: no model library, no tool, no application (DESIGN §7)."""
    for item in source.imports:
        if item.root in {"pydantic_ai", "openai", "anthropic", "mcp", "importlib", "runpy"}:
            yield Finding(source.path, item.line, f"the approval service loads no foreign code: {item.root}")


def machines(sources: Iterable[Source]) -> list[Source]:
    """Every `machine.py`, and, transitively, what each imports of its own service."""
    by_module = {source.module: source for source in sources}
    waiting = [s for s in by_module.values() if s.package.startswith("placet_") and s.path.endswith("/machine.py")]
    found: dict[str, Source] = {}
    while waiting:
        source = waiting.pop()
        if source.module in found:
            continue
        found[source.module] = source
        for item in source.imports:
            if item.root == source.package:
                waiting += [by_module[name] for name in (item.target, item.module) if name in by_module]
    return list(found.values())


def flat(sources: Iterable[Source]) -> list[Source]:
    """The library's flat files; `__main__` starts programs and is none of them."""
    names = (s for s in sources if s.path.startswith(LIBRARY) and "/" not in s.path.removeprefix(LIBRARY))
    return [source for source in names if not source.path.endswith("/__main__.py")]


def within(sources: Iterable[Source], package: str) -> list[Source]:
    """The files of one package."""
    return [source for source in sources if source.module == package or source.module.startswith(package + ".")]
