"""Decides the form of every value that is stored or sent: frozen, closed, strict pydantic models.

Also the small values that many messages share: who somebody is, what a model used.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

from placet import limits


class Value(BaseModel):
    """Base of all values: immutable, no unknown fields, no coercion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


Name = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=limits.NAME_CHARS_MAX,
        pattern=r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$",  # NUL is no blank
    ),
]
"""A tool, agent, team, task or person: not blank, one line."""
RunId = Annotated[
    str, StringConstraints(min_length=1, max_length=limits.RUN_ID_CHARS_MAX, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$")
]
"""A run's identity, stable from submission to the last continuation. Safe in URLs, file names and ids."""
Text = Annotated[str, StringConstraints(max_length=limits.TEXT_CHARS_MAX, pattern=r"^[^\x00]*$")]
"""Prose: bounded, without NUL (which PostgreSQL text cannot hold)."""


class PrincipalKind(StrEnum):
    """Only a human can vote (DESIGN §7)."""

    HUMAN = "human"
    SERVICE = "service"
    AGENT = "agent"
    POLICY = "policy"


class Principal(Value):
    """An authenticated identity. `id` names the person, not the account: separation of duties is by person."""

    kind: PrincipalKind
    id: Name
    display_name: str | None = None


class Usage(Value):
    """Tokens; adds up over attempts."""

    input_tokens: int = 0
    output_tokens: int = 0

    def plus(self, other: Usage) -> Usage:
        """The sum."""
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
        )
