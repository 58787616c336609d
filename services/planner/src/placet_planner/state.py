"""Decides what is kept of a conversation: how far it is, not what was said. What was said are rows."""

from __future__ import annotations

from typing import Literal

from placet.activities import CallModel
from placet.instants import Instant
from placet.machine import State
from placet.messages import Purpose
from placet.values import Usage

Status = Literal["idle", "calling", "waiting", "failed", "closed"]


class ThreadState(State):
    """One agent's conversation, and the turn it is in."""

    status: Status
    thread_id: str
    team: str = ""
    agent: str = ""
    purpose: Purpose = "work"
    turn: int = 0
    """The turn in work, or the last one that was."""
    asked: str = ""
    """Digest of what that turn was asked: the same number with another content is another turn."""
    messages: int = 0
    """Rows of the conversation."""
    attempt: int = 0
    """Model calls of this turn: corrections, retries and lost ones alike."""
    failures: int = 0
    """Calls of this turn that failed. Those whose worker was lost are not among them."""
    corrections: int = 0
    """Replies of this turn that could not be used and were given back."""
    usage: Usage = Usage()
    """Tokens of this turn, over all its attempts."""
    lease_until_ms: Instant = Instant(0)
    incarnation: int = 0
    due_ms: Instant = Instant(0)
    """Before this instant no next attempt begins."""
    lost: int = 0
    """Attempts of this turn that were interrupted: whoever made them did not report."""
    stop: int = 0
    """The last turn that a user has interrupted."""
    handle: str = ""
    """The live session that the conversation hangs on."""
    partial_text: str = ""
    """What had come of the last turn's reply when it was stopped: evidence, no part of the conversation."""

    @property
    def in_turn(self) -> bool:
        """Whether a turn is in work."""
        return self.status in ("calling", "waiting")

    def believed_lost(self, now_ms: Instant, incarnation: int) -> bool:
        """Whether whoever called the model is gone: its lease has ended, or the store has had another owner since."""
        return now_ms >= self.lease_until_ms or incarnation > self.incarnation

    def call(self, timeout_ms: int) -> CallModel:
        """The model call of the current attempt."""
        return CallModel.trusted(
            tenant=self.tenant,
            run_id=self.run_id,
            activity="model.call",
            thread_id=self.thread_id,
            turn=self.turn,
            attempt=self.attempt,
            purpose=self.purpose,
            team=self.team,
            agent=self.agent,
            messages=self.messages,
            timeout_ms=timeout_ms,
            handle=self.handle,
        )
