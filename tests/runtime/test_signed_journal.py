"""Proves that a journal of signed decisions replays to the same state, whatever has become of the keys since."""

from __future__ import annotations

from placet.believing import SignedVoices
from placet.ids import Address
from placet.keys import KnownKeys
from placet.messages import APPROVAL, DecideApproval
from placet.runtime.replay import replay
from placet_approval.machine import ApprovalMachine
from tests.builders import T0, TENANT
from tests.runtime.deciding import Decider, Questions, decision
from tests.signing import ENVIRONMENT, a_key, registered, signed


async def test_a_replay_needs_no_key_and_gives_the_stored_state() -> None:
    keys = registered(a_key("alice"), tenants=(TENANT,))
    questions = Questions(SignedVoices(ENVIRONMENT, keys))
    request = await questions.open()
    plain = decision(request, "alice")
    assert isinstance(plain.message, DecideApproval)
    envelope = plain.model_copy(update={"message": signed(plain.message, T0)})
    assert await Decider(questions, None).decide(envelope, decision(request, "alice", 1)) == ["accepted", "refused"]
    address = Address(request.run_id, APPROVAL, request.request_id)
    stored = (await questions.store.load([address], [])).states[address]
    assert stored is not None
    assert stored.status == "approved"
    for voices in (SignedVoices(ENVIRONMENT, KnownKeys()), SignedVoices(ENVIRONMENT, keys)):
        replayed = replay(ApprovalMachine(voices), await questions.store.read_journal(address))
        assert replayed is not None
        assert replayed.model_dump_json().encode() == stored.body
