"""Decides which files the rules look at, and how a rule sees one: text, syntax tree, imports, resolved names."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "shared/src/placet/"
CODE = ("shared/src", "services", "tests", "examples", "deploy")
UNTRACKED = {"build", "dist", "node_modules", "__pycache__"}


class Finding(NamedTuple):
    """A place that breaks a rule, and what to do about it."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


class Import(NamedTuple):
    """One imported name: `from a.b import c` is module `a.b`, target `a.b.c`; `import a.b` has target `a.b`."""

    line: int
    module: str
    target: str

    @property
    def root(self) -> str:
        """The top-level package."""
        return self.module.partition(".")[0]

    def reaches(self, package: str) -> bool:
        """Whether the import is of `package` or of something within it."""
        return self.target == package or self.target.startswith(package + ".")


@dataclass(frozen=True)
class Source:
    """One Python file; `path` is relative to the repository's root, with forward slashes."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree. A file that does not parse raises SyntaxError with its name."""
        return ast.parse(self.text, filename=self.path)

    @cached_property
    def module(self) -> str:
        """The dotted name by which the file is imported."""
        inner = self.path.partition("src/")[2] or self.path
        return inner.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def package(self) -> str:
        """The top-level package the file belongs to."""
        return self.module.partition(".")[0]

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import anywhere in the file, also within functions; relative ones resolved."""
        found: list[Import] = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found += [Import(node.lineno, alias.name, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = self._absolute(node)
                found += [Import(node.lineno, module, f"{module}.{alias.name}") for alias in node.names]
        return tuple(found)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.module.split(".")
        up = node.level - self.path.endswith("/__init__.py")
        return ".".join(parts[: len(parts) - up] + ([node.module] if node.module else []))

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What each imported local name stands for, e.g. `dt` for `datetime.datetime`."""
        names: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                names |= {
                    a.asname or a.name.partition(".")[0]: a.name if a.asname else a.name.partition(".")[0]
                    for a in node.names
                }
            elif isinstance(node, ast.ImportFrom):
                module = self._absolute(node)
                names |= {a.asname or a.name: f"{module}.{a.name}" for a in node.names}
        return names

    def resolved(self, node: ast.expr) -> str | None:
        """The full dotted name of a name or attribute chain that starts at an import, else None."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.aliases:
            return None
        return ".".join([self.aliases[node.id], *reversed(parts)])


def repository_files() -> tuple[str, ...]:
    """Paths of all files of the repository that are there now: tracked ones and new ones that are not ignored."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        names: Iterator[str] = (name for name in listing.stdout.decode().split("\0") if name)
    else:  # An unpacked archive has no git.
        names = (path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*"))
        names = (
            n for n in names if not any(p in UNTRACKED or (p.startswith(".") and p != ".ci") for p in n.split("/"))
        )
    return tuple(sorted(name for name in names if (ROOT / name).is_file()))


@cache
def repository_sources() -> tuple[Source, ...]:
    """Every Python file of the repository's code."""
    names = (n for n in repository_files() if n.endswith(".py") and n.startswith(tuple(f"{d}/" for d in CODE)))
    return tuple(Source(name, (ROOT / name).read_text(encoding="utf-8")) for name in names)


def library() -> list[Source]:
    """The files of `placet`."""
    return [source for source in repository_sources() if source.path.startswith(LIBRARY)]


def services() -> list[Source]:
    """The files of all services."""
    return [source for source in repository_sources() if source.package.startswith("placet_")]


def shipped() -> list[Source]:
    """What is installed: the library and the services."""
    return library() + services()
