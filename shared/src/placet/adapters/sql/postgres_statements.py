"""Decides the SQL of the hot path on PostgreSQL: one statement for each of load, commit, claim, look and discard.

Each is built from the tables once and compiled to text with positional parameters, which are arrays: a batch of any
size is the same prepared statement. No plan is left to chance. A table is reached by the lateral look-up of one key,
which the planner cannot turn into a join, or by the row address that such a look-up gave; together with the settings
of a session (placet.adapters.sql.postgres_sessions) no other way is left, whatever the statistics say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Delete,
    FromClause,
    Integer,
    LargeBinary,
    ScalarSelect,
    Select,
    Table,
    Text,
    and_,
    any_,
    bindparam,
    case,
    cast,
    column,
    delete,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import Insert as InsertOrNothing
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.dialects.postgresql import insert as insert_or_nothing
from sqlalchemy.sql.expression import CTE, ClauseElement, TableValuedAlias
from sqlalchemy.sql.selectable import LateralFromClause
from sqlalchemy.types import TypeEngine

from placet.adapters.sql import statements, tables
from placet.adapters.sql.statements import STATE_KEY
from placet.columns import ENDED, FIELDS, KEYS
from placet.rows import AttemptEndRow, AttemptRow, DecisionAttemptRow

Types = dict[str, TypeEngine[Any]]

WRITTEN, BEHIND, FOREIGN = 0, 1, 2
"""What a commit says of a unit: written; a version, guard or deadline did not hold; the state is another tenant's."""

_NOW: ColumnElement[int] = func.placet_now_ms(type_=BigInteger())
"""The database's clock at the moment it is asked: see the migrations."""
_ZERO: ColumnElement[int] = literal_column("0")
_ONE: ColumnElement[int] = literal_column("1")
_UNIT: Types = {"unit": Integer()}
_STATE: Types = {"run_id": Text(), "machine": Text(), "key": Text()}


def _at(table: Table) -> ColumnElement[Any]:
    """Where a row lies. Once it is locked it can be changed there, without another look-up."""
    return literal_column(f"{table.name}.ctid")


def _types_of(table: Table, names: Sequence[str]) -> Types:
    """The types of columns, without their collation: a parameter has none."""
    plain = {name: table.c[name].type for name in names}
    return {name: Text() if isinstance(kind, Text) else kind for name, kind in plain.items()}


def _given(name: str, types: Types, *, numbered: bool = False) -> TableValuedAlias:
    """The rows that arrays of equal length make, one array a column: parameters `<name>_<column>`."""
    arrays = (bindparam(f"{name}_{key}", type_=ARRAY(kind)) for key, kind in types.items())
    columns = [column(key, kind) for key, kind in types.items()]
    number = {"with_ordinality": "number"} if numbered else {}
    return func.unnest(*arrays).table_valued(*columns, **number).render_derived(name=f"{name}_given")


def columns(name: str, keys: Iterable[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, Sequence[Any]]:
    """Rows as the arrays that `_given` takes."""
    names = [f"{name}_{key}" for key in keys]
    arrays: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(names)
    return dict(zip(names, arrays, strict=True))


# ── load ───────────────────────────────────────────────────────────────────────────────

WANTED: Types = {**_STATE, "whole": Boolean()}
"""What to look up of states; `whole`: with the body."""
_FOUND: Types = {"version": BigInteger(), "tenant": Text(), "status": Text(), "body": LargeBinary()}
_NO_FACT: ColumnElement[Any] = literal_column("NULL::record").label("fact")


def load(*facts: str) -> ClauseElement:
    """One row (kind, number, version, tenant, status, body, fact) for each thing found, at one instant.

    Kind 0 says the clock as its version; kind 1 is the state at that place among those wanted, from 1; kind 2 and on
    are facts, a record each, in the order of `facts`. What is absent has no row.
    """
    number: ColumnElement[int] = literal_column("CAST(0 AS BIGINT)").label("number")
    nothing = [cast(null(), _FOUND[name]).label(name) for name in ("tenant", "status", "body")]
    clock = select(_ZERO.label("kind"), number, _NOW.label("version"), *nothing, _NO_FACT)
    return union_all(clock, _states(), *(_facts(kind, table) for kind, table in enumerate(facts, 2)))


def _states() -> Select[Any]:
    wanted, s = _given("wanted", WANTED, numbered=True), tables.state
    body = case((wanted.c.whole, s.c.body)).label("body")
    found = _look_up(select(s.c.version, s.c.tenant, s.c.status, body), s, wanted, STATE_KEY)
    columns = (found.c[name] for name in _FOUND)
    return select(_ONE, wanted.c.number, *columns, _NO_FACT).select_from(wanted.join(found, true()))


def asked_by(table: str) -> tuple[str, ...]:
    """The columns by which a fact is looked up: its key, or for `decision_attempt` the decision id."""
    return ("run_id", "request_id", "decision_id") if table == DecisionAttemptRow.table else KEYS[table]


def _facts(kind: int, table: str) -> Select[Any]:
    t, names = tables.FACTS[table], asked_by(table)
    wanted = _given(table, _types_of(t, names), numbered=True)
    query = select(func.row(*(t.c[name] for name in FIELDS[table])).label("fact"))
    if table == DecisionAttemptRow.table:
        query = query.order_by(t.c.n)
    found = _look_up(query, t, wanted, names)
    nothing = (null() for _ in _FOUND)
    return select(literal_column(str(kind)), wanted.c.number, *nothing, found.c.fact).select_from(
        wanted.join(found, true())
    )


def _look_up(query: Select[Any], table: Table, wanted: FromClause, names: Sequence[str]) -> LateralFromClause:
    """One row by its key. The limit keeps the planner from making it a join."""
    keys = (table.c[name] == wanted.c[name] for name in names)
    return query.where(*keys).limit(_ONE).lateral(f"{table.name}_found")


# ── commit ─────────────────────────────────────────────────────────────────────────────


def _of(table: Table, names: Sequence[str]) -> Types:
    return {**_UNIT, **_types_of(table, names)}


CLAIMS: Types = {
    **_UNIT,
    **_STATE,
    "tenant": Text(),
    "expected": BigInteger(),
    "version": BigInteger(),
    "status": Text(),
    "body": LargeBinary(),
}
"""States that are stepped and, without a version, those whose version is only relied on. In the order of their keys,
in which they are locked, so that two commits never wait for each other."""
DEADLINES: Types = {"before_ms": BigInteger()}
"""One for each unit, whether it has one or not."""

PLAIN = {name: table for name, table in tables.FACTS.items() if name != AttemptRow.table} | {"journal": tables.journal}
"""Tables whose rows are inserted as they are."""
SENT = ("id", "destination", "run_id", "type", "not_before_ms", "body")
WRITES: dict[str, Types] = {
    **{name: _of(table, FIELDS[name]) for name, table in tables.FACTS.items()},
    "journal": _of(tables.journal, (*STATE_KEY, "version", "message_id", "message", "facts", "at_ms")),
    AttemptEndRow.table: _of(tables.operation_attempt, (*KEYS[AttemptRow.table], *ENDED)),
    "outbox": {**_of(tables.outbox, SENT), "claim_ms": BigInteger()},
    "dead_letter": _of(tables.dead_letter, tuple(tables.dead_letter.columns.keys())),
    "consumed": _of(tables.outbox, ("id",)),
}
"""What a commit may write beside states, and the arrays of each. A variant of the statement has those that are used."""


def commit(guarded: bool, *writes: str) -> ClauseElement:
    """Write every unit whose claims hold. One row: WRITTEN, BEHIND or FOREIGN for each unit, in order.

    Everything waits for the locks: the versions are those of the locked rows, and the clock is read after the last
    lock. Units are counted from 1. A violated constraint ends the whole statement.
    """
    claims = _claims(guarded)
    judgement = _judgement(claims)
    parts = _Parts(judgement)
    writing = [parts.created(claims), parts.stepped(claims)]
    writing += [parts.inserted(PLAIN[name]) for name in writes if name in PLAIN]
    said: list[ColumnElement[Any]] = [judgement.c.fates]
    ended: CTE | None = None
    if AttemptEndRow.table in writes:
        to_end = parts.to_end()
        ended = parts.ended(to_end)
        writing.append(ended)
        said.append(parts.all_ended(to_end, ended))
    if AttemptRow.table in writes:
        writing.append(parts.opened(ended))
    special = {"outbox": parts.sent, "dead_letter": parts.parked, "consumed": parts.consumed}
    writing += [build() for name, build in special.items() if name in writes]
    return select(*said).add_cte(*writing)


def _claims(guarded: bool) -> CTE:
    """Every claim with what is there, locked, and whether the two agree."""
    claim, s = _given("claim", CLAIMS), tables.state
    keys = and_(*(s.c[name] == claim.c[name] for name in STATE_KEY))
    steps = claim.c.version.is_not(None)
    own = select(s.c.version, s.c.tenant, _at(s).label("at")).where(keys, steps)
    own_locked = own.with_for_update(key_share=True).lateral("own")
    joined, version = claim.outerjoin(own_locked, true()), func.coalesce(own_locked.c.version, _ZERO)
    if guarded:
        relied = select(s.c.version).where(keys, ~steps).with_for_update(read=True).lateral("relied")
        joined = joined.outerjoin(relied, true())
        version = func.coalesce(own_locked.c.version, relied.c.version, _ZERO)
    holds = (version == claim.c.expected).label("holds")
    is_foreign = (own_locked.c.tenant != claim.c.tenant).label("is_foreign")
    name = _locked_name(claim, and_(claim.c.expected == _ZERO, steps)).label("name")
    values = (claim.c[key] for key in CLAIMS)
    query = select(*values, own_locked.c.at, holds, is_foreign, name).select_from(joined)
    return query.cte("claims").prefix_with("MATERIALIZED")


def _judgement(claims: CTE) -> CTE:
    """The fate of each unit, and the clock once everything is locked."""
    units = func.array_agg(claims.c.unit, type_=ARRAY(Integer))
    behind, foreign = units.filter(~claims.c.holds), units.filter(claims.c.is_foreign)
    locked = select(_NOW.label("now_ms"), behind.label("behind"), foreign.label("is_foreign")).select_from(claims)
    seen = locked.cte("locked").prefix_with("MATERIALIZED")
    unit = _given("deadline", DEADLINES, numbered=True)
    fate = case(
        (or_(unit.c.before_ms <= seen.c.now_ms, unit.c.number == any_(seen.c.behind)), literal_column(str(BEHIND))),
        (unit.c.number == any_(seen.c.is_foreign), literal_column(str(FOREIGN))),
        else_=literal_column(str(WRITTEN)),
    )
    fates = func.array_agg(aggregate_order_by(fate, unit.c.number), type_=ARRAY(Integer)).label("fates")
    query = select(fates, func.min(seen.c.now_ms).label("now_ms")).select_from(seen.join(unit, true()))
    return query.cte("judgement").prefix_with("MATERIALIZED")


class _Parts:
    """The data-modifying parts. Each writes the rows of those units that are to be written."""

    def __init__(self, judgement: CTE) -> None:
        self._fates = select(judgement.c.fates).scalar_subquery()
        self._now_ms = select(judgement.c.now_ms).scalar_subquery()

    def _written(self, rows: FromClause) -> ColumnElement[bool]:
        return self._fates[rows.c.unit] == literal_column(str(WRITTEN))

    def _rows(self, name: str, *more: ColumnElement[Any]) -> tuple[list[str], Select[Any]]:
        """The names and the values that are given for a table."""
        rows, names = _given(name, WRITES[name]), [key for key in WRITES[name] if key != "unit"]
        return names, select(*(rows.c[key] for key in names), *more).where(self._written(rows))

    def created(self, claims: CTE) -> CTE:
        names = [*STATE_KEY, "tenant", "version", "status", "body"]
        new = and_(claims.c.expected == _ZERO, claims.c.version.is_not(None), self._written(claims))
        query = select(*(claims.c[name] for name in names), self._now_ms, self._now_ms).where(new)
        return insert(tables.state).from_select([*names, "created_at_ms", "updated_at_ms"], query).cte("created")

    def stepped(self, claims: CTE) -> CTE:
        values = {name: claims.c[name] for name in ("version", "status", "body")} | {"updated_at_ms": self._now_ms}
        change = update(tables.state).where(_at(tables.state) == claims.c.at, self._written(claims))
        return change.values(values).cte("stepped")

    def inserted(self, table: Table) -> CTE:
        return insert(table).from_select(*self._rows(table.name)).cte(f"new_{table.name}")

    def to_end(self) -> CTE:
        """The attempts that are to be ended, and where they lie if they are open."""
        a, name = tables.operation_attempt, AttemptEndRow.table
        rows = _given(name, WRITES[name])
        keys = (a.c[key] == rows.c[key] for key in KEYS[a.name])
        query = select(_at(a).label("at")).where(*keys, a.c.ended.is_(None))
        found = query.with_for_update(key_share=True).lateral("still_open")
        values = (rows.c[key] for key in WRITES[name])
        whole = select(*values, found.c.at).select_from(rows.outerjoin(found, true())).where(self._written(rows))
        return whole.cte("to_end").prefix_with("MATERIALIZED")

    def ended(self, to_end: CTE) -> CTE:
        a = tables.operation_attempt
        change = update(a).where(_at(a) == to_end.c.at).values({name: to_end.c[name] for name in ENDED})
        return change.returning(to_end.c.unit).cte("ended")

    @staticmethod
    def all_ended(to_end: CTE, ended: CTE) -> ColumnElement[Any]:
        """Violates `operation_attempt_end` unless there was an open attempt for every end."""
        wanted, done = (select(func.count()).select_from(cte).scalar_subquery() for cte in (to_end, ended))
        return case((wanted != done, func.placet_violate(literal_column("'operation_attempt_end'"))))

    def opened(self, ended: CTE | None) -> CTE:
        """New attempts, after the old ones are ended: one at a time is open."""
        names, query = self._rows(AttemptRow.table)
        if ended is not None:
            query = query.where(select(func.count()).select_from(ended).scalar_subquery() >= _ZERO)
        return insert(tables.operation_attempt).from_select(names, query).cte("opened")

    def sent(self) -> CTE:
        rows = _given("outbox", WRITES["outbox"])
        due_ms = func.greatest(rows.c.not_before_ms, self._now_ms)
        until_ms = case((rows.c.claim_ms > _ZERO, self._now_ms + rows.c.claim_ms), else_=_ZERO)
        query = select(*(rows.c[name] for name in SENT), due_ms, until_ms).where(self._written(rows))
        return insert(tables.outbox).from_select([*SENT, "due_ms", "claimed_until_ms"], query).cte("sent")

    def parked(self) -> CTE:
        return _parked(*self._rows("dead_letter")).cte("parked")

    def consumed(self) -> CTE:
        rows = _given("consumed", WRITES["consumed"])
        ids = select(func.array_agg(rows.c.id, type_=ARRAY(Text))).where(self._written(rows)).scalar_subquery()
        return _discarded(cast(ids, ARRAY(Text))).cte("discarded")


def _parked(names: Sequence[str], query: Select[Any]) -> InsertOrNothing:
    """Parking a message twice is one row."""
    return insert_or_nothing(tables.dead_letter).from_select(names, query).on_conflict_do_nothing()


def _discarded(ids: ColumnElement[Any]) -> Delete:
    return delete(tables.outbox).where(tables.outbox.c.id == any_(ids))


LOCKS: Types = {**_STATE, "steps": Boolean(), "absent": Boolean()}
"""States to lock: to be stepped or only relied on, and whether it is relied on, or wanted, that there is none."""


def lock() -> ClauseElement:
    """Lock states in the order given. Look at them in another statement: this one sees what was before the wait."""
    wanted, s = _given("wanted", LOCKS), tables.state
    keys = and_(*(s.c[name] == wanted.c[name] for name in STATE_KEY))
    own = select(s.c.version).where(keys, wanted.c.steps).with_for_update(key_share=True).lateral("own")
    relied = select(s.c.version).where(keys, ~wanted.c.steps).with_for_update(read=True).lateral("relied")
    joined = wanted.outerjoin(own, true()).outerjoin(relied, true())
    return select(own.c.version, relied.c.version, _locked_name(wanted, wanted.c.absent)).select_from(joined)


def _locked_name(rows: FromClause, condition: ColumnElement[bool]) -> ColumnElement[Any]:
    """Where there is no row to lock its name is, by whoever makes it and by whoever relies on its absence."""
    name = rows.c.run_id.concat(literal_column("' '")).concat(rows.c.machine).concat(literal_column("' '"))
    locked: ColumnElement[Any] = func.pg_advisory_xact_lock(func.hashtextextended(name.concat(rows.c.key), _ZERO))
    return case((condition, locked.is_(None)))


def attempt_end() -> ClauseElement:
    """As statements.attempt_end; a row for each attempt that was open."""
    change: Any = statements.attempt_end()
    return change.returning(tables.operation_attempt.c.n)  # type: ignore[no-any-return]


def letter_insert() -> ClauseElement:
    return insert_or_nothing(tables.dead_letter).on_conflict_do_nothing()


# ── outbox ─────────────────────────────────────────────────────────────────────────────


def _clock() -> ScalarSelect[int]:
    """The clock, read once, so that an index can be searched with it."""
    clock = select(_NOW.label("now_ms")).cte("clock").prefix_with("MATERIALIZED")
    return select(clock.c.now_ms).scalar_subquery()


def claim_due() -> ClauseElement:
    """Claim what is due, oldest first, passing over what another relay is claiming right now."""
    o, now_ms = tables.outbox, _clock()
    due = select(_at(o).label("at")).where(o.c.due_ms <= now_ms, o.c.claimed_until_ms <= now_ms)
    due = due.order_by(o.c.due_ms, o.c.seq).limit(bindparam("limit", type_=Integer())).with_for_update(skip_locked=True)
    chosen = due.cte("due").prefix_with("MATERIALIZED")
    until_ms = now_ms + bindparam("lease_ms", type_=BigInteger())
    claimed = update(o).where(_at(o) == chosen.c.at).values(claimed_until_ms=until_ms)
    return claimed.returning(*(o.c[name] for name in (*SENT, "due_ms", "seq")))


def next_due() -> ClauseElement:
    """The clock, when the first unclaimed row is due, and, only if none is due yet, when the next claim lapses."""
    o, now_ms = tables.outbox, _clock()
    first = select(o.c.due_ms).where(o.c.claimed_until_ms <= now_ms).order_by(o.c.due_ms, o.c.seq).limit(_ONE)
    due_ms = first.scalar_subquery()
    lapse = select(func.min(o.c.claimed_until_ms)).where(o.c.due_ms <= now_ms, o.c.claimed_until_ms > now_ms)
    return select(now_ms, due_ms, case((due_ms <= now_ms, null()), else_=lapse.scalar_subquery()))


def defer() -> ClauseElement:
    o, now_ms = tables.outbox, _clock()
    until_ms = now_ms + func.least(now_ms - o.c.due_ms, bindparam("longest_ms", type_=BigInteger()))
    named = o.c.id == any_(bindparam("ids", type_=ARRAY(Text)))
    return update(o).where(named, o.c.claimed_until_ms < until_ms).values(claimed_until_ms=until_ms)


def recall() -> ClauseElement:
    o, now_ms = tables.outbox, _clock()
    until_ms = now_ms + bindparam("within_ms", type_=BigInteger())
    claimed = and_(o.c.due_ms <= now_ms, o.c.claimed_until_ms > until_ms)
    return update(o).where(claimed).values(claimed_until_ms=until_ms)


def discard() -> ClauseElement:
    return _discarded(bindparam("ids", type_=ARRAY(Text)))
