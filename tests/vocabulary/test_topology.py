"""Proves what the broker is asked to hold: nothing lost, nothing unbounded, everybody reachable, outsiders apart."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from placet.errors import Code, ContractError, InvariantError
from placet.messages import OPERATION, RUN, ApprovalDecided, CancelOperation
from placet.topology import (
    DEAD_QUEUE,
    DECISIONS_EXCHANGE,
    DISPATCHER,
    EVENTS,
    EVENTS_EXCHANGE,
    PACK_MAX,
    PREFIX,
    QUEUES,
    RESUME,
    SUBMISSIONS_EXCHANGE,
    TOOL_EXECUTOR,
    WORK_EXCHANGE,
    Route,
    make_topology,
    queue_of,
    tool_pool,
)

TOPOLOGY = make_topology(["gpu"])


@pytest.mark.parametrize("destination", [*QUEUES, tool_pool("gpu")])
def test_every_destination_reaches_exactly_the_queues_of_the_service_that_serves_it(destination: str) -> None:
    for message_type in ("turn.take", "operation.execute", "operation.cancel"):
        route = TOPOLOGY.route(destination, message_type)
        reached = [b.queue for b in TOPOLOGY.bindings if (b.exchange, b.key) == (route.exchange, route.key)]
        consumed = [source.queue for source in TOPOLOGY.sources[destination] if not source.public]
        assert len(reached) == 1
        assert reached[0] in consumed
        assert route.mandatory


def test_every_queue_is_consumed_by_one_service_but_the_one_for_dead_letters() -> None:
    consumed = [source.queue for sources in TOPOLOGY.sources.values() for source in sources]
    assert sorted([*consumed, DEAD_QUEUE]) == sorted(queue.name for queue in TOPOLOGY.queues)


def test_the_queues_of_outsiders_are_told_from_all_others_by_what_is_bound_to_them() -> None:
    theirs = (SUBMISSIONS_EXCHANGE, DECISIONS_EXCHANGE)
    assert TOPOLOGY.public_queues == {bound.queue for bound in TOPOLOGY.bindings if bound.exchange in theirs}
    assert TOPOLOGY.public_queues == {"placet.ingress.submissions", "placet.ingress.decisions"}, (
        "others publish by name"
    )


@pytest.mark.parametrize("queue", TOPOLOGY.queues, ids=lambda queue: queue.name)
def test_no_queue_loses_a_message_or_grows_without_bound(queue) -> None:
    arguments = queue.arguments()
    assert arguments["x-queue-type"] == "quorum"
    assert arguments["x-overflow"] == "reject-publish"
    assert int(arguments["x-max-length"]) > 0
    assert int(arguments["x-max-length-bytes"]) > 0
    assert int(arguments["x-delivery-limit"]) > 0
    if queue.name == DEAD_QUEUE:
        assert "x-dead-letter-exchange" not in arguments, "the last queue of all has nowhere to send anything"
        assert int(arguments["x-delivery-limit"]) > 1_000_000, "looking at it never uses it up"
    else:
        assert arguments["x-dead-letter-strategy"] == "at-least-once"
        assert [b.queue for b in TOPOLOGY.bindings if b.exchange == arguments["x-dead-letter-exchange"]] == [DEAD_QUEUE]


def test_outsiders_write_to_exchanges_of_their_own_that_reach_nothing_else() -> None:
    for exchange, key in ((SUBMISSIONS_EXCHANGE, "run.submit"), (DECISIONS_EXCHANGE, "approval.decide")):
        (binding,) = [binding for binding in TOPOLOGY.bindings if binding.exchange == exchange]
        assert binding.key == key
        (source,) = [s for sources in TOPOLOGY.sources.values() for s in sources if s.queue == binding.queue]
        assert source.public


def test_a_signal_for_a_running_tool_does_not_wait_behind_calls_that_wait_for_a_place() -> None:
    starts, signals = (TOPOLOGY.route(TOOL_EXECUTOR, kind) for kind in ("operation.execute", "operation.cancel"))
    throttled = {source.queue: source.throttled for source in TOPOLOGY.sources[TOOL_EXECUTOR]}
    assert throttled[PREFIX + starts.key]
    assert not throttled[PREFIX + signals.key]
    assert starts.pack_max < signals.pack_max == PACK_MAX
    assert TOPOLOGY.route(f"{TOOL_EXECUTOR}.control", "operation.cancel") == signals, "also when it is passed on"


def test_an_event_is_published_by_its_name_and_may_have_no_listener() -> None:
    assert TOPOLOGY.route(EVENTS, "run.ended") == Route(EVENTS_EXCHANGE, "run.ended", pack_max=1, mandatory=False)


def test_a_destination_that_nobody_serves_is_named() -> None:
    for nobody in ("reviewer", "tool-executor.", "tool-executor.a b"):
        with pytest.raises(InvariantError, match=nobody):
            TOPOLOGY.route(nobody, "operation.execute")


def test_a_pool_that_is_not_set_up_here_is_an_address_all_the_same() -> None:
    elsewhere = make_topology(["tpu"])
    for kind in ("operation.execute", "operation.cancel"):
        assert TOPOLOGY.route(tool_pool("tpu"), kind) == elsewhere.route(tool_pool("tpu"), kind)


@pytest.mark.parametrize("name", ["", "GPU", "a b", "a.b", "ä", "control", "-a", "a-", "a\n", "a" * 65])
def test_a_pool_is_named_by_a_plain_word(name: str) -> None:
    with pytest.raises(ContractError) as caught:
        make_topology([name])
    assert caught.value.code is Code.SETTING_INVALID


def test_what_is_for_an_operation_goes_to_the_pool_that_it_names() -> None:
    names: dict[str, Any] = {"tenant": "acme", "run_id": "run-1"}
    assert queue_of(CancelOperation(**names, operation_id="op_1", reason="", pool="gpu")) == tool_pool("gpu")
    answer: dict[str, Any] = {"request_id": "apr_1", "outcome": "executed", "asker_key": "op_1", "asker_pool": "gpu"}
    assert queue_of(ApprovalDecided(**names, **answer, asker_machine=OPERATION)) == tool_pool("gpu")
    assert queue_of(ApprovalDecided(**names, **answer, asker_machine=RUN)) == RESUME


@pytest.mark.parametrize("pool", ["gpu.control", "GPU", "a b", "-", "a\n"])
def test_a_message_cannot_name_a_queue_by_its_pool(pool: str) -> None:
    with pytest.raises(ValidationError):
        CancelOperation(tenant="acme", run_id="run-1", operation_id="op_1", reason="", pool=pool)


def test_the_marker_names_the_topology_and_changes_with_it() -> None:
    assert make_topology(["gpu"]).marker() == TOPOLOGY.marker()
    assert make_topology().marker() != TOPOLOGY.marker()
    assert TOPOLOGY.marker().startswith(PREFIX)
    assert TOPOLOGY.route(DISPATCHER, "run.submit").exchange == WORK_EXCHANGE
