"""What `docs/policy.md` shows is true: each of its examples is registered, and judges as the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from placet import Allow, App, Suspend, ToolContext
from placet.gates import Boundary, CallSubject
from placet.gating import Terms
from placet.rules import FUNCTIONS, SUBJECTS

PAGE = (Path(__file__).parents[2] / "docs" / "policy.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TOML = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def a_shop() -> App:
    app = App("shop", version="1")

    @app.tool(effect="idempotent", consequential=True)
    async def refund(ctx: ToolContext, cents: int, hour: int = 12) -> str:
        """Pay back."""
        return "paid"

    return app


def ran(code: str, folder: Path) -> App:
    """The application that an example leaves behind."""
    scope: dict[str, Any] = {
        "app": a_shop(), "App": App, "Allow": Allow, "Suspend": Suspend, "__file__": str(folder / "shop.py"),
    }  # fmt: skip
    exec(code, scope)
    app: App = scope["app"]
    app.check()
    return app


def verdict(app: App, **given: Any) -> tuple[str, str]:
    subject = CallSubject(
        run_id="r", team="t", agent="clerk", task_id="t", tool="refund", input=given, raw_input=given,
        consequential=True, effect="idempotent", initiator="alice",
    )  # fmt: skip
    found = app.judge(Boundary.TOOL_CALL, subject)
    assert found is not None
    return found.verdict, found.rule


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy.toml").write_text(TOML[0], encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("code", PYTHON)
def test_every_example_can_be_registered(code: str, folder: Path) -> None:
    ran(code, folder)


def test_the_examples_judge_as_the_page_says(folder: Path) -> None:
    rules = ran(PYTHON[0], folder)
    assert verdict(rules, cents=1, hour=12) == ("allow", "big-refunds")
    assert verdict(rules, cents=40_001, hour=12) == ("suspend", "big-refunds")
    assert verdict(rules, cents=40_001, hour=3) == ("deny", "never-at-night")
    assert verdict(rules, hour=3) == ("deny", "never-at-night")
    assert verdict(rules, hour=12) == ("suspend", "big-refunds")
    file = ran(PYTHON[1], folder)
    assert verdict(file, cents=1) == ("allow", "big-refunds")
    assert verdict(file, cents=1, env="production") == ("deny", "no-production")
    assert file.policy_version.startswith("2026-11+")
    gate = ran(PYTHON[2], folder)
    assert verdict(gate, cents=40_001) == ("suspend", "refunds")
    assert verdict(gate) == ("failed", "refunds")


def test_the_page_names_every_field_function_and_term() -> None:
    for boundary, subject in SUBJECTS.items():
        [row] = re.findall(rf"^\| `{boundary.value}` \|.*$", PAGE, re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", row)) == {boundary.value, *subject.model_fields}
    for name in (*FUNCTIONS, *Terms.__annotations__):
        assert f"`{name}`" in PAGE
