"""Proves that a log line is one JSON object with everything that was told, and no password."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from placet.hosting import logs
from placet.settings import Settings

Told = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def restored() -> Iterator[None]:
    """The logging of the tests themselves, afterwards."""
    root, own = logging.getLogger(), logging.getLogger("placet")
    kept = (list(root.handlers), root.level, own.level)
    yield
    root.handlers[:] = kept[0]
    root.setLevel(kept[1])
    own.setLevel(kept[2])
    logging.captureWarnings(False)


@pytest.fixture
def stream(restored: None) -> io.StringIO:
    return io.StringIO()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_an_object_with_the_event_and_its_fields(stream: io.StringIO) -> None:
    logs.set_up("planner", Settings(), stream)
    logging.getLogger("placet.x").info("turn.done", extra={"run_id": "r1", "took_ms": 12})
    (line,) = lines(stream)
    expected = {"event": "turn.done", "level": "info", "logger": "placet.x", "service": "planner", "run_id": "r1"}
    assert line.items() >= (expected | {"took_ms": 12}).items()
    assert line["at"].endswith("+00:00")


def test_an_error_carries_its_traceback_on_the_same_line(stream: io.StringIO) -> None:
    logs.set_up("planner", Settings(), stream)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("placet.x").exception("went.wrong")
    (line,) = lines(stream)
    assert "ValueError: two\nlines" in line["error"]
    assert line["level"] == "error"


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_password_of_an_address_is_logged(stream: io.StringIO, form: Any) -> None:
    logs.set_up("planner", Settings(log_format=form), stream)
    url = "postgresql://planner:hush-hush@db:5432/placet"
    logging.getLogger("placet.x").error("cannot reach %s", url, extra={"what": f"tried {url}", "urls": [url]})
    try:
        raise OSError("no route to amqp://u:hush-hush@mq/v")
    except OSError:
        logging.getLogger("placet.x").exception("went.wrong")
    assert "hush" not in stream.getvalue()
    assert "planner:***@db" in stream.getvalue()


def test_the_level_is_ours_and_libraries_are_heard_from_warnings_on(stream: io.StringIO) -> None:
    logs.set_up("planner", Settings(log_level="info"), stream)
    logging.getLogger("aio_pika").info("chatter")
    logging.getLogger("aio_pika").warning("heard")
    logging.getLogger("placet.x").debug("quiet")
    logging.getLogger("placet.x").info("heard")
    assert [line["event"] for line in lines(stream)] == ["heard", "heard"]


def test_text_is_for_people(stream: io.StringIO) -> None:
    logs.set_up("planner", Settings(log_format="text"), stream)
    logging.getLogger("placet.x").warning("turn.done", extra={"run_id": "r1"})
    assert stream.getvalue().endswith("WARNING turn.done run_id=r1\n")


def test_what_cannot_be_json_is_told_all_the_same(stream: io.StringIO) -> None:
    logs.set_up("planner", Settings(), stream)
    logging.getLogger("placet.x").info("odd", extra={"value": {1, 2}, "service": "other"})
    (line,) = lines(stream)
    assert line["value"] == "{1, 2}"
    assert line["service"] == "planner", "the line's own names are not overwritten"


def test_setting_up_twice_writes_once(stream: io.StringIO) -> None:
    logs.set_up("planner", Settings(), stream)
    logs.set_up("planner", Settings(), stream)
    logging.getLogger("placet.x").info("once")
    assert len(lines(stream)) == 1
