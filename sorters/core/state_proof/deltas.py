"""What the rows of a cut change in the proofs of their tables: counts and XORs, which add up over tasks.

A XOR of a row that comes twice is nothing. So where a cut may hold a change more than once, each one's id goes along,
and is counted once when all tasks have answered.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas.changes import RowChanges
from schemas.ddl.layered_schemas import LayeredSchemas
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import InvariantBrokenError
from schemas.ids import TableId, Ts
from schemas.tidb.table import ColumnVersion, TableVersion
from schemas.tidb.value import Value
from sorters.core.columnar.row_changes import rows_where, slices_of_rows
from sorters.core.cut.images import within_ranges
from sorters.core.cut.state_plan import StatePlan
from sorters.core.flow.row_ids import ids_of_changes
from sorters.core.mount.column import Column
from sorters.core.mount.mounted import MountedPart, RowKind
from sorters.core.mount.mounter import mount
from sorters.core.state_proof.row_hashes import Hashes, hashes_of_columns, hashes_of_rows

_BYTES_AT_ONCE: Final = 8 * 1024 * 1024
"""Row values that are hashed together: their texts take some eight times as much."""
_ROWS_AT_ONCE: Final = 8_192


@dataclass(frozen=True, slots=True)
class TableDelta:
    """What some changes make of a table: rows more or less, and what its XOR is changed by."""

    rows: int = 0
    xor: int = 0
    changes: int = 0
    """How many they are."""

    def __add__(self, other: "TableDelta") -> "TableDelta":
        return TableDelta(self.rows + other.rows, self.xor ^ other.xor, self.changes + other.changes)


@dataclass(frozen=True, slots=True, eq=False)
class RowDeltas:
    """Single changes of a table; a change may be among them more than once. All have one length."""

    ids: npt.NDArray[np.uint64]
    """:func:`schemas.flow.flow_sum.row_id`."""
    rows: npt.NDArray[np.int8]
    xors: Hashes

    def once(self) -> TableDelta:
        """Return what they come to, each counted once."""
        _, first = np.unique(self.ids, return_index=True)
        return TableDelta(int(self.rows[first].sum()), int(np.bitwise_xor.reduce(self.xors[first])), len(first))


@dataclass(frozen=True, slots=True)
class StateDeltas:
    """Of a cut, or of what one task did of it, by physical table."""

    tables: Mapping[TableId, TableDelta] = field(default_factory=dict)
    repeatable: Mapping[TableId, tuple[RowDeltas, ...]] = field(default_factory=dict)
    """Of a cut that may hold a change more than once; ``tables`` is empty then."""

    def __add__(self, other: "StateDeltas") -> "StateDeltas":
        if not (other.tables or other.repeatable):
            return self
        tables, repeatable = dict(self.tables), dict(self.repeatable)
        for table, delta in other.tables.items():
            tables[table] = tables.get(table, TableDelta()) + delta
        for table, parts in other.repeatable.items():
            repeatable[table] = repeatable.get(table, ()) + parts
        return StateDeltas(tables, repeatable)

    def settled(self) -> Mapping[TableId, TableDelta]:
        """Return what the whole cut comes to, each change counted once."""
        if not self.repeatable:
            return self.tables
        return dict(self.tables) | {table: _joined(parts).once() for table, parts in self.repeatable.items()}

    def as_plain(self) -> dict[str, object]:
        """Return it as what JSON can hold; empty for nothing."""
        plain: dict[str, object] = {}
        if self.tables:
            plain["tables"] = {str(table): [each.rows, each.xor, each.changes] for table, each in self.tables.items()}
        if self.repeatable:
            joined = {table: _joined(parts) for table, parts in self.repeatable.items()}
            plain["repeatable"] = {
                str(table): [_text(each.ids), _text(each.rows), _text(each.xors)] for table, each in joined.items()
            }
        return plain


def read_deltas(raw: Any) -> StateDeltas:
    """Read what :meth:`StateDeltas.as_plain` returned.

    Raises:
        ValueError, TypeError, AttributeError: it is none.
    """
    return StateDeltas(
        {TableId(int(table)): TableDelta(*map(int, each)) for table, each in raw.get("tables", {}).items()},
        {
            TableId(int(table)): (RowDeltas(_array(ids, "<u8"), _array(rows, "i1"), _array(xors, "<u8")),)
            for table, (ids, rows, xors) in raw.get("repeatable", {}).items()
        },
    )


class StateLedger:
    """Adds up what one task, or the driver, reads of a cut. Rows come before any filter of events."""

    def __init__(self, plan: StatePlan, *, may_repeat: bool) -> None:
        self._plan, self._may_repeat = plan, may_repeat
        self._tables: dict[TableId, TableDelta] = {}
        self._repeatable: dict[TableId, tuple[RowDeltas, ...]] = {}

    def take(self, rows: RowChanges, schemas: SchemaStore | LayeredSchemas) -> None:
        """Take rows of one physical table.

        Raises:
            CorruptDataError: a row does not decode; fields name table, key and commit_ts.
            UnknownTableError, SchemaGoneError: see :meth:`SchemaStore.lookup`.
        """
        plan = self._plan.get(rows.table_id)
        if plan is None or not len(rows):
            return
        counted, of_image = rows.commit_ts > plan.after_ts, rows.commit_ts == rows.start_ts  # where it begins
        if not plan.counts_image:
            counted &= ~of_image
        if plan.ranges is not None:
            counted &= of_image | within_ranges(rows.key, plan.ranges)
        if not counted.all():
            rows = rows_where(rows, counted)
        for version, group in _by_version(rows, schemas):
            held = len(group) * _BYTES_AT_ONCE // max(group.value.nbytes + group.old_value.nbytes, 1)
            for part in slices_of_rows(group, max(1, min(_ROWS_AT_ONCE, held))):
                self._add(part, version, plan.columns)

    def close(self) -> StateDeltas:
        """Return what all of it comes to."""
        return StateDeltas(self._tables, self._repeatable)

    def _add(self, rows: RowChanges, version: TableVersion, columns: tuple[int, ...]) -> None:
        counts, xors = row_deltas(rows, version, columns)
        table = rows.table_id
        if self._may_repeat:
            made = RowDeltas(ids_of_changes([rows]), counts, xors)
            self._repeatable[table] = (*self._repeatable.get(table, ()), made)
        else:
            delta = TableDelta(int(counts.sum()), int(np.bitwise_xor.reduce(xors)), len(rows))
            self._tables[table] = self._tables.get(table, TableDelta()) + delta


def row_deltas(
    rows: RowChanges, version: TableVersion, columns: tuple[int, ...]
) -> tuple[npt.NDArray[np.int8], Hashes]:
    """Return of each row by how much it changes the table's count, int8, and its XOR, uint64.

    A change without an old value is an insert, and a DELETE without one deletes nothing: so it is in the raw log.

    Args:
        rows: of one table version.
        columns: ids of the columns that are hashed.

    Raises:
        InvariantBrokenError: the version lacks one; a DDL that takes a column away ends a proof.
        CorruptDataError: a row does not decode.
    """
    counts, xors = np.zeros(len(rows), np.int8), np.zeros(len(rows), np.uint64)
    by_id = {column.id: column for column in version.columns}
    lacking = [number for number in columns if number not in by_id]
    if lacking:
        raise InvariantBrokenError("table lacks columns of its state proof", table=version.name, column_ids=lacking)
    specs = [by_id[number] for number in columns]
    for part in mount(version, rows).parts:
        old, new = _sides(part, specs)
        counts[part.rows] = (new is not None) - (old is not None)
        for side in (old, new):
            if side is not None:
                xors[part.rows] ^= side
    return counts, xors


def _sides(part: MountedPart, specs: list[ColumnVersion]) -> tuple[Hashes | None, Hashes | None]:
    """Return the hashes of the rows before and after; None: there is no such side."""
    offsets = [spec.offset for spec in specs]
    known: dict[int, tuple[Column, Any]] = {}

    def side(columns: tuple[Column, ...] | None, rows: Any) -> Hashes:
        if columns is None:
            values: list[tuple[Value, ...]] = list(rows)
            return hashes_of_rows(specs, offsets, values)
        return hashes_of_columns([columns[offset] for offset in offsets], known)

    new = None if part.kind is RowKind.DELETE else side(part.columns, part.new_rows)
    old = None if part.kind is RowKind.INSERT else side(part.old, part.old_rows)
    return old, new


def _by_version(rows: RowChanges, schemas: SchemaStore | LayeredSchemas) -> Iterable[tuple[TableVersion, RowChanges]]:
    if not len(rows):
        return
    number = np.searchsorted(schemas.boundaries_of(rows.table_id), rows.commit_ts, side="left") - 1
    for each in np.unique(number).tolist():
        group = rows_where(rows, number == each)
        version = schemas.lookup(rows.table_id, Ts(int(group.commit_ts[0])))
        if isinstance(version, TableVersion):
            yield version, group


def _joined(parts: tuple[RowDeltas, ...]) -> RowDeltas:
    return RowDeltas(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.xors for part in parts]),
    )


def _text(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()


def _array(text: str, dtype: str) -> npt.NDArray[Any]:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype)
