"""Dead letters by command: list them, look at one, send it again."""

from __future__ import annotations

from tests.cli.conftest import Placet
from tests.gateway.test_letters import REFUSED, RETURNED, applied
from tests.gateway.world import World


def test_there_may_be_none(placet: Placet) -> None:
    assert placet("dead-letters", "list").out == "There are no dead letters.\n"


def test_each_is_listed_with_its_reason_and_shown_with_its_message(world: World, placet: Placet) -> None:
    world.add_letter(RETURNED)
    listed = placet("dead-letters", "list")
    assert "dead_1" in listed.out
    assert "no such operation" in listed.out
    shown = placet("dead-letters", "show", "dead_1")
    assert '"tool.returned"' in shown.out
    assert "not yet" in shown.out
    assert "placet dead-letters redrive dead_1" in shown.err
    assert placet("dead-letters", "show", "dead_1", "--json").document["applied"] is False


def test_one_is_sent_again(world: World, placet: Placet) -> None:
    world.add_letter(RETURNED)
    world.silent = True
    result = placet("dead-letters", "redrive", "dead_1")
    assert (result.code, result.out) == (0, "sent: msg_1\n")
    applied(world)
    assert placet("dead-letters", "redrive", "dead_1", "--json").document["answer"] == "applied"
    assert len(world.asked) == 1


def test_one_that_is_still_refused_says_why(world: World, placet: Placet) -> None:
    world.add_letter(RETURNED)
    world.scripted.append(REFUSED)
    result = placet("dead-letters", "redrive", "dead_1")
    assert (result.code, "still not there" in result.err) == (1, True)
    assert placet("dead-letters", "redrive", "dead_9").code == 1


def test_what_came_by_the_broker_says_whence_and_shows_no_byte_that_a_terminal_would_obey(
    world: World, placet: Placet
) -> None:
    world.add_letter(RETURNED)
    world.letters[0] |= {
        "run_id": "",
        "queue": "placet.ingress.submissions",
        "about": {"user_id": "mallory", "exchange": "placet.submissions", "content_type": "text/plain"},
        "body": "\\xff\x1b[2J\u202e",
        "body_base64": "/w==",
    }
    shown = placet("dead-letters", "show", "dead_1")
    assert "placet.ingress.submissions, user_id mallory, exchange placet.submissions" in shown.out
    assert not {"\x1b", "\u202e"} & set(shown.out)
    assert "It is no text" in shown.err
    assert placet("dead-letters", "show", "dead_1", "--json").document["body_base64"] == "/w=="
    assert "dead_1" in placet("dead-letters", "list").out
