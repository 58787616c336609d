"""Proves in which order the door for published decisions refuses, and that it opens what was signed, no more."""

from __future__ import annotations

from typing import Any

import pytest

from placet import limits
from placet.adapters.rabbitmq.deciding import DecisionDoor
from placet.adapters.rabbitmq.wire import Incoming, ReturnAddress
from placet.errors import Code, ContractError
from placet.keys import RegisteredKey
from placet.messages import DecideApproval
from placet.signatures import with_value
from placet.topology import DECIDE_KEY, DECISIONS_EXCHANGE
from tests.builders import T0, TENANT
from tests.machines.builders_approval import ApprovalBench
from tests.signing import ENVIRONMENT, EVIDENCE, GATEWAY, a_key, registered, signed

HONEST = signed(ApprovalBench().decision(), T0)
ANSWERS = "amq.rabbitmq.reply-to.g1h2"


class Looked:
    """Keys, and how often somebody has asked for one."""

    def __init__(self, **changes: Any) -> None:
        self._keys = registered(a_key("alice"), GATEWAY, **({"tenants": (TENANT,)} | changes))
        self.times = 0

    def key(self, keyid: str) -> RegisteredKey | None:
        self.times += 1
        return self._keys.key(keyid)


def incoming(body: str | bytes | None = None, **changes: Any) -> Incoming:
    fields: dict[str, Any] = {
        "body": (HONEST.signed or "").encode() if body is None else body.encode() if isinstance(body, str) else body,
        "queue": "placet.ingress.decisions",
        "exchange": DECISIONS_EXCHANGE,
        "routing_key": DECIDE_KEY,
        "content_type": "application/json",
        "headers": {},
        "message_id": None,
        "correlation_id": "k 1",
        "reply_to": None,
        "user_id": None,
        "deliveries": 0,
    }
    return Incoming(**{**fields, **changes})


async def refusal(message: Incoming, keys: Looked | None = None) -> ContractError:
    with pytest.raises(ContractError) as caught:
        await DecisionDoor(ENVIRONMENT, keys or Looked()).open(message)
    return caught.value


async def test_what_is_opened_is_what_was_signed_and_its_answer_goes_back_where_it_came_from() -> None:
    door = DecisionDoor(ENVIRONMENT, Looked())
    envelope = await door.open(incoming(reply_to=ANSWERS))
    assert envelope.message == HONEST
    assert envelope.reply_to == ReturnAddress(False, ANSWERS, "k 1").text()
    assert (await door.open(incoming())).id == envelope.id, "the same decision is the same message"
    assert (await door.open(incoming())).reply_to is None


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"body": b" " * (limits.SIGNED_BYTES_MAX + 1)}, Code.TOO_LARGE),
        ({"exchange": ""}, Code.MESSAGE_INVALID),
        ({"exchange": "placet.submissions"}, Code.MESSAGE_INVALID),
        ({"routing_key": "run.submit"}, Code.MESSAGE_INVALID),
        ({"headers": {"CC": ["approval"]}}, Code.MESSAGE_INVALID),
        ({"headers": {"BCC": ["approval"]}}, Code.MESSAGE_INVALID),
        ({"headers": {"x-other": 1}}, Code.MESSAGE_INVALID),
        ({"reply_to": "placet.approval"}, Code.MESSAGE_INVALID),
        ({"content_type": "application/x-ndjson"}, Code.MESSAGE_INVALID),
        ({"body": b"\xff"}, Code.JSON_TEXT),
        ({"body": b"{"}, Code.JSON_SYNTAX),
        ({"body": b'{"payload":"","payload":""}'}, Code.JSON_DUPLICATE_KEY),
    ],
)
async def test_what_is_wrong_in_form_is_refused_before_any_key_is_looked_up(
    changes: dict[str, Any], code: Code
) -> None:
    keys = Looked()
    assert (await refusal(incoming(**changes), keys)).code is code
    assert keys.times == 0


@pytest.mark.parametrize(
    ("keys", "message", "code"),
    [
        (Looked(revoked=True), HONEST, Code.SIGNATURE_INVALID),
        (Looked(tenants=("globex",)), HONEST, Code.SIGNATURE_INVALID),
        (Looked(), signed(HONEST, T0, a_key("mallory")), Code.SIGNATURE_INVALID),
        (Looked(), signed(HONEST, T0, person="bob"), Code.SIGNATURE_INVALID),
        (Looked(), signed(HONEST, T0, evidence=EVIDENCE), Code.SIGNATURE_INVALID),
        (Looked(), signed(HONEST, T0, GATEWAY, evidence=None), Code.SIGNATURE_INVALID),
        (Looked(), signed(HONEST, T0, environment="elsewhere"), Code.SIGNATURE_MISMATCH),
        (Looked(), signed(HONEST, T0, not_after_ms=T0), Code.SIGNATURE_MISMATCH),
    ],
)
async def test_what_is_not_believed_does_not_come_in(keys: Looked, message: DecideApproval, code: Code) -> None:
    assert (await refusal(incoming(message.signed), keys)).code is code


async def test_the_time_is_not_the_door_s_to_judge() -> None:
    envelope = await DecisionDoor(ENVIRONMENT, Looked()).open(incoming(signed(HONEST, 0).signed))
    assert isinstance(envelope.message, DecideApproval)


# ── what is said besides a word ──────────────────────────────────────────────────────────

EDIT = signed(ApprovalBench().decision("edit", value_text='{"env":"production"}'), T0)


async def test_a_value_comes_beside_the_envelope_and_is_the_one_that_was_signed() -> None:
    door = DecisionDoor(ENVIRONMENT, Looked())
    published = with_value(EDIT.signed or "", EDIT.value_text)
    opened = await door.open(incoming(published))
    assert isinstance(opened.message, DecideApproval)
    assert opened.message.value_text == '{"env":"production"}'
    assert opened.message.model_copy(update={"signed": EDIT.signed}) == EDIT
    pretty = with_value(EDIT.signed or "", '{ "env": "production" }')
    assert (await door.open(incoming(pretty))).message.value_text == EDIT.value_text, "however it is written"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("published", "code"),
    [
        (with_value(EDIT.signed or "", '{"env":"staging"}'), Code.SIGNATURE_MISMATCH),
        (EDIT.signed or "", Code.SIGNATURE_MISMATCH),
        (with_value(HONEST.signed or "", "{}"), Code.SIGNATURE_MISMATCH),
        (with_value(EDIT.signed or "", '{"env":"production","env":"production"}'), Code.JSON_DUPLICATE_KEY),
        (with_value(EDIT.signed or "", f'"{"x" * limits.VALUE_BYTES_MAX}"'), Code.TOO_LARGE),
        (with_value(EDIT.signed or "", '1,"more":2'), Code.MESSAGE_INVALID),
    ],
)
async def test_any_other_value_is_refused_at_the_door(published: str, code: Code) -> None:
    assert (await refusal(incoming(published))).code is code
