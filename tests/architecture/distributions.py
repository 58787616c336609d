"""Decides what each distribution may import: what its own pyproject.toml declares, and nothing that merely lies there.

In development all members share one environment, so that a stray import would work. In an image it would not.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions

from tests.architecture.sources import ROOT, Finding, Source

LIBRARY_PROJECT = "shared/pyproject.toml"
COMES_WITH = {"pydantic": "pydantic-core", "fastapi": "starlette"}
"""Distributions that are the other half of a declared one, in a version that it chooses."""
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")


def normalised(name: str) -> str:
    """A distribution's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class Project:
    """One pyproject.toml, as far as its dependencies and version go."""

    path: str
    text: str

    @property
    def table(self) -> dict[str, object]:
        """The `[project]` table."""
        return dict(tomllib.loads(self.text)["project"])

    @property
    def version(self) -> str:
        """The version."""
        return str(self.table["version"])

    def requirements(self, extras: Iterable[str] = ()) -> dict[str, set[str]]:
        """Names of the declared distributions, each with the extras asked of it."""
        lines = list(self.table.get("dependencies", []))  # type: ignore[call-overload]
        optional: Mapping[str, list[str]] = self.table.get("optional-dependencies", {})  # type: ignore[assignment]
        for extra in extras:
            lines += optional[extra]
        found: dict[str, set[str]] = {}
        for line in lines:
            match = _REQUIREMENT.match(line)
            if match is None:
                raise ValueError(f"{self.path}: {line!r} is not a requirement")
            wanted = {part.strip() for part in (match[2] or "").split(",") if part.strip()}
            found.setdefault(normalised(match[1]), set()).update(wanted)
        return found

    @property
    def extras(self) -> list[str]:
        """The names of its extras."""
        return list(self.table.get("optional-dependencies", {}))  # type: ignore[call-overload]


def allowed(project: Project, library: Project) -> set[str]:
    """What a member may import: the distributions it declares, and what the library's extras bring that it names."""
    if project.path == library.path:
        declared = library.requirements(library.extras)
    else:
        own = project.requirements()
        declared = own | library.requirements(own.get("placet", set()))
    return set(declared) | {COMES_WITH[name] for name in declared if name in COMES_WITH}


def undeclared(source: Source, distributions: set[str], installed: Mapping[str, Iterable[str]]) -> Iterator[Finding]:
    """Imports of libraries that the member's pyproject.toml does not declare.

    `installed` maps each importable package to the distributions that bring it.
    """
    for item in source.imports:
        if item.root in sys.stdlib_module_names or item.root == source.package or item.root == "placet":
            continue
        names = {normalised(name) for name in installed.get(item.root, [item.root])}
        if not names & distributions:
            yield Finding(source.path, item.line, f"{item.root} is not among the dependencies of this distribution")


@cache
def projects() -> tuple[Project, ...]:
    """All members of the workspace, the library first."""
    paths = [ROOT / LIBRARY_PROJECT, *sorted((ROOT / "services").glob("*/pyproject.toml"))]
    return tuple(Project(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths)


@cache
def installed_packages() -> Mapping[str, list[str]]:
    """Which installed distributions bring which importable package."""
    return packages_distributions()
