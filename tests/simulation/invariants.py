"""Decides what must hold in every world, whatever goes wrong: the list that checkers and mutants share.

The numbers are those of the list of system invariants; `replay` and `expected` are of the simulation alone.
"""

from __future__ import annotations

INVARIANTS = {
    "I1": "a request has at most one outcome, and nobody votes after it",
    "I2": "what was told as accepted is recorded, for ever",
    "I3": "what was written once is never changed",
    "I4": "a request is a register that is set once: nothing rests on a stale read, and votes count as the quorum says",
    "I5": "a refusal is true: whoever is named as the winner has won",
    "I6": "one decision id has one answer, byte for byte, and means one decision",
    "I7": "nothing starts without its approval, after its revocation or its time, or in a run that has ended",
    "I8": "what is executed is what was approved, by hash",
    "I9": "an operation has at most one open attempt",
    "I10": "attempts, answers and messages of a conversation are numbered without gaps",
    "I11": "fences grow",
    "I12": "an effect happens at most once, by the promise of its class",
    "I13": "no false verdict: succeeded has its effect, not executed has none, now and later",
    "I14": "an end is an end",
    "I15": "every decision is consumed, and wakes whoever waits for it",
    "I16": "every committed message is published, and nothing else is; the outbox drains",
    "I17": "a message is applied at most once, and every step has its journal entry",
    "I18": "a timer fires, once, and not before its time",
    "I19": "nothing is accepted at or after its deadline",
    "I20": "nobody decides twice, and nobody on an own run",
    "I21": "nobody votes whose word was not signed by a known key, in every field",
    "I22": "tenants do not touch each other",
    "I23": "the audit chain is whole",
    "I24": "the referee decides nothing: without it, and however it lies, the facts are as true and the ends the same",
    "I25": "no secret is kept, sent, told or logged",
    "I26": "while a run waits for people nothing works for it",
    "I27": "attempts are bounded, and back-offs and deadlines are kept",
    "I28": "once the faults stop everything comes to its end",
    "I29": "whatever waits will be woken",
    "I30": "questions are conserved: asked, open or decided, each once",
    "I31": "what was shown is what is executed",
    "I32": "no rule raises and no loop ends: what fails, fails closed",
    "replay": "the journal gives the state, byte for byte",
    "expected": "a predictable run ends as computed, with every effect exactly once",
}
