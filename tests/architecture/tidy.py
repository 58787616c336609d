"""Decides how the code is kept readable: docstrings, sizes, units in names, and what no file may name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.sources import Finding, Source

FILE_LINES_MAX = 450
FUNCTION_LINES_MAX = 60
"""A screen; the docstring and decorators are not counted."""
DURATIONS = {
    "age", "cooldown", "delay", "duration", "elapsed", "grace", "interval", "latency", "lease", "linger",
    "period", "timeout", "ttl",
}  # fmt: skip
"""Words that name a length of time. `deadline` joins them where it is a bare number: an `Instant` has its unit.
`backoff` is none of them: it is a factor as often as a length."""
LONG_UNITS = {
    "millis": "ms", "milliseconds": "ms", "msec": "ms", "sec": "s", "secs": "s", "seconds": "s", "minutes": "s",
    "hours": "s", "days": "s",
}  # fmt: skip
BOUNDS = {"max", "min", "default", "limit", "left", "total", "factor"}
NUMBERS = {"int", "float", "Decimal", "timedelta"}

# Written in pieces, so that this file does not name them either.
_HOSTS = (("py", "pi.org"), ("python", "hosted"), ("registry.", "npmjs"), ("deb.", "debian"), ("proxy.", "golang"))
HOSTS = tuple("".join(parts) for parts in _HOSTS)
MACHINE_PATHS = ("work", "farm", "root", "tmp")
_UNWELCOME = re.compile(
    "|".join(map(re.escape, HOSTS)) + rf"|(?<![\w.$}}\])-])/(?:{'|'.join(MACHINE_PATHS)})/[\w.$-]", re.IGNORECASE
)


def has_docstring(source: Source) -> Iterator[Finding]:
    """Every module that holds code opens with a docstring whose first line says the one thing it decides."""
    if source.tree.body and not (ast.get_docstring(source.tree) or "").strip():
        yield Finding(source.path, 1, "a module opens with a docstring that says the one thing it decides")


def file_size(source: Source) -> Iterator[Finding]:
    """A file is short enough to be read in one go."""
    lines = source.text.count("\n")
    if lines > FILE_LINES_MAX:
        yield Finding(source.path, FILE_LINES_MAX, f"{lines} lines: split a file before it passes {FILE_LINES_MAX}")


def function_size(source: Source) -> Iterator[Finding]:
    """A function fits on a screen. Migrations, which are lists of statements, need not."""
    if "/versions/" in source.path:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            if lines > FUNCTION_LINES_MAX:
                yield Finding(
                    source.path, node.lineno, f"{node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}"
                )


def units_last(source: Source) -> Iterator[Finding]:
    """A number that is a length of time says its unit last: `lease_ms`, `timeout_s`; never `lease`, `lease_seconds`."""
    for name, line, annotation, value in _bindings(source.tree):
        words = name.lower().strip("_").split("_")
        while len(words) > 1 and words[-1] in BOUNDS:
            words.pop()
        last = words[-1]
        if last in LONG_UNITS and len(words) > 1 and _is_number(annotation, value):
            yield Finding(source.path, line, f"{name}: write _{LONG_UNITS[last]}, the unit used everywhere")
        elif last in DURATIONS and _is_number(annotation, value):
            yield Finding(source.path, line, f"{name}: a length of time says its unit: {name}_ms or {name}_s")
        elif last == "deadline" and annotation is not None and _is_number(annotation, None):
            yield Finding(source.path, line, f"{name}: an instant is an Instant, or says its unit: {name}_ms")


Binding = tuple[str, int, ast.expr | None, ast.expr | None]


def _bindings(tree: ast.Module) -> Iterator[Binding]:
    """Every name that is given a value or a type: name, line, annotation, value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _named(target, None, node.value)
        elif isinstance(node, ast.AnnAssign):
            yield from _named(node.target, node.annotation, node.value)
        elif isinstance(node, ast.NamedExpr):
            yield from _named(node.target, None, node.value)
        elif isinstance(node, ast.arguments):
            plain = [*node.posonlyargs, *node.args]
            defaults = [None] * (len(plain) - len(node.defaults)) + node.defaults
            for argument, default in [
                *zip(plain, defaults, strict=True),
                *zip(node.kwonlyargs, node.kw_defaults, strict=True),
            ]:
                yield argument.arg, argument.lineno, argument.annotation, default


def _named(target: ast.expr, annotation: ast.expr | None, value: ast.expr | None) -> Iterator[Binding]:
    if isinstance(target, ast.Name):
        yield target.id, target.lineno, annotation, value
    elif isinstance(target, ast.Attribute):
        yield target.attr, target.lineno, annotation, value


def _is_number(annotation: ast.expr | None, value: ast.expr | None) -> bool:
    """Whether the annotation names a number type, or, without annotation, the value is plainly one with a unit lost."""
    if annotation is not None:
        return any(isinstance(node, ast.Name) and node.id in NUMBERS for node in _type_parts(annotation))
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float) and not isinstance(value.value, bool)
    if isinstance(value, ast.BinOp):
        return _is_number(None, value.left) or _is_number(None, value.right)
    if isinstance(value, ast.Name | ast.Attribute):
        name = value.id if isinstance(value, ast.Name) else value.attr
        return name.lower().endswith(("_ms", "_s"))
    return False


def _type_parts(annotation: ast.expr) -> Iterator[ast.expr]:
    """The type itself and the members of a union; not what a container or a callable holds."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        yield from _type_parts(ast.parse(annotation.value, mode="eval").body)
    elif isinstance(annotation, ast.BinOp):
        yield from _type_parts(annotation.left)
        yield from _type_parts(annotation.right)
    elif isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", "") in {
        "Annotated",
        "Final",
        "Optional",
    }:
        inner = annotation.slice
        yield from _type_parts(inner.elts[0] if isinstance(inner, ast.Tuple) else inner)
    else:
        yield annotation


def names_no_machine(path: str, text: str) -> Iterator[Finding]:
    """No file names a package registry's host, or a folder that only one machine has."""
    for at, line in enumerate(text.splitlines(), start=1):
        if match := _UNWELCOME.search(line):
            yield Finding(path, at, f"names {match.group()!r}, which belongs to one machine or one registry")
