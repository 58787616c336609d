"""Decides what the application's gates say to a subject, as one judgement, and which version of the policy said it.

Fail closed: a gate that raises, or answers what is no verdict, has failed, and nothing it was asked about may happen.
Every gate that applies is asked, each with a copy of its own, so that none can change what the others and the reviewer
see (public_failures 1). Of several gates that suspend, all reasons are shown and the stricter terms hold.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter

from placet.canonical import digest
from placet.gates import (
    Asked,
    Boundary,
    CallSubject,
    Judgement,
    OnExpiry,
    OutsideGate,
    Subject,
    common_reviewers,
    strictest,
    verdict_of,
)
from placet.rules import Rule
from placet.values import Text

CONSEQUENTIAL_RULE = "consequential"
"""The built-in rule: a consequential call waits for a person unless a gate for that very tool has answered."""
DEFAULT_RULE = "default"
"""The built-in rule: a call that is not consequential, and that no gate speaks about, is made."""
BUILT_IN = frozenset({CONSEQUENTIAL_RULE, DEFAULT_RULE})
BOUNDARIES = tuple(Boundary)
"""Where a gate of the application is asked."""
_REASON: TypeAdapter[str | None] = TypeAdapter(Text | None)
_SHOWN_CHARS_MAX = 500


class Policy(NamedTuple):
    """Which policy speaks."""

    version: str
    """As its author calls it; without that, the beginning of the digest."""
    digest: str
    """SHA-256 over all gates and rules: what they say, and on which terms."""
    reviewers: tuple[str, ...] | None = None
    """Who may decide where a gate does not say; None: anybody who is let in."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A registered gate at a boundary; `tools` narrows a `tool_call` gate to tools of these names.

    `function` is the author's, or a declarative `rule`, which may also say nothing.
    """

    name: str
    boundary: Boundary
    function: Callable[[Any], Any]
    tools: frozenset[str] | None
    expires_after_ms: int | None
    use_within_ms: int | None
    quorum: int
    source: str
    remind_before_ms: int | None = None
    on_expiry: OnExpiry = "tell"
    editor_may_approve: bool = False
    reviewers: tuple[str, ...] | None = None
    rule: Rule | None = None
    outside: OutsideGate | None = None
    """Where it is, of a gate that is asked over the network; `function` is then never called."""

    def applies(self, boundary: Boundary, subject: Subject) -> bool:
        """Whether it is asked about the subject."""
        if boundary is not self.boundary:
            return False
        return self.tools is None or (isinstance(subject, CallSubject) and subject.tool in self.tools)

    def ask(self, subject: Subject, policy: Policy) -> Judgement | None:
        """Its answer to a copy of the subject; None where a declarative rule says nothing."""
        if self.outside is not None:
            return self._said(subject, policy, self.outside)
        try:
            answer = self.function(subject.model_copy(deep=True))
            if answer is None and self.rule is not None:
                return None
            verdict = verdict_of(answer)
            reason = _REASON.validate_python(verdict.reason)
        except (Exception, SystemExit) as error:  # noqa: BLE001 — a gate is foreign code; whatever it raises is a failure
            shown = f"gate {self.name!r} failed: {type(error).__name__}: {error}"[:_SHOWN_CHARS_MAX]
            return Judgement(
                verdict="failed",
                reason=_printable(shown),
                rule=self.name,
                policy_version=policy.version,
                policy_digest=policy.digest,
            )
        return self._judgement(policy, verdict.action, reason, self.name)

    def _said(self, subject: Subject, policy: Policy, outside: OutsideGate) -> Judgement | None:
        """What it has answered; None while it has not. What failed lets nothing pass."""
        answer = subject.outside.get(self.name) if isinstance(subject, CallSubject) else None
        if answer is None:
            return None
        if answer.verdict == "failed":
            told = f"Gate {self.name!r} could not be asked"
            told += ", so a person decides" if outside.on_error == "suspend" else ""
            return self._judgement(policy, outside.on_error, f"{told}: {answer.reason}", self.name)
        named = f"{self.name}@{answer.version}" if answer.version else self.name
        return self._judgement(policy, answer.verdict, answer.reason, named)

    def _judgement(
        self, policy: Policy, verdict: Literal["allow", "deny", "suspend"], reason: str | None, rule: str
    ) -> Judgement:
        return Judgement(
            verdict=verdict,
            reason=reason,
            rule=rule,
            policy_version=policy.version,
            policy_digest=policy.digest,
            quorum=self.quorum,
            expires_after_ms=self.expires_after_ms,
            use_within_ms=self.use_within_ms,
            remind_before_ms=self.remind_before_ms,
            on_expiry=self.on_expiry,
            editor_may_approve=self.editor_may_approve,
            reviewers=policy.reviewers if self.reviewers is None else self.reviewers,
        )


def judge(gates: Sequence[Gate], policy: Policy, boundary: Boundary, subject: Subject) -> Judgement | None:
    """The judgement that counts; None where there is nothing to judge: no gate speaks, and it is no call."""
    answered = [(gate, gate.ask(subject, policy)) for gate in gates if gate.applies(boundary, subject)]
    judgements = [judgement for _, judgement in answered if judgement is not None]
    found = strictest(judgements)
    if found is not None and found.verdict in ("failed", "deny"):
        return found
    waits = [
        Asked(name=gate.name, timeout_ms=gate.outside.timeout_ms)
        for gate, spoke in answered
        if gate.outside is not None and spoke is None
    ]
    if waits:
        names = ", ".join(gate.name for gate in waits)
        return _built_in(policy, "suspend", names, None).model_copy(update={"outside": tuple(waits)})
    if found is not None and found.verdict == "suspend":
        return _together([judgement for judgement in judgements if judgement.verdict == "suspend"])
    if not isinstance(subject, CallSubject):
        return found
    # Only what was said about this very tool lets a consequential call pass.
    if subject.consequential and not any(gate.tools is not None and spoke is not None for gate, spoke in answered):
        return _built_in(policy, "suspend", CONSEQUENTIAL_RULE, "A consequential call waits for a person.")
    return found or _built_in(policy, "allow", DEFAULT_RULE, None)


def _built_in(policy: Policy, verdict: Literal["allow", "suspend"], rule: str, reason: str | None) -> Judgement:
    return Judgement(
        verdict=verdict,
        reason=reason,
        rule=rule,
        policy_version=policy.version,
        policy_digest=policy.digest,
        reviewers=policy.reviewers,
    )


def policy_digest(gates: Iterable[Gate], *more: object) -> str:
    """A digest of the gates: names, boundaries, scopes, terms and source, and of what else the policy consists of.

    It covers each gate's own text, not what it calls nor what it reads from elsewhere: whoever changes a threshold in
    another module must raise the application's version.
    """
    return digest(
        [
            *(
                [
                    gate.name,
                    gate.boundary.value,
                    None if gate.tools is None else sorted(gate.tools),
                    gate.expires_after_ms,
                    gate.use_within_ms,
                    gate.quorum,
                    gate.source,
                    *_later_terms(gate),
                ]
                for gate in gates
            ),
            *more,
        ]
    )


def _later_terms(gate: Gate) -> list[object]:
    """Terms that there were not always: a gate without them is the gate that it was."""
    terms = (gate.remind_before_ms, gate.on_expiry, gate.editor_may_approve)
    reviewers: list[object] = [] if gate.reviewers is None else [sorted(gate.reviewers)]
    return reviewers if terms == (None, "tell", False) else [*terms, *reviewers]


def source_of(function: Callable[..., Any]) -> str:
    """The function's text as it stands in its file; where there is no file (a prompt), its byte code."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        return "" if code is None else f"{code.co_code.hex()} {' '.join(code.co_names)}"


def _together(suspensions: Sequence[Judgement]) -> Judgement:
    """Several questions as one: every reason, the larger quorum, the earlier ends."""
    if len(suspensions) == 1:
        return suspensions[0]
    reasons = [judgement.reason for judgement in suspensions if judgement.reason]
    expiries = [each.expires_after_ms for each in suspensions if each.expires_after_ms is not None]
    uses = [each.use_within_ms for each in suspensions if each.use_within_ms is not None]
    return Judgement(
        verdict="suspend",
        reason=" ".join(reasons) if reasons else None,
        rule=", ".join(judgement.rule for judgement in suspensions),
        policy_version=suspensions[0].policy_version,
        policy_digest=suspensions[0].policy_digest,
        quorum=max(judgement.quorum for judgement in suspensions),
        expires_after_ms=min(expiries, default=None),
        use_within_ms=min(uses, default=None),
        remind_before_ms=max((each.remind_before_ms for each in suspensions if each.remind_before_ms), default=None),
        on_expiry=_strictest_expiry([each.on_expiry for each in suspensions]),
        editor_may_approve=all(each.editor_may_approve for each in suspensions),
        reviewers=common_reviewers(*(each.reviewers for each in suspensions)),
    )


def _strictest_expiry(given: Sequence[OnExpiry]) -> OnExpiry:
    return min(given, key=("fail", "tell", "ask_again").index)


def _printable(text: str) -> str:
    """Without what a message cannot carry: lone surrogates and NUL."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "�")
