"""Decides who says what to a question: alone, against each other, wrongly, twice, or not at all."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from random import Random

from placet.canonical import canonical_text
from placet.requests import ApprovalRequest
from placet.values import PrincipalKind
from tests.simulation.workload import INITIATOR, Workload, answer_to, edited

REVIEWERS = ("alice", "bob", "carol")


@dataclass(frozen=True, slots=True)
class Voice:
    """Somebody who decides on a request, and how."""

    after_ms: int
    person: str
    word: str
    """`truth`: what the person finds out about an operation in doubt."""
    decision_id: str
    hash_text: str = "right"
    """right, wrong, upper"""
    kind: PrincipalKind = PrincipalKind.HUMAN
    times: int = 1
    """How often the same decision is sent at once."""
    then: str = ""
    """revoke: takes the approval back; other: uses the decision's id again for another decision."""
    then_after_ms: int = 0
    value_text: str | None = None
    reason: str | None = None


class People:
    """Everybody who decides under one seed. Who says what follows from the question, whenever it is put."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def voices(self, request: ApprovalRequest) -> list[Voice]:
        """Who decides on a request."""
        work = self._workload
        random = Random(f"{work.seed}/voices/{request.run_id}/{request.scope}/{request.boundary}")
        if request.scope == "operation_outcome":
            persons = REVIEWERS[: random.choice((0, 1, 1, 2))]
            return [self._voice(request, random, person, "truth") for person in persons]
        if request.scope == "question":
            return self._answers(request, random)
        if work.profile.predictable:
            return self._fated(request, random)
        mood = random.choice(work.profile.moods)
        word = work.word(request.run_id, request.scope, request.boundary)
        persons = tuple(random.sample(REVIEWERS, 3))
        if mood == "silent":
            return []
        if mood == "edit":
            return self._edit(request, random, persons, word)
        if mood == "else" and request.scope == "tool_call":
            other = random.choice(("respond", "request_changes"))
            value_text = '"done by hand"' if other == "respond" else None
            reason = None if other == "respond" else "not like this"
            return [replace(self._voice(request, random, persons[0], other), value_text=value_text, reason=reason)]
        if mood == "edge" and request.expires_at_ms is not None:
            # Everybody at the last moment: some in time, some too late, some committing as it passes.
            left_ms = request.expires_at_ms - request.requested_at_ms
            return [
                self._voice(request, random, person, word, exactly_ms=left_ms - random.randint(-5, 60))
                for person in persons
            ]
        if mood == "race":
            words = [word, *(random.choice(("approve", "reject")) for _ in range(2))]
            return [
                self._voice(request, random, person, said, 400) for person, said in zip(persons, words, strict=True)
            ]
        voices = self._muddle(request, random, persons, word) if mood == "muddle" else []
        times = 3 if mood == "repeat" else 1
        then = {"revoke": "revoke", "repeat": "other"}.get(mood, "")
        return voices + [
            self._voice(request, random, person, word, times=times, then=then) for person in persons[: request.quorum]
        ]

    def _fated(self, request: ApprovalRequest, random: Random | None) -> list[Voice]:
        """Nobody contradicts anybody: what is said, and by how many, follows from the question."""
        name = f"{self._workload.seed}/fated/{request.request_id}"
        random = random or Random(name)
        fate = self._workload.fate(request.run_id, request.scope, request.boundary, request.rule or "")
        if fate == "silent":
            return []
        if request.generation > 1:
            others = ("emil", "fred", "gina")[: request.quorum]
            return [self._voice(request, random, person, "approve") for person in others]
        if fate not in ("approve", "reject"):
            given = json.loads(request.content_text)["rawInput"]
            value = {"edit": canonical_text(edited(given)), "respond": '"done by hand"'}.get(fate)
            reason = "not like this" if fate == "request_changes" else None
            voice = self._voice(request, random, "alice", fate, times=random.choice((1, 3)))
            return [replace(voice, value_text=value, reason=reason)]
        times = random.choice((1, 1, 3))
        persons = random.sample(REVIEWERS, request.quorum)
        then = "other" if times == 3 else ""
        return [self._voice(request, random, person, fate, times=times, then=then) for person in persons]

    def _edit(self, request: ApprovalRequest, random: Random, persons: tuple[str, ...], word: str) -> list[Voice]:
        """One person edits a call, another decides on it as it was; then others look at it, and the editor."""
        if request.scope != "tool_call":
            return [self._voice(request, random, person, word) for person in persons[: request.quorum]]
        if request.generation > 1:
            others = ("dora", "emil", "fred")[: request.quorum]
            return [self._voice(request, random, person, word) for person in (persons[0], *others)]
        given = json.loads(request.content_text)["rawInput"]
        edited = random.choice(({**given, "n": given["n"] + 10}, {**given, "n": "ten"}, {**given, "gate": "deny"}))
        edit = self._voice(request, random, persons[0], "edit", times=random.choice((1, 3)))
        return [
            replace(edit, value_text=canonical_text(edited)),
            self._voice(request, random, persons[1], word),
        ]

    def _answers(self, request: ApprovalRequest, random: Random) -> list[Voice]:
        """Somebody tries what is no answer, another one answers; or somebody will not."""
        right, wrong = answers_to(request)
        first, second, third = random.sample(REVIEWERS, 3)
        voices = [
            replace(self._voice(request, random, first, "respond"), value_text=canonical_text(wrong)),
            replace(self._voice(request, random, second, "respond", times=2), value_text=canonical_text(right)),
            self._voice(request, random, third, random.choice(("approve", "reject", "reject"))),
        ]
        return voices[: random.choice((0, 1, 2, 3))]

    def _muddle(self, request: ApprovalRequest, random: Random, persons: tuple[str, ...], word: str) -> list[Voice]:
        machine = random.choice((PrincipalKind.AGENT, PrincipalKind.SERVICE))
        return [
            self._voice(request, random, persons[0], word, hash_text=random.choice(("wrong", "upper"))),
            self._voice(request, random, INITIATOR.id, word),
            self._voice(request, random, "robot", word, kind=machine),
            self._voice(request, random, persons[1], random.choice(("yes", "executed", "APPROVE"))),
        ]

    def _voice(
        self,
        request: ApprovalRequest,
        random: Random,
        person: str,
        word: str,
        after_ms_max: int = 20_000,
        *,
        hash_text: str = "right",
        kind: PrincipalKind = PrincipalKind.HUMAN,
        times: int = 1,
        then: str = "",
        exactly_ms: int | None = None,
    ) -> Voice:
        return Voice(
            after_ms=random.randint(1, after_ms_max) if exactly_ms is None else exactly_ms,
            person=person,
            word=word,
            decision_id=f"d-{request.request_id[-8:]}-{person}-{random.getrandbits(40):x}",
            hash_text=hash_text,
            kind=kind,
            times=times,
            then=then,
            then_after_ms=random.choice((0, 0, 1, 500, 5_000)),
        )

    def late(self, request: ApprovalRequest) -> list[Voice]:
        """Who decides in the end on what nobody has decided."""
        word, persons = "truth", ("tess", "theo")[: request.quorum]
        if self._workload.profile.predictable and request.scope != "operation_outcome":
            return [replace(voice, after_ms=1) for voice in self._fated(request, None)]
        if request.scope == "question":
            voice = Voice(1, "tess", "respond", f"late-{request.request_id[-8:]}-tess")
            return [replace(voice, value_text=canonical_text(answers_to(request)[0]))]
        if request.scope != "operation_outcome":
            word = self._workload.word(request.run_id, request.scope, request.boundary)
        return [Voice(1, person, word, f"late-{request.request_id[-8:]}-{person}") for person in persons]


def answers_to(request: ApprovalRequest) -> tuple[object, object]:
    """An answer that fits the question, and one that does not."""
    return answer_to(request.content_text), answer_to(request.content_text, 1)
