"""Decides what every route has at hand: the door, the read side, who is asking, and the time."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from pydantic import ValidationError

from placet.canonical import digest
from placet.describing import Described
from placet.errors import Code, RetryableError
from placet.ids import derived_id
from placet.machine import Receipt
from placet.messages import DecideApproval, Message
from placet.runtime.ports import Door
from placet.runtime.reading import Reader
from placet.views import AppView
from placet_gateway import problems
from placet_gateway.identity import Caller, Identity, Role
from placet_gateway.streams import Streams


class Health(Protocol):
    """What the probes ask the process that hosts the gateway."""

    @property
    def live(self) -> bool:
        """Whether it should go on running."""

    @property
    def ready(self) -> bool:
        """Whether it can serve now."""

    @property
    def failing(self) -> Mapping[str, str]:
        """What does not work, and why."""

    @property
    def unreadable(self) -> Mapping[str, str]:
        """States of runs that cannot be read, and why: everything else goes on."""


class Signer(Protocol):
    """Vouches for what a caller has decided."""

    def sign(self, message: DecideApproval) -> DecideApproval:
        """The same decision, signed. Raises ContractError for what nobody can have decided."""


SendAgain = Callable[[str, bytes, Mapping[str, Any]], Awaitable[None]]
"""Publishes what an outsider once published to a queue, as it came: the queue, the body, and how it came. Raises
ContractError for what cannot be sent so, RetryableError and TerminalError where the broker does not take it."""


def wall_clock_ms() -> int:
    """Labels what is shown; nothing is compared with it."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Gateway:
    """The one context of an application."""

    door: Door
    reader: Reader
    identity: Identity
    tenant: str
    application: Described | AppView | None
    health: Health | None
    streams: Streams
    ask_timeout_ms: int
    signer: Signer | None = None
    """Vouches for decisions; None where only this very process can reach the rules that take them."""
    operators: bool = False
    """Whether who comes here also sees what belongs to no known tenant: it is the operators' of the installation."""
    send_again: SendAgain | None = None
    """None where there is no broker, and so nothing that outsiders have published."""
    now_ms: Callable[[], int] = wall_clock_ms

    def tenants(self, tenant: str) -> tuple[str, ...]:
        """Whose dead letters a caller of this tenant sees."""
        return (tenant, "") if self.operators else (tenant,)

    async def ask(self, message: Message) -> Receipt | str | None:
        """See `answer`; here the receipt where it is a refusal, its exact text where it is not, or None."""
        if isinstance(message, DecideApproval) and self.signer is not None:
            message = self.signer.sign(message)
        try:
            text = await self.door.ask(message, message_id=message_id_of(message), timeout_ms=self.ask_timeout_ms)
        except RetryableError:
            # Whether it happened before the store or broker went away is not known here.
            return None
        if text is None:
            return None
        receipt = Receipt.model_validate_json(text)
        return text if receipt.answer in _TAKEN else receipt


_TAKEN = frozenset({"accepted", "duplicate", "joined", "nothing_interrupted"})
"""Answers that are no refusals."""


def message_id_of(message: Message) -> str:
    """The same for the same message, also when it is sent, and signed, again; another one for other content."""
    return derived_id("msg", "gateway", digest(message.model_dump(mode="json", exclude={"signed"})))


async def answer(here: Gateway, message: Message, repeat_with: str, *, created: str | None = None) -> Response:
    """Ask the machines and tell what they said: the receipt, byte for byte, or a problem.

    `created`: the location of what a first acceptance makes, which is then answered with 201.
    """
    said = await here.ask(message)
    if said is None:
        return problems.outcome_unknown(repeat_with)
    if isinstance(said, Receipt):
        return problems.problem_of_receipt(said)
    is_new = created is not None and Receipt.model_validate_json(said).answer == "accepted"
    headers = {"Location": created} if created is not None else None
    return Response(said, 201 if is_new else 200, headers, "application/json")


def invalid_id(error: ValidationError) -> bool:
    """Whether a message could not be made because an id in the path cannot be anybody's."""
    return {finding["loc"][:1] for finding in error.errors()} <= {("run_id",), ("request_id",)}


def of(request: Request) -> Gateway:
    """The context of the application that serves the request."""
    gateway: Gateway = request.app.state.gateway
    return gateway


Here = Annotated[Gateway, Depends(of)]

_bearer = HTTPBearer(auto_error=False, description="In development: the file `token` of the data directory.")


def _calling(role: Role) -> Callable[..., Caller]:
    # The unused parameter puts the security scheme into the OpenAPI document.
    def caller(request: Request, here: Here, _scheme: Annotated[object, Depends(_bearer)]) -> Caller:
        return Caller(here.tenant, here.identity.person(request.headers, role))

    return caller


Reading = Annotated[Caller, Depends(_calling("reader"))]
Submitting = Annotated[Caller, Depends(_calling("submitter"))]
Reviewing = Annotated[Caller, Depends(_calling("reviewer"))]


def not_found(code: Code, what: str) -> JSONResponse:
    """The same words for what does not exist and for what is not the caller's."""
    return problems.problem(code, f"there is no {what} of that id")
