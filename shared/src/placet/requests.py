"""Decides what a request for approval is: its hash, its identity, how it is made and when it is believed.

The hash is SHA-256 over the canonical JSON of `{scope, boundary, content}` and nothing else; the id is made from run,
scope, boundary and hash. Both equal those of the other implementation that speaks this format. What is not data of the
proposal (tool version, policy, deadlines, who asked) stands beside the hash, in fields of its own.

Content is stored as its canonical *text*: the bytes that are shown are the bytes that are hashed and executed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from placet import limits
from placet.canonical import canonical_string, canonical_text, digest_of_text, parse_canonical
from placet.contents import (
    PLAN_BOUNDARY,
    CallSnapshot,
    Content,
    OperationOutcomeContent,
    PlanContent,
    QuestionContent,
    Reviewed,
    TaskDispatchContent,
    TaskRoundContent,
    TaskSnapshot,
    ToolCallContent,
    agent_of,
    boundary_of,
    read_content,
)
from placet.errors import Code, ContractError, PlacetError, TerminalError
from placet.ids import derived_id
from placet.request_checks import agreed, check_generation, check_instants, check_texts, identity, refusal
from placet.strict_json import JsonValue
from placet.values import Value

__all__ = [
    "PLAN_BOUNDARY",
    "ApprovalRequest",
    "CallSnapshot",
    "Content",
    "OperationOutcomeContent",
    "PlanContent",
    "QuestionContent",
    "Scope",
    "TaskDispatchContent",
    "TaskRoundContent",
    "TaskSnapshot",
    "ToolCallContent",
    "boundary_of",
    "content_text",
    "create_request",
    "create_request_from",
    "follows",
    "hash_of_text",
    "request_from_row",
    "request_hash",
    "request_id",
    "same_request",
    "successor_id",
    "verified_content",
    "verify_request",
]

Scope = Literal["plan", "task_round", "task_dispatch", "tool_call", "operation_outcome", "question", "plan_patch"]

REQUEST_VERSION = 1
"""Version of the row. A row of another version is not understood, hence not believed."""


# ── hash and identity ──────────────────────────────────────────────────────────────────


def content_text(content: Content | Mapping[str, JsonValue]) -> str:
    """The canonical JSON of content, typed or as plain JSON. Raises ContractError as `check_json_value` does."""
    plain = content.model_dump() if isinstance(content, Reviewed) else content
    return canonical_text(plain, depth_max=limits.CONTENT_DEPTH_MAX)


def request_hash(scope: str, boundary: str, content: Content | Mapping[str, JsonValue]) -> str:
    """The hash that a decision must quote: 64 lower-case hexadecimal digits.

    Computes only: whether boundary and content belong together is for `create_request` and `verify_request` to say.
    """
    return hash_of_text(scope, boundary, content_text(content))


def hash_of_text(scope: str, boundary: str, text: str) -> str:
    """`request_hash` of content whose canonical JSON is `text` already."""
    # The keys of the hashed object in canonical order, its content canonical already.
    q = canonical_string
    return digest_of_text(f'{{"boundary":{q(boundary)},"content":{text},"scope":{q(scope)}}}')


def request_id(run_id: str, scope: str, boundary: str, request_hash: str) -> str:
    """`apr_` and 32 hexadecimal digits. Equal content in two runs has one hash and two ids."""
    return derived_id("apr", run_id, scope, boundary, request_hash)


def successor_id(run_id: str, request_id: str, generation: int) -> str:
    """The id of the question that takes the place of `request_id`, as the `generation`-th about the same thing.

    Without the hash, which nobody knows yet who has just edited it: a question has one outcome, hence one successor.
    """
    return derived_id("apr", run_id, request_id, str(generation))


def follows(request: ApprovalRequest, first_id: str) -> bool:
    """Whether `request` is `first_id`, or came to its place by way of successors. Computed from the ids alone."""
    if not 1 <= request.generation <= limits.GENERATIONS_MAX:
        return False
    at = first_id
    for generation in range(2, request.generation + 1):
        at = successor_id(request.run_id, at, generation)
    return at == request.request_id


class ApprovalRequest(Value):
    """The frozen question. Made by `create_request`; read from a store, believed only after `verify_request`."""

    version: int = REQUEST_VERSION
    tenant: str
    request_id: str
    run_id: str
    scope: Scope
    boundary: str
    content_text: str
    """The reviewed content as canonical JSON: what is shown, hashed and executed."""
    request_hash: str
    requested_at_ms: int
    reason: str | None = None
    """Why it is asked, in words nobody checked. None where none was given; an empty one is kept."""
    initiator: str = ""
    """Person id of who started the run, for the separation of duties; empty where no person did."""
    agent_name: str = ""
    operation_id: str = ""
    tool_version: str = ""
    tool_schema_digest: str = ""
    policy_version: str = ""
    app_version: str = ""
    expires_at_ms: int | None = None
    """From this instant on the question is expired; None: never."""
    use_by_ms: int | None = None
    """From this instant on an approval no longer starts anything; None: never."""
    quorum: int = 1
    """How many different people must approve. Frozen with the question."""
    asker_machine: str = ""
    asker_key: str = ""
    """The state that is told the outcome."""
    generation: int = 1
    """1, and one more for each question that takes the place of the one before about the same thing."""
    supersedes: str = ""
    """The request whose place it takes; empty for generation 1."""
    requesters: str = ""
    """Person ids, one a line, of who has edited what is asked: they count as asking, so they cannot approve it."""
    remind_at_ms: int | None = None
    """When people are reminded once that it will expire; None: never."""
    rule: str = ""
    """Which gates or rules want to know, by name."""
    policy_digest: str = ""
    """Of the policy they belong to, as it was then."""
    reviewers: str = ""
    """Person ids, one a line, of who may decide; empty: anybody who is let in."""

    @property
    def requesting(self) -> frozenset[str]:
        """The persons in `requesters`."""
        return frozenset(self.requesters.split("\n")) - {""}

    @property
    def roster(self) -> tuple[str, ...] | None:
        """The persons in `reviewers`; None: anybody who is let in."""
        return tuple(self.reviewers.split("\n")) if self.reviewers else None


# ── making one ─────────────────────────────────────────────────────────────────────────


def create_request(
    *,
    tenant: str,
    run_id: str,
    scope: str,
    boundary: str,
    content: Content | Mapping[str, Any],
    requested_at_ms: int,
    reason: str | None = None,
    initiator: str = "",
    agent_name: str = "",
    operation_id: str = "",
    tool_version: str = "",
    tool_schema_digest: str = "",
    policy_version: str = "",
    app_version: str = "",
    expires_at_ms: int | None = None,
    use_by_ms: int | None = None,
    quorum: int = 1,
    asker_machine: str = "",
    asker_key: str = "",
    generation: int = 1,
    supersedes: str = "",
    requesters: str = "",
    remind_at_ms: int | None = None,
    rule: str = "",
    policy_digest: str = "",
    reviewers: str = "",
    content_bytes_max: int = limits.CONTENT_BYTES_MAX,
) -> ApprovalRequest:
    """The request, checked in full, so that nothing malformed is refused only later. Content is copied.

    `run_id`, `boundary` and `tenant` are trimmed. `agent_name` and `operation_id` are taken from the content where it
    names them.

    Raises ContractError APPROVAL_VALIDATION_ERROR; `pointer` is `/run_id`, `/content/rawInput/env` and the like.
    """
    run_id = identity("run_id", run_id, limits.RUN_ID_CHARS_MAX)
    boundary = identity("boundary", boundary, limits.CONTENT_BYTES_MAX)
    known, text = _checked_content(content, content_bytes_max)
    if scope != known.kind:
        raise refusal("scope", f"scope {scope!r} does not fit content of kind {known.kind!r}")
    if boundary != boundary_of(known):
        raise refusal(
            "boundary", f"boundary {boundary!r} does not belong to this content, whose is {boundary_of(known)!r}"
        )
    check_texts(
        reason=reason, initiator=initiator, agent_name=agent_name, operation_id=operation_id,
        tool_version=tool_version, tool_schema_digest=tool_schema_digest, policy_version=policy_version,
        app_version=app_version, asker_machine=asker_machine, asker_key=asker_key, supersedes=supersedes,
        requesters=requesters, rule=rule, policy_digest=policy_digest, reviewers=reviewers,
    )  # fmt: skip
    check_instants(
        requested_at_ms=requested_at_ms, expires_at_ms=expires_at_ms, use_by_ms=use_by_ms, remind_at_ms=remind_at_ms
    )
    check_generation(generation, supersedes)
    if type(quorum) is not int or not 1 <= quorum < limits.INTEGER_MAX:
        raise refusal("quorum", "quorum is not a positive integer")
    hashed = hash_of_text(scope, boundary, text)
    operation = known.operation_id if isinstance(known, OperationOutcomeContent) else ""
    return ApprovalRequest(
        tenant=identity("tenant", tenant, limits.NAME_CHARS_MAX),
        request_id=_id_of(run_id, scope, boundary, hashed, generation, supersedes),
        run_id=run_id,
        scope=known.kind,
        boundary=boundary,
        content_text=text,
        request_hash=hashed,
        requested_at_ms=requested_at_ms,
        reason=reason,
        initiator=initiator,
        agent_name=agreed("agent_name", agent_name, agent_of(known)),
        operation_id=agreed("operation_id", operation_id, operation),
        tool_version=tool_version,
        tool_schema_digest=tool_schema_digest,
        policy_version=policy_version,
        app_version=app_version,
        expires_at_ms=expires_at_ms,
        use_by_ms=use_by_ms,
        quorum=quorum,
        asker_machine=asker_machine,
        asker_key=asker_key,
        generation=generation,
        supersedes=supersedes,
        requesters=requesters,
        remind_at_ms=remind_at_ms,
        rule=rule,
        policy_digest=policy_digest,
        reviewers=reviewers,
    )


def _id_of(run_id: str, scope: str, boundary: str, hashed: str, generation: int, supersedes: str) -> str:
    if generation == 1:
        return request_id(run_id, scope, boundary, hashed)
    return successor_id(run_id, supersedes, generation)


_PARAMETERS = inspect.signature(create_request).parameters
_FIELDS = {name for name in _PARAMETERS if name != "content_bytes_max"}
_REQUIRED = [name for name, parameter in _PARAMETERS.items() if parameter.default is inspect.Parameter.empty]


def create_request_from(
    document: Mapping[str, Any], *, content_bytes_max: int = limits.CONTENT_BYTES_MAX
) -> ApprovalRequest:
    """`create_request` for a document from outside, with its parameters as keys.

    Raises ContractError APPROVAL_VALIDATION_ERROR, also for an unknown or a missing key.
    """
    for name in document:
        if name not in _FIELDS:
            raise refusal(str(name), f"{name!r} is no field of a request: what is not reviewed is not carried")
    for name in _REQUIRED:
        if name not in document:
            raise refusal(name, f"{name} is missing")
    return create_request(**document, content_bytes_max=content_bytes_max)


def _checked_content(content: object, bytes_max: int) -> tuple[Content, str]:
    plain = content.model_dump() if isinstance(content, Reviewed) else content
    if type(plain) is not dict:
        raise refusal("content", "content is not an object")
    try:
        text = canonical_text(plain, depth_max=limits.CONTENT_DEPTH_MAX)
        known = read_content(plain)
    except ContractError as error:
        raise refusal("content", f"content: {error.message}", error.pointer or "") from error
    size = len(text.encode())
    if size > bytes_max:
        raise refusal("content", f"content has {size} bytes, at most {bytes_max} are allowed: refer to large things")
    return known, text


# ── believing one ──────────────────────────────────────────────────────────────────────


def verify_request(request: ApprovalRequest) -> None:
    """Refuse a request that is not what `create_request` would have made of its content.

    Raises TerminalError APPROVAL_INTEGRITY_ERROR: another version, content that is not canonical or not of its kind, a
    scope or boundary that does not belong to it, a hash or an id that is not the recomputed one, letter by letter.

    Content is read once in a process: that its hash is the one that was found good proves that it is the same content.
    """
    if request.request_hash in _GOOD and _is_known(request):
        return
    verified_content(request)
    if len(_GOOD) >= GOOD_MAX:
        del _GOOD[next(iter(_GOOD))]
    _GOOD[request.request_hash] = None


GOOD_MAX = 4_096
"""Hashes of contents that were found good; each service looks at one several times within moments."""
_GOOD: dict[str, None] = {}
"""The oldest first."""


def _is_known(request: ApprovalRequest) -> bool:
    """Whether it is content that was found good, under its own names; if not, `verified_content` says why."""
    try:
        hashed = hash_of_text(request.scope, request.boundary, request.content_text)
        identity("tenant", request.tenant, limits.NAME_CHARS_MAX)
        trimmed = identity("run_id", request.run_id, limits.RUN_ID_CHARS_MAX)
    except (ContractError, UnicodeError):
        return False
    named = _named(request, hashed)
    said = (request.version, request.run_id, request.request_hash, request.request_id)
    return said == (REQUEST_VERSION, trimmed, hashed, named)


def verified_content(request: ApprovalRequest) -> Content:
    """The content of a request that `verify_request` accepts; raises as it does."""
    if request.version != REQUEST_VERSION:
        raise _broken(request.request_id, f"version {request.version} is not understood, only {REQUEST_VERSION}")
    try:
        plain = parse_canonical(request.content_text, depth_max=limits.CONTENT_DEPTH_MAX)
        content = read_content(plain if isinstance(plain, dict) else {})
        identity("tenant", request.tenant, limits.NAME_CHARS_MAX)
        trimmed = identity("run_id", request.run_id, limits.RUN_ID_CHARS_MAX)
    except ContractError as error:
        raise _broken(request.request_id, error.message) from error
    if content.kind != request.scope or boundary_of(content) != request.boundary or trimmed != request.run_id:
        raise _broken(request.request_id, "scope, boundary or run does not belong to the content")
    hashed = hash_of_text(request.scope, request.boundary, request.content_text)
    if hashed != request.request_hash:
        raise _broken(request.request_id, "the hash is not that of the content")
    if _named(request, hashed) != request.request_id:
        raise _broken(request.request_id, "the id is not that of run, scope, boundary and hash")
    return content


def _named(request: ApprovalRequest, hashed: str) -> str | None:
    """The id that it must have; None where its generation is none."""
    if (request.generation == 1) != (request.supersedes == "") or request.generation < 1:
        return None
    return _id_of(request.run_id, request.scope, request.boundary, hashed, request.generation, request.supersedes)


def request_from_row(row: Mapping[str, Any], *, stored_under: str | None = None) -> ApprovalRequest:
    """The verified request that a stored row is; `stored_under` is the key it was found by.

    Raises TerminalError APPROVAL_INTEGRITY_ERROR for a row of another shape or under another key too.
    """
    try:
        request = ApprovalRequest.model_validate(dict(row))
    except ValidationError as error:
        name = str(stored_under or row.get("request_id"))
        fields = sorted({".".join(map(str, finding["loc"])) for finding in error.errors(include_input=False)})
        raise _broken(name, f"the row is not a request: {', '.join(fields)}") from None
    if stored_under is not None and stored_under != request.request_id:
        raise _broken(stored_under, f"the row stored under this id is {request.request_id}")
    verify_request(request)
    return request


def _broken(name: str, reason: str) -> PlacetError:
    return TerminalError(Code.APPROVAL_INTEGRITY_ERROR, f"request {name} is not to be believed: {reason}")


def same_request(first: ApprovalRequest, second: ApprovalRequest) -> bool:
    """Whether both put one question: then the row written first stands and is the answer to the second creation.

    Compared: identity, content letter by letter, and on whose behalf it is asked. Not compared: reason and instants,
    which are not hashed, and what was frozen with the row that stands (rule, deadlines, versions), which the guards of
    a start check against that row.
    """
    return all(getattr(first, field) == getattr(second, field) for field in _QUESTION)


_QUESTION = (
    "version", "tenant", "request_id", "run_id", "scope", "boundary", "request_hash", "content_text",
    "initiator", "agent_name", "operation_id", "asker_machine", "asker_key", "generation", "supersedes", "requesters",
)  # fmt: skip
