"""Proves that a signed decision is exactly what was signed by a registered key, and that anything else is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placet import limits, signatures
from placet.canonical import digest_of_text
from placet.errors import Code, ContractError
from placet.keys import KeyRegistry, key_id_of, parse_private_key, parse_registry
from placet.messages import DecideApproval
from placet.signatures import (
    PAYLOAD_TYPE,
    DecisionStatement,
    SigningKey,
    message_of,
    open_envelope,
    pre_authentication,
    split_value,
    with_value,
)
from tests.cases import case
from tests.signing import a_key, an_entry

ALICE = a_key("alice")
ENTRY = an_entry(ALICE, tenants=("acme",))
STATEMENT = DecisionStatement(
    environment="production",
    tenant="acme",
    run_id="run-1",
    request_id="apr_1",
    request_hash="ab" * 32,
    decision="approve",
    decision_id="d-1",
    person="alice",
    reason="so be it",
    shown_digest="cd" * 32,
    issued_at_ms=1_000,
    not_after_ms=2_000,
)
PAYLOAD = base64.b64decode(json.loads(ALICE.sign(STATEMENT))["payload"])


def envelope_of(signed: bytes, /, **changes: Any) -> str:
    """An envelope as alice signs these bytes, then changed."""
    return json.dumps({**json.loads(ALICE.sign_bytes(signed)), **changes})


def code_of(text: str) -> Code:
    """Why an envelope is refused."""
    with pytest.raises(ContractError) as caught:
        open_envelope(text).verified(ENTRY)
    return caught.value.code


# ── what is signed ──────────────────────────────────────────────────────────────────────


def test_the_encoding_is_that_of_dsse() -> None:
    # The example of DSSE's protocol document.
    assert pre_authentication("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    assert pre_authentication("ü", b"") == b"DSSEv1 2 \xc3\xbc 0 "


def test_a_key_and_its_signature_are_those_of_rfc_8032() -> None:
    # Section 7.1, test 1: the library computes what everybody computes.
    key = SigningKey(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    assert key.public.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert key.keyid == key_id_of(key.public) == "key_21fe31dfa154a261626bf854046fd227"


def test_what_alice_signs_is_read_back_as_she_said_it_and_says_it_in_a_message() -> None:
    text = ALICE.sign(STATEMENT)
    assert open_envelope(text).verified(ENTRY) == STATEMENT
    message = message_of(STATEMENT, text)
    named = {"reviewer", "type", "signed"}
    said = message.model_dump(exclude={*named, "value_text"})
    assert said == STATEMENT.model_dump(include=set(DecideApproval.model_fields) - named)
    assert (message.reviewer.id, message.reviewer.kind, message.reviewer.display_name) == ("alice", "human", None)
    assert message.signed == text


def test_every_field_of_a_message_is_signed() -> None:
    # A field that is added to the message has to be added to what is signed, or somebody could say it in passing.
    beside = {"type", "reviewer", "signed", "value_text"}
    assert set(DecideApproval.model_fields) - set(DecisionStatement.model_fields) == beside
    assert {"person", "value_digest"} <= set(DecisionStatement.model_fields), "what stands for two of them"


@given(st.binary(max_size=300))
def test_any_bytes_survive_but_only_a_decision_is_one(payload: bytes) -> None:
    opened = open_envelope(ALICE.sign_bytes(payload))
    assert opened.payload == payload
    with pytest.raises(ContractError):
        opened.verified(ENTRY)


# ── what was changed on the way ─────────────────────────────────────────────────────────


def test_no_bit_of_payload_type_key_or_signature_can_be_changed() -> None:
    whole = json.loads(ALICE.sign(STATEMENT))
    for at in range(len(PAYLOAD)):
        for bit in (1, 32, 128):
            changed = PAYLOAD[:at] + bytes([PAYLOAD[at] ^ bit]) + PAYLOAD[at + 1 :]
            text = json.dumps({**whole, "payload": base64.b64encode(changed).decode()})
            assert code_of(text) is Code.SIGNATURE_INVALID, at
    signature = base64.b64decode(whole["signatures"][0]["sig"])
    for at in range(len(signature)):
        for bit in range(8):
            changed = signature[:at] + bytes([signature[at] ^ (1 << bit)]) + signature[at + 1 :]
            sig = [{"keyid": ALICE.keyid, "sig": base64.b64encode(changed).decode()}]
            assert code_of(json.dumps({**whole, "signatures": sig})) is Code.SIGNATURE_INVALID, (at, bit)


@pytest.mark.parametrize("kind", ["application/json", PAYLOAD_TYPE + " ", PAYLOAD_TYPE.upper(), ""])
def test_what_was_signed_as_another_kind_of_thing_is_no_decision(kind: str) -> None:
    as_other = json.loads(ALICE.sign_bytes(PAYLOAD, kind))
    assert code_of(json.dumps(as_other)) is Code.SIGNATURE_INVALID
    assert code_of(json.dumps({**as_other, "payloadType": PAYLOAD_TYPE})) is Code.SIGNATURE_INVALID


def test_a_signature_over_the_payload_alone_does_not_count() -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from placet.keys import key_bytes

    bare = Ed25519PrivateKey.from_private_bytes(key_bytes(ALICE.file().private_key)).sign(PAYLOAD)
    sig = [{"keyid": ALICE.keyid, "sig": base64.b64encode(bare).decode()}]
    assert code_of(envelope_of(PAYLOAD, signatures=sig)) is Code.SIGNATURE_INVALID


@pytest.mark.parametrize("field", sorted(DecisionStatement.model_fields))
def test_no_field_can_be_dropped_doubled_or_swapped_for_a_value_of_another_kind(field: str) -> None:
    value = json.loads(PAYLOAD)
    optional = {"reason", "shown_digest", "evidence", "version", "value_digest"}
    if field not in optional:
        dropped = {name: each for name, each in value.items() if name != field}
        assert code_of(envelope_of(json.dumps(dropped).encode())) is Code.MESSAGE_INVALID
    others: list[Any] = [[], {"a": 1}, True, "x\x00", -1, 1.5]
    for other in others:
        swapped = json.dumps({**value, field: other}).encode()
        assert code_of(envelope_of(swapped)) is Code.MESSAGE_INVALID, other
    doubled = PAYLOAD[:-1] + b"," + json.dumps(field).encode() + b":1}"
    if field in value:
        assert code_of(envelope_of(doubled)) is Code.JSON_DUPLICATE_KEY


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"algorithm": "none"}, Code.MESSAGE_INVALID),
        ({"signatures": []}, Code.MESSAGE_INVALID),
        ({"signatures": [{"keyid": ALICE.keyid, "sig": "AA=="}]}, Code.SIGNATURE_INVALID),
        ({"signatures": [{"keyid": ALICE.keyid, "sig": "????"}]}, Code.MESSAGE_INVALID),
        ({"signatures": [{"keyid": ALICE.keyid, "sig": "A", "alg": "none"}]}, Code.MESSAGE_INVALID),
        ({"signatures": [{"keyid": ALICE.keyid}]}, Code.MESSAGE_INVALID),
        ({"payload": "e30"}, Code.MESSAGE_INVALID),
        ({"payload": "e30=\n"}, Code.MESSAGE_INVALID),
        ({"payload": {}}, Code.MESSAGE_INVALID),
        ({"payloadType": None}, Code.MESSAGE_INVALID),
    ],
)
def test_an_envelope_has_one_form(changes: dict[str, Any], code: Code) -> None:
    assert code_of(envelope_of(PAYLOAD, **changes)) is code


def test_the_type_that_stands_on_an_envelope_is_the_type_that_was_signed() -> None:
    assert code_of(envelope_of(PAYLOAD, payloadType="application/json")) is Code.SIGNATURE_INVALID


def test_no_second_text_stands_for_the_same_signature_or_payload() -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

    def same_bytes(text: str) -> str:
        """The last bits of the last character before the padding are not part of the bytes."""
        end = len(text.rstrip("=")) - 1
        other = text[:end] + alphabet[alphabet.index(text[end]) ^ 1] + text[end + 1 :]
        assert base64.b64decode(other) == base64.b64decode(text)
        return other

    whole = json.loads(ALICE.sign(STATEMENT))
    sig = [{"keyid": ALICE.keyid, "sig": same_bytes(whole["signatures"][0]["sig"])}]
    assert code_of(json.dumps({**whole, "signatures": sig})) is Code.MESSAGE_INVALID
    padded = next(
        json.loads(ALICE.sign(STATEMENT.model_copy(update={"reason": "x" * n})))
        for n in range(3)
        if json.loads(ALICE.sign(STATEMENT.model_copy(update={"reason": "x" * n})))["payload"].endswith("=")
    )
    assert code_of(json.dumps({**padded, "payload": same_bytes(padded["payload"])})) is Code.MESSAGE_INVALID


def test_a_key_that_the_envelope_does_not_name_is_not_its_key() -> None:
    named = [{"keyid": "key_of_nobody", "sig": json.loads(ALICE.sign(STATEMENT))["signatures"][0]["sig"]}]
    assert code_of(envelope_of(PAYLOAD, signatures=named)) is Code.SIGNATURE_INVALID


@case("P102")
def test_the_raw_bytes_are_what_is_signed_however_they_are_written() -> None:
    backwards = dict(reversed(json.loads(PAYLOAD).items()))
    spaced = json.dumps(backwards, indent=2).encode()
    text = ALICE.sign_bytes(spaced)
    assert open_envelope(text).verified(ENTRY) == STATEMENT
    one_less = base64.b64encode(spaced.replace(b": ", b":", 1)).decode()
    assert code_of(json.dumps({**json.loads(text), "payload": one_less})) is Code.SIGNATURE_INVALID
    # The envelope itself is not signed, and may be written in any way.
    assert open_envelope(json.dumps(json.loads(text), indent=1)).verified(ENTRY) == STATEMENT


def test_two_signatures_are_nobody_s() -> None:
    whole = json.loads(ALICE.sign(STATEMENT))
    whole["signatures"] *= 2
    assert code_of(json.dumps(whole)) is Code.MESSAGE_INVALID


@pytest.mark.parametrize("text", ["", "[]", "null", '"x"', "{", '{"payload":"","payload":""}', "\ud800", "[" * 100_000])
def test_what_is_no_envelope_is_refused_in_one_step(text: str) -> None:
    with pytest.raises(ContractError):
        open_envelope(text)


def test_the_longest_reason_fits_and_more_than_that_is_not_read() -> None:
    longest = STATEMENT.model_copy(update={"reason": "\U0001f642" * limits.TEXT_CHARS_MAX})
    text = ALICE.sign(longest)
    assert open_envelope(text).verified(ENTRY) == longest
    assert message_of(longest, text).signed == text
    assert code_of(" " * limits.SIGNED_BYTES_MAX + text) is Code.TOO_LARGE


def test_what_is_remembered_of_checks_is_bounded_in_number_and_size() -> None:
    assert signatures.REMEMBERED_MAX * signatures.REMEMBERED_BYTES_MAX <= 16 * 1024 * limits.KIB
    before = signatures._verifies_remembered.cache_info().currsize
    long = ALICE.sign(STATEMENT.model_copy(update={"reason": "x" * signatures.REMEMBERED_BYTES_MAX}))
    open_envelope(long).verified(ENTRY)
    assert signatures._verifies_remembered.cache_info().currsize == before
    for _ in range(3):
        open_envelope(ALICE.sign(STATEMENT)).verified(ENTRY)
    assert signatures._verifies_remembered.cache_info().currsize <= before + 1


def test_another_key_is_not_tried_whatever_the_envelope_says() -> None:
    mallory = a_key("mallory")
    text = mallory.sign(STATEMENT)
    assert code_of(text) is Code.SIGNATURE_INVALID
    assert code_of(text.replace(mallory.keyid, ALICE.keyid)) is Code.SIGNATURE_INVALID


# ── the registry ────────────────────────────────────────────────────────────────────────


def a_document(**changes: Any) -> str:
    entry = json.loads(ENTRY.model_dump_json(exclude_none=True))
    return json.dumps({"version": 1, "keys": [{**entry, **changes}]})


def test_a_registry_is_read_as_it_was_written() -> None:
    registry = KeyRegistry(version=1, keys=(ENTRY, an_entry(a_key(None), tenants=("acme",), revoked=True)))
    assert parse_registry(registry.model_dump_json()) == registry
    assert parse_registry(registry.model_dump_json(exclude_none=True)) == registry


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"keyid": a_key("mallory").keyid}, "/keys/0"),
        ({"public_key": "AAAA"}, "/keys/0/public_key"),
        ({"public_key": "A" * 42 + "B="}, "/keys/0"),
        ({"kind": "gateway"}, "/keys/0"),
        ({"kind": "person", "person": None}, "/keys/0"),
        ({"kind": "admin"}, "/keys/0/kind"),
        ({"person": " alice"}, "/keys/0"),
        ({"tenants": []}, "/keys/0/tenants"),
        ({"tenants": "acme"}, "/keys/0/tenants"),
        ({"not_before_ms": 5, "not_after_ms": 5}, "/keys/0"),
        ({"revoked": "no"}, "/keys/0/revoked"),
        ({"algorithm": "none"}, "/keys/0/algorithm"),
    ],
)
def test_an_entry_that_does_not_fit_together_is_refused_with_its_place(changes: dict[str, Any], pointer: str) -> None:
    with pytest.raises(ContractError) as caught:
        parse_registry(a_document(**changes))
    assert (caught.value.code, caught.value.pointer) == (Code.PARAMETER_INVALID, pointer)


def test_a_key_stands_once_in_a_registry() -> None:
    twice = json.loads(a_document())
    twice["keys"] *= 2
    with pytest.raises(ContractError, match="stands twice"):
        parse_registry(json.dumps(twice))
    with pytest.raises(ContractError, match="stands twice"):
        parse_registry(a_document().replace('"revoked": false', '"revoked": true, "revoked": false'))


def test_a_private_key_is_read_as_it_was_written_and_never_shown() -> None:
    file = ALICE.file()
    assert SigningKey.of(parse_private_key(file.model_dump_json())).keyid == ALICE.keyid
    assert file.private_key not in repr(file)
    with pytest.raises(ContractError) as caught:
        parse_private_key(json.dumps({"private_key": file.private_key[:-1]}))
    assert file.private_key[:10] not in caught.value.message


# ── what is said besides a word ──────────────────────────────────────────────────────────


def test_a_value_beside_an_envelope_is_taken_apart_again_and_nothing_else_is() -> None:
    text = ALICE.sign(STATEMENT)
    assert split_value(text) == (text, None)
    envelope, value_text = split_value(with_value(text, '{"b": 1, "a": [true]}'))
    assert value_text == '{"a":[true],"b":1}'
    assert open_envelope(envelope).verified(ENTRY) == STATEMENT
    assert with_value(text, None) == text
    for other in ("[]", '"value"', '{"payload": "\\"value\\""}'):
        assert split_value(other) == (other, None)


def test_a_value_counts_only_where_its_digest_was_signed() -> None:
    said = STATEMENT.model_copy(update={"decision": "edit", "value_digest": digest_of_text('{"a":1}')})
    text = ALICE.sign(said)
    assert message_of(said, text, '{"a":1}').value_text == '{"a":1}'
    for statement, value_text in ((said, '{"a":2}'), (said, None), (STATEMENT, '{"a":1}')):
        with pytest.raises(ContractError) as caught:
            message_of(statement, text, value_text)
        assert (caught.value.code, caught.value.pointer) == (Code.SIGNATURE_MISMATCH, "/value")
