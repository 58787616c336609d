"""Decides the words in which a state's status is told, and which of them are ends, for all four machines.

They stand in a column that operators and the inbox ask by. A machine imports the sets of its neighbours from here,
so that "is that run over?" has one answer everywhere.
"""

from __future__ import annotations

from placet.errors import require

# ── run ────────────────────────────────────────────────────────────────────────────────

RUN_ACTIVE = frozenset({"planning", "running", "suspended"})
"""`planning`: the planner's model is at work; `running`: something is in flight; `suspended`: only people are."""
RUN_TERMINAL = frozenset({"succeeded", "failed", "rejected", "cancelled", "expired", "timed_out", "budget_exhausted"})
"""Seven ends, none of which is reported as another (J23)."""
RUN_STATUSES = RUN_ACTIVE | RUN_TERMINAL

# ── approval ───────────────────────────────────────────────────────────────────────────

APPROVAL_ACTIVE = frozenset({"open"})
APPROVAL_TERMINAL = frozenset(
    {"approved", "rejected", "answered", "expired", "cancelled", "superseded", "revoked", "settled"}
)
"""`revoked`: approved, then taken back before it was consumed; `settled`: a person said whether it happened."""
APPROVAL_STATUSES = APPROVAL_ACTIVE | APPROVAL_TERMINAL

# ── operation ──────────────────────────────────────────────────────────────────────────

OPERATION_ACTIVE = frozenset({"lapsed", "started", "waiting", "reconciling", "needs_operator"})
"""`lapsed`: not started, since its approval was not used in time, and asked about again;
`waiting`: for the next attempt; `reconciling`: the tool's world is asked; `needs_operator`: a person is."""
OPERATION_TERMINAL = frozenset({"succeeded", "failed", "refused", "cancelled"})
OPERATION_STATUSES = OPERATION_ACTIVE | OPERATION_TERMINAL

# ── thread ─────────────────────────────────────────────────────────────────────────────

THREAD_ACTIVE = frozenset({"idle", "calling", "waiting", "failed"})
"""`calling`: the model is; `waiting`: for the next attempt of the same turn; `failed`: the last turn failed, or was
interrupted; another one may follow (J03)."""
THREAD_TERMINAL = frozenset({"closed"})
THREAD_STATUSES = THREAD_ACTIVE | THREAD_TERMINAL

require(not RUN_ACTIVE & RUN_TERMINAL, "a run's status is an end or is none")
require(not APPROVAL_ACTIVE & APPROVAL_TERMINAL, "an approval's status is an end or is none")
require(not OPERATION_ACTIVE & OPERATION_TERMINAL, "an operation's status is an end or is none")
require(not THREAD_ACTIVE & THREAD_TERMINAL, "a thread's status is an end or is none")
