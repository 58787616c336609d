"""Decides what `placet` is: its commands, and how each way of ending becomes an exit code."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from placet.cli import (
    archiving,
    decisions,
    deployment,
    development,
    exits,
    freezes,
    hashing,
    inbox,
    instructions,
    keys,
    letters,
    operations,
    patching,
    replaying,
    runs,
    session,
)

app = typer.Typer(
    name="placet",
    help="Runs teams of AI agents whose consequential steps wait for a human decision.",
    epilog=exits.TABLE,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

archive_app = typer.Typer(help="Let go of runs that are over, or of their past: for the owner of the database.")
run_app = typer.Typer(help="Start, look at, watch, continue, interrupt, cancel, account for, replay and fork runs.")
keys_app = typer.Typer(help="Make the key with which you sign decisions; show what is to be registered of it.")
operation_app = typer.Typer(help="Account for one side effect.")
letters_app = typer.Typer(help="List messages that no rule accepted, look at one, send it again.")


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    url: Annotated[str | None, typer.Option(help="Address of the gateway.", envvar="PLACET_URL")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Data directory of `placet dev`: its token is used.", envvar="PLACET_DATA")
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> int:
    """Runs teams of AI agents whose consequential steps wait for a human decision."""
    ctx.obj = session.Session(url, data)
    ctx.call_on_close(ctx.obj.close)
    if version:
        from importlib.metadata import version as version_of

        print(version_of("placet"))
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
    return exits.OK


@run_app.callback(invoke_without_command=True)
def _run(ctx: typer.Context) -> int:
    """Start, look at, watch, continue, interrupt, cancel, account for, replay and fork runs."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
    return exits.OK


@keys_app.callback(invoke_without_command=True)
def _keys(ctx: typer.Context) -> int:
    """Make the key with which you sign decisions; show what is to be registered of it."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
    return exits.OK


@operation_app.callback(invoke_without_command=True)
def _operation(ctx: typer.Context) -> int:
    """Account for one side effect."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
    return exits.OK


@archive_app.callback(invoke_without_command=True)
def _archive(ctx: typer.Context) -> int:
    """Let go of runs that are over, or of their past: for the owner of the database."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
    return exits.OK


@letters_app.callback(invoke_without_command=True)
def _letters(ctx: typer.Context) -> int:
    """List messages that no rule accepted, look at one, send it again."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
    return exits.OK


app.command("dev")(development.dev)
app.add_typer(run_app, name="run")
app.command("inbox")(inbox.inbox)
app.command("show")(inbox.show)
app.command("approve")(decisions.approve)
app.command("reject")(decisions.reject)
app.command("edit")(decisions.edit)
app.command("respond")(decisions.respond)
app.command("request-changes")(decisions.request_changes)
app.command("resolve")(decisions.resolve)
app.command("revoke")(decisions.revoke)
app.command("stop")(freezes.stop)
app.add_typer(operation_app, name="operation")
app.add_typer(letters_app, name="dead-letters")
app.add_typer(keys_app, name="keys")
app.command("hash")(hashing.hash_document)
app.command("doctor")(development.doctor)
app.command("describe")(development.describe)
app.command("migrate")(deployment.migrate)
app.add_typer(archive_app, name="archive")
app.add_typer(deployment.topology_app, name="topology")
for _name, _command in (runs.COMMANDS | instructions.COMMANDS | patching.COMMANDS).items():
    run_app.command(_name)(_command)
run_app.command("replay")(replaying.replay)
run_app.command("fork")(replaying.fork)
for _name, _command in archiving.COMMANDS.items():
    archive_app.command(_name)(_command)
for _name, _command in keys.COMMANDS.items():
    keys_app.command(_name)(_command)
for _name, _command in operations.COMMANDS.items():
    operation_app.command(_name)(_command)
for _name, _command in letters.COMMANDS.items():
    letters_app.command(_name)(_command)


@cache
def _program() -> Any:
    """The commands, made of their functions; that takes as long as a short command does."""
    return typer.main.get_command(app)


def run(arguments: list[str]) -> int:
    """Carry out a command and give its exit code. Every error is one line (or one JSON document), never a traceback."""
    as_json = "--json" in arguments
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that lacks a character gets its escape, not a crash.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _program().main(arguments, prog_name="placet", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else exits.OK
    except SystemExit as ended:  # the shell's completion ends the program by itself
        return ended.code if isinstance(ended.code, int) else exits.OK
    except typer.Abort:
        return exits.INTERRUPTED
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return exits.INTERRUPTED
    except BrokenPipeError:
        # Whoever read has enough; Python would complain once more on closing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.OK
    except typer.TyperException as error:
        return _usage(error, as_json=as_json)
    except Exception as error:  # noqa: BLE001  a defect is told in one line as well, and where it is on request
        return _failed(error, as_json=as_json)


def _usage(error: Any, *, as_json: bool) -> int:
    from placet.cli import output
    from placet.errors import Code, ContractError

    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "placet"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    failure = ContractError(Code.PARAMETER_INVALID, " ".join(message.split()))
    output.error(failure, exits.USAGE, f"{command} --help", as_json=as_json)
    return exits.USAGE


def _failed(error: Exception, *, as_json: bool) -> int:
    from placet.cli import output
    from placet.errors import InvariantError, PlacetError

    if not isinstance(error, PlacetError):
        if os.environ.get("PLACET_TRACEBACK"):
            raise error
        defect = InvariantError(f"Placet has a defect: {type(error).__name__}: {error}")
        output.error(defect, exits.DEFECT, "run it with PLACET_TRACEBACK=1 and report what it says", as_json=as_json)
        return exits.DEFECT
    code = exits.code_of(error)
    output.error(error, code, exits.next_step(error), as_json=as_json)
    return code
