"""Decides what every route has at hand: the door, the read side, who is asking, and the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from fastapi import Depends, Request
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from pydantic import ValidationError

from placet.calls import ToolSpec
from placet.canonical import digest
from placet.errors import Code, RetryableError
from placet.ids import derived_id
from placet.machine import Receipt
from placet.messages import Message
from placet.plans import TeamSpec
from placet.runtime.ports import Door, Reader
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


class HasSpec(Protocol):
    """A tool of an application."""

    @property
    def spec(self) -> ToolSpec:
        """What the rules know of it."""


class HasTools(Protocol):
    """An agent of an application."""

    @property
    def tools(self) -> Sequence[str]:
        """Names of the tools it is granted."""


class Described(Protocol):
    """An application as far as it is shown: `placet.application.App` is one."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def policy_version(self) -> str: ...

    @property
    def tools(self) -> Mapping[str, HasSpec]: ...

    @property
    def agents(self) -> Mapping[str, HasTools]: ...

    @property
    def teams(self) -> Mapping[str, TeamSpec]: ...


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
    application: Described | None
    health: Health | None
    streams: Streams
    ask_timeout_ms: int
    now_ms: Callable[[], int] = wall_clock_ms

    async def ask(self, message: Message) -> Receipt | str | None:
        """See `answer`; here the receipt where it is a refusal, its exact text where it is not, or None."""
        try:
            text = await self.door.ask(message, message_id=message_id_of(message), timeout_ms=self.ask_timeout_ms)
        except RetryableError:
            # Whether it happened before the store or broker went away is not known here.
            return None
        if text is None:
            return None
        receipt = Receipt.model_validate_json(text)
        return text if receipt.answer in {"accepted", "duplicate"} else receipt


def message_id_of(message: Message) -> str:
    """The same for the same message, also when it is sent again; another one for other content."""
    return derived_id("msg", "gateway", digest(message.model_dump(mode="json")))


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
