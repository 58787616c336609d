"""Decides the form of every value that is stored or sent: frozen, closed, strict pydantic models.

Also the small values that many messages share: who somebody is, what a model used.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, StringConstraints

from placet import limits

_set = object.__setattr__


class Value(BaseModel):
    """Base of all values: immutable, no unknown fields, no coercion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic's, in a third of the time: a step of a machine copies states dozens of times.

        A value has no extra fields, so that its dictionary and the names of its given fields are all there is.
        """
        if deep or self.__pydantic_private__ is not None:
            return super().model_copy(update=update, deep=deep)
        changed = update or {}
        return type(self).unchecked({**self.__dict__, **changed}, self.__pydantic_fields_set__ | changed.keys())

    @classmethod
    def unchecked(cls, fields: dict[str, Any], given: set[str]) -> Self:
        """The value with these fields: all there are, in their order. As `model_construct`, without its search for
        defaults and aliases. `fields` is kept, so nobody else may.
        """
        value = object.__new__(cls)
        _set(value, "__dict__", fields)
        _set(value, "__pydantic_fields_set__", given)
        _set(value, "__pydantic_extra__", None)
        _set(value, "__pydantic_private__", None)
        return value

    @classmethod
    def trusted(cls, **fields: Any) -> Self:
        """As the constructor, of parts that were checked when they were made: every field, in the order of the class.

        For what machines build by the dozen. Tests hold its uses to what the constructor says of the same fields.
        """
        return cls.unchecked(fields, set(fields))

    def json_bytes(self) -> bytes:
        """As `model_dump_json`, in UTF-8."""
        return self.__pydantic_serializer__.to_json(self)


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
PoolName = Annotated[str, StringConstraints(pattern=r"^([a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?)?$")]
"""A pool of tool executors, a part of the names of its queues; empty: the common one."""
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
