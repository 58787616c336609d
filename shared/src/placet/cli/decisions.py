"""Decides how a person decides by command: the request is shown in full, and the hash that was shown is sent."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from placet.cli import exits, output, session
from placet.cli.confirming import asked, confirmed, require_a_way_to_confirm, require_expected, require_the_word_fits
from placet.cli.inbox import RequestId, check_hash, tell
from placet.cli.saying import answer, edited_input, next_step, tell_value
from placet.cli.session import Json, Person
from placet.cli.signed import Amqp, Environment, KeyFile, RunOption, Tenant, Way, way_of

if TYPE_CHECKING:
    from placet.machine import Receipt
    from placet.messages import DecisionWord
    from placet.strict_json import JsonValue
    from placet.views import RequestView

BUSY_TRIES_MAX = 5
"""A decision that meets another one being recorded asks again this often, a second apart."""

Reason = Annotated[str | None, typer.Option(help="Why; kept with the decision.")]
Hash = Annotated[str | None, typer.Option("--hash", help="Decide only if this is the hash of what is asked.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation; needed where there is no terminal.")]


def approve(
    ctx: typer.Context,
    request: RequestId,
    reason: Reason = None,
    expected: Hash = None,
    person: Person = None,
    yes: Yes = False,
    key: KeyFile = None,
    amqp: Amqp = None,
    environment: Environment = None,
    tenant: Tenant = None,
    run: RunOption = None,
    as_json: Json = False,
) -> int:
    """Show a request and approve exactly what was shown."""
    way = way_of(key, amqp, environment, tenant, run, person)
    return decide_by_command(ctx, request, "approve", reason, expected, person, way, yes=yes, as_json=as_json)


def reject(
    ctx: typer.Context,
    request: RequestId,
    reason: Reason = None,
    expected: Hash = None,
    person: Person = None,
    yes: Yes = False,
    key: KeyFile = None,
    amqp: Amqp = None,
    environment: Environment = None,
    tenant: Tenant = None,
    run: RunOption = None,
    as_json: Json = False,
) -> int:
    """Show a request and reject it. A rejected tool call is not made; a rejected plan ends the run."""
    way = way_of(key, amqp, environment, tenant, run, person)
    return decide_by_command(ctx, request, "reject", reason, expected, person, way, yes=yes, as_json=as_json)


def edit(
    ctx: typer.Context,
    request: RequestId,
    input_: Annotated[
        str | None,
        typer.Option(
            "--input", metavar="JSON|FILE", help="The whole input as it should be; without it, $EDITOR opens."
        ),
    ] = None,
    reason: Reason = None,
    expected: Hash = None,
    person: Person = None,
    yes: Yes = False,
    key: KeyFile = None,
    amqp: Amqp = None,
    environment: Environment = None,
    tenant: Tenant = None,
    run: RunOption = None,
    as_json: Json = False,
) -> int:
    """Change what is asked. Nothing is approved by it: somebody else has to look at it as it is then."""
    way = way_of(key, amqp, environment, tenant, run, person)
    value = edited_input(input_)
    return decide_by_command(ctx, request, "edit", reason, expected, person, way, yes=yes, as_json=as_json, value=value)


def respond(
    ctx: typer.Context,
    request: RequestId,
    text: Annotated[str | None, typer.Argument(help="The answer, as text.")] = None,
    value: Annotated[str | None, typer.Option("--value", metavar="JSON", help="The answer, as JSON.")] = None,
    reason: Reason = None,
    expected: Hash = None,
    person: Person = None,
    yes: Yes = False,
    key: KeyFile = None,
    amqp: Amqp = None,
    environment: Environment = None,
    tenant: Tenant = None,
    run: RunOption = None,
    as_json: Json = False,
) -> int:
    """Answer an agent's question; or answer the agent instead of letting its call be made."""
    way = way_of(key, amqp, environment, tenant, run, person)
    said = answer(text, value)
    return decide_by_command(
        ctx, request, "respond", reason, expected, person, way, yes=yes, as_json=as_json, value=said
    )


def request_changes(
    ctx: typer.Context,
    request: RequestId,
    text: Annotated[str, typer.Argument(help="What should be different; the agent is told just that.")],
    expected: Hash = None,
    person: Person = None,
    yes: Yes = False,
    key: KeyFile = None,
    amqp: Amqp = None,
    environment: Environment = None,
    tenant: Tenant = None,
    run: RunOption = None,
    as_json: Json = False,
) -> int:
    """Send a call or a plan back. The request is closed; what the agent proposes then is another one."""
    way = way_of(key, amqp, environment, tenant, run, person)
    return decide_by_command(ctx, request, "request_changes", text, expected, person, way, yes=yes, as_json=as_json)


def resolve(
    ctx: typer.Context,
    request: RequestId,
    executed: Annotated[bool, typer.Option("--executed", help="It happened.")] = False,
    not_executed: Annotated[bool, typer.Option("--not-executed", help="It did not happen.")] = False,
    reason: Reason = None,
    expected: Hash = None,
    person: Person = None,
    yes: Yes = False,
    key: KeyFile = None,
    amqp: Amqp = None,
    environment: Environment = None,
    tenant: Tenant = None,
    run: RunOption = None,
    as_json: Json = False,
) -> int:
    """Say whether an operation of unknown outcome happened. It is never run again because of the answer."""
    from placet.errors import Code, ContractError

    if executed == not_executed:
        raise ContractError(Code.PARAMETER_INVALID, "say what is so: --executed or --not-executed")
    word: DecisionWord = "executed" if executed else "not_executed"
    way = way_of(key, amqp, environment, tenant, run, person)
    return decide_by_command(ctx, request, word, reason, expected, person, way, yes=yes, as_json=as_json)


def revoke(
    ctx: typer.Context,
    request: RequestId,
    reason: Annotated[str, typer.Option(help="Why; kept with the revocation.")] = "",
    person: Person = None,
    as_json: Json = False,
) -> int:
    """Take an approval back before it is used. What has started is not stopped by it."""
    here = session.of(ctx)
    client = here.client(person)
    receipt = client.revoke(here.request_id(request), reason)
    if as_json:
        output.document(receipt.model_dump(mode="json", exclude_none=True))
    else:
        output.line(f"{receipt.answer}: the approval of {receipt.request_id or request} is taken back.")
    return exits.OK


def decide_by_command(
    ctx: typer.Context,
    request: str,
    word: DecisionWord,
    reason: str | None,
    expected: str | None,
    person: str | None,
    way: Way | None,
    *,
    yes: bool,
    as_json: bool,
    value: Callable[[RequestView | None], JsonValue] | None = None,
) -> int:
    """`value`: makes what is said besides the word, where the word takes it, from the request that was shown."""
    here = session.of(ctx)
    if way is None:
        here.client(person)
    require_a_way_to_confirm(yes=yes, as_json=as_json)
    if way is not None and way.run_id is not None and expected is not None:
        seen = _Seen(request, way.run_id, expected)
    else:
        view = here.client().request(here.request_id(request))
        check_hash(view)
        require_the_word_fits(view, word)
        require_expected(view, expected)
        seen = _Seen(view.request_id, view.run_id, view.request_hash, view)
    said = None if value is None else value(seen.view)
    names = seen.names(word, reason) | ({} if value is None else {"value": _text_of(said)})
    what = names | (_gateway(here, person) if way is None else way.names())
    if not as_json:
        seen.tell()
        if value is not None:
            tell_value(word, said, seen.view)
    if not yes and not seen.confirmed(word, what):
        output.note("Nothing was decided.")
        return exits.REFUSED

    def decide(decision_id: str) -> Receipt:
        if way is not None:
            return way.decide(seen.request_id, seen.run_id, word, seen.request_hash, decision_id, reason, said)
        return here.client().decide(
            seen.request_id,
            decision=word,
            request_hash=seen.request_hash,
            decision_id=decision_id,
            reason=reason,
            value=said,
        )

    receipt = _send(decide, what)
    if as_json:
        output.document(receipt.model_dump(mode="json", exclude_none=True))
    else:
        by = f" by {output.safe(receipt.decided_by)}" if receipt.decided_by else ""
        output.line(f"{receipt.outcome or receipt.answer}{by}: {receipt.request_id}")
        output.note(next_step(word, receipt))
    return exits.OK


def _text_of(value: JsonValue) -> str:
    from placet.decision_words import value_text_of

    return value_text_of(value)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a decision rests on. Without a view it was seen elsewhere, and is named by its hash."""

    request_id: str
    run_id: str
    request_hash: str
    view: RequestView | None = None

    def names(self, word: str, reason: str | None) -> dict[str, str | None]:
        return {
            "request_id": self.request_id,
            "request_hash": self.request_hash,
            "decision": word,
            "reason": reason,
        }

    def tell(self) -> None:
        if self.view is not None:
            tell(self.view)
        else:
            output.line(f"request {output.safe(self.request_id)} of run {output.safe(self.run_id)}")
            output.line(f"content with the hash {output.safe(self.request_hash)}, which no gateway was asked to show")

    def confirmed(self, word: DecisionWord, what: Mapping[str, str | None]) -> bool:
        return confirmed(word) if self.view is None else asked(self.view, word, what)


def _gateway(here: session.Session, person: str | None) -> dict[str, str | None]:
    connection = here.client().connection
    return {"url": connection.url, "person": person or connection.person}


def _send(decide: Callable[[str], Receipt], what: Mapping[str, str | None]) -> Receipt:
    """The receipt of `decide`, which is given the decision's id: the one kept from an earlier try, or a new one."""
    from placet.cli.kept import kept, state_dir
    from placet.errors import Code, PlacetError, RetryableError

    on_its_way = kept(state_dir(os.environ), what)
    if on_its_way.is_repeat:
        output.note(f"Repeating an earlier decision whose answer was lost ({on_its_way.decision_id}).")
    for tries_left in reversed(range(BUSY_TRIES_MAX)):
        try:
            receipt = decide(on_its_way.decision_id)
        except RetryableError as error:
            if error.code is not Code.APPROVAL_BUSY or not tries_left:
                raise  # The id stays: the same command repeats the same decision.
            time.sleep(1)
        except PlacetError:
            on_its_way.settled()
            raise
        else:
            on_its_way.settled()
            return receipt
    raise AssertionError("the last try returns or raises")
