"""The names that authors type are there, and importing the package costs next to nothing."""

from __future__ import annotations

import subprocess
import sys

import placet

DESIGNED = ("Allow", "App", "Deny", "Executed", "NotExecuted", "Suspend", "ToolContext", "Unsure", "scripted")


def imported_after(statement: str) -> set[str]:
    """The top-level packages that a fresh interpreter holds after the statement."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_every_name_that_is_promised_can_be_imported() -> None:
    assert set(DESIGNED) <= set(placet.__all__)
    for name in placet.__all__:
        assert getattr(placet, name).__name__ == name
    assert dir(placet) == sorted(placet.__all__)


def test_scripted_is_the_function_whatever_was_imported_before() -> None:
    import placet.script

    assert placet.scripted is placet.script.scripted


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(placet, "Approve")


def test_importing_the_package_imports_no_library() -> None:
    assert not imported_after("import placet") & {"pydantic", "pydantic_ai", "rfc8785", "asyncio"}


def test_an_application_imports_pydantic_and_no_other_library() -> None:
    found = imported_after("from placet import " + ", ".join(placet.__all__))
    assert "pydantic" in found
    assert not found & {"pydantic_ai", "sqlalchemy", "fastapi", "httpx", "openai", "typer"}
