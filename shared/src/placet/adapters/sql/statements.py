"""Decides the SQL text of every statement: built from the tables, compiled once, run on the driver's own connection.

SQLAlchemy writes the SQL; its execution layer stays out of the way, because it costs several times what the statement
does. A statement's parameters are positional, in the order of `names`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Dialect,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.expression import ClauseElement

from placet import limits
from placet.adapters.sql import tables
from placet.columns import COLUMNS, ENDED, FIELDS, KEYS
from placet.errors import require
from placet.rows import AttemptRow


class Statement(NamedTuple):
    """SQL text, the names of its parameters in their order, and the values of those that never change."""

    sql: str
    names: tuple[str, ...]
    fixed: Mapping[str, Any]

    def bind(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """The parameters in order."""
        known = {**self.fixed, **values}
        return tuple(known[name] for name in self.names)


_RUN: ColumnElement[str] = literal_column("'run'")
_APPROVAL: ColumnElement[str] = literal_column("'approval'")
_OPEN: ColumnElement[str] = literal_column("'open'")
"""Written into the text rather than bound: a partial index is used only where its condition can be seen."""

STATE_KEY = ("run_id", "machine", "key")
OUTCOME_COLUMNS = ("outcome", "decided_by", "decision_id", "decided_at_ms")
"""What the inbox shows of an outcome. Its other columns have the names of columns of the request."""


def _is(table: Table, *columns: str) -> ColumnElement[bool]:
    """Each column equals the parameter `is_<column>`."""
    return and_(*(table.c[column] == bindparam(f"is_{column}") for column in columns))


class Statements:
    """The statements of one dialect: `sql(list_runs, True, False)`. Each is compiled when it is first wanted."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._compiled: dict[tuple[Any, ...], Statement] = {}

    def __call__(self, build: Callable[..., ClauseElement], *variant: Any) -> Statement:
        """The statement that `build`, a function of this module, gives for `variant`."""
        key = (build, *variant)
        found = self._compiled.get(key)
        if found is None:
            compiled = build(*variant).compile(dialect=self._dialect)
            names = tuple(getattr(compiled, "positiontup", None) or ())
            fixed = {name: value for name, value in (compiled.params or {}).items() if value is not None}
            found = self._compiled[key] = Statement(str(compiled), names, fixed)
        return found

    def text(self, build: Callable[..., ClauseElement], *variant: Any, takes: Sequence[str]) -> str:
        """The SQL of a statement whose parameters are exactly `takes`, in this order.

        Raises InvariantError when they are not: values given by position would go astray.
        """
        statement = self(build, *variant)
        require(statement.names == tuple(takes), f"{build.__name__} takes {statement.names}, not {tuple(takes)}")
        return statement.sql


# ── states ─────────────────────────────────────────────────────────────────────────────


def state_load() -> ClauseElement:
    s = tables.state
    return select(s.c.version, s.c.status, s.c.body).where(_is(s, *STATE_KEY))


def state_version() -> ClauseElement:
    s = tables.state
    return select(s.c.version, s.c.tenant).where(_is(s, *STATE_KEY))


def state_row() -> ClauseElement:
    s = tables.state
    columns = (s.c[name] for name in ("tenant", *STATE_KEY, "version", "status"))
    return select(*columns).where(_is(s, *STATE_KEY))


def state_insert() -> ClauseElement:
    return insert(tables.state)


def state_update() -> ClauseElement:
    s = tables.state
    values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in ("version", "status", "body", "updated_at_ms")}
    return update(s).where(_is(s, *STATE_KEY)).values(values)


# ── facts, journal, dead letters ───────────────────────────────────────────────────────


def fact_insert(table: str) -> ClauseElement:
    return insert(tables.FACTS[table]).values({name: bindparam(name) for name in FIELDS[table]})


def fact_load(table: str) -> ClauseElement:
    """A fact by its key, or, for `decision_attempt`, the first under a decision id."""
    t = tables.FACTS[table]
    columns = [t.c[name] for name in FIELDS[table]]
    if table == "decision_attempt":
        return select(*columns).where(_is(t, "run_id", "request_id", "decision_id")).order_by(t.c.n)
    return select(*columns).where(_is(t, *KEYS[table]))


def attempt_end() -> ClauseElement:
    a = tables.operation_attempt
    open_one = and_(_is(a, *KEYS[AttemptRow.table]), a.c.ended.is_(None))
    return update(a).where(open_one).values({name: bindparam(f"new_{name}") for name in ENDED})


def journal_insert() -> ClauseElement:
    return insert(tables.journal)


def journal_entry() -> ClauseElement:
    """The instant of an entry, where it is there."""
    return select(tables.journal.c.at_ms).where(_is(tables.journal, *STATE_KEY, "version"))


def journal_delete() -> ClauseElement:
    """All entries of a state up to a version. Only its owner may (see the triggers)."""
    return delete(tables.journal).where(_is(tables.journal, *STATE_KEY), tables.journal.c.version <= bindparam("upto"))


def delete_of_run(table: str) -> ClauseElement:
    t = tables.metadata.tables[table]
    return delete(t).where(_is(t, "run_id"))


def journal_of_state() -> ClauseElement:
    j = tables.journal
    columns = (j.c.version, j.c.message_id, j.c.message, j.c.facts, j.c.at_ms)
    return select(*columns).where(_is(j, *STATE_KEY)).order_by(j.c.version)


def thread_bodies() -> ClauseElement:
    t = tables.thread_message
    upto = t.c.n <= bindparam("upto")
    return select(t.c.body_text).where(_is(t, "run_id", "thread_id"), upto).order_by(t.c.n)


# ── outbox ─────────────────────────────────────────────────────────────────────────────


def outbox_insert() -> ClauseElement:
    o = tables.outbox
    return insert(o).values({c.name: bindparam(c.name) for c in o.columns if c is not o.c.seq})


def outbox_delete() -> ClauseElement:
    return delete(tables.outbox).where(_is(tables.outbox, "id"))


def outbox_due() -> ClauseElement:
    o = tables.outbox
    columns = (o.c[name] for name in ("id", "destination", "run_id", "type", "not_before_ms", "body"))
    now: ColumnElement[int] = bindparam("now_ms")
    free = and_(o.c.due_ms <= now, o.c.claimed_until_ms <= now)
    return select(*columns).where(free).order_by(o.c.due_ms, o.c.seq).limit(bindparam("limit"))


def outbox_claim() -> ClauseElement:
    return update(tables.outbox).where(_is(tables.outbox, "id")).values(claimed_until_ms=bindparam("until_ms"))


def outbox_defer() -> ClauseElement:
    o = tables.outbox
    until_ms: ColumnElement[int] = bindparam("now_ms") + func.min(
        bindparam("now_ms") - o.c.due_ms, bindparam("longest_ms")
    )
    later = and_(_is(o, "id"), o.c.claimed_until_ms < until_ms)
    return update(o).where(later).values(claimed_until_ms=until_ms)


def outbox_recall() -> ClauseElement:
    o = tables.outbox
    claimed = and_(o.c.due_ms <= bindparam("now_ms"), o.c.claimed_until_ms > bindparam("until_ms"))
    return update(o).where(claimed).values(claimed_until_ms=bindparam("until_ms"))


def outbox_next_due() -> ClauseElement:
    """When the next row that nobody has claimed is due: the first row."""
    o = tables.outbox
    free = o.c.claimed_until_ms <= bindparam("now_ms")
    return select(o.c.due_ms).where(free).order_by(o.c.due_ms, o.c.seq)


def outbox_next_lapse() -> ClauseElement:
    """When the next claim lapses."""
    o = tables.outbox
    claimed = and_(o.c.claimed_until_ms > literal_column("0"), o.c.claimed_until_ms > bindparam("now_ms"))
    return select(func.min(o.c.claimed_until_ms)).where(claimed)


def outbox_unclaim() -> ClauseElement:
    """A new owner: whoever had claimed a row is gone."""
    o = tables.outbox
    return update(o).where(o.c.claimed_until_ms > literal_column("0")).values(claimed_until_ms=literal_column("0"))


def outbox_wake(types: tuple[str, ...]) -> ClauseElement:
    """Rows of these types become due at once."""
    o = tables.outbox
    late = and_(o.c.type.in_([literal_column(f"'{name}'") for name in types]), o.c.due_ms > bindparam("now_ms"))
    return update(o).where(late).values(due_ms=bindparam("due_now_ms"))


# ── the counter of owners ──────────────────────────────────────────────────────────────


def meta_value() -> ClauseElement:
    return select(tables.meta.c.value).where(_is(tables.meta, "name"))


def meta_insert() -> ClauseElement:
    return insert(tables.meta)


def meta_update() -> ClauseElement:
    return update(tables.meta).where(_is(tables.meta, "name")).values(value=bindparam("new_value"))


# ── for people ─────────────────────────────────────────────────────────────────────────


def list_runs(by_status: bool, from_before: bool) -> ClauseElement:
    s = tables.state
    columns = (s.c[name] for name in ("run_id", "status", "version", "created_at_ms", "updated_at_ms", "body"))
    query = select(*columns).where(s.c.machine == _RUN, _is(s, "tenant"))
    if by_status:
        query = query.where(_is(s, "status"))
    place = tuple_(s.c.created_at_ms, s.c.run_id)
    if from_before:
        query = query.where(place < tuple_(bindparam("place_ms"), bindparam("place_id")))
    return query.order_by(s.c.created_at_ms.desc(), s.c.run_id.desc()).limit(bindparam("limit"))


def read_state() -> ClauseElement:
    s = tables.state
    columns = (s.c[name] for name in ("status", "version", "created_at_ms", "updated_at_ms", "body"))
    return select(*columns).where(_is(s, *STATE_KEY, "tenant"))


def read_rows(table: str) -> ClauseElement:
    t = tables.FACTS[table]
    columns = (t.c[name] for name in COLUMNS[table])
    return select(*columns).where(_is(t, "run_id", "tenant")).order_by(*(t.c[name] for name in KEYS[table]))


def _request_rows() -> Select[Any]:
    s, r, o = tables.state, tables.approval_request, tables.approval_outcome
    columns = [r.c[name] for name in COLUMNS[r.name]] + [s.c.status] + [o.c[name] for name in OUTCOME_COLUMNS]
    asked = s.join(r, and_(r.c.run_id == s.c.run_id, r.c.request_id == s.c.key))
    answered = asked.outerjoin(o, and_(o.c.run_id == r.c.run_id, o.c.request_id == r.c.request_id))
    return select(*columns).select_from(answered).where(s.c.machine == _APPROVAL)


def list_requests(open_only: bool, from_after: bool) -> ClauseElement:
    s = tables.state
    query = _request_rows().where(_is(s, "tenant"))
    if open_only:
        query = query.where(s.c.status == _OPEN)
    if from_after:
        place = tuple_(s.c.created_at_ms, s.c.key)
        query = query.where(place > tuple_(bindparam("place_ms"), bindparam("place_id")))
    return query.order_by(s.c.created_at_ms, s.c.key).limit(bindparam("limit"))


def latest_requests(from_before: bool) -> ClauseElement:
    s = tables.state
    query = _request_rows().where(_is(s, "tenant"))
    if from_before:
        query = query.where(tuple_(s.c.created_at_ms, s.c.key) < tuple_(bindparam("place_ms"), bindparam("place_id")))
    return query.order_by(s.c.created_at_ms.desc(), s.c.key.desc()).limit(bindparam("limit"))


def read_request() -> ClauseElement:
    return _request_rows().where(_is(tables.approval_request, "request_id", "tenant"))


def run_of_operation() -> ClauseElement:
    return select(tables.operation.c.run_id).where(_is(tables.operation, "operation_id", "tenant")).limit(1)


def place_of_run() -> ClauseElement:
    s = tables.state
    return select(s.c.created_at_ms).where(s.c.machine == _RUN, _is(s, "run_id", "tenant"))


def place_of_request() -> ClauseElement:
    s, r = tables.state, tables.approval_request
    asked = s.join(r, and_(r.c.run_id == s.c.run_id, r.c.request_id == s.c.key))
    found = _is(r, "request_id", "tenant")
    return select(s.c.created_at_ms).select_from(asked).where(s.c.machine == _APPROVAL, found)


def read_journal(arrival: str) -> ClauseElement:
    """Entries of a run whose states belong to the tenant, in the order they were written: by time, then `arrival`."""
    s, j = tables.state, tables.journal
    own = s.join(j, and_(*(s.c[name] == j.c[name] for name in STATE_KEY)))
    columns = (j.c[name] for name in ("machine", "key", "version", "message_id", "message", "at_ms"))
    ours = and_(s.c.run_id == bindparam("is_run_id"), _is(s, "tenant"))
    return select(*columns).select_from(own).where(ours).order_by(j.c.at_ms, literal_column(arrival))


ENTRY_SHOWN = ("machine", "key", "version", "message_id", "message", "facts", "at_ms")
STATE_SHOWN = ("machine", "key", "version", "status", "body")


def read_states() -> ClauseElement:
    s = tables.state
    columns = (s.c[name] for name in STATE_SHOWN)
    return select(*columns).where(_is(s, "run_id", "tenant")).order_by(s.c.machine, s.c.key)


def read_entries(from_after: bool) -> ClauseElement:
    """Entries of a run whose states belong to the tenant, in the order of their key."""
    s, j = tables.state, tables.journal
    own = s.join(j, and_(*(s.c[name] == j.c[name] for name in STATE_KEY)))
    ours = and_(j.c.run_id == bindparam("is_run_id"), _is(s, "tenant"))
    query = select(*(j.c[name] for name in ENTRY_SHOWN)).select_from(own).where(ours)
    if from_after:
        place = tuple_(bindparam("after_machine"), bindparam("after_key"), bindparam("after_version"))
        query = query.where(tuple_(j.c.machine, j.c.key, j.c.version) > place)
    return query.order_by(j.c.machine, j.c.key, j.c.version).limit(bindparam("limit"))


def read_outbox() -> ClauseElement:
    o = tables.outbox
    columns = (o.c[name] for name in ("id", "destination", "type", "not_before_ms", "body"))
    return select(*columns).where(_is(o, "run_id")).order_by(o.c.due_ms, o.c.seq)


def dead_letter_insert() -> ClauseElement:
    """Parking a message twice is one row."""
    d = tables.dead_letter
    known = select(d.c.id).where(d.c.id == bindparam("id")).exists()
    values: Any = select(*(bindparam(c.name) for c in d.columns)).where(~known)
    return insert(d).from_select([c.name for c in d.columns], values)


LETTER_SHOWN = ("id", "run_id", "destination", "code", "reason", "at_ms", "queue", "about_text")
"""Of a dead letter, besides its body and how long that is."""


def read_dead_letter() -> ClauseElement:
    d = tables.dead_letter
    columns = (d.c[name] for name in LETTER_SHOWN)
    return select(*columns, func.length(d.c.body), d.c.body).where(_is(d, "id", "tenant"))


def list_dead_letters(of_run: bool) -> ClauseElement:
    d = tables.dead_letter
    columns = (d.c[name] for name in LETTER_SHOWN)
    start = func.substr(d.c.body, literal_column("1"), literal_column(str(limits.LISTED_BYTES_MAX)))
    query = select(*columns, func.length(d.c.body), start)
    query = query.where(_is(d, "tenant", "run_id") if of_run else _is(d, "tenant"))
    return query.order_by(d.c.at_ms.desc(), d.c.id.desc()).limit(bindparam("limit"))


def count_dead_letters() -> ClauseElement:
    """How many came from a queue, counted no further than `upto`."""
    d = tables.dead_letter
    some = select(d.c.queue).where(_is(d, "queue")).limit(bindparam("upto")).subquery()
    return select(func.count()).select_from(some)
