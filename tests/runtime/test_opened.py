"""Proves that a state is parsed once in a process, and that nothing but equal bytes lets it be used again."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from placet.ids import Address
from placet.machine import State
from placet.runtime.opened import OpenedStates


class Counted(State):
    count: int = 0


class Other(State):
    count: int = 0


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
    with pytest.raises(ValidationError):
        opened.read(Counted, at(), b"{}")
    assert opened.read(Counted, at(), a_state(1).json_bytes()) == a_state(1)


def test_only_the_last_states_are_kept() -> None:
    opened, body = OpenedStates(states_max=2), a_state(1).json_bytes()
    kept = [opened.read(Counted, at(run_id), body) for run_id in ("r-1", "r-2", "r-3")]
    assert opened.read(Counted, at("r-2"), body) is kept[1]
    assert opened.read(Counted, at("r-3"), body) is kept[2]
    assert opened.read(Counted, at("r-1"), body) is not kept[0]
