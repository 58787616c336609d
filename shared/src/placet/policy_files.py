"""Decides what a policy file may say: TOML with a version and rules, strictly read.

The one flat file that reads a file: it does so while an application is put together, before any rule is asked.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placet import limits
from placet.errors import Code, ContractError

KEYS = (
    "name", "boundary", "tools", "when", "then", "otherwise", "reason",
    "expires_after_s", "use_within_s", "quorum", "reviewers", "remind_before_s", "on_expiry", "editor_may_approve",
)  # fmt: skip
"""What a rule may say; `name` and `when` it must."""


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A policy file that is one: what each rule says is for `Gating.rule` to check."""

    name: str
    version: str | None
    rules: tuple[Mapping[str, Any], ...]


def file_beside(path: object, caller: str | None) -> Path:
    """The file meant; a relative one lies beside the module that names it."""
    if not isinstance(path, str | Path) or not str(path):
        raise _invalid(f"a policy is the path of a file, e.g. 'policy.toml', not {path!r}")
    return (Path(caller).parent / path) if caller else Path(path)


def read_policy(path: Path) -> PolicyFile:
    """The file. Raises ContractError(APP_INVALID): it cannot be read, is no TOML, or says what no policy says."""
    try:
        with path.open("rb") as file:
            data = file.read(limits.POLICY_BYTES_MAX + 1)
    except OSError as error:
        raise _invalid(f"policy {path.name}: cannot be read: {error.strerror or type(error).__name__}") from None
    return parse_policy(path.name, data)


def parse_policy(name: str, data: bytes) -> PolicyFile:
    """What the bytes of a file say; raises as `read_policy`."""
    what = f"policy {name}"
    if len(data) > limits.POLICY_BYTES_MAX:
        raise _invalid(f"{what}: more than {limits.POLICY_BYTES_MAX} bytes")
    try:
        document = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise _invalid(f"{what} is not TOML: {' '.join(str(error).split())}") from None
    for key in document:
        if key not in ("version", "rule"):
            raise _invalid(f"{what}: there is no {key!r}, only version and [[rule]]")
    version, rules = document.get("version"), document.get("rule", [])
    if version is not None and not isinstance(version, str):
        raise _invalid(f"{what}: version is text, not {version!r}")
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise _invalid(f"{what}: write each rule as a table [[rule]]")
    for at, rule in enumerate(rules, start=1):
        for key in rule:
            if key not in KEYS:
                raise _invalid(f"{what}, rule {at}: there is no {key!r}, only {', '.join(KEYS)}")
        for key in ("name", "when"):
            if key not in rule:
                raise _invalid(f"{what}, rule {at}: {key} is missing")
    return PolicyFile(name, version, tuple(rules))


def _invalid(what: str) -> ContractError:
    return ContractError(Code.APP_INVALID, what)
