"""Decides what a declarative rule may say and what it answers: one condition in CEL, compiled once, of bounded cost.

A rule sees what a Python gate sees; the fields of its subject are its variables. Where its condition holds it answers
`then`; where it does not, `otherwise`, or nothing. A condition that cannot be evaluated (a field that is missing, types
that do not fit, an answer that is neither true nor false, a cost beyond the bounds) never lets anything pass: the rule
then asks for a person, and says why (DESIGN §7, deny by default).

CEL is evaluated by `common-expression-language`: the Rust implementation, released every few weeks, in wheels for every
Python that we support, a thousand times faster than `cel-python`. `cel-expr-python` (the C++ one) checks types too, but
is still young and eight times as large.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from placet import limits
from placet.errors import Code, ContractError
from placet.gates import (
    Allow,
    Boundary,
    CallSubject,
    Deny,
    DispatchSubject,
    PlanPatchSubject,
    PlanSubject,
    RoundSubject,
    Subject,
    Suspend,
    Verdict,
)

Then = Literal["suspend", "deny", "allow"]
"""What a rule answers: ask a person, refuse, or let through."""

SUBJECTS: Mapping[Boundary, type[Subject]] = {
    Boundary.PLAN: PlanSubject,
    Boundary.ROUND: RoundSubject,
    Boundary.DISPATCH: DispatchSubject,
    Boundary.TOOL_CALL: CallSubject,
    Boundary.PLAN_PATCH: PlanPatchSubject,
}
"""What is judged at each boundary: its fields are the variables of a rule there."""

FUNCTIONS = frozenset(
    {
        *("size", "contains", "startsWith", "endsWith", "matches"),
        *("string", "int", "uint", "double", "bytes", "timestamp", "duration", "type", "dyn"),
    }
)
"""Functions that a rule may call. None reads a clock or anything else outside its arguments."""

_VERDICTS: Mapping[str, type[Allow] | type[Deny] | type[Suspend]] = {
    "allow": Allow,
    "deny": Deny,
    "suspend": Suspend,
}
_LITERAL = re.compile(
    r'[bB]?[rR][bB]?(?:"""[\s\S]*?"""|\'\'\'[\s\S]*?\'\'\'|"[^"\n]*"|\'[^\'\n]*\')'
    r'|[bB]?(?:"""(?:\\[\s\S]|[^\\])*?"""|\'\'\'(?:\\[\s\S]|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')'
    r"|//[^\n]*"
)
_LOOP = re.compile(r"\.\s*(all|exists|exists_one|existsOne|map|filter)\s*\(\s*(\w*)|[()]")
_COPYING = ("map", "filter")
"""Macros that copy what they have so far for every element."""
_PLACE = re.compile(r"<input>:(\d+):(\d+): (.*)")
_TOLD_CHARS_MAX = 300


@dataclass(frozen=True, slots=True)
class _Cost:
    """What bounds an evaluation before it begins: how loops are nested, and how often values are put together."""

    loops: int
    depth: int
    """Of nested loops."""
    copying: int
    """The same, where a loop that copies counts twice."""
    sums: int
    literal: int
    """Elements that a literal list of the condition may have."""

    def check(self, subject: Subject, plain: Mapping[str, Any]) -> None:
        """Raises ValueError where it may cost more than a rule may."""
        if not self.loops and not self.sums:
            return
        growth = (1 + self.sums) ** max(self.loops, 1)
        size = max(_largest(plain), self.literal) * (growth if self.loops else 1)
        weight = len(subject.json_bytes())
        if (
            weight * growth > limits.RULE_BYTES_MAX
            or self.loops * size**self.copying > limits.RULE_STEPS_MAX
            or size**self.depth * weight > limits.RULE_WORK_MAX
        ):
            raise ValueError("it would look at more than a rule may look at")


@dataclass(frozen=True, slots=True)
class Rule:
    """A compiled rule. Made by `compiled`."""

    name: str
    when: str
    then: Then
    otherwise: Then | None
    reason: str | None
    program: Any
    cost: _Cost

    def verdict(self, subject: Subject) -> Verdict | None:
        """Its answer; None where it says nothing. Whatever goes wrong is a Suspend that tells what."""
        try:
            plain = subject.model_dump(mode="json")
            self.cost.check(subject, plain)
            answer = self.program.execute(plain)
            if answer is not True and answer is not False:
                raise ValueError(f"it gives {type(answer).__name__}, not true or false")
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 — a panic of the library is no Exception, and no yes either
            return Suspend(f"Rule {self.name!r} could not be evaluated, so a person decides: {_told(error)}")
        word = self.then if answer else self.otherwise
        return None if word is None else _VERDICTS[word](self.reason if answer else None)


def compiled(name: str, boundary: Boundary, when: object, then: object, otherwise: object, reason: str | None) -> Rule:
    """The rule. Raises ContractError(APP_INVALID) naming the rule, the position and the reason."""
    import cel  # only here: with its command line, it takes longer to load than everything else of an application

    what = f"rule {name!r}"
    words = get_args(Then)
    if then not in words:
        raise _invalid(f"{what}: then is one of {', '.join(words)}, not {then!r}")
    if otherwise is not None and otherwise not in words:
        raise _invalid(f"{what}: otherwise is one of {', '.join(words)}, not {otherwise!r}")
    if not isinstance(when, str) or not when.strip():
        raise _invalid(f"{what}: when is a condition, e.g. 'input.amount > 100', not {when!r}")
    if len(when) > limits.RULE_CHARS_MAX:
        raise _invalid(f"{what}: its condition has {len(when)} characters, at most {limits.RULE_CHARS_MAX} are allowed")
    try:
        program = cel.compile(when)
        used, called = program.variables(), program.functions()
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 — as in `verdict`
        raise _invalid(f"{what} does not compile: {_placed(str(error))}") from None
    bare = _LITERAL.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), when)  # every place stays where it is
    loops = list(_LOOP.finditer(bare))
    known = set(SUBJECTS[boundary].model_fields)
    for variable in sorted(set(used) - known - {loop[2] for loop in loops if loop[1]}):
        at = _position(bare, variable)
        raise _invalid(f"{what}: {at}there is no {variable!r} at {boundary.value}, only {', '.join(sorted(known))}")
    for function in sorted(each for each in called if each.isidentifier() and each not in FUNCTIONS):
        at = _position(bare, function)
        raise _invalid(f"{what}: {at}there is no function {function!r}, only {', '.join(sorted(FUNCTIONS))}")
    cost = _Cost(
        loops=sum(1 for loop in loops if loop[1]),
        depth=max(_depths(loops, copying=1), default=0),
        copying=max(_depths(loops, copying=2), default=0),
        sums=bare.count("+"),
        literal=1 + bare.count(","),
    )
    return Rule(name, when, then, otherwise, reason, program, cost)  # type: ignore[arg-type]


def _invalid(what: str) -> ContractError:
    return ContractError(Code.APP_INVALID, what)


def _depths(loops: list[re.Match[str]], *, copying: int) -> Iterator[int]:
    """How deep each bracket lies within loops; one that copies counts `copying`."""
    open_: list[int] = []
    for found in loops:
        if found[0] == ")":
            if open_:
                open_.pop()
        else:
            open_.append(0 if found[0] == "(" else copying if found[1] in _COPYING else 1)
            yield sum(open_)


def _largest(value: Any) -> int:
    """Elements of the largest list or object within."""
    if not isinstance(value, dict | list):
        return 0
    within = value.values() if isinstance(value, dict) else value
    return max([len(value), *map(_largest, within)])


def _position(source: str, name: str) -> str:
    found = re.search(rf"(?<![.\w]){re.escape(name)}\b", source) or re.search(rf"\b{re.escape(name)}\b", source)
    if found is None:
        return ""
    line = source.count("\n", 0, found.start())
    return f"line {line + 1}, column {found.start() - source.rfind(chr(10), 0, found.start())}: "


def _placed(error: str) -> str:
    """The library's words as one line: where, and what."""
    found = _PLACE.search(error)
    if found is None:
        return " ".join(error.split())[:_TOLD_CHARS_MAX]
    return f"line {found[1]}, column {found[2]}: {found[3]}"[:_TOLD_CHARS_MAX]


def _told(error: BaseException) -> str:
    """What went wrong, in one line that can be shown."""
    if isinstance(error, KeyError):
        return f"there is no {error.args[0]!r}"[:_TOLD_CHARS_MAX] if error.args else "something is missing"
    # The library's first sentence says what, the next ones how to write CEL.
    line = " ".join(str(error).split()).partition(". ")[0][:_TOLD_CHARS_MAX] or type(error).__name__
    return line.encode("utf-8", "replace").decode().replace("\x00", "�")
