"""The order of output records: by position bytes within a (topic, partition), equal neighbours dropped."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.sink.position import PositionClass

_ROW_HEAD = np.dtype([("commit_ts", ">i8"), ("class", "u1"), ("start_ts", ">i8"), ("op", "u1")])
"""The fixed part of a position, packed: its layout is schemas/sink/position.py's."""

_FEW_ROWS = 12
SMALL_ROWS = 100
"""Rows below which Arrow's price for a call is more than that of doing them one by one."""


class ChunkedColumn(Protocol):
    """``pyarrow.ChunkedArray``: a column of a table."""

    num_chunks: int
    chunks: list[Any]

    def chunk(self, number: int) -> Any: ...

    def __getitem__(self, row: int) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...

    def combine_chunks(self) -> Any: ...

    def to_pylist(self) -> list[Any]: ...

    def to_numpy(self) -> npt.NDArray[Any]: ...


class OutputRecords(Protocol):
    """``pyarrow.Table`` with the columns of :data:`OUTPUT_SCHEMA`, as far as we use it: pyarrow ships no types."""

    num_rows: int
    nbytes: int
    columns: list[ChunkedColumn]

    def __getitem__(self, name: str) -> ChunkedColumn: ...

    def column(self, name: str) -> ChunkedColumn: ...

    def slice(self, offset: int, length: int | None = None) -> "OutputRecords": ...

    def take(self, rows: Any) -> "OutputRecords": ...

    def filter(self, mask: Any) -> "OutputRecords": ...

    def select(self, names: Sequence[str]) -> "OutputRecords": ...

    def append_column(self, name: str, column: Any) -> "OutputRecords": ...

    def combine_chunks(self) -> "OutputRecords": ...

    def to_batches(self, max_chunksize: int | None = None) -> list[Any]: ...

    def to_pylist(self) -> list[dict[str, Any]]: ...

    def equals(self, other: "OutputRecords") -> bool: ...


OnOrder = Callable[[OutputRecords, OutputRecords], None]
"""Gets records in their order, and what is left of them without repeats: the same object, if that is all."""

OUTPUT_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("position", pa.binary(), nullable=False),
    ]
)


_NO_RECORDS: OutputRecords = OUTPUT_SCHEMA.empty_table()


def make_records(columns: Sequence[Any]) -> OutputRecords:
    """Return the records that these columns are, in the order of :data:`OUTPUT_SCHEMA`."""
    records: OutputRecords = pa.table(columns, schema=OUTPUT_SCHEMA)
    return records


def no_records() -> OutputRecords:
    """Return a table of no records."""
    return _NO_RECORDS


def join_records(parts: Sequence[OutputRecords]) -> OutputRecords:
    """Join tables of records; a column stays one chunk, as sorting and taking want it."""
    filled = [part for part in parts if part.num_rows]
    if len(filled) <= 1:
        return filled[0] if filled else no_records()
    joined: OutputRecords = pa.concat_tables(filled)
    return joined.combine_chunks()


def one_behind_other(parts: Sequence[OutputRecords]) -> OutputRecords:
    """Return the records of all parts, in chunks: nothing is copied."""
    joined: OutputRecords = pa.concat_tables(parts)
    return joined


def column_of(records: OutputRecords, name: str) -> Any:
    """Return a column as one ``pyarrow.Array``."""
    column = records.column(name)
    if column.num_chunks == 1:
        return column.chunk(0)  # as it is: joining would copy it
    column = column.combine_chunks()
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def bytes_of(records: OutputRecords, name: str) -> int:
    """Return how many bytes the values of a binary column have together; null has none."""
    return sum(map(_bytes_of, records.column(name).chunks))


def _bytes_of(chunk: Any) -> int:
    if chunk.null_count:
        return pc.sum(pc.binary_length(chunk)).as_py() or 0
    if not len(chunk):
        return 0
    # By the offsets: while a kernel runs others take the interpreter, and a cut waits for it.
    offsets = memoryview(chunk.buffers()[1]).cast("i")
    return offsets[chunk.offset + len(chunk)] - offsets[chunk.offset]


def topics_of(records: OutputRecords) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Return the topics that there are, and of each record the number of its own."""
    words = column_of(records, "topic").dictionary_encode()
    return words.indices.to_numpy(), words.dictionary.to_pylist()


def sort_records(records: OutputRecords) -> OutputRecords:
    """Return the records so that each (topic, partition) is in the order of its positions.

    Records of different partitions stand in one order too, by position and then topic and partition, so that equal
    ones are neighbours: see :func:`drop_repeats`.
    """
    return records if _are_few_in_order(records) else records.take(order_of(records))


def _are_few_in_order(records: OutputRecords) -> bool:
    """Tell whether there is nothing to sort; False: of more than a few nobody has looked. Watermarks come sorted."""
    if records.num_rows > _FEW_ROWS:
        return False
    positions, topics, partitions = (records.column(name).to_pylist() for name in ("position", "topic", "partition"))
    rows = list(zip(positions, topics, partitions, strict=True))
    return all(row <= following for row, following in pairwise(rows))


def order_of(records: OutputRecords) -> Any:
    """Return the numbers of the records as :func:`sort_records` orders them: ``pyarrow.UInt64Array``."""
    return pc.sort_indices(
        records,
        sort_keys=[("position", "ascending"), ("topic", "ascending"), ("partition", "ascending")],
    )


def drop_repeats(records: OutputRecords) -> OutputRecords:
    """Drop a record that is the same as the one before it; ``records`` come from :func:`sort_records`.

    Records of one changefeed with the same position in the same partition are the same (schemas/sink/position.py).
    """
    n = records.num_rows
    if n < 2:
        return records
    same = np.ones(n - 1, np.bool_)
    for name in ("position", "partition", "topic"):
        column = column_of(records, name)
        same &= pc.equal(column.slice(1), column.slice(0, n - 1)).to_numpy(zero_copy_only=False)
    if not same.any():
        return records
    return records.filter(pa.array(np.concatenate(([True], ~same))))


def in_order(tables: Sequence[OutputRecords], may_repeat: bool, on_order: OnOrder | None = None) -> OutputRecords:
    """Return the records of a whole cut in their order, and without repeats if there may be any."""
    records = sort_records(join_records([no_records(), *tables]))
    kept = drop_repeats(records) if may_repeat else records
    if on_order is not None:
        on_order(records, kept)
    return kept


def row_positions(
    commit_ts: npt.NDArray[np.int64],
    start_ts: npt.NDArray[np.int64],
    op: npt.NDArray[np.int8],
    key: BinaryArray,
) -> BinaryArray:
    """Return the position header of each row (schemas/sink/position.py); ``op`` holds numbers of ``RowOp``."""
    heads = np.zeros(len(commit_ts), _ROW_HEAD)
    heads["commit_ts"], heads["class"], heads["start_ts"], heads["op"] = commit_ts, PositionClass.ROW, start_ts, op
    if len(heads) < SMALL_ROWS:
        size, joined = _ROW_HEAD.itemsize, heads.tobytes()
        pairs = enumerate(key.to_pylist())
        few: BinaryArray = pa.array(
            [joined[at * size : (at + 1) * size] + row_key for at, row_key in pairs], pa.binary()
        )
        return few
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_ROW_HEAD.itemsize), len(heads), [None, pa.py_buffer(heads)])
    positions: BinaryArray = pc.binary_join_element_wise(fixed.cast(pa.binary()), key, b"")
    return positions
