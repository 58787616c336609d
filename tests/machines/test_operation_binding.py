"""One side effect: what of the program must be at its start as it was at the review, and what may have changed."""

from __future__ import annotations

from typing import Any

import pytest

from placet.activities import RunTool
from placet.canonical import canonical_text
from placet.errors import Code
from placet.rows import RequestRow
from tests.cases import case
from tests.machines.bench import RUN_ID, TENANT, invoked
from tests.machines.builders_operation import INPUT, OperationBench, a_call_request, done

CHANGES = ("tool's version", "tool's schema", "gates", "application")
BINDINGS = ("data", "tool", "policy", "release")
STALE = {"data": 0, "tool": 2, "policy": 3, "release": 4}
"""How many of these changes, from the first on, a binding does not bear."""


def changed(bench: OperationBench, what: str, **spec: Any) -> None:
    """Another version serves by now."""
    today = bench.spec.model_copy(update=spec)
    if what == "tool's version":
        today = today.model_copy(update={"version": "2"})
    elif what == "tool's schema":
        today = today.model_copy(update={"schema_digest": "1" * 64})
    elif what == "gates":
        bench.app.policy_version = "p2"
    else:
        bench.app.version = "app-2"
    bench.app.tools["deploy"] = today


@case("M51")
@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("what", CHANGES)
def test_an_approval_is_bound_to_as_much_as_the_tool_says(binding: str, what: str) -> None:
    bench = OperationBench(binding=binding)
    changed(bench, what)
    started = bench.give(bench.execute())
    if CHANGES.index(what) < STALE[binding]:
        failure = done(started).failure
        assert failure is not None
        assert failure.code is Code.APPROVAL_STALE_DECISION
        assert "propose the call again" in failure.message
        assert invoked(started) == []
    else:
        assert len(invoked(started, RunTool)) == 1


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_policy_allowed_a_moment_ago_is_bound_to_its_tool_alone(what: str) -> None:
    bench = OperationBench(binding="release", authority="policy")
    changed(bench, what)
    assert len(invoked(bench.give(bench.execute()), RunTool)) == (0 if what.startswith("tool") else 1)


@pytest.mark.parametrize("what", CHANGES)
def test_what_was_reviewed_under_todays_program_runs_whatever_was_first_proposed(what: str) -> None:
    """A question that came to the place of an earlier one names the versions it was put under."""
    bench = OperationBench(binding="release")
    changed(bench, what)
    today = bench.app.tools["deploy"]
    asked = a_call_request(
        tool_version=today.version,
        tool_schema_digest=today.schema_digest,
        policy_version=bench.app.policy_version,
        app_version=bench.app.version,
    )
    assert asked.request_id == bench.request.request_id, "nothing of it is hashed"
    bench.put(RequestRow(tenant=TENANT, run_id=RUN_ID, request=asked))
    assert len(invoked(bench.give(bench.execute()), RunTool)) == 1


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("loose", ["advisory", "volatile"])
def test_the_reviewed_input_runs_byte_for_byte_where_only_loose_fields_read_differently(
    binding: str, loose: str
) -> None:
    terms: dict[str, Any] = {loose: ("asked",)}
    bench = OperationBench(binding=binding, **terms)
    bench.app.schemas["deploy"] = lambda raw: {**raw, "asked": 8}
    [call] = invoked(bench.give(bench.execute()), RunTool)
    assert call.input_text == canonical_text(INPUT)


@pytest.mark.parametrize("binding", BINDINGS)
def test_a_load_bearing_field_that_reads_differently_is_stale_whatever_it_is_bound_to(binding: str) -> None:
    bench = OperationBench(binding=binding, volatile=("asked",))
    bench.app.schemas["deploy"] = lambda raw: {**raw, "asked": 8, "force": False}
    failure = done(bench.give(bench.execute())).failure
    assert failure is not None
    assert failure.code is Code.APPROVAL_STALE_DECISION
