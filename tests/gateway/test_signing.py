"""Proves that the gateway signs what a caller decides, as that caller and nothing else, and signs for no machine."""

from __future__ import annotations

import pytest

from placet.errors import Code, ContractError, TerminalError
from placet.messages import DecideApproval
from placet.runtime.reading import Reader
from placet.signatures import open_envelope
from placet.values import Principal, PrincipalKind
from placet_gateway.context import Gateway
from placet_gateway.identity import DevelopmentIdentity
from placet_gateway.signing import VALID_MS, GatewaySigner, signer_of
from placet_gateway.streams import Streams
from tests.signing import EVIDENCE, GATEWAY, a_key, an_entry

NOW_MS = 1_800_000_000_000
SIGNER = GatewaySigner(GATEWAY, "production", EVIDENCE, now_ms=lambda: NOW_MS)
MESSAGE = DecideApproval(
    tenant="acme",
    run_id="run-1",
    request_id="apr_1",
    decision_id="d-1",
    request_hash="ab" * 32,
    decision="approve",
    reviewer=Principal(kind=PrincipalKind.HUMAN, id="alice"),
    reason="so be it",
    shown_digest="cd" * 32,
)


def test_it_signs_exactly_the_decision_for_a_few_minutes_and_says_how_it_knows_the_person() -> None:
    made = SIGNER.sign(MESSAGE)
    assert made.model_copy(update={"signed": None}) == MESSAGE
    said = open_envelope(made.signed or "").verified(an_entry(GATEWAY, tenants=("acme",)))
    assert (said.environment, said.person, said.evidence) == ("production", "alice", EVIDENCE)
    assert (said.issued_at_ms, said.not_after_ms) == (NOW_MS, NOW_MS + VALID_MS)


@pytest.mark.parametrize("kind", [PrincipalKind.SERVICE, PrincipalKind.AGENT, PrincipalKind.POLICY])
def test_it_does_not_sign_for_a_machine(kind: PrincipalKind) -> None:
    with pytest.raises(ContractError) as caught:
        SIGNER.sign(MESSAGE.model_copy(update={"reviewer": Principal(kind=kind, id="robot")}))
    assert caught.value.code is Code.APPROVER_NOT_ALLOWED


def test_what_nobody_can_have_seen_is_refused_with_its_place() -> None:
    with pytest.raises(ContractError) as caught:
        SIGNER.sign(MESSAGE.model_copy(update={"request_hash": "a" * 1_000}))
    assert (caught.value.code, caught.value.pointer) == (Code.APPROVAL_VALIDATION_ERROR, "/request_hash")


class KeepingDoor:
    """Answers nobody and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[DecideApproval, str]] = []

    async def ask(self, message: DecideApproval, *, message_id: str, timeout_ms: int) -> None:
        self.asked.append((message, message_id))


async def test_every_decision_that_leaves_the_gateway_is_signed_and_a_repeat_has_the_same_message_id() -> None:
    door = KeepingDoor()
    clock = iter((NOW_MS, NOW_MS + 5))
    here = Gateway(
        door=door,  # type: ignore[arg-type]
        reader=Reader,  # type: ignore[arg-type]
        identity=DevelopmentIdentity("t" * 40),
        tenant="acme",
        application=None,
        health=None,
        streams=Streams(door, 1),  # type: ignore[arg-type]
        ask_timeout_ms=1,
        signer=GatewaySigner(GATEWAY, "production", EVIDENCE, now_ms=lambda: next(clock)),
    )
    await here.ask(MESSAGE)
    await here.ask(MESSAGE)
    (first, first_id), (again, again_id) = door.asked
    assert first.signed
    assert again.signed
    assert first.signed != again.signed
    assert first_id == again_id


@pytest.mark.parametrize("text", ["{}", "{", a_key("alice").file().model_dump_json()])
def test_what_is_no_gateway_s_key_is_named_without_showing_it(text: str) -> None:
    with pytest.raises(TerminalError, match="PLACET_SIGNING_KEY") as caught:
        signer_of(text, "production", EVIDENCE)
    assert caught.value.code is Code.SETTING_INVALID
    assert a_key("alice").file().private_key not in caught.value.message
