"""The columnar mounter: committed row changes of one table version to :class:`MountedColumns`.

Columns are filled in TiDB's order: the row value, then the row key, then the default of the column. Rows of a small
group, and odd rows of a large one (format v1, or anything that the columnar checks refuse), go through the scalar
mounter, which also says what is wrong with a row that nobody can decode.
"""

from collections.abc import Sequence
from datetime import UTC, tzinfo

import numpy as np

from schemas.changes import Op, RowChanges
from schemas.ids import Ts
from schemas.tidb.mysql_types import MysqlType
from schemas.tidb.table import TableVersion
from sorters.core.columnar.spans import BoolArray, IntArray, Spans, spans_of
from sorters.core.mount.checksums import (
    Carried,
    RowChecksums,
    Verified,
    both_sides,
    locate_checksums,
    row_checksums,
    verify_side,
)
from sorters.core.mount.column import Column, KeyColumn, RowColumn, RowNames, misfits
from sorters.core.mount.filled_columns import (
    ConstantColumn,
    MixedColumn,
    PatchedColumn,
    ValuesColumn,
    absent_column,
)
from sorters.core.mount.keys import KeyValues, decode_keys
from sorters.core.mount.mounted import MountedColumns, MountedPart, RowKind
from sorters.core.mount.row_v2 import ABSENT, NULL, VALUE, LocatedColumn, locate
from sorters.core.mount.scalar import Columns, MountedRow, mount_row

SMALL_ROWS = 24
"""Groups of fewer rows take the scalar path: the columnar one costs about as much for one row as for several
hundred.
"""


def mount(
    table: TableVersion,
    rows: RowChanges,
    *,
    zone: tzinfo = UTC,
    with_checksum: bool = False,
    small_rows: int = SMALL_ROWS,
) -> MountedColumns:
    """Mount rows that all belong to this version of the table.

    ``zone`` is the changefeed's, for TIMESTAMP columns. ``with_checksum``: verify the checksums that rows carry. Rows
    that are neither (a DELETE without an old value) are in no part: TiCDC drops them.

    Raises:
        CorruptRowError: a row does not decode; fields name table, key (hex) and commit_ts. Values that only one side
            holds are checked for their layout here and decoded, JSON above all, when an encoder reads them; what none
            reads, :meth:`MountedPart.check` looks at.
    """
    names = RowNames(table.name, spans_of(rows.key), rows.commit_ts)
    value, old = spans_of(rows.value), spans_of(rows.old_value)
    is_delete = rows.op == Op.DELETE
    has_old = old.length > 0
    kinds = (
        (RowKind.INSERT, ~is_delete & ~has_old),
        (RowKind.UPDATE, ~is_delete & has_old),
        (RowKind.DELETE, is_delete & has_old),
    )
    parts = []
    for kind, mask in kinds:
        chosen = np.flatnonzero(mask)
        if not len(chosen):
            continue
        whole = len(chosen) == len(rows)
        picked = names if whole else names.take(chosen)
        new_spans = None if kind is RowKind.DELETE else value if whole else value.take(chosen)
        old_spans = None if kind is RowKind.INSERT else old if whole else old.take(chosen)
        mount_part = _mount_small if len(chosen) < small_rows else _mount_large
        part_rows = _PartRows(
            table, kind, chosen, rows.start_ts[chosen], picked, new_spans, old_spans, zone, with_checksum
        )
        parts.append(mount_part(part_rows))
    return MountedColumns(table=table, count=len(rows), parts=tuple(parts))


class _PartRows:
    """The rows of one kind, before they are mounted."""

    def __init__(  # noqa: PLR0913 # the columns of a pass
        self,
        table: TableVersion,
        kind: RowKind,
        rows: IntArray,
        start_ts: IntArray,
        names: RowNames,
        new: Spans | None,
        old: Spans | None,
        zone: tzinfo,
        with_checksum: bool,
    ) -> None:
        self.table, self.kind, self.rows, self.start_ts = table, kind, rows, start_ts
        self.names, self.new, self.old, self.zone, self.with_checksum = names, new, old, zone, with_checksum

    def scalar(self, row: int) -> MountedRow:
        """Mount one row by the scalar path."""
        mounted = mount_row(
            self.table,
            key=self.names.keys[row],
            op=Op.DELETE if self.new is None else Op.PUT,
            value=b"" if self.new is None else self.new[row],
            old_value=b"" if self.old is None else self.old[row],
            commit_ts=Ts(int(self.names.commit_ts[row])),
            start_ts=Ts(int(self.start_ts[row])),
            zone=self.zone,
            with_checksum=self.with_checksum,
        )
        assert mounted is not None  # rows without any side are in no part
        return mounted

    def part(self, **sides: object) -> MountedPart:
        return MountedPart(
            table=self.table,
            kind=self.kind,
            rows=self.rows,
            commit_ts=self.names.commit_ts,
            start_ts=self.start_ts,
            names=self.names,
            **sides,  # type: ignore[arg-type]  # columns or values, by the two callers below
        )


def _mount_small(part: _PartRows) -> MountedPart:
    mounted = [part.scalar(row) for row in range(len(part.rows))]
    new = [row.columns for row in mounted if row.columns is not None]
    old = [row.pre_columns for row in mounted if row.pre_columns is not None]
    checksums = row_checksums([row.checksum for row in mounted]) if part.with_checksum else None
    return part.part(
        new_rows=new if part.new is not None else None,
        old_rows=old if part.old is not None else None,
        checksums=_unless_empty(checksums),
    )


def _mount_large(part: _PartRows) -> MountedPart:
    key_values, bad = decode_keys(part.table, part.names.keys) if part.table.key_columns else ({}, None)
    bad = np.zeros(len(part.rows), np.bool_) if bad is None else bad
    # One object for both sides: what is decoded and written for one need not be for the other.
    in_keys = _in_keys(part, key_values, part.zone)
    new = old = None
    if part.new is not None:
        new = _side(part, part.new, in_keys, bad)
    if part.old is not None:
        old = _side(part, part.old, in_keys, bad)
    checksums = _checksums(part, key_values, new, old, bad) if part.with_checksum else None
    odd = np.flatnonzero(bad)
    if len(odd):
        mounted = [part.scalar(row) for row in odd.tolist()]
        new = _patched(part.table, new, odd, [row.columns for row in mounted])
        old = _patched(part.table, old, odd, [row.pre_columns for row in mounted])
        if checksums is not None:
            checksums.patch(odd, [row.checksum for row in mounted])
    return part.part(columns=new, old=old, checksums=_unless_empty(checksums))


def _in_keys(part: _PartRows, values: dict[int, KeyValues], zone: tzinfo) -> dict[int, KeyColumn]:
    return {
        offset: KeyColumn(part.table.columns[offset], key_values, part.names, zone)
        for offset, key_values in values.items()
        if part.table.columns[offset].whole_in_key
    }


def _unless_empty(checksums: RowChecksums | None) -> RowChecksums | None:
    return checksums if checksums is not None and checksums.present.any() else None


def _checksums(
    part: _PartRows,
    key_values: dict[int, KeyValues],
    new: tuple[Column, ...] | None,
    old: tuple[Column, ...] | None,
    bad: BoolArray,
) -> RowChecksums:
    """Verify both sides; marks in ``bad`` rows that the scalar path must refuse."""
    located: list[tuple[Spans, tuple[Column, ...], Carried, bool] | None] = []
    for spans, columns, is_old in ((part.new, new, False), (part.old, old, True)):
        if spans is None or columns is None:
            located.append(None)
            continue
        carried, broken = locate_checksums(spans)
        bad |= broken
        located.append((spans, columns, carried, is_old))
    sides: list[Verified | None] = []
    for side in located:
        if side is None:
            sides.append(None)
            continue
        spans, columns, carried, is_old = side
        if carried.there.any():
            columns = _in_utc(part, key_values, spans, columns)
        sides.append(verify_side(columns, spans, part.names.keys, carried, ignored=bad, is_old=is_old))
    return both_sides(*sides)


def _in_utc(
    part: _PartRows, key_values: dict[int, KeyValues], spans: Spans, columns: tuple[Column, ...]
) -> tuple[Column, ...]:
    """Return the columns with TIMESTAMPs in UTC, as checksums are made of them."""
    if part.zone is UTC or all(spec.tp is not MysqlType.TIMESTAMP for spec in part.table.columns):
        return columns
    utc = _PartRows(
        part.table, part.kind, part.rows, part.start_ts, part.names, part.new, part.old, UTC, part.with_checksum
    )
    moved = _side(utc, spans, _in_keys(part, key_values, UTC), np.zeros(len(part.rows), np.bool_))
    return tuple(
        other if column.spec.tp is MysqlType.TIMESTAMP else column for column, other in zip(columns, moved, strict=True)
    )


def _patched(
    table: TableVersion, columns: tuple[Column, ...] | None, rows: IntArray, values: Sequence[Columns | None]
) -> tuple[Column, ...] | None:
    if columns is None:
        return None
    patched: list[Column] = []
    for offset, (spec, column) in enumerate(zip(table.columns, columns, strict=True)):
        patch = ValuesColumn(spec, [row[offset] if row is not None else None for row in values])
        patched.append(patch if len(rows) == len(column) else PatchedColumn(column, rows, patch))
    return tuple(patched)


def _side(part: _PartRows, spans: Spans, in_keys: dict[int, KeyColumn], bad: BoolArray) -> tuple[Column, ...]:
    """Return the columns of one side, and mark in ``bad`` the rows that the scalar path must take."""
    located, broken = locate(spans, tuple(spec.id for spec in part.table.columns))
    bad |= broken
    columns = []
    for offset, column in enumerate(located):
        columns.append(_column(part, offset, column, in_keys.get(offset), bad))
    return tuple(columns)


def _column(part: _PartRows, offset: int, located: LocatedColumn, in_key: KeyColumn | None, bad: BoolArray) -> Column:
    spec, count = part.table.columns[offset], len(part.rows)
    state = located.state
    if isinstance(state, int):
        if state == NULL:
            return ConstantColumn(spec, None, count)
        if state == ABSENT:
            return _absent(part, offset, in_key, count)
        misfit = misfits(spec, located.spans)
        if misfit is None:
            return RowColumn(spec, located.spans, part.names, part.zone)
        bad |= misfit
        state = np.where(misfit, ABSENT, VALUE).astype(np.int8)
    rows = np.flatnonzero(state == VALUE)
    spans = located.spans.take(rows)
    misfit = misfits(spec, spans)
    if misfit is not None:
        bad[rows[misfit]] = True
        state = state.copy()
        state[rows[misfit]] = ABSENT
        rows, spans = rows[~misfit], spans.take(~misfit)
    present = RowColumn(spec, spans, part.names.take(rows), part.zone)
    return MixedColumn(spec, state, present, _absent(part, offset, in_key, count))


def _absent(part: _PartRows, offset: int, in_key: KeyColumn | None, count: int) -> Column:
    return absent_column(part.table.columns[offset], count, part.zone) if in_key is None else in_key
