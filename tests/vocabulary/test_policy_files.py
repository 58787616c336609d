"""Policy files: what rules say, said in TOML, strictly read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from placet.errors import Code, ContractError
from placet.gates import Boundary
from tests.vocabulary.apps import a_call, a_plan, line_of, with_deploy
from tests.vocabulary.test_rules import judged

FILE = """
version = "2026-11"

[[rule]]
name = "big-refunds"
tools = ["deploy"]
when = "input.cents > 40000"
otherwise = "allow"
reason = "more than 400.00"
quorum = 2
expires_after_s = 3600

[[rule]]
name = "no-empty-plans"
boundary = "plan"
when = "size(tasks) == 0"
then = "deny"
"""


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "policy.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_policy_file_says_what_rules_say(tmp_path: Path) -> None:
    app = with_deploy(consequential=True)
    app.policy(written(tmp_path, FILE))
    found = judged(app, a_call(consequential=True, cents=40_001))
    assert (found.rule, found.verdict, found.quorum, found.expires_after_ms) == ("big-refunds", "suspend", 2, 3_600_000)
    assert judged(app, a_call(consequential=True, cents=1)).verdict == "allow"
    assert judged(app, a_plan(), Boundary.PLAN).verdict == "deny"


def test_a_changed_file_of_the_same_version_is_another_policy(tmp_path: Path) -> None:
    versions = []
    for text in (FILE, FILE.replace("40000", "50000"), FILE):
        app = with_deploy()
        app.policy(str(written(tmp_path, text)))
        versions.append(app.policy_version)
        assert app.policy_version == f"2026-11+{app.policy_digest[:16]}"
    assert versions[0] == versions[2] != versions[1]


def test_a_relative_path_starts_at_the_module_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, FILE)
    monkeypatch.chdir("/")
    scope: dict[str, Any] = {"__file__": str(tmp_path / "shop.py"), "app": with_deploy()}
    exec("app.policy('policy.toml')", scope)
    assert scope["app"].policy_version.startswith("2026-11+")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rule = 5", "write each rule as a table [[rule]]"),
        ("rules = []", "there is no 'rules', only version and [[rule]]"),
        ("version = 5", "version is text"),
        ('version = ""', "the version of policy"),
        ("[[rule]]\nwhen = 'true'", "rule 1: name is missing"),
        ("[[rule]]\nname = 'r'", "rule 1: when is missing"),
        ("[[rule]]\nname = 'r'\nwhen = 'true'\nif = 'x'", "rule 1: there is no 'if', only name"),
        ("[[rule]]\nname = 'r'\nwhen = 'true'\n[[rule]]\nname = 's'\nwhen = 'foo'", "rule 2: rule 's': line 1"),
        ("[[rule]]\nname = 'r'\nwhen = 'true'\n[[rule]]\nname = 'r'\nwhen = 'true'", "rule 2: there are two gates"),
        ("[[rule]]\nname = 'r'\nwhen = true", "rule 1: rule 'r': when is a condition"),
        ("[[rule]]\nname = 'r'\nname = 's'\nwhen = 'true'", "is not TOML"),
        ("nonsense", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        ("x" * 300_000, "more than 262144 bytes"),
    ],
)
def test_a_mistake_in_a_policy_file_is_told_and_none_of_its_rules_counts(
    tmp_path: Path, text: str | bytes, says: str
) -> None:
    app = with_deploy()
    with pytest.raises(ContractError) as refused:
        app.policy(written(tmp_path, text))
    assert says in line_of(refused)
    assert line_of(refused).startswith("policy policy.toml") or "the version of policy policy.toml" in line_of(refused)
    assert app.policy_digest == with_deploy().policy_digest


def test_a_policy_that_cannot_be_read_keeps_the_application_from_being_made(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.toml", tmp_path):
        with pytest.raises(ContractError) as refused:
            with_deploy().policy(path)
        assert refused.value.code is Code.APP_INVALID
        assert "cannot be read" in line_of(refused)
    with pytest.raises(ContractError):
        with_deploy().policy(5)


def test_a_policy_has_one_version(tmp_path: Path) -> None:
    app = with_deploy()
    app.policy(written(tmp_path, "version = '1'"))
    with pytest.raises(ContractError) as refused:
        app.policy(written(tmp_path, "version = '2'"))
    assert "there is a version already, '1'" in line_of(refused)
