"""Where rows with given keys stand in a data file, and the position deletes of format v2 that take them away.

A position delete names a data file and the number of a row in it. One delete file is written for each data file, as
Spark does: readers then open only what is theirs, and a compaction sees how much of a file is deleted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

FIELD_ID: Final = b"PARQUET:field_id"
"""Key of a field's metadata, by which Parquet files say which of Iceberg's fields a column is."""
_PATH_ID, _POSITION_ID = 2147483546, 2147483545
"""Iceberg reserves these field ids for the columns of position deletes (its format, "Reserved Field IDs")."""
Positions = npt.NDArray[np.int64]


def with_field_ids(rows: pa.Table, ids: Mapping[str, int]) -> pa.Table:
    """Return rows whose columns say which fields they are.

    Raises:
        KeyError: there is no such field.
    """
    fields = [field.with_metadata({FIELD_ID: str(ids[field.name]).encode()}) for field in rows.schema]
    return rows.cast(pa.schema(fields))


def columns_of_fields(schema: pa.Schema, field_ids: Sequence[int]) -> list[str] | None:
    """Return how a Parquet file calls fields; None: it does not say so of each."""
    names = {int((field.metadata or {}).get(FIELD_ID, b"-1")): field.name for field in schema}
    called = [names[number] for number in field_ids if number in names]
    return called if len(called) == len(field_ids) else None


def matching_positions(batches: Iterable[pa.RecordBatch], keys: pa.Table, *, gone: Positions) -> Positions:
    """Return the positions of rows whose key is among ``keys``, ascending.

    Args:
        batches: the key columns of a data file, all its rows in their order, in the order of the columns of ``keys``.
        keys: distinct, none NULL.
        gone: positions that are deleted already.
    """
    hits, first = [np.empty(0, np.int64)], 0
    for batch in batches:
        hits.append(first + _matches(batch, keys))
        first += batch.num_rows
    positions = np.concatenate(hits)
    return positions[~np.isin(positions, gone)] if len(gone) else positions


def _matches(batch: pa.RecordBatch, keys: pa.Table) -> Positions:
    columns = [column.cast(field.type) for column, field in zip(batch.columns, keys.schema, strict=True)]
    # By the first column alone first: of the rows that are left, few are not meant.
    mask = pc.is_in(columns[0], value_set=keys.column(0).combine_chunks())
    there = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
    if keys.num_columns == 1 or not len(there):
        return there
    row = "row"
    names = [f"key{number}" for number in range(keys.num_columns)]
    rows = pa.table([column.take(pa.array(there)) for column in columns], names=names)
    met = rows.append_column(row, pa.array(there)).join(
        keys.rename_columns(names), names, join_type="left semi", use_threads=False
    )
    return np.sort(met.column(row).to_numpy())


def delete_rows(path: str, positions: Positions) -> pa.Table:
    """Return the rows of a delete file that takes rows of one data file away; ``positions`` ascend."""
    fields = [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID: str(_PATH_ID).encode()}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: str(_POSITION_ID).encode()}),
    ]
    return pa.table([pa.repeat(path, len(positions)), pa.array(positions)], schema=pa.schema(fields))


def deleted_positions(deletes: Iterable[pa.Table], path: str) -> Positions:
    """Return which rows of a data file delete files take away."""
    return np.concatenate([np.empty(0, np.int64), *(_of_file(table, path) for table in deletes)])


def _of_file(table: pa.Table, path: str) -> Positions:
    positions: Positions = table.filter(pc.equal(table.column("file_path"), path)).column("pos").to_numpy()
    return positions


def key_bounds(keys: pa.Table) -> Iterator[tuple[str, object, object]]:
    """Yield the smallest and largest value of key columns whose files can be told apart by them."""
    for field in keys.schema:
        if pa.types.is_integer(field.type) or pa.types.is_string(field.type):
            ends = pc.min_max(keys.column(field.name))
            yield field.name, ends["min"].as_py(), ends["max"].as_py()
