"""Which part of an input an approval rests on, and what else of a tool it is bound to."""

from __future__ import annotations

from typing import Any

import pytest

from placet import App, ContractError, ToolContext
from placet.calls import ToolSpec
from placet.canonical import canonical_text
from placet.hash_scope import load_bearing, reads_as_reviewed
from tests.builders import a_tool
from tests.cases import case

LOOSE = a_tool(advisory=("note",), volatile=("asked",))
GIVEN = {"env": "staging", "note": "please", "asked": 7, "deep": {"note": 1}}


def test_every_field_is_load_bearing_unless_it_is_declared() -> None:
    assert load_bearing(a_tool(), GIVEN) == GIVEN
    assert load_bearing(LOOSE, GIVEN) == {"env": "staging", "deep": {"note": 1}}, "at the top only"


@pytest.mark.parametrize(
    ("change", "plain", "loose"),
    [
        ({}, True, True),
        ({"note": "hurry"}, False, True),
        ({"asked": 8}, False, True),
        ({"env": "production"}, False, False),
        ({"deep": {"note": 2}}, False, False),
        ({"force": True}, False, False),
    ],
)
def test_what_reads_differently_counts_where_it_is_load_bearing(
    change: dict[str, Any], plain: bool, loose: bool
) -> None:
    reviewed = canonical_text(GIVEN)
    assert reads_as_reviewed(a_tool(), {**GIVEN, **change}, reviewed) is plain
    assert reads_as_reviewed(LOOSE, {**GIVEN, **change}, reviewed) is loose


def test_a_loose_field_that_is_gone_or_new_makes_no_other_call() -> None:
    less = {name: value for name, value in GIVEN.items() if name not in ("note", "asked")}
    assert reads_as_reviewed(LOOSE, less, canonical_text(GIVEN))
    assert reads_as_reviewed(LOOSE, GIVEN, canonical_text(less))


def spec_of(default: str = "thanks", **terms: Any) -> ToolSpec:
    app = App("desk", version="1")

    @app.tool("pay", effect="idempotent", **terms)
    def pay(ctx: ToolContext, customer: str, note: str = default) -> None:
        """Pay."""

    return pay.spec


@case("A20", "D13")
def test_version_and_schema_of_a_tool_are_of_what_is_load_bearing() -> None:
    plain, loose = spec_of(), spec_of(advisory=["note"])
    assert plain.schema_digest != spec_of("many thanks").schema_digest
    for name in ("schema_digest", "version"):
        assert getattr(loose, name) == getattr(spec_of("many thanks", advisory=["note"]), name)
        assert len({getattr(s, name) for s in (plain, loose, spec_of(volatile=["note"]))}) == 3, "how is said, is said"


def test_an_approval_is_bound_to_what_the_application_says_and_the_tool_may_say_otherwise() -> None:
    def bound(app: App, **terms: Any) -> str:
        @app.tool("pay", effect="idempotent", **terms)
        def pay(ctx: ToolContext) -> None:
            """Pay."""

        return pay.spec.binding

    assert bound(App("desk")) == "policy"
    assert bound(App("desk", version="1")) == "release"
    assert bound(App("desk", version="1", binding="data")) == "data"
    assert bound(App("desk", binding="data"), binding="release") == "release"


@pytest.mark.parametrize(
    ("terms", "told"),
    [
        ({"advisory": ["nobody"]}, "advisory of tool 'pay': it has no parameter 'nobody'"),
        ({"volatile": "note"}, "a list is needed"),
        ({"advisory": ["note", "note"]}, "stands there twice"),
        ({"advisory": ["note"], "volatile": ["note"]}, "advisory or volatile, not both"),
        ({"binding": "hope"}, "binding of tool 'pay' is one of data, tool, policy, release"),
    ],
)
def test_a_declaration_that_is_none_is_refused(terms: dict[str, Any], told: str) -> None:
    with pytest.raises(ContractError, match=told):
        spec_of(**terms)
    with pytest.raises(ContractError, match="binding of application"):
        App("desk", binding="hope")  # type: ignore[arg-type]
