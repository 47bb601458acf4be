"""One record of ``region-events``: a columnar batch of committed row changes of one table span.

The record is Avro in Confluent's wire format (a zero byte, the registry's schema id, the datum). The small fields come
first, so that a reader can skip a batch by its min and max commit_ts without touching the columns. A variable-length
column is ``count`` end offsets (int32 little-endian) and then the joined bytes; fixed ones are little-endian arrays.
A record with no rows is a part of a larger one (:mod:`schemas.rawlog.row_parts`).

The format, for readers in other languages: docs/formats/raw-log.md §2.
"""

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from schemas.changes import RowChanges
from schemas.errors import CorruptDataError
from schemas.ids import RegionId, Ts
from schemas.rawlog.batch_head import BatchHead, read_head
from schemas.rawlog.binary_columns import packed_parts, read_bytes, unpack_binary
from schemas.rawlog.record_check import RawRecord
from schemas.varint import long_bytes

REGION_BATCH_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "RegionBatch",
    "namespace": "tidebus.rawlog",
    "fields": [
        {"name": "table_id", "type": "long"},
        {"name": "region_id", "type": "long"},
        {"name": "count", "type": "int"},
        {"name": "min_commit_ts", "type": "long"},
        {"name": "max_commit_ts", "type": "long"},
        {"name": "may_repeat", "type": "boolean"},
        {"name": "commit_ts", "type": "bytes"},
        {"name": "start_ts", "type": "bytes"},
        {"name": "op", "type": "bytes"},
        {"name": "key", "type": "bytes"},
        {"name": "value", "type": "bytes"},
        {"name": "old_value", "type": "bytes"},
        {"name": "txn_source", "type": "bytes"},
        {"name": "part", "type": "bytes", "default": ""},
    ],
}
REGION_BATCH_SCHEMA_TEXT = json.dumps(REGION_BATCH_SCHEMA, separators=(",", ":"))
_COLUMN_NAMES = tuple(field["name"] for field in REGION_BATCH_SCHEMA["fields"] if field["type"] == "bytes")
_MAGIC = struct.Struct(">bI")
_Bytes = bytes | memoryview
_NOTHING: Final[tuple[_Bytes, ...]] = (b"",)
RECORD_OVERHEAD_BYTES: Final = 500
"""What a record takes beside its bytes and its header: a dozen objects of Python."""
COLUMNS_OVERHEAD_BYTES: Final = 5_700
"""What the columns of a record take beside its bytes, however few rows: numpy's and Arrow's objects."""
ROW_OVERHEAD_BYTES: Final = 20
"""And for each row: offsets of three columns, int32, and txn_source, which records leave out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionBatch:
    """The rows, and what a reader may need to know before it looks at them."""

    region_id: RegionId
    may_repeat: bool
    """Rows of an incremental scan: changes that the log may hold already."""
    rows: RowChanges


class SharedRecord(RawRecord):
    """A record that several readers take apart: its columns are decoded once for all of them.

    From any thread: two that come at once may both decode, and get the same.
    """

    batch: RegionBatch | None = None
    on_decoded: Callable[["SharedRecord"], None] | None = None
    """Hears of it each time it was decoded; None: nobody does."""

    def __getstate__(self) -> dict[str, object]:
        # Another process decodes for itself, and nobody there hears of it.
        return {name: value for name, value in vars(self).items() if name not in ("batch", "on_decoded")}

    @property
    def held_bytes(self) -> int:
        """The memory that it takes, about, with its head and without its columns."""
        return len(self) + len(self.said or b"") + RECORD_OVERHEAD_BYTES

    @property
    def columns_bytes(self) -> int:
        """The memory that its columns take, about; 0: it is not decoded."""
        batch = self.batch
        return 0 if batch is None else len(self) + len(batch.rows) * ROW_OVERHEAD_BYTES + COLUMNS_OVERHEAD_BYTES

    def forget(self) -> None:
        """Let go of the columns, which hold a copy of the record; who asks again decodes again."""
        self.batch = None


def check_record(record: bytes) -> None:
    """Compare a record, or a part of one, once with what is said of it: its bytes, and whose its head says that it is.

    Raises:
        RecordDamagedError: it differs, and nobody can tell whose it is; where its header tells, it is noted.
        CorruptDataError: it does not start as a RegionBatch does.
    """
    if isinstance(record, RawRecord):
        record.check()


def encode_region_batch(batch: RegionBatch, schema_id: int) -> bytes:
    """Return the Kafka record value of ``batch``, which must hold at least one row."""
    rows = batch.rows
    low, high = rows.ts_span
    head = BatchHead(rows.table_id, batch.region_id, len(rows), Ts(low), Ts(high), batch.may_repeat)
    columns: list[Sequence[_Bytes]] = [
        *((column.astype("<i8", copy=False).tobytes(),) for column in (rows.commit_ts, rows.start_ts)),
        (rows.op.tobytes(),),
        *map(packed_parts, (rows.key, rows.value, rows.old_value)),
        (rows.txn_source.astype("<i8", copy=False).tobytes() if rows.txn_source.any() else b"",),
    ]
    return _record(_MAGIC.pack(0, schema_id), head, [*columns, _NOTHING])


def encode_part(head: BatchHead, magic: bytes, part: bytes) -> bytes:
    """Return a record that holds no rows, but a part of the record with that ``head`` and those first five bytes."""
    return _record(magic, replace(head, count=0), [*[_NOTHING] * (len(_COLUMN_NAMES) - 1), (part,)])


def read_batch_head(record: bytes | memoryview) -> BatchHead:
    """Read only the head of a record; cheap, and enough to skip it. Of one that is damaged: what its header says.

    Raises:
        CorruptDataError: the record does not start as a RegionBatch does.
    """
    return record.read_head() if isinstance(record, RawRecord) else read_head(record)[0]


def decode_region_batch(record: bytes | memoryview) -> RegionBatch:
    """Turn a Kafka record value into columns; the buffers are wrapped, not copied.

    Raises:
        CorruptDataError: not a RegionBatch, or its columns disagree with its count.
        RecordDamagedError: it is not what its capture sent, if that is known.
    """
    if isinstance(record, RawRecord):
        record.check_damage()
    if not isinstance(record, SharedRecord):
        return _checked(record, record)
    batch = record.batch
    if batch is None:
        # Of a copy: columns that wrap the record itself would keep it, and it them, for ever.
        batch = record.batch = _checked(record, bytes(record))
        if record.on_decoded is not None:
            record.on_decoded(record)
    return batch


def _checked(record: bytes | memoryview, content: bytes | memoryview) -> RegionBatch:
    """Return the columns of a record, of which ``content`` is a copy or the record itself."""
    if not isinstance(record, RawRecord):
        return _decode(content)
    try:
        batch = _decode(content)
    except CorruptDataError as error:
        error.fields |= dict(zip(("topic", "partition", "offset"), record.where, strict=True))
        raise
    record.check_rows(batch.rows)
    return batch


def _decode(record: bytes | memoryview) -> RegionBatch:
    head, columns_start = read_head(record)
    try:
        columns = _column_fields(memoryview(record), columns_start)
        if columns["part"]:
            raise ValueError("it is a part of a larger record (schemas.rawlog.row_parts)")
        n = head.count
        rows = RowChanges(
            table_id=head.table_id,
            commit_ts=_fixed(columns["commit_ts"], "<i8", n),
            start_ts=_fixed(columns["start_ts"], "<i8", n),
            op=_fixed(columns["op"], "i1", n),
            key=unpack_binary(columns["key"], n),
            value=unpack_binary(columns["value"], n),
            old_value=unpack_binary(columns["old_value"], n),
            txn_source=_fixed(columns["txn_source"], "<i8", n) if columns["txn_source"] else np.zeros(n, np.int64),
        )
    except (ValueError, IndexError) as error:
        raise CorruptDataError(
            "region batch does not decode", table_id=head.table_id, region_id=head.region_id, reason=error
        ) from error
    return RegionBatch(region_id=head.region_id, may_repeat=head.may_repeat, rows=rows)


def part_of(record: bytes) -> memoryview:
    """Return the field ``part`` of a record.

    Raises:
        CorruptDataError: its columns do not end where they should.
    """
    try:
        return _column_fields(memoryview(record), read_head(record)[1])["part"]
    except (ValueError, IndexError) as error:
        raise CorruptDataError("record is not a region batch", size=len(record), reason=error) from error


def _record(magic: bytes, head: BatchHead, columns: Iterable[Sequence[_Bytes]]) -> bytes:
    """Return a record of all columns, each in pieces, as Avro has them (:func:`_column_fields`).

    By hand, too: each byte of a row is copied once; a writer's stream, and the column before it, copy it three times.
    """
    longs = (head.table_id, head.region_id, head.count, head.min_commit_ts, head.max_commit_ts)
    pieces: list[_Bytes] = [magic, *map(long_bytes, longs), b"\1" if head.may_repeat else b"\0"]
    for column in columns:
        pieces += (long_bytes(sum(map(len, column))), *column)
    return b"".join(pieces)


def _column_fields(record: memoryview, at: int) -> dict[str, memoryview]:
    """Return the ``bytes`` fields, the first of which begins at ``at``, as slices of the record.

    By hand and not with fastavro, which copies each field: the sorter reads every raw record, for each changefeed. The
    Avro specification: a long is a zig-zag varint, ``bytes`` are a long and as many bytes, a boolean is one byte.
    """
    fields = {}
    for name in _COLUMN_NAMES:
        fields[name], at = read_bytes(record, at)
    if at != len(record):
        raise ValueError(f"{len(record) - at} bytes follow the last column")
    return fields


def _fixed(field: memoryview, dtype: str, count: int) -> Any:
    column = np.frombuffer(field, dtype)
    if len(column) != count:
        raise ValueError(f"column has {len(column)} items, the batch {count}")
    return column
