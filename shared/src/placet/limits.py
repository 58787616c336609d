"""Every bound in the system, with its reason, and the relations between bounds."""

from __future__ import annotations

from placet.errors import require

KIB = 1024

JSON_DEPTH_MAX = 64
"""Deep enough for any tool input seen; far below Python's recursion limit."""
JSON_BYTES_MAX = 1024 * KIB
"""One HTTP body or one message. Larger things belong in a store, referred to by digest."""
INTEGER_MAX = 2**53
"""I-JSON (RFC 7493 §2.2): integers beyond ±(2^53 - 1) do not survive other implementations."""

CONTENT_BYTES_MAX = 256 * KIB
"""Canonical content of one approval request: a person must be able to read it."""
CONTENT_DEPTH_MAX = 48
"""Nesting of that content; leaves room for the messages and states that carry it."""
RUN_ID_CHARS_MAX = 128
"""As in the interoperating implementation (case B23)."""
NAME_CHARS_MAX = 128
"""Tool, agent, team and task names."""
TEXT_CHARS_MAX = 32 * KIB
"""A goal, a description, a reason."""
TASKS_MAX = 1_000
"""Tasks in one plan."""
PATCHES_MAX = 64
"""Changes of one run's plan, applied or not."""
TASKS_AT_WORK_MAX = 64
"""Tasks of one run at work at once. The others wait, so that one broad plan does not crowd out other runs."""
TURNS_MAX = 200
"""Model turns in one thread; past it the task fails rather than looping for ever."""
CONTINUATIONS_MAX = 200
"""Further instructions to one run: their ids are kept with it."""
INTERRUPTIONS_MAX = 64
"""Interruptions of one run whose ids are kept with it; an older one does not come again."""
HANDLE_CHARS_MAX = 1_024
"""The name of a live session elsewhere."""
PARTIAL_BYTES_MAX = 64 * KIB
"""What is kept of a reply that was stopped before it was whole."""
CALLS_PER_TURN_MAX = 64
"""Tool calls in one model turn."""
RESULT_BYTES_MAX = 64 * KIB
"""A tool result as the model sees it."""
VALUE_BYTES_MAX = 96 * KIB
"""What a person says besides a word: an edited input, an answer. It travels beside the signed text."""
GENERATIONS_MAX = 64
"""Questions that follow one another about one call or one plan; past it the run stops asking."""
FILE_BYTES_MAX = 256 * KIB * KIB
"""A file that a tool is given: it is copied and hashed right before the effect."""
FILE_PATH_CHARS_MAX = 1_024
"""Its path."""
SIGNED_BYTES_MAX = 384 * KIB
"""A signed decision: the longest reason in base64, with its escapes."""
SIGNATURE_VALID_MS_MAX = 7 * 24 * 3_600_000
"""How long a signed decision may be good for: one that lies in a queue over a long weekend still counts."""
SIGNATURE_SKEW_MS = 60_000
"""How far a signer's clock may be off the store's."""

FINDINGS_MAX = 16
"""Findings about one tool call; a person reads them."""
FINDING_CHARS_MAX = 500
"""One of them."""
FINDINGS_MAX = 16
"""Findings about one tool call; a person reads them."""
FINDING_CHARS_MAX = 500
"""One of them."""
GATE_ANSWER_BYTES_MAX = 64 * KIB
"""What an outside gate may answer."""
GATE_TIMEOUT_MS_MAX = 60_000
"""How long one may be waited for."""
RULE_CHARS_MAX = 4 * KIB
"""The condition of a declarative rule."""
RULE_STEPS_MAX = 1_000_000
"""Elements that its loops may visit, at worst: a loop over the largest plan, each step of which copies the list."""
RULE_WORK_MAX = 1_000_000_000
"""Bytes that it may look at, at worst: each step may compare all that is judged. A fraction of a second."""
RULE_BYTES_MAX = 16 * KIB * KIB
"""What putting values together may come to."""
POLICY_BYTES_MAX = 256 * KIB
"""A policy file."""

BATCH_MAX = 64
"""Messages in one turn of a worker."""
HANDOVERS_MAX = 32
"""Waves of in-process hand-over within one transaction; the rest goes through the outbox."""
CONFLICT_TRIES_MAX = 3
"""A key that lost this many races in a row is given back to its queue."""
DELIVERIES_MAX = 20
"""Deliveries of one message before it is parked as a dead letter."""
LETTER_BYTES_MAX = JSON_BYTES_MAX
"""What is kept of the body of a dead letter. None is longer where the broker has the settings that belong to this."""
LISTED_BYTES_MAX = 4 * KIB
"""What of the body of a dead letter is shown in a list."""

ATTEMPTS_MAX = 20
"""Upper bound of any retry policy."""
RETRY_AFTER_MS_MAX = 3_600_000
"""The longest wait that another side may ask for before a retry: one that asks for more is away, not busy."""
LEASE_MARGIN_MS = 5_000
"""How much longer a lease lasts than the work it covers."""
MODEL_TIMEOUT_MS = 120_000
"""One model call."""
TOOL_TIMEOUT_MS = 30_000
"""One tool call, unless the tool says otherwise."""
CLAIM_LEASE_MS = 3_000
"""The referee's tentative pick (DESIGN §5)."""

require(CONTENT_BYTES_MAX < JSON_BYTES_MAX, "a message must be able to carry one request")
require(CONTENT_DEPTH_MAX + 16 <= JSON_DEPTH_MAX, "a message must be able to carry the deepest content")
require(RESULT_BYTES_MAX < CONTENT_BYTES_MAX, "a result must fit in a message")
require(
    2 * (SIGNED_BYTES_MAX + VALUE_BYTES_MAX) < JSON_BYTES_MAX,
    "a decision must carry its envelope and its value, which are text of JSON, as text",
)
