"""Decides what a pure file may not touch: clock, chance, the outside world, waiting, logging."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.sources import Finding, Source

MODULES = {
    "asyncio", "concurrent", "ctypes", "fcntl", "getpass", "glob", "http", "importlib", "io", "logging", "mmap",
    "multiprocessing", "os", "pathlib", "pickle", "platform", "queue", "random", "runpy", "sched", "secrets", "select",
    "selectors", "shelve", "shutil", "signal", "smtplib", "socket", "socketserver", "sqlite3", "ssl", "subprocess",
    "sys", "syslog", "tempfile", "threading", "time", "warnings",
}  # fmt: skip
"""Modules of the standard library that read or change something outside the arguments."""
NAMES = (
    "datetime.datetime.now", "datetime.datetime.today", "datetime.datetime.utcnow", "datetime.date.today",
    "uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7", "uuid.getnode",
    "urllib.request", "contextvars.ContextVar",
)  # fmt: skip
"""Parts of modules that are otherwise fine."""
READS_FILES = {"placet.policy_files": {"pathlib"}}
"""What a flat file may import all the same: it reads while an application is put together, before any rule is asked."""
BUILTINS = {
    "print", "open", "input", "eval", "exec", "compile", "breakpoint", "__import__", "globals",
    "hash",  # Differs between processes for text, so that a replay would not be a repeat.
    "id",
}  # fmt: skip


def no_outside(source: Source) -> Iterator[Finding]:
    """No clock, no random number, no file, no process, no logging: values in, values out."""
    for item in source.imports:
        if item.root in MODULES - READS_FILES.get(source.module, set()):
            yield Finding(source.path, item.line, f"a pure file may not import {item.root}")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name | ast.Attribute):
            name = source.resolved(node)
            if name is not None and any(name == banned or name.startswith(banned + ".") for banned in NAMES):
                yield Finding(source.path, node.lineno, f"a pure file may not use {name}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
            yield Finding(source.path, node.lineno, f"a pure file may not call {node.func.id}()")


def no_waiting(source: Source) -> Iterator[Finding]:
    """Nothing awaits. A coroutine may be declared, with an empty body, as the protocols of activities are."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) or (
            isinstance(node, ast.comprehension) and node.is_async
        ):
            line = node.target.lineno if isinstance(node, ast.comprehension) else node.lineno
            yield Finding(source.path, line, "a pure file may not wait")
        elif isinstance(node, ast.AsyncFunctionDef) and not _declares(node):
            yield Finding(source.path, node.lineno, f"a pure file may declare a coroutine, not define one: {node.name}")


def _declares(node: ast.AsyncFunctionDef) -> bool:
    return all(isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) for statement in node.body)


def no_global_state(source: Source) -> Iterator[Finding]:
    """No function rebinds a name of its module: what a machine answers depends on its arguments alone."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Global):
            yield Finding(source.path, node.lineno, f"a pure file keeps no state: global {', '.join(node.names)}")
