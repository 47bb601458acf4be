"""Mounted rows: what a mounter hands to dispatch and encode, for one version of one table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.sink.position import RowOp
from schemas.tidb.table import TableVersion
from schemas.tidb.value import Value
from sorters.core.columnar.spans import IntArray
from sorters.core.mount.alike_tables import AlikeTables
from sorters.core.mount.checksums import RowChecksums
from sorters.core.mount.column import Column, RowNames
from sorters.core.mount.filled_columns import ValuesColumn

Kinds = npt.NDArray[np.int8]


class RowKind(IntEnum):
    """What happened to a row: INSERT has a new side, DELETE an old one, UPDATE both."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3


ROW_OPS = {RowKind.DELETE: RowOp.DELETE, RowKind.UPDATE: RowOp.UPDATE, RowKind.INSERT: RowOp.INSERT}
"""What stands in the position of a row."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MountedPart:
    """Rows of one kind.

    Rows come as columns (a large group) or as tuples of values (a small one: ``new_rows``/``old_rows``, as the scalar
    mounter made them); :meth:`new_columns` and :meth:`old_columns` give columns in both cases.
    """

    table: TableVersion
    kind: RowKind
    rows: IntArray
    """Numbers of the rows in the batch that was mounted, ascending."""
    commit_ts: IntArray
    start_ts: IntArray
    names: RowNames
    columns: tuple[Column, ...] | None = None
    old: tuple[Column, ...] | None = None
    new_rows: Sequence[tuple[Value, ...]] | None = None
    old_rows: Sequence[tuple[Value, ...]] | None = None
    checksums: RowChecksums | None = None
    """None: nobody asked for them, or no row carries one."""
    alike: AlikeTables | None = None
    """The tables of the rows, of which ``table`` is one; None: it is the only one. Only where rows come as columns."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_read(self) -> npt.NDArray[np.bool_]:
        """Of each row: it was read for a table image, and no transaction put it, for each begins before it commits."""
        return self.start_ts == self.commit_ts if self.kind is RowKind.INSERT else np.zeros(len(self), np.bool_)

    @property
    def is_scalar(self) -> bool:
        """Small: encoders take it row by row."""
        return self.new_rows is not None or self.old_rows is not None

    def of_table(self, literal: Callable[[TableVersion], bytes]) -> Any:
        """Return what the table of a row says of itself: a literal, or ``pyarrow.BinaryArray`` if there are several."""
        return literal(self.table) if self.alike is None else self.alike.literals(literal)

    def new_columns(self) -> tuple[Column, ...]:
        """Return the columns after the change, in table order; not for a DELETE."""
        return self._side(self.columns, self.new_rows)

    def old_columns(self) -> tuple[Column, ...]:
        """Return the columns before the change, in table order; not for an INSERT."""
        return self._side(self.old, self.old_rows)

    def _side(self, columns: tuple[Column, ...] | None, rows: Sequence[tuple[Value, ...]] | None) -> tuple[Column, ...]:
        if columns is not None:
            return columns
        if rows is None:
            raise ValueError(f"rows of kind {self.kind.name} have no such side")
        return tuple(
            ValuesColumn(spec, [row[offset] for row in rows]) for offset, spec in enumerate(self.table.columns)
        )

    def check(self) -> None:
        """Look at every value that nobody has decoded yet, also where the protocol does not write it.

        TiCDC decodes a row whole, and so does the scalar path: a corrupt value is an error whoever would read it.

        Raises:
            CorruptRowError: one does not decode.
        """
        for column in self.columns or ():
            column.check()
        for offset, column in enumerate(self.old or ()):
            column.check(self.columns[offset] if self.columns else None)

    def take(self, chosen: npt.NDArray[np.int64]) -> "MountedPart":
        """Return some of these rows, by their number in the part."""
        return self._as(self.kind, chosen)

    def split(self, chosen: npt.NDArray[np.int64]) -> tuple["MountedPart", "MountedPart"]:
        """Return some rows of an UPDATE part as a DELETE of the old and an INSERT of the new row."""
        assert self.kind is RowKind.UPDATE
        return self._as(RowKind.DELETE, chosen), self._as(RowKind.INSERT, chosen)

    def _as(self, kind: RowKind, chosen: npt.NDArray[np.int64]) -> "MountedPart":
        def side(columns: tuple[Column, ...] | None, keep: bool) -> tuple[Column, ...] | None:
            return tuple(column.take(chosen) for column in columns) if columns is not None and keep else None

        def values(rows: Sequence[tuple[Value, ...]] | None, keep: bool) -> list[tuple[Value, ...]] | None:
            return [rows[row] for row in chosen.tolist()] if rows is not None and keep else None

        has_new, has_old = kind is not RowKind.DELETE, kind is not RowKind.INSERT
        return MountedPart(
            table=self.table,
            kind=kind,
            rows=self.rows[chosen],
            commit_ts=self.commit_ts[chosen],
            start_ts=self.start_ts[chosen],
            names=self.names.take(chosen),
            columns=side(self.columns, has_new),
            old=side(self.old, has_old),
            new_rows=values(self.new_rows, has_new),
            old_rows=values(self.old_rows, has_old),
            checksums=self.checksums and self.checksums.take(chosen, current=has_new, previous=has_old),
            alike=self.alike and self.alike.take(chosen),
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MountedColumns:
    """The mounted rows of a batch of one table version: up to three parts, one per kind; together they hold each row
    once.
    """

    table: TableVersion
    count: int
    parts: tuple[MountedPart, ...]

    def __len__(self) -> int:
        return self.count

    @property
    def kind(self) -> Kinds:
        """:class:`RowKind` by row of the batch."""
        kinds = np.zeros(self.count, np.int8)
        for part in self.parts:
            kinds[part.rows] = part.kind
        return kinds

    def in_row_order(self, arrays: Sequence[Any]) -> Any:
        """Bring one ``pyarrow`` array per part into the order of the batch's rows."""
        if len(arrays) == 1:
            return arrays[0]
        if not arrays:
            return pa.array([], pa.binary())
        order = np.argsort(np.concatenate([part.rows for part in self.parts]), kind="stable")
        return pa.concat_arrays(arrays).take(pa.array(order))
