"""What a tool takes: its schema from its types, and one form of input that is shown, hashed and run."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from placet import App, ContractError, ToolContext
from placet.canonical import canonical_text, digest
from placet.errors import Code, Failure
from tests.vocabulary.apps import an_app, line_of

PAIRS = json.loads((Path(__file__).parent / "golden" / "args_equal_pairs.json").read_text())


def ticket_app() -> App:
    app = an_app()

    @app.tool(effect="idempotent")
    def set_ticket(ctx: ToolContext, id: int, active: bool = False, tags: list[str] = []) -> None:  # noqa: A002, B006
        """The tool of args_equal_pairs.json."""

    return app


@pytest.mark.parametrize("pair", PAIRS["pairs"], ids=lambda pair: canonical_text(pair["right"]))
def test_equal_calls_are_one_call_and_nothing_is_cast(pair: dict[str, Any]) -> None:
    app = ticket_app()
    left = app.validate_input("set_ticket", pair["left"])
    right = app.validate_input("set_ticket", pair["right"])
    assert left == {"id": 7, "active": False, "tags": []}
    if "same" in pair["expect"]:
        assert canonical_text(left) == canonical_text(right)
    elif pair["expect"] == "different digest":
        assert not isinstance(right, Failure)
        assert digest(left) != digest(right)
    else:
        assert isinstance(right, Failure)
        assert right.code is Code.TOOL_INPUT_INVALID
        assert right.pointer == ("/force" if "force" in pair["right"] else "/id")


@pytest.mark.parametrize(
    ("raw", "pointer"),
    [
        ({}, "/id"),
        ({"id": True}, "/id"),
        ({"id": 1.5}, "/id"),
        ({"id": 2**53}, "/id"),
        ({"id": 1, "tags": ["a", 2]}, "/tags/1"),
        ({"id": 1, "tags": ["\ud800"]}, "/tags/0"),
        ({"id": 1, "active": None}, "/active"),
        ({"id": 1, "a/b": 2}, "/a~1b"),
    ],
)
def test_wrong_input_is_told_with_a_pointer(raw: dict[str, Any], pointer: str) -> None:
    failure = ticket_app().validate_input("set_ticket", raw)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.pointer) == (Code.TOOL_INPUT_INVALID, pointer)


def test_input_beyond_the_bound_of_what_a_person_can_read_is_refused() -> None:
    failure = ticket_app().validate_input("set_ticket", {"id": 1, "tags": ["x" * 300_000]})
    assert isinstance(failure, Failure)
    assert "larger than" in failure.message


def test_an_unknown_tool_is_told_apart_from_wrong_input() -> None:
    failure = ticket_app().validate_input("nothing", {})
    assert isinstance(failure, Failure)
    assert failure.code is Code.TOOL_UNKNOWN


class Place(BaseModel):
    """Drops unknown fields when read by itself."""

    city: str
    zone: float = 1


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def rich_app() -> App:
    app = an_app()

    def book(
        ctx: ToolContext,
        place: Place,
        at: datetime,
        price: Decimal = Decimal("1.50"),
        colour: Colour = Colour.RED,
        key: UUID | None = None,
        schema: dict[str, int] | None = None,
        _hidden: int | str = 0,
    ) -> None: ...

    app.tool(effect="read_only")(book)
    return app


RICH = {"place": {"city": "Bern"}, "at": "2026-08-08T12:00:00+02:00"}


def test_types_that_json_lacks_are_read_from_their_text_and_written_back_the_same() -> None:
    app = rich_app()
    checked = app.validate_input("book", RICH)
    assert checked == {
        "place": {"city": "Bern", "zone": 1},
        "at": "2026-08-08T12:00:00+02:00",
        "price": "1.50",
        "colour": "red",
        "key": None,
        "schema": None,
        "_hidden": 0,
    }
    assert app.validate_input("book", checked) == checked
    arguments = app.tools["book"].input.arguments(canonical_text(checked))
    assert arguments["place"] == Place(city="Bern")
    assert arguments["colour"] is Colour.RED
    assert arguments["at"].utcoffset().total_seconds() == 7_200


def test_a_nested_model_may_not_drop_fields_in_silence() -> None:
    failure = rich_app().validate_input("book", RICH | {"place": {"city": "Bern", "force": True}})
    assert isinstance(failure, Failure)
    assert failure.pointer == "/place/force"


WHOLE: st.SearchStrategy[Any] = st.integers(-(2**53) + 1, 2**53 - 1) | st.integers(-(10**15), 10**15).map(float)
TAGS: st.SearchStrategy[Any] = st.lists(st.text(st.characters(exclude_categories=["Cs"])))


@given(st.fixed_dictionaries({"id": WHOLE}, optional={"active": st.booleans(), "tags": TAGS}))
def test_validating_what_was_validated_changes_nothing(raw: dict[str, Any]) -> None:
    app = ticket_app()
    once = app.validate_input("set_ticket", raw)
    assert isinstance(once, dict)
    assert app.validate_input("set_ticket", once) == once
    assert canonical_text(app.validate_input("set_ticket", json.loads(canonical_text(once)))) == canonical_text(once)


def test_a_validator_that_changes_its_own_result_is_refused() -> None:
    app = an_app()

    def shout(ctx: ToolContext, text: Annotated[str, AfterValidator(lambda text: text + "!")]) -> None: ...

    shout.__annotations__["text"] = Annotated[str, AfterValidator(lambda text: text + "!")]
    app.tool(effect="read_only")(shout)
    failure = app.validate_input("shout", {"text": "a"})
    assert isinstance(failure, Failure)
    assert "do not read their own output back" in failure.message


def test_a_validator_that_breaks_refuses_the_call_and_not_the_machine() -> None:
    app = an_app()

    def look(ctx: ToolContext, key: str) -> None: ...

    look.__annotations__["key"] = Annotated[str, AfterValidator(lambda key: {}[key])]
    app.tool(effect="read_only")(look)
    failure = app.validate_input("look", {"key": "a"})
    assert isinstance(failure, Failure)
    assert "a validator raised KeyError" in failure.message


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    n: int


def no_context(n: int) -> None: ...
def untyped_context(ctx, n: int) -> None: ...
def untyped(ctx: ToolContext, n) -> None: ...
def any_number(ctx: ToolContext, *n: int) -> None: ...
def any_names(ctx: ToolContext, **n: int) -> None: ...
def positional(ctx: ToolContext, n: int, /) -> None: ...
def unordered(ctx: ToolContext, n: set[int]) -> None: ...
def unordered_within(ctx: ToolContext, n: dict[str, frozenset[str]]) -> None: ...
def secret(ctx: ToolContext, password: SecretStr) -> None: ...
def loose(ctx: ToolContext, n: Loose) -> None: ...
def no_schema(ctx: ToolContext, n: Callable[[], int]) -> None: ...
def foreign(ctx: ToolContext, n: App) -> None: ...
def missing_type(ctx: ToolContext, n: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def wrong_default(ctx: ToolContext, n: int = "1") -> None: ...  # type: ignore[assignment]
def not_a_number(ctx: ToolContext, n: float = float("nan")) -> None: ...
def field_default(ctx: ToolContext, n: int = Field(3)) -> None: ...
def yields(ctx: ToolContext) -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (no_context, "first parameter must be `ctx: ToolContext`"),
        (untyped_context, "first parameter must be `ctx: ToolContext`"),
        (untyped, "'n' has no type"),
        (any_number, "name each one"),
        (any_names, "name each one"),
        (positional, "positional-only"),
        (unordered, "use a list"),
        (unordered_within, "use a list"),
        (secret, "a secret is no input"),
        (loose, "cannot be closed"),
        (no_schema, "no JSON schema"),
        (foreign, "no JSON schema"),
        (missing_type, "import it outside `if TYPE_CHECKING`"),
        (wrong_default, "the default of 'n' does not fit its type"),
        (not_a_number, "the default of 'n' does not fit its type"),
        (field_default, "write `Annotated[type, Field(…)] = default`"),
        (yields, "yields"),
    ],
)
def test_a_signature_without_a_sound_schema_is_refused(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(ContractError) as refused:
        an_app().tool(effect="read_only", consequential=True)(function)
    assert says in line_of(refused)
