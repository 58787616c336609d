"""An application is found by its import string, or one line says what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from placet import ContractError
from placet.errors import Code
from placet.runtime.loading import load_app

FINE = "from placet import App\napp = App('desk', version='7')\nnumber = 5\nclass inner:\n    app = app\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refused(text: str, folder: Path) -> str:
    with pytest.raises(ContractError) as error:
        load_app(text, folder=folder)
    assert error.value.code is Code.APP_INVALID
    assert "\n" not in error.value.message
    return error.value.message


@pytest.mark.parametrize("text", ["desk_a.inside:app", "desk_a.inside:inner.app"])
def test_an_app_is_loaded_closed_and_checked(text: str, folder: Path) -> None:
    (folder / "desk_a").mkdir()
    (folder / "desk_a" / "inside.py").write_text(FINE)
    app = load_app(text, folder=folder)
    assert (app.name, app.version) == ("desk", "7")
    with pytest.raises(ContractError):
        app.agent("late", model="x:y")


@pytest.mark.parametrize(
    "text", ["", "app", "a.b", ":app", "a:", "a b:app", "a:b:c", "../a:app", "a/b.py:app", "a.:app"]
)
def test_another_form_is_refused_with_the_form_it_should_have(text: str, folder: Path) -> None:
    assert "is named like package.module:attribute" in refused(text, folder)


def test_a_missing_module_is_named(folder: Path) -> None:
    assert "no module 'desk_nowhere'" in refused("desk_nowhere.inside:app", folder)
    (folder / "desk_b").mkdir()
    assert "no module 'desk_b.inside'" in refused("desk_b.inside:app", folder)


def test_an_import_that_is_missing_within_the_module_is_told_apart(folder: Path) -> None:
    (folder / "desk_c.py").write_text("\n\nimport not_installed_here\n")
    message = refused("desk_c:app", folder)
    assert "desk_c.py:3: ModuleNotFoundError: No module named 'not_installed_here'" in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\ny = nothing\n", "desk_d.py:2: NameError: name 'nothing' is not defined"),
        ("x = (\n", "desk_d.py:1: SyntaxError: '(' was never closed"),
        ("import sys\nsys.exit(2)\n", "desk_d.py:2: SystemExit: 2"),
        ("raise ValueError('one\\ntwo')\n", "desk_d.py:1: ValueError: one"),
        (
            "from placet import App\napp = App('desk')\n\napp.agent('a', model='gpt')\n",
            "desk_d.py:4: agent 'a': model is `provider:model`",
        ),
        ("import json\njson.loads('{')\n", "desk_d.py:2: JSONDecodeError"),
    ],
)
def test_an_exception_while_importing_is_told_with_the_author_s_own_line(text: str, says: str, folder: Path) -> None:
    (folder / "desk_d.py").write_text(text)
    message = refused("desk_d:app", folder)
    assert message.startswith("importing desk_d failed at desk_d.py:")
    assert says in message


def test_a_missing_attribute_is_told_with_what_there_is(folder: Path) -> None:
    (folder / "desk_e.py").write_text(FINE)
    assert refused("desk_e:application", folder) == "desk_e has no 'application'; is it desk_e:app?"
    assert "desk_e has no 'app.inner'" in refused("desk_e:app.inner", folder)


def test_something_that_is_no_app_is_told_as_what_it_is(folder: Path) -> None:
    (folder / "desk_f.py").write_text(FINE + "def make(): return app\n")
    assert "desk_f:number is of type int, not a placet.App; is it desk_f:app?" in refused("desk_f:number", folder)
    assert "desk_f:make is a function" in refused("desk_f:make", folder)


def test_what_is_wrong_with_the_whole_is_found_when_it_is_loaded(folder: Path) -> None:
    (folder / "desk_g.py").write_text(
        "from placet import App, ToolContext\n"
        "app = App('desk')\n"
        "@app.tool(effect='reconcilable')\n"
        "def tag(ctx: ToolContext) -> None: ...\n"
    )
    assert "add @tag.reconcile" in refused("desk_g:app", folder)
