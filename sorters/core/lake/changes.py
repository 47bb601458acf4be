"""The changes of one table within a commit as one Arrow table, in order and without repeats; and the last one per key.

Order is that of positions (:mod:`schemas.sink.position`): commit_ts, then start_ts, then DELETE before UPDATE before
INSERT. So a key that one transaction deletes and inserts again ends with the insert.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.config.sink.iceberg import LakeMode
from schemas.ids import PHYSICAL_SHIFT_BITS
from schemas.tidb.table import TableVersion
from sorters.core.lake.columns import COMMIT_TIME, COMMIT_TS, OP, arrow_type, key_names, lake_type
from sorters.core.lake.errors import LakeValueError
from sorters.core.lake.values import lake_array
from sorters.core.mount.mounted import ROW_OPS, MountedPart, RowKind
from sorters.core.records.order import row_positions
from sorters.core.route.moved_keys import by_key

POSITION = "_tidebus_position"
"""Of a change, while changes are put in order; no lake table has it."""
_OPS = {RowKind.INSERT: "I", RowKind.UPDATE: "U", RowKind.DELETE: "D"}


def part_changes(part: MountedPart) -> pa.Table:
    """Return mounted rows of one table version: its columns (a DELETE's as they were), the change columns, and
    ``POSITION``, in no particular order. An update that changes the key is a delete and an insert.

    Raises:
        LakeValueError: a value does not fit its lake column.
        CorruptRowError: a row does not decode.
    """
    return pa.concat_tables([_table(half) for half in by_key(part)])


def in_order(changes: Iterable[pa.Table]) -> pa.Table:
    """Return changes of one table in their order; a change that was landed twice is there once."""
    whole = pa.concat_tables(changes).combine_chunks()
    ordered = whole.take(pc.sort_indices(whole, [(POSITION, "ascending")]))
    position = ordered.column(POSITION).combine_chunks()
    if len(position) > 1:
        is_new = pc.not_equal(position[1:], position[:-1])
        ordered = ordered.filter(pa.concat_arrays([pa.array([True]), is_new]))
    return ordered


def last_changes(ordered: pa.Table, keys: Sequence[str], table: str) -> pa.Table:
    """Return of each key the last of changes that are in order, in their order.

    Raises:
        LakeValueError: a key column is NULL, such as a zero date.
    """
    for name in keys:
        if ordered.column(name).null_count:
            reason = "a row cannot be found again by NULL, which a date that no calendar has is here"
            raise LakeValueError("a key does not fit its lake column", table=table, column=name, reason=reason)
    row = "_tidebus_row"
    numbered = ordered.select(list(keys)).append_column(row, pa.array(np.arange(ordered.num_rows)))
    last = numbered.group_by(list(keys), use_threads=False).aggregate([(row, "max")]).column(f"{row}_max")
    return ordered.take(np.sort(last.to_numpy()))


def _table(part: MountedPart) -> pa.Table:
    table, columns = part.table, part.old_columns() if part.kind is RowKind.DELETE else part.new_columns()
    count = len(part)
    arrays = {column.spec.name: lake_array(column, lake_type(column.spec), table.name) for column in columns}
    op = np.full(count, ROW_OPS[part.kind], np.int8)
    milliseconds: npt.NDArray[np.int64] = part.commit_ts >> PHYSICAL_SHIFT_BITS
    arrays[OP] = pa.repeat(_OPS[part.kind], count)
    arrays[COMMIT_TS] = pa.array(part.commit_ts)
    arrays[COMMIT_TIME] = pa.array(milliseconds * 1_000).cast(arrow_type("timestamptz"))
    arrays[POSITION] = row_positions(part.commit_ts, part.start_ts, op, part.names.keys.to_arrow())
    return pa.table(arrays)


def written_columns(ordered: pa.Table, table: TableVersion, mode: LakeMode, *, says_changes: bool = True) -> pa.Table:
    """Return what a commit hands to Spark: every change with its columns, or the last one of each key, with ``OP``.
    ``says_changes``: see :func:`~sorters.core.lake.columns.lake_columns`.

    Raises:
        LakeSchemaError: mode upsert, and the table has no key.
        LakeValueError: see :func:`last_changes`.
    """
    if mode == "append":
        return ordered.drop_columns([POSITION] if says_changes else [POSITION, OP, COMMIT_TS, COMMIT_TIME])
    return last_changes(ordered, key_names(table), table.name).drop_columns([POSITION, COMMIT_TS, COMMIT_TIME])
