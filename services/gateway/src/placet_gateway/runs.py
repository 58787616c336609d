"""Decides what can be asked of runs over HTTP: start, list, look, watch, cancel, account for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from placet.errors import Code, ContractError
from placet.ids import Address, derived_id
from placet.kept_views import JournalPage, RunFacts
from placet.machine import Receipt
from placet.messages import RUN, CancelRun, ForkRun, Mode, SubmitRun, invalid
from placet.plans import PlannedTask, Release
from placet.statuses import RUN_STATUSES, RUN_TERMINAL
from placet.values import Name, RunId, Text
from placet.views import RunEvent, RunPage, RunReceipt, RunView, Trace
from placet_gateway import keeping, letters, reading, timeline
from placet_gateway.bodies import body_of, takes
from placet_gateway.context import Gateway, Here, Reading, Submitting, answer, invalid_id, not_found
from placet_gateway.turns import turns_of

router = APIRouter(prefix="/v1/runs", tags=["runs"])

PAGE_MAX = 200
KEY_CHARS_MAX = 255


class RunSubmission(BaseModel):
    """What starts a run. Who starts it comes from the token, never from here."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    run_id: RunId | None = None
    """Minted by the client; derived from the header `Idempotency-Key` where it is left out."""
    team: Name
    mode: Mode = "goal"
    goal: Text = ""
    tasks: tuple[PlannedTask, ...] = ()
    timeout_ms: Annotated[int, Field(gt=0)] | None = None
    release: Release | None = None
    """`all`: approved calls are made when nothing of the run waits for a decision; `each`: each at once. By default as
    the team says."""


class Fork(BaseModel):
    """From where a run is forked."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    at: Annotated[int, Field(gt=0)]
    """A version of the run; `GET /v1/runs/{run_id}/journal` has them all."""
    run_id: RunId | None = None
    """Of the new run: minted by the client; derived from the header `Idempotency-Key` where it is left out."""
    timeout_ms: Annotated[int, Field(gt=0)] | None = None
    """None: as long as the other run was given."""


class Cancellation(BaseModel):
    """Why a run is ended."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    reason: Text = ""


IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", max_length=KEY_CHARS_MAX)]


@router.post(
    "",
    operation_id="submitRun",
    status_code=201,
    response_model=Receipt,
    responses={200: {"model": Receipt, "description": "The same submission again"}},
    openapi_extra=takes(RunSubmission),
)
async def submit(request: Request, here: Here, caller: Submitting, idempotency_key: IdempotencyKey = None) -> Response:
    """Start a run. The same submission under the same id is one run; another one under that id is refused."""
    body = await body_of(request, RunSubmission, Code.SUBMISSION_INVALID)
    run_id = body.run_id or _run_id_of(idempotency_key, caller.tenant, caller.principal.id)
    try:
        message = SubmitRun(
            tenant=caller.tenant,
            run_id=run_id,
            initiator=caller.principal,
            **{name: getattr(body, name) for name in ("team", "mode", "goal", "tasks", "timeout_ms", "release")},
        )
    except ValidationError as error:
        raise invalid(error, Code.SUBMISSION_INVALID) from error
    return await answer(here, message, f"the same run_id, {run_id}", created=f"/v1/runs/{run_id}")


def _run_id_of(key: str | None, tenant: str, person: str) -> str:
    if not key or not key.strip('" '):
        raise ContractError(
            Code.SUBMISSION_INVALID,
            "run_id is missing: mint one, or send the header Idempotency-Key, so that a repeat is the same run",
            pointer="/run_id",
        )
    # The draft writes the key as a quoted string; both spellings are one key.
    return derived_id("run", tenant, person, key.strip('" '))


@router.get("", operation_id="listRuns")
async def list_runs(
    here: Here,
    caller: Reading,
    status: str | None = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
    before: str | None = None,
) -> RunPage:
    """Runs, newest first."""
    if status is not None and status not in RUN_STATUSES:
        known = ", ".join(sorted(RUN_STATUSES))
        raise ContractError(Code.PARAMETER_INVALID, f"status must be one of {known}", parameter="status")
    found = await here.reader.runs(caller.tenant, status=status, limit=limit + 1, before=before)
    items = [reading.run_summary(run["run_id"], run) for run in found[:limit]]
    more = items[-1].run_id if len(found) > limit else None
    return RunPage(items=items, next=more, as_of_ms=here.now_ms())


async def _stored(here: Gateway, tenant: str, run_id: str) -> dict[str, object]:
    stored = await here.reader.state(tenant, Address(run_id, RUN, ""))
    if stored is None:
        raise ContractError(Code.RUN_NOT_FOUND, "there is no run of that id")
    return stored


@router.get("/{run_id}", operation_id="getRun")
async def show(run_id: str, response: Response, here: Here, caller: Reading) -> RunView:
    """One run: its tasks, what it waits for, what it came to."""
    stored = await _stored(here, caller.tenant, run_id)
    requests = await reading.requests_of(here.reader, caller.tenant, run_id)
    view = reading.run_view(
        run_id, stored, [request for request in requests if request["status"] == reading.OPEN], here.now_ms()
    )
    if turns := await turns_of(here.reader, caller.tenant, run_id, stored, here.now_ms()):
        view = view.model_copy(update={"turns": turns})
    if not view.terminal and (parked := await letters.parked_of(here, caller.tenant, run_id)):
        view = view.model_copy(update={"parked": parked})
    response.headers["ETag"] = f'"{view.version}"'
    return view


@router.get(
    "/{run_id}/events",
    operation_id="watchRun",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "Server-sent events; the data is a RunEvent"},
        204: {"description": "The run has ended and there is nothing after the last event seen: do not reconnect"},
    },
)
async def events(
    run_id: str,
    here: Here,
    caller: Reading,
    last_event_id: Annotated[int | None, Header(ge=0)] = None,
    after: Annotated[int, Query(ge=0)] = 0,
    partial: bool = False,
) -> Response:
    """What happens to a run, live, from the event after `Last-Event-ID` (or `after`) on; ends with the run.

    `partial`: also what models are saying, as `turn.partial` events with a PartialText and no id. They may be missed,
    and are no facts; another `attempt` of a turn begins its text anew.
    """
    seen = last_event_id if last_event_id is not None else after

    async def look(seen: int) -> tuple[list[RunEvent], str | None]:
        # The status first: an end read before the leaves means that all leaves are there.
        status = str((await _stored(here, caller.tenant, run_id))["status"])
        found = await timeline.events_of(here.reader, caller.tenant, run_id, seen)
        return found, status if status in RUN_TERMINAL else None

    found, end = await look(seen)
    if end is not None and not found and seen > 0:
        return Response(status_code=204)
    return StreamingResponse(here.streams.follow(run_id, seen, look, partial=partial), media_type="text/event-stream")


@router.post(
    "/{run_id}/cancel",
    operation_id="cancelRun",
    response_model=Receipt,
    openapi_extra=takes(Cancellation, required=False),
)
async def cancel(run_id: str, request: Request, here: Here, caller: Submitting) -> Response:
    """End a run for good. What was already done stays done; open requests are closed."""
    body = await body_of(request, Cancellation, Code.SUBMISSION_INVALID, may_be_absent=True)
    try:
        message = CancelRun(tenant=caller.tenant, run_id=run_id, by=caller.principal, reason=body.reason)
    except ValidationError as error:
        if invalid_id(error):
            return not_found(Code.RUN_NOT_FOUND, "run")
        raise
    return await answer(here, message, "the same request; cancelling twice is harmless")


@router.post(
    "/{run_id}/fork",
    operation_id="forkRun",
    status_code=201,
    response_model=Receipt,
    responses={200: {"model": Receipt, "description": "The same fork again"}},
    openapi_extra=takes(Fork),
)
async def fork(
    run_id: str, request: Request, here: Here, caller: Submitting, idempotency_key: IdempotencyKey = None
) -> Response:
    """Start a new run from what this one was at a version. What was done by then stands; its gates are asked anew, and
    what was under way is not repeated without a person's word. Whoever forks is the initiator of the new run."""
    body = await body_of(request, Fork, Code.SUBMISSION_INVALID)
    name = body.run_id or _run_id_of(idempotency_key, caller.tenant, caller.principal.id)
    try:
        message = ForkRun(
            tenant=caller.tenant,
            run_id=name,
            forked_from=run_id,
            at=body.at,
            initiator=caller.principal,
            timeout_ms=body.timeout_ms,
        )
    except ValidationError as error:
        if {finding["loc"][:1] for finding in error.errors()} <= {("forked_from",)}:
            return not_found(Code.RUN_NOT_FOUND, "run")
        raise invalid(error, Code.SUBMISSION_INVALID) from error
    return await answer(here, message, f"the same run_id, {name}", created=f"/v1/runs/{name}")


@router.get("/{run_id}/receipt", operation_id="getRunReceipt")
async def receipt(run_id: str, here: Here, caller: Reading) -> RunReceipt:
    """Every side effect of the run, on whose word it ran, and how it ended."""
    stored = await _stored(here, caller.tenant, run_id)
    requests = await reading.requests_of(here.reader, caller.tenant, run_id)
    return await timeline.receipt_of(here.reader, caller.tenant, run_id, stored, requests, here.now_ms())


@router.get("/{run_id}/trace", operation_id="traceRun")
async def trace(run_id: str, here: Here, caller: Reading) -> Trace:
    """Every fact of the run by time, each with its source."""
    stored = await _stored(here, caller.tenant, run_id)
    return await timeline.trace_of(here.reader, caller.tenant, run_id, str(stored["status"]), here.now_ms())


@router.get("/{run_id}/journal", operation_id="getRunJournal")
async def journal(
    run_id: str,
    here: Here,
    caller: Reading,
    limit: Annotated[int, Query(ge=1, le=keeping.ENTRIES_MAX)] = keeping.ENTRIES_MAX,
    after: str | None = None,
) -> JournalPage:
    """The journals of the run exactly as they are kept: replayed, they give every state that it has had."""
    await _stored(here, caller.tenant, run_id)
    return await keeping.journal_of(here.reader, caller.tenant, run_id, limit, after)


@router.get("/{run_id}/facts", operation_id="getRunFacts")
async def facts(run_id: str, here: Here, caller: Reading) -> RunFacts:
    """Every state and every fact of the run exactly as they are kept, to be compared with its journals."""
    await _stored(here, caller.tenant, run_id)
    return await keeping.facts_of(here.reader, caller.tenant, run_id, here.now_ms())
