"""The program around the commands: usage, connection, exit codes, start-up, defects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from placet.cli import exits
from placet.settings import Settings
from tests.cli.conftest import Placet
from tests.gateway.world import TOKEN, World

PROGRAM = [sys.executable, "-c", "from placet.cli import main; main()"]


def test_help_names_every_command_and_exit_code(offline: Placet) -> None:
    result = offline("--help")
    assert result.code == 0
    for command in ("dev", "run", "inbox", "show", "approve", "reject", "resolve", "revoke", "hash", "doctor"):
        assert f" {command} " in result.out
    assert " ".join(exits.TABLE.split()) in " ".join(result.out.split())
    assert offline().out == result.out
    assert " dead-letters " in result.out
    group = offline("run").out
    for command in ("start", "list", "show", "watch", "cancel", "receipt", "trace"):
        assert f" {command} " in group
    letters = offline("dead-letters").out
    for command in ("list", "show", "redrive"):
        assert f" {command} " in letters


def test_help_loads_nothing_heavy() -> None:
    """Measured by what is imported, which no busy machine can change."""
    heavy = "pydantic httpx rich sqlalchemy fastapi pydantic_ai asyncio placet.errors"
    code = f"import sys, placet.cli.program; print([name for name in {heavy.split()!r} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"


def test_hashing_loads_neither_client_nor_server() -> None:
    code = (
        "import sys; from placet.cli.program import run; run(['hash', '-']); "
        "print([name for name in ('httpx', 'sqlalchemy', 'fastapi', 'pydantic_ai') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, input="1")
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "arguments", [("aprove", "x"), ("show",), ("inbox", "--limit", "0"), ("run", "watch"), ("hash",), ("--nope",)]
)
def test_wrong_usage_is_one_line_with_the_next_step(offline: Placet, arguments: tuple[str, ...]) -> None:
    result = offline(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert "--help" in result.err
    as_json = offline(*arguments, "--json")
    assert (as_json.code, as_json.out) == (2, "")
    assert as_json.error["exit_code"] == 2


@pytest.mark.parametrize("arguments", [("inbox",), ("run", "list"), ("show", "apr_1"), ("run", "watch", "r1")])
def test_no_gateway_exits_5_and_says_how_to_start_one(
    offline: Placet, environment: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    environment.setenv("PLACET_URL", "http://127.0.0.1:1")
    environment.setattr("placet.client.blocking.time.sleep", lambda _seconds: None)
    result = offline(*arguments)
    assert (result.code, result.out) == (5, "")
    assert "placet dev APP" in result.err
    assert offline(*arguments, "--json").error["code"] == "GATEWAY_UNREACHABLE"


@pytest.mark.parametrize("address", ["nonsense", "ftp://127.0.0.1", "http://"])
def test_an_address_that_is_none_is_bad_usage(offline: Placet, environment: pytest.MonkeyPatch, address: str) -> None:
    environment.setenv("PLACET_URL", address)
    result = offline("inbox")
    assert result.code == 2
    assert "PLACET_URL" in result.err


def test_a_wrong_token_is_refused_with_the_next_step(placet: Placet, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PLACET_TOKEN", "wrong")
    result = placet("inbox")
    assert result.code == 1
    assert "[UNAUTHENTICATED]" in result.err
    assert "PLACET_TOKEN" in result.err


@pytest.mark.parametrize("how", ["default", "option", "variable", "file"])
def test_the_token_is_found_in_the_data_directory(
    offline: Placet, environment: pytest.MonkeyPatch, url: str, tmp_path: Path, how: str
) -> None:
    directory = tmp_path / (".placet" if how == "default" else "elsewhere")
    directory.mkdir()
    (directory / "token").write_text(TOKEN + "\n")
    before: tuple[str, ...] = ()
    match how:
        case "default":
            pass
        case "option":
            before = ("--data", str(directory))
        case "variable":
            environment.setenv("PLACET_DATA", str(directory))
        case _:
            environment.setenv("PLACET_TOKEN_FILE", str(directory / "token"))
    assert offline("--url", url, *before, "inbox").code == 0


def test_something_else_at_the_address_is_recognised(offline: Placet, environment: pytest.MonkeyPatch) -> None:
    import http.server
    import threading

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, *_args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        environment.setenv("PLACET_URL", f"http://127.0.0.1:{server.server_port}")
        result = offline("inbox")
        server.shutdown()
        thread.join()
    assert result.code == 1
    assert "another server" in result.err


def test_a_defect_is_told_in_one_line_and_in_full_on_request(offline: Placet, environment: pytest.MonkeyPatch) -> None:
    def broken(*_args: object) -> None:
        raise KeyError("oops")

    environment.setattr("placet.cli.files.read_json", broken)
    result = offline("hash", "-")
    assert result.code == 70
    assert "KeyError" in result.err
    assert "Traceback" not in result.err
    environment.setenv("PLACET_TRACEBACK", "1")
    with pytest.raises(KeyError):
        offline("hash", "-")


def test_a_reader_that_has_enough_is_no_error(world: World, url: str, tmp_path: Path) -> None:
    for number in range(150):
        world.add_run(f"run-{number}", goal="x" * 190)
    environment = {"PLACET_URL": url, "PLACET_TOKEN": TOKEN, "HOME": str(tmp_path), "PATH": ""}
    done = subprocess.Popen(
        [*PROGRAM, "run", "list", "--limit", "150", "--json"], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert done.stdout is not None
    assert done.stderr is not None
    done.stdout.read(10)
    done.stdout.close()
    assert done.stderr.read() == b""
    assert done.wait(30) == 0
    done.stderr.close()


def test_a_terminal_that_lacks_a_character_gets_its_escape(world: World, url: str, tmp_path: Path) -> None:
    row = world.add_request()
    environment = {
        "PLACET_URL": url, "PLACET_TOKEN": TOKEN, "HOME": str(tmp_path), "PATH": "", "PYTHONIOENCODING": "ascii",
    }  # fmt: skip
    done = subprocess.run([*PROGRAM, "show", row["request_id"]], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"\\u2014" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_shown_for_each_shell(tmp_path: Path, shell: str) -> None:
    environment = {"PATH": "", "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [*PROGRAM, "--show-completion", shell], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "_PLACET_COMPLETE" in done.stdout


def test_request_ids_are_completed_and_silent_without_a_gateway(world: World, url: str, tmp_path: Path) -> None:
    row = world.add_request()
    environment = {
        "PLACET_URL": url, "PLACET_TOKEN": TOKEN, "HOME": str(tmp_path), "PATH": "",
        "_PLACET_COMPLETE": "complete_bash", "COMP_WORDS": "placet show apr_", "COMP_CWORD": "2",
    }  # fmt: skip
    done = subprocess.run(PROGRAM, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [row["request_id"]]
    gone = subprocess.run(
        PROGRAM, env={**environment, "PLACET_URL": "http://127.0.0.1:1"}, capture_output=True, text=True, check=False
    )
    assert (gone.stdout.strip(), gone.stderr) == ("", "")


# ── dev and doctor ─────────────────────────────────────────────────────────────────────


def test_doctor_tells_what_is_wrong_and_what_to_do(offline: Placet, tmp_path: Path) -> None:
    directory = tmp_path / ".placet"
    directory.mkdir()
    (directory / "token").write_text(TOKEN)
    (directory / "token").chmod(0o644)
    result = offline("--url", "http://127.0.0.1:1", "doctor", "--app", "nowhere:app", "--json")
    checks = {check["name"]: check for check in result.document["checks"]}
    assert (result.code, result.document["ok"]) == (1, False)
    assert checks["python"]["state"] == "ok"
    assert checks["data"]["state"] == "bad"
    assert checks["data"]["next_step"].startswith("chmod 600")
    assert checks["gateway"]["state"] == "note"
    assert checks["app"]["state"] == "bad"


def test_doctor_is_content_where_all_is_well(placet: Placet, tmp_path: Path) -> None:
    directory = tmp_path / ".placet"
    directory.mkdir()
    (directory / "token").write_text(TOKEN)
    (directory / "token").chmod(0o600)
    checks = {check["name"]: check["state"] for check in placet("doctor", "--json").document["checks"]}
    # The gateway of the tests has no application to show, as one in a container has none: it answers, and that is well.
    assert checks.pop("sqlite") in {"ok", "note"}  # a library with a known defect is used with care
    assert checks == {"python": "ok", "data": "ok", "gateway": "ok"}


def test_what_an_application_consists_of_is_printed_as_a_gateway_without_its_code_is_told_it(offline: Placet) -> None:
    told = offline("describe", "examples.release:app")
    view = Settings.model_validate_strings({"app_view": told.out}).app_view
    assert view is not None
    assert (view.name, [team.name for team in view.teams]) == ("release", ["release"])
    assert {tool.name for tool in view.tools if tool.consequential} == {"create_tag"}
    assert offline("describe", "nowhere:app").code == 2


@pytest.mark.parametrize("app", ["nowhere:app", "not an import string", "json:dumps"])
def test_dev_refuses_what_is_no_application(offline: Placet, app: str, tmp_path: Path) -> None:
    result = offline("dev", app)
    assert result.code == 2
    assert "[APP_INVALID]" in result.err
    assert list(tmp_path.iterdir()) == []
