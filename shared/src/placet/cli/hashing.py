"""Decides how anybody can check a hash: the canonical bytes of a JSON document, or the hash of an approval request.

Works without a server. Together with `content_text`, scope and boundary of a request it proves what was approved.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from placet.cli import exits
from placet.cli.session import Json


def hash_document(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A JSON document; - is standard input.")],
    canonical: Annotated[bool, typer.Option("--bytes", help="Write the canonical bytes (RFC 8785) instead.")] = False,
    scope: Annotated[str | None, typer.Option(help="Of a request: tool_call, plan, …; FILE is its content.")] = None,
    boundary: Annotated[str | None, typer.Option(help="Of a request, such as task-1:call-1.")] = None,
    as_json: Json = False,
) -> int:
    """The SHA-256 of a JSON document in canonical form; with --scope and --boundary the hash of a request."""
    from placet.canonical import canonical_text, digest_of_text
    from placet.cli import files, output
    from placet.errors import Code, ContractError

    if (scope is None) != (boundary is None):
        raise ContractError(Code.PARAMETER_INVALID, "--scope and --boundary belong together: give both or neither")
    value = files.read_json(file)
    if scope is not None and boundary is not None:
        value = {"scope": scope, "boundary": boundary, "content": value}
    text = canonical_text(value)
    if as_json:
        output.document({"hash": digest_of_text(text), "canonical": text})
    elif canonical:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())
    else:
        output.line(digest_of_text(text))
    return exits.OK
