"""Proves that the wire holds every message, reads it strictly, and says precisely what is wrong with a bad one."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from placet import addressees, approval_messages, freezing, messages
from placet.errors import Code, ContractError
from placet.ids import Address
from placet.messages import Envelope, Message, SubmitRun, decode_envelope
from placet.topology import QUEUES, queue_of
from placet.values import Principal, PrincipalKind

UNION = get_args(get_args(messages.AnyMessage)[0])
BASES = {
    messages.Message,
    messages.RunMessage,
    messages.ThreadMessageBase,
    messages.OperationMessage,
    messages.ApprovalMessage,
}


MODULES = {messages.__name__, addressees.__name__, approval_messages.__name__, freezing.__name__}


def concrete(base: type[Message]) -> set[type[Message]]:
    found = {base} - BASES
    return found.union(*(concrete(sub) for sub in base.__subclasses__() if sub.__module__ in MODULES))


def a_submission(**changes: Any) -> SubmitRun:
    fields: dict[str, Any] = {
        "tenant": "acme",
        "run_id": "run-1",
        "team": "release",
        "goal": "cut a release",
        "initiator": Principal(kind=PrincipalKind.HUMAN, id="alice"),
    }
    return SubmitRun(**{**fields, **changes})


def test_every_message_is_in_the_union() -> None:
    assert concrete(Message) == set(UNION)


def test_every_message_type_has_one_name_that_says_whose_it_is() -> None:
    names = [message.model_fields["type"].default for message in UNION]
    assert len(names) == len(set(names))
    assert all(name.count(".") == 1 for name in names)


def test_an_envelope_comes_back_from_the_wire_as_it_went() -> None:
    envelope = Envelope(id="msg_1", cause="msg_0", reply_to="r", message=a_submission())
    assert decode_envelope(envelope.encode()) == envelope
    assert decode_envelope(envelope.encode()).encode() == envelope.encode()


def test_a_message_knows_its_state_and_its_queue() -> None:
    submission = a_submission()
    assert submission.to() == Address("run-1", "run", "")
    assert queue_of(submission) == "dispatcher"
    decided = messages.ApprovalDecided(
        tenant="acme", run_id="run-1", request_id="apr_1", outcome="approved", asker_machine="run", asker_key=""
    )
    assert queue_of(decided) == "resume"
    assert set(QUEUES) == {"dispatcher", "resume", "planner", "tool-executor", "approval"}


def wire(**changes: Any) -> bytes:
    value = json.loads(Envelope(id="msg_1", message=a_submission()).encode())
    for path, change in changes.items():
        target = value
        *parents, last = path.split("__")
        for parent in parents:
            target = target[parent]
        if change is ...:
            del target[last]
        else:
            target[last] = change
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("data", "code", "pointer"),
    [
        (b"", Code.JSON_SYNTAX, None),
        (b"{", Code.JSON_SYNTAX, None),
        (b"null", Code.MESSAGE_INVALID, ""),
        (b"[]", Code.MESSAGE_INVALID, ""),
        (b'"x"', Code.MESSAGE_INVALID, ""),
        (b'{"type":"task.ready"}', Code.MESSAGE_INVALID, "/id"),
        (b"\xff\xfe\x00A", Code.JSON_TEXT, None),
        (b"\x80", Code.JSON_TEXT, None),
        (b"\x00", Code.JSON_SYNTAX, None),
        (wire(v=999), Code.VERSION_UNSUPPORTED, "/v"),
        (wire(message__type="no.such.type"), Code.MESSAGE_INVALID, "/message"),
        (wire(message__run_id=...), Code.MESSAGE_INVALID, "/message/run.submit/run_id"),
        (wire(message__run_id=7), Code.MESSAGE_INVALID, "/message/run.submit/run_id"),
        (wire(message__run_id="two\nlines"), Code.MESSAGE_INVALID, "/message/run.submit/run_id"),
        (wire(message__run_id="r" * 129), Code.MESSAGE_INVALID, "/message/run.submit/run_id"),
        (wire(message__goal="nul \u0000"), Code.MESSAGE_INVALID, "/message/run.submit/goal"),
        (wire(message__extra=1), Code.MESSAGE_INVALID, "/message/run.submit/extra"),
        (wire(message__timeout_ms="10"), Code.MESSAGE_INVALID, "/message/run.submit/timeout_ms"),
        (wire(id=""), Code.MESSAGE_INVALID, "/id"),
    ],
)
def test_a_bad_message_is_refused_with_its_code_and_the_place(data: bytes, code: Code, pointer: str | None) -> None:
    with pytest.raises(ContractError) as raised:
        decode_envelope(data)
    assert raised.value.code == code
    if pointer is not None:
        assert raised.value.pointer == pointer


def test_a_run_id_of_128_characters_is_accepted() -> None:
    assert decode_envelope(wire(message__run_id="r" * 128)).message.run_id == "r" * 128
