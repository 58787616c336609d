"""Decides how an author says what may happen: gates in Python, rules in CEL, and files of rules."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, Unpack, get_args
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from placet import limits
from placet.canonical import canonical_text
from placet.declarations import (
    AnyTool,
    BoundaryName,
    check_boundary,
    check_count,
    check_gate,
    check_name,
    duration_ms,
    invalid,
    names_of,
)
from placet.errors import ContractError, InvariantError
from placet.gates import Boundary, OnError, OnExpiry, OutsideGate
from placet.policy import BUILT_IN, Gate, source_of
from placet.policy_files import PolicyFile, file_beside, read_policy
from placet.rules import Then, compiled
from placet.values import Text

G = TypeVar("G", bound=Callable[[Any], Any])

_OPPOSITE = {Boundary.ROUND: Boundary.DISPATCH, Boundary.DISPATCH: Boundary.ROUND}
_HEADER = re.compile(r"[A-Za-z0-9-]+")
_TEXT: TypeAdapter[str | None] = TypeAdapter(Text | None)


class Terms(TypedDict, total=False):
    """Terms of the question that a gate's Suspend asks."""

    expires_after_s: float | None
    """How long it stays open; without it, until it is decided."""
    use_within_s: float | None
    """How long a yes is good for, counted from the end of the question's time."""
    quorum: int
    """How many different people must agree."""
    reviewers: Sequence[str] | None
    """Ids of the persons who may decide; without it those of the application, or anybody who is let in."""
    remind_before_s: float | None
    """How long before it expires people are reminded, once."""
    on_expiry: OnExpiry
    """What follows when nobody decides in time: `tell` the agent (a plan, round or task ends the run), `fail` the run,
    or `ask_again` once."""
    editor_may_approve: bool
    """Whether whoever has edited the input may approve it alone."""


class Gating(ABC):
    """The part of an application that says what may happen."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}
        self._policy_label: str | None = None

    @abstractmethod
    def _add(self, kind: str, name: str, known: Mapping[str, object]) -> None:
        """Raises ContractError(APP_INVALID) for a name that is taken, or where it is too late."""

    def gate(
        self,
        boundary: BoundaryName,
        *,
        tools: Sequence[AnyTool | str] | None = None,
        **terms: Unpack[Terms],
    ) -> Callable[[G], G]:
        """Register a gate: a plain function of one subject that answers Allow, Deny, Suspend, True or False.

        `tools` narrows a `tool_call` gate; only a gate so narrowed may let a consequential call pass. The other terms
        are of the question that its Suspend asks (`Terms`).
        """
        at, scope = _placed("gate", boundary, tools)
        checked = checked_terms(terms)

        def register(function: G) -> G:
            own = check_name(getattr(function, "__name__", None), "the name of a gate")
            check_gate(own, function)
            self._register(
                Gate(name=own, boundary=at, function=function, tools=scope, source=source_of(function), **checked)
            )
            return function

        return register

    def rule(
        self,
        name: str,
        *,
        when: str,
        then: Then = "suspend",
        otherwise: Then | None = None,
        boundary: BoundaryName = "tool_call",
        tools: Sequence[AnyTool | str] | None = None,
        reason: str | None = None,
        **terms: Unpack[Terms],
    ) -> None:
        """Register a declarative rule: where the CEL condition `when` holds, it answers `then`, for this `reason`.

        Where it does not hold the rule answers `otherwise`, or says nothing. Variables are the fields of the subject
        that a gate at `boundary` is given (`input`, `tool`, `agent`, … of a call). What it cannot evaluate is put to a
        person. `tools` and the terms are as for `gate`. Raises ContractError(APP_INVALID) with the rule, the position
        and the reason where it does not compile, or knows a name that is not there.
        """
        own = check_name(name, "the name of a rule")
        if own in BUILT_IN:
            raise invalid(f"a rule cannot be called {own!r}, which is the name of a rule that is always there")
        at, scope = _placed(f"rule {own!r}:", boundary, tools)
        made = compiled(own, at, when, then, otherwise, _reason(own, reason))
        source = f"{made.then}|{made.otherwise}|{made.reason}|{made.when}"
        checked = checked_terms(terms)
        self._register(
            Gate(name=own, boundary=at, function=made.verdict, tools=scope, source=source, rule=made, **checked)
        )

    def http_gate(
        self,
        name: str,
        url: str,
        *,
        tools: Sequence[AnyTool | str] | None = None,
        on_error: OnError = "suspend",
        timeout_s: float = 5,
        headers: Mapping[str, str] | None = None,
        **terms: Unpack[Terms],
    ) -> None:
        """Register a gate at `tool_call` that is asked over HTTP: a POST of the call, answered with a verdict.

        The answer is `{"verdict": "allow" | "deny" | "suspend", "reason"?: text, "version"?: text}`. The call waits for
        it, and holds nothing. Whatever else comes, or nothing in `timeout_s` (at most 60), stands for `on_error`:
        `suspend`, so that a person decides, or `deny`. It is asked once. `tools`, and the terms, are as for `gate`.
        """
        own = check_name(name, "the name of a gate")
        at, scope = _placed("gate", Boundary.TOOL_CALL.value, tools)
        outside = _outside(own, url, on_error, timeout_s, headers)
        said = {key: str(value) for key, value in outside.headers}
        source = canonical_text({"url": url, "on_error": on_error, "timeout_ms": outside.timeout_ms, "headers": said})
        checked = checked_terms(terms)
        self._register(
            Gate(name=own, boundary=at, function=_never, tools=scope, source=source, outside=outside, **checked)
        )

    @property
    def http_gates(self) -> Mapping[str, OutsideGate]:
        """Where each gate outside is, by name."""
        return {name: gate.outside for name, gate in self._gates.items() if gate.outside is not None}

    def policy(self, path: Any) -> None:
        """Register the rules of a file in TOML: an optional `version`, and `[[rule]]` tables with what `rule` takes.

        A relative path starts where the module lies that calls this. Raises ContractError(APP_INVALID) with the file,
        the rule and the reason; then none of its rules is registered.
        """
        frame = inspect.currentframe()
        caller = frame.f_back.f_globals.get("__file__") if frame is not None and frame.f_back is not None else None
        file: PolicyFile = read_policy(file_beside(path, caller))
        if file.version is not None:
            version = check_name(file.version, f"the version of policy {file.name}")
            if self._policy_label is not None:
                raise invalid(f"policy {file.name}: there is a version already, {self._policy_label!r}")
            self._policy_label = version
        before = dict(self._gates)
        for at, table in enumerate(file.rules, start=1):
            try:
                self.rule(**table)
            except ContractError as error:
                self._gates = before
                raise invalid(f"policy {file.name}, rule {at}: {error.message}") from None

    def _register(self, gate: Gate) -> None:
        self._add("gate", gate.name, self._gates)
        if any(other.boundary is _OPPOSITE.get(gate.boundary) for other in self._gates.values()):
            raise invalid(f"gate {gate.name!r}: an application has gates at round or at dispatch, not at both")
        self._gates[gate.name] = gate


def _outside(name: str, url: object, on_error: object, timeout_s: object, headers: object) -> OutsideGate:
    what = f"gate {name!r}"
    parts = urlsplit(url) if isinstance(url, str) and url.isprintable() else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise invalid(f"{what}: url is an address such as https://gates.example/refunds, not {url!r}")
    if on_error not in get_args(OnError):
        raise invalid(f"{what}: on_error is one of {', '.join(get_args(OnError))}, not {on_error!r}")
    timeout_ms = duration_ms(timeout_s, f"timeout_s of {what}")
    if timeout_ms > limits.GATE_TIMEOUT_MS_MAX:
        raise invalid(f"{what}: timeout_s is at most {limits.GATE_TIMEOUT_MS_MAX // 1_000}")
    given = {} if headers is None else headers
    if not isinstance(given, Mapping) or not all(_is_header(*pair) for pair in given.items()):
        raise invalid(f"{what}: headers are names and values of printable ASCII")
    return OutsideGate(str(url), timeout_ms, on_error, tuple(sorted(given.items())))  # type: ignore[arg-type]


def _is_header(name: object, value: object) -> bool:
    plain = isinstance(name, str) and isinstance(value, str) and value.isascii() and value.isprintable()
    return plain and _HEADER.fullmatch(str(name)) is not None


def _never(subject: Any) -> Any:
    """What stands where an author's function would."""
    raise InvariantError("a gate outside is asked over the network")


def checked_terms(terms: Terms) -> dict[str, Any]:
    """The terms as a Gate has them, or the first thing that is wrong with them."""
    for name in terms:
        if name not in Terms.__annotations__:
            raise invalid(f"there is no {name}=, only {', '.join(Terms.__annotations__)}")
    expires_s, use_s, remind_s = (terms.get(f"{name}_s") for name in ("expires_after", "use_within", "remind_before"))
    expires_after_ms = None if expires_s is None else duration_ms(expires_s, "expires_after_s")
    use_within_ms = None if use_s is None else duration_ms(use_s, "use_within_s")
    remind_before_ms = None if remind_s is None else duration_ms(remind_s, "remind_before_s")
    if remind_before_ms is not None and (expires_after_ms is None or remind_before_ms >= expires_after_ms):
        raise invalid("remind_before_s is less than expires_after_s, which says when there is no more to remind of")
    on_expiry = terms.get("on_expiry", "tell")
    if on_expiry not in get_args(OnExpiry):
        raise invalid(f"on_expiry is one of {', '.join(get_args(OnExpiry))}, not {on_expiry!r}")
    editor_may_approve = terms.get("editor_may_approve", False)
    if type(editor_may_approve) is not bool:
        raise invalid(f"editor_may_approve is True or False, not {editor_may_approve!r}")
    quorum = check_count(terms.get("quorum", 1), "quorum")
    given = terms.get("reviewers")
    reviewers = None if given is None else persons_of(given, "reviewers")
    if reviewers is not None and not reviewers:
        raise invalid("reviewers=[…] names at least one person")
    return {
        "expires_after_ms": expires_after_ms,
        "use_within_ms": use_within_ms,
        "quorum": quorum,
        "reviewers": reviewers,
        "remind_before_ms": remind_before_ms,
        "on_expiry": on_expiry,
        "editor_may_approve": editor_may_approve,
    }


def persons_of(given: object, what: str) -> tuple[str, ...]:
    """Ids of persons, each once."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise invalid(f"{what}: a list of persons is needed, not {given!r}")
    persons = tuple(check_name(person, f"a person among {what}").strip() for person in given)
    if len(set(persons)) < len(persons):
        raise invalid(f"{what}: somebody stands there twice")
    return persons


def check_quorums(gates: Mapping[str, Gate], everybody: tuple[str, ...] | None) -> None:
    """Refuse a gate that wants more people to agree than may decide at all."""
    for gate in gates.values():
        reviewers = everybody if gate.reviewers is None else gate.reviewers
        if reviewers and gate.quorum > len(reviewers):
            raise invalid(f"gate {gate.name!r}: {gate.quorum} people must agree, and {len(reviewers)} may decide")


def _placed(what: str, boundary: str, tools: Sequence[AnyTool | str] | None) -> tuple[Boundary, frozenset[str] | None]:
    check_boundary(boundary)
    at = Boundary(boundary)
    scope = None if tools is None else frozenset(names_of(tools, f"tools of a {what.partition(' ')[0]}"))
    if scope is not None and (at is not Boundary.TOOL_CALL or not scope):
        raise invalid("tools=[…] names at least one tool, and is for gates at tool_call")
    return at, scope


def _reason(rule: str, reason: object) -> str | None:
    try:
        return _TEXT.validate_python(reason, strict=True)
    except ValidationError:
        raise invalid(f"rule {rule!r}: reason is text, not {reason!r}") from None
