"""`placet hash`: anybody can check a hash, without a server."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Placet

REQUEST = ("--scope", "tool_call", "--boundary", "task-1:call-1")
A01 = "b5b9bf760877c2598f8b2f0c91388c0ccdd315bfe563efe4086b26717052d11c"


def content(given: str) -> bytes:
    """TC(x) of the conformance cases, with x as JSON text, so that number forms stay as they are."""
    return (
        f'{{"kind": "tool_call", "toolName": "deploy", "rawInput": {given}, "input": {given}, '
        '"agentName": "operator", "taskId": "task-1", "toolCallId": "call-1", "consequential": true}'
    ).encode()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"env": "staging"}', A01),
        ('{"n": 1}', "a9028b01013eb7075aafcf6d2a947b8bcf48b10241cd307319366bcf203ba25f"),
        ('{"n": 1.0}', "a9028b01013eb7075aafcf6d2a947b8bcf48b10241cd307319366bcf203ba25f"),
        ('{"n": 1e21}', "bfa3b8d0b1419c1a01cc492692136b4ac8f1bd97ad668bb0a0cacfe6c4ad2eb9"),
        ('{"n": 0.1}', "c6f95096d965d9f02901a8abeaa79c8f82926cfa3bb967683b10f91c81869820"),
        ('{"n": 1e-7}', "5415aef8c53c4c19df034cb1fbd6ee75b87085a7ed3e638ea06e5aa9eb312a43"),
        ('{"n": -0.0}', "4130d8e371648151510a30942ea1233e66e4dd4ab5ed7bf8fd8087a0de0c8721"),
        (
            '{"\\ud83d\\ude00": 1, "\\ufffd": 2, "\u00e9": 3, "a": 4}',
            "2cface42afad53c8d5b91adf50e4332dd7930fcc9f1ac304f40491934a8854c6",
        ),
        ('{"s": "\u00e9"}', "5d983ed127a438d0fcf1bfcdf19a6bf2bd445d792d84841754c7eb0406bd9987"),
        ('{"s": "e\u0301"}', "58d7ca685f5f77ef07587793faf534312fa8e6e786e610fa64359419659f6a1c"),
        ('{"a": [1, 2]}', "694a4f50feb4bca0ce1a9f9f5736d93c675b85efa540d15f185c7b66458d10dd"),
        ('{"a": null}', "fd496d12cf4c3aa95a0d26e6ebe1e2b06a88ef15e521124a22a715ae2414b8fd"),
        ("{}", "f0714fb2ad207c005ca730cee47e227f745b3992d593407efa4030243a6bd21b"),
    ],
)
def test_the_hash_of_a_request_equals_that_of_other_implementations(offline: Placet, given: str, expected: str) -> None:
    result = offline("hash", "-", *REQUEST, stdin=content(given))
    assert (result.code, result.out) == (0, expected + "\n")


def test_the_boundary_is_part_of_the_hash(offline: Placet) -> None:
    result = offline(
        "hash", "-", "--scope", "tool_call", "--boundary", "task-1:call-2", stdin=content('{"env": "staging"}')
    )
    assert result.out.strip() == "dfb1846dc11ead3f194dd5ac1089c096239bf7f1bdaf392c98d800e88bd6fdc1"


def test_a_file_is_hashed_like_standard_input(offline: Placet, tmp_path: Path) -> None:
    (tmp_path / "content.json").write_bytes(content('{"env": "staging"}'))
    assert offline("hash", "content.json", *REQUEST).out.strip() == A01


def test_the_canonical_bytes_are_exactly_those_that_are_hashed(offline: Placet) -> None:
    document = '{"b": 1.0, "a": "\u00e9\\u0000", "\\ud83d\\ude00": 1e21}'.encode()
    canonical = offline("hash", "-", "--bytes", stdin=document).out
    assert canonical == '{"a":"\u00e9\\u0000","b":1,"\U0001f600":1e+21}'
    assert offline("hash", "-", stdin=document).out.strip() == hashlib.sha256(canonical.encode()).hexdigest()


def test_canonical_bytes_can_be_hashed_again(offline: Placet) -> None:
    """1e20 is written out as an integer there, which no strict reader takes for one in other documents."""
    canonical = offline("hash", "-", "--bytes", stdin=b'{"n": 1e20}').out
    assert canonical == '{"n":100000000000000000000}'
    again = offline("hash", "-", stdin=canonical.encode() + b"\n")
    assert again.out == offline("hash", "-", stdin=b'{"n": 1e20}').out
    assert offline("hash", "-", stdin=b'{"n": 100000000000000000000}').code == 2


def test_json_output_is_one_document(offline: Placet) -> None:
    result = offline("hash", "-", "--json", stdin=b'{"b": 1, "a": 2}')
    assert result.document["canonical"] == '{"a":2,"b":1}'
    assert result.document["hash"] == hashlib.sha256(b'{"a":2,"b":1}').hexdigest()


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (b"", "JSON_SYNTAX"),
        (b"{", "JSON_SYNTAX"),
        (b'{"tool":"pay","args":{"amount":1,"amount":1000},"tool":"pay_all"}', "JSON_DUPLICATE_KEY"),
        (b'{"args":{"amount":NaN,"fee":-Infinity}}', "JSON_NUMBER"),
        (b"9007199254740993", "JSON_NUMBER"),
        (b'{"body":"ok \\ud83d end"}', "JSON_TEXT"),
        (b"\xff\xfe0", "JSON_TEXT"),
        (b'{"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}", "TOO_DEEP"),
        (b'"' + b"x" * (1024 * 1024) + b'"', "TOO_LARGE"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(offline: Placet, document: bytes, code: str) -> None:
    result = offline("hash", "-", stdin=document)
    assert (result.code, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1
    assert f"[{code}]" in result.err
    as_json = offline("hash", "-", "--json", stdin=document)
    assert (as_json.code, as_json.out) == (2, "")
    assert as_json.error["code"] == code
    assert as_json.error["exit_code"] == 2


def test_an_escaped_pair_is_one_character(offline: Placet) -> None:
    result = offline("hash", "-", "--bytes", stdin=b'"\\ud83c\\udf78"')
    assert result.out == '"\U0001f378"'


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_a_file_that_cannot_be_read_is_named(offline: Placet, name: str) -> None:
    result = offline("hash", name)
    assert result.code == 2
    assert result.err.startswith(f"error: {name}: ")
    assert len(result.err.splitlines()) == 1


def test_scope_and_boundary_belong_together(offline: Placet) -> None:
    assert offline("hash", "-", "--scope", "plan", stdin=b"{}").code == 2


def test_the_server_is_not_needed(offline: Placet, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PLACET_URL", "http://127.0.0.1:1")
    assert json.loads(offline("hash", "-", "--json", stdin=b"1").out)["canonical"] == "1"
