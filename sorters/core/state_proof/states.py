"""The state proofs of a changefeed's tables: when one begins, when it goes on, when it ends::

    CREATE, TRUNCATE, ADD PARTITION --> proven <-- all imaged -- image under way <-- a first image, or of an unproven
                                          |                            |             table any, begins
                                          |                            |
                                          '--- a DDL that changes what |SELECT shows of its columns, an unknown past,
                                               another table's rows ---'--> unproven, with ts and reason

    cut:  before_cut (DDLs, images) --> plan --> rows of the cut, anywhere --> deltas --> after_cut

A state is what the raw log says, as of a ts: it hangs on no try of a cut. One that is ahead of a checkpoint passes over
the rows that it holds already.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from schemas.ddl.job import DDL_TYPE_NAMES, DdlType
from schemas.ddl.schema_change import SchemaChange, StoredTable, TableChange
from schemas.errors import ConfigError
from schemas.ids import TableId, Ts
from schemas.state_proof.carried import CarriedState
from schemas.state_proof.row_text import TableProof
from schemas.tidb.table import ColumnVersion
from sorters.core.cut.images import LeftOut
from sorters.core.cut.state_plan import StatePlan, TableStatePlan
from sorters.core.state_proof.deltas import TableDelta
from sorters.core.state_proof.proof_columns import keeps_texts, kind_of, proof_columns

TABLES_MAX: Final = 1_000
"""Physical tables of a changefeed whose proofs are carried; of more, those with the lowest ids."""
NO_STATE: Final = "nothing is known of the rows that it had"
IMAGE_MIDWAY: Final = "its image had begun before"
RENAMED: Final = "it came into the changefeed by a rename"
NO_TEXT: Final = "a column's type has no text form"

_EMPTY_BY: Final = MappingProxyType(
    {
        DdlType.CREATE_TABLE: "create",
        DdlType.CREATE_TABLES: "create",
        DdlType.TRUNCATE_TABLE: "truncate",
        DdlType.ADD_PARTITION: "partition",
        DdlType.TRUNCATE_PARTITION: "partition",
    }
)
"""Jobs whose new physical tables have no row. All others move rows, or bring some back, that no change tells of."""

States = Mapping[TableId, CarriedState]
Wanted = Callable[[StoredTable], bool]
"""Tells whether a table's proof is to be carried: it is the changefeed's, and its option says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutView:
    """What is known of a cut before it runs."""

    after_ts: Ts
    upto_ts: Ts
    changes: Iterable[SchemaChange]
    """DDL jobs with ``after_ts < finished_ts <= upto_ts``, in order."""
    left_out: LeftOut | None
    """Changes that do not go out, for an image of their keys is still to come."""
    read_again: LeftOut | None = None
    """Tables that are imaged while all of their changes go out, and what of them is done."""


def at_start(
    loaded: States, tables: Iterable[StoredTable], after_ts: Ts, wanted: Wanted
) -> dict[TableId, CarriedState]:
    """Return the states with which a run begins.

    Args:
        loaded: what earlier runs of this life of the changefeed have told.
        tables: all that there are at ``after_ts``.
        after_ts: where the run begins.
        wanted: see there.
    """
    states, others = dict[TableId, CarriedState](), set[TableId]()
    for stored in tables:
        if not wanted(stored):
            others.update(stored.physical_ids)
            continue
        for table_id in stored.physical_ids:
            states[table_id] = loaded.get(table_id) or _unproven(table_id, stored, after_ts, NO_STATE)
    # Of tables that only a DDL to come makes an earlier try has told already.
    ahead = {table_id: state for table_id, state in loaded.items() if state.ts > after_ts and table_id not in others}
    return dict(sorted((ahead | states).items())[:TABLES_MAX])


def before_cut(
    states: States, view: CutView, wanted: Wanted, table_at: Callable[[TableId], StoredTable | None]
) -> dict[TableId, CarriedState]:
    """Return the states as the DDLs and images of a cut leave them, before its rows are counted.

    ``table_at`` returns the table that a physical id is of where the cut begins; None: there is none.
    """
    after = {table_id: _imaged(state, view) for table_id, state in states.items()}
    for table_id, state in after.items():
        if state.is_carried and not state.columns:
            stored = table_at(table_id)
            after[table_id] = state.lost(state.ts, NO_STATE) if stored is None else _columns_taken(state, stored)
    for change in view.changes:
        _change(after, change, wanted, view)
    return after


def plan_of(states: States, after_ts: Ts, read_again: LeftOut | None = None) -> StatePlan:
    """Return which rows of the cut that begins at ``after_ts`` count."""
    return {
        table_id: TableStatePlan(
            after_ts=max(state.ts, after_ts),
            columns=tuple(number for number, _ in state.columns),
            counts_image=state.image is not None,
            ranges=_ranges(state, read_again),
        )
        for table_id, state in states.items()
        if state.is_carried
    }


def after_cut(states: States, deltas: Mapping[TableId, TableDelta], view: CutView) -> dict[TableId, CarriedState]:
    """Return the states after a cut whose rows came to ``deltas``; those are the same objects that nothing changed."""
    after = dict(states)
    for table_id, delta in deltas.items():
        state = states.get(table_id)
        if state is None or not state.is_carried or not delta.changes:
            continue
        proof = TableProof(state.proof.rows + delta.rows, state.proof.xor ^ delta.xor)
        after[table_id] = replace(state, after_ts=max(view.after_ts, state.ts), ts=view.upto_ts, proof=proof)
    return after


def _imaged(state: CarriedState, view: CutView) -> CarriedState:
    """Follow a table's image: what the cut says of it tells how far it is."""
    if state.ts > view.after_ts:
        return state  # told by an earlier try, which knew of this image
    is_first = view.left_out is not None and view.left_out.of_table(state.table_id)
    waits = view.left_out if is_first else view.read_again
    if waits is None or not waits.of_table(state.table_id):
        if state.image is None or state.unproven:
            return state
        # All that was to come has gone out, at or below the cut's beginning.
        return replace(state, after_ts=view.after_ts, ts=view.after_ts, image=None)
    done = _done(waits, state.table_id)
    if state.is_carried and state.image is not None and _covers(done, state.image):
        return state if done == state.image else replace(state, image=done)
    if state.is_proven and not is_first:
        return state  # the rows that are read again are in it
    if not done:
        return _image_begins(state, view.after_ts)
    return state if state.unproven else state.lost(view.after_ts, IMAGE_MIDWAY)


def _done(waits: LeftOut, table_id: TableId) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((each.start, each.end) for each in waits.done.get(table_id, ()))


def _ranges(state: CarriedState, read_again: LeftOut | None) -> tuple[tuple[bytes, bytes], ...] | None:
    """Return of which keys changes count: of a first image the others do not come."""
    if state.image is None or read_again is None or not read_again.of_table(state.table_id):
        return None
    return _done(read_again, state.table_id)


def _image_begins(state: CarriedState, ts: Ts) -> CarriedState:
    """Its columns are those that its table has where the cut begins."""
    return replace(
        state, after_ts=ts, ts=ts, proof=TableProof(), columns=(), begun_ts=ts, begun_by="image", unproven="", image=()
    )


def _columns_taken(state: CarriedState, stored: StoredTable) -> CarriedState:
    columns = proof_columns(stored.decode())
    try:
        for column in columns:
            kind_of(column)
    except ConfigError as error:
        return state.lost(state.ts, f"{NO_TEXT}: {error.fields.get('column')}")
    return replace(state, columns=tuple((column.id, column.name) for column in columns))


def _covers(ranges: Sequence[tuple[bytes, bytes]], others: Sequence[tuple[bytes, bytes]]) -> bool:
    """Tell whether every one of ``others`` lies within one of ``ranges``; both are merged."""
    return all(any(mine[0] <= start and end <= mine[1] for mine in ranges) for start, end in others)


def _change(states: dict[TableId, CarriedState], change: SchemaChange, wanted: Wanted, view: CutView) -> None:
    """Follow a DDL. In an exchange one table's old id is another's new one: what goes, goes first."""
    for table in change.tables:
        after = set(table.post.physical_ids) if table.post else set()
        for table_id in table.pre.physical_ids if table.pre else ():
            if table_id not in after:
                _drop(states, table_id, change.job.finished_ts)
    for table in change.tables:
        if table.post is not None:
            _change_table(states, change, table, table.post, wanted, view)


def _drop(states: dict[TableId, CarriedState], table_id: TableId, ts: Ts) -> None:
    state = states.get(table_id)
    if state is not None and state.ts <= ts:
        del states[table_id]


def _change_table(
    states: dict[TableId, CarriedState],
    change: SchemaChange,
    table: TableChange,
    post: StoredTable,
    wanted: Wanted,
    view: CutView,
) -> None:
    ts, kind = change.job.finished_ts, change.job.type
    name = DDL_TYPE_NAMES[kind] if kind is not None else ""
    before = set(table.pre.physical_ids) if table.pre else set()
    for table_id in post.physical_ids:
        state = states.get(table_id)
        if not wanted(post):
            states.pop(table_id, None)
        elif state is not None and state.ts >= ts:
            continue  # it is in what an earlier try has told
        elif table_id not in before:
            if len(states) >= TABLES_MAX and table_id not in states:
                continue
            begun_by = _EMPTY_BY.get(kind) if kind is not None else None
            states[table_id] = (
                _unproven(table_id, post, ts, f"ddl: {name}")
                if begun_by is None
                else _empty(table_id, post, ts, begun_by, view)
            )
        elif state is None:
            states[table_id] = _unproven(table_id, post, ts, RENAMED)
        else:
            states[table_id] = _altered(state, post, table.pre, ts, name)


def _empty(table_id: TableId, post: StoredTable, ts: Ts, begun_by: str, view: CutView) -> CarriedState:
    is_imaged = view.left_out is not None and view.left_out.of_table(table_id)
    state = CarriedState(
        table_id=table_id,
        table=_name(post),
        after_ts=ts,
        ts=ts,
        begun_ts=ts,
        begun_by="image" if is_imaged else begun_by,
        image=() if is_imaged else None,
    )
    return _columns_taken(state, post)


def _altered(state: CarriedState, post: StoredTable, pre: StoredTable | None, ts: Ts, ddl: str) -> CarriedState:
    state = replace(state, table=_name(post))
    if not state.is_carried or pre is None or pre.blob == post.blob:
        return state
    old = {column.id: column for column in pre.decode().columns}
    new = {column.id: column for column in post.decode().columns}
    names: list[tuple[int, str]] = []
    for number, name in state.columns:
        if not _keeps(old.get(number), new.get(number)):
            return state.lost(ts, f"ddl: {ddl}, column {name}")
        names.append((number, new[number].name))
    return replace(state, columns=tuple(names))


def _keeps(before: ColumnVersion | None, after: ColumnVersion | None) -> bool:
    return before is not None and after is not None and not after.hidden and keeps_texts(before, after)


def _unproven(table_id: TableId, stored: StoredTable, ts: Ts, reason: str) -> CarriedState:
    return CarriedState(table_id=table_id, table=_name(stored), after_ts=ts, ts=ts, unproven=reason)


def _name(stored: StoredTable) -> str:
    return f"{stored.schema}.{stored.table}"
