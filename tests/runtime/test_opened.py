"""Proves that a state is parsed once in a process, and that nothing but equal bytes lets it be used again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

from placet.errors import Code, TerminalError
from placet.ids import Address
from placet.machine import State, Upgrader
from placet.runtime.opened import OpenedStates
from tests.cases import case


class Counted(State):
    count: int = 0


class Other(State):
    count: int = 0


class CountedOfTwo(State):
    upgraders: ClassVar[Mapping[int, Upgrader]] = {1: lambda old: old}
    count: int = 0
    schema_version: int = 2


def at(run_id: str = "r-1") -> Address:
    return Address(run_id, "toy", "")


def a_state(count: int) -> Counted:
    return Counted(tenant="t", run_id="r-1", status="open", count=count)


def test_the_bytes_that_were_written_are_the_state_they_were_written_from() -> None:
    opened, state = OpenedStates(), a_state(1)
    opened.keep(at(), state.json_bytes(), state)
    assert opened.read(Counted, at(), bytes(bytearray(state.json_bytes()))) is state


def test_what_was_parsed_is_not_parsed_again() -> None:
    opened, body = OpenedStates(), a_state(2).json_bytes()
    first = opened.read(Counted, at(), body)
    assert first == a_state(2)
    assert opened.read(Counted, at(), body) is first


def test_what_another_process_has_written_meanwhile_is_read() -> None:
    opened = OpenedStates()
    opened.keep(at(), a_state(1).json_bytes(), a_state(1))
    assert opened.read(Counted, at(), a_state(3).json_bytes()) == a_state(3)


def test_equal_bytes_of_another_machines_state_are_read_as_that() -> None:
    opened, body = OpenedStates(), a_state(1).json_bytes()
    opened.keep(at(), body, a_state(1))
    assert type(opened.read(Other, at(), body)) is Other


def test_bytes_that_are_no_state_are_refused_whatever_is_known() -> None:
    opened = OpenedStates()
    opened.keep(at(), a_state(1).json_bytes(), a_state(1))
    with pytest.raises(TerminalError) as raised:
        opened.read(Counted, at(), b"{}")
    assert raised.value.code is Code.CHECKPOINT_CORRUPT
    assert opened.read(Counted, at(), a_state(1).json_bytes()) == a_state(1)


def test_only_the_last_states_are_kept() -> None:
    opened = OpenedStates(states_max=2)

    def read(run_id: str) -> State:
        return opened.read(Counted, at(run_id), a_state(1).model_copy(update={"run_id": run_id}).json_bytes())

    kept = [read(run_id) for run_id in ("r-1", "r-2", "r-3")]
    assert read("r-2") is kept[1]
    assert read("r-3") is kept[2]
    assert read("r-1") is not kept[0]


@case("D02")
def test_a_state_of_another_run_is_not_taken_for_this_one() -> None:
    with pytest.raises(TerminalError) as raised:
        OpenedStates().read(Counted, at("r-2"), a_state(1).json_bytes())
    assert raised.value.code is Code.CHECKPOINT_CORRUPT


def test_what_an_older_program_wrote_is_said_to_be_upgraded_until_it_is_written_again() -> None:
    opened, old = OpenedStates(), a_state(1)
    new = opened.read(CountedOfTwo, at(), old.json_bytes())
    assert opened.read(CountedOfTwo, at(), old.json_bytes()) is new
    assert opened.was_upgraded(at())
    opened.keep(at(), new.json_bytes(), new)
    assert not opened.was_upgraded(at())
    assert not OpenedStates().was_upgraded(at())
