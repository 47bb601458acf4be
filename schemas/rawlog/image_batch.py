"""One record of the images topic: a columnar batch of rows of one scan of a table image, in key order.

The record is Avro in Confluent's wire format, as a region batch is, and its columns are the raw log's; all rows are as
of the scan's barrier ts, so there is neither a ts nor an op a row. A scan's records stand in one partition in the order
of their ``sequence``, with records of others between them. Each says which keys it covers, ``[start, end)``, and begins
where the one before it ends: a reader sees from a scan's records alone that none is missing, repeated or of another
attempt. A batch that the topic does not take at once is cut into parts, each a record of its own.

The format, for readers in other languages: docs/formats/table-images.md §3.
"""

import io
import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import fastavro
import numpy as np
import pyarrow as pa

from schemas.changes import BinaryArray, Op, RowChanges
from schemas.errors import CorruptDataError
from schemas.ids import TableId, Ts
from schemas.rawlog.binary_columns import binary_size, pack_binary, read_bytes, read_zigzag, unpack_binary

IMAGE_BATCH_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "ImageBatch",
    "namespace": "tidebus.rawlog",
    "fields": [
        {"name": "barrier_ts", "type": "long"},
        {"name": "number", "type": "int"},
        {"name": "attempt", "type": "int"},
        {"name": "table_id", "type": "long"},
        {"name": "sequence", "type": "int"},
        {"name": "part", "type": "int"},
        {"name": "parts", "type": "int"},
        {"name": "count", "type": "int"},
        {"name": "crc", "type": "long"},
        {"name": "last", "type": "boolean"},
        {"name": "start", "type": "bytes"},
        {"name": "end", "type": "bytes"},
        {"name": "columns", "type": "bytes"},
    ],
}
IMAGE_BATCH_SCHEMA_TEXT = json.dumps(IMAGE_BATCH_SCHEMA, separators=(",", ":"))
HEAD_BYTES_MAX: Final = 8 * 1024
"""Of a record beside its columns; a key has at most 3 KiB."""
_PARSED = fastavro.parse_schema(IMAGE_BATCH_SCHEMA)
_MAGIC = struct.Struct(">bI")
_NUMBERS: Final = 9


class ScanName(NamedTuple):
    """What all records of one try of one scan share, and no others."""

    barrier_ts: Ts
    number: int
    attempt: int

    @property
    def fields(self) -> dict[str, int]:
        """Return it as fields of a record, or of an error."""
        return {"barrier_ts": self.barrier_ts, "number": self.number, "attempt": self.attempt}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHead:
    """The fields before the columns."""

    scan: ScanName
    table_id: TableId
    sequence: int
    """Of the batch in its scan, from 0."""
    part: int
    parts: int
    count: int
    """Rows of the batch, in each of its parts."""
    crc: int
    """CRC-32 of all the batch's columns."""
    last: bool
    """Whether the scan's last batch."""
    start: bytes
    end: bytes
    """Raw keys: the batch has all rows of ``[start, end)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRows:
    """Rows of one table in key order: raw keys and values, a column each."""

    key: BinaryArray
    value: BinaryArray

    @property
    def bytes(self) -> int:
        """Of keys and values."""
        return sum(_joined_size(column) for column in (self.key, self.value))

    def changes(self, table_id: TableId, barrier_ts: Ts) -> RowChanges:
        """Return the rows as changes: each is put at the barrier ts by a transaction that began there."""
        count = len(self.key)
        ts = np.full(count, barrier_ts, np.int64)
        return RowChanges(
            table_id=table_id,
            commit_ts=ts,
            start_ts=ts,
            op=np.full(count, Op.PUT, np.int8),
            key=self.key,
            value=self.value,
            old_value=pa.BinaryArray.from_buffers(
                pa.binary(), count, [None, pa.py_buffer(np.zeros(count + 1, np.int32)), pa.py_buffer(b"")]
            ),
            txn_source=np.zeros(count, np.int64),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBatch:
    """A batch to be landed; the fields are those of :class:`ImageHead`."""

    scan: ScanName
    table_id: TableId
    sequence: int
    last: bool
    start: bytes
    end: bytes
    rows: ImageRows


def encode_image_batch(batch: ImageBatch, schema_id: int, bytes_max: int) -> Iterator[bytes]:
    """Yield the values of a batch's records: one, or its parts where it is larger than ``bytes_max``."""
    columns = memoryview(pack_binary(batch.rows.key) + pack_binary(batch.rows.value))
    size = bytes_max - HEAD_BYTES_MAX
    parts = max(1, -(-len(columns) // size))
    datum = {
        **batch.scan.fields,
        "table_id": batch.table_id,
        "sequence": batch.sequence,
        "parts": parts,
        "count": len(batch.rows.key),
        "crc": zlib.crc32(columns),
        "last": batch.last,
        "start": batch.start,
        "end": batch.end,
    }
    for part in range(parts):
        out = io.BytesIO()
        out.write(_MAGIC.pack(0, schema_id))
        content = bytes(columns[part * size : (part + 1) * size])
        fastavro.schemaless_writer(out, _PARSED, {**datum, "part": part, "columns": content})
        yield out.getvalue()


def read_image_record(record: bytes) -> tuple[ImageHead, memoryview]:
    """Return a record's head, and its columns or the part of them that it has; the buffer is wrapped, not copied.

    Raises:
        CorruptDataError: it is no record of the images topic.
    """
    view = memoryview(record)
    try:
        if record[0] != 0:
            raise ValueError("magic byte is not 0")
        at, numbers = 5, list[int]()
        for _ in range(_NUMBERS):
            number, at = read_zigzag(view, at)
            numbers.append(number)
        last, at = record[at] == 1, at + 1
        start, at = read_bytes(view, at)
        end, at = read_bytes(view, at)
        columns, at = read_bytes(view, at)
        if at != len(record):
            raise ValueError(f"{len(record) - at} bytes follow the columns")
        if min(numbers) < 0 or numbers[5] >= numbers[6]:
            raise ValueError("a number is out of its range")
    except (IndexError, ValueError) as error:
        raise CorruptDataError("record is not an image batch", size=len(record), reason=error) from error
    barrier_ts, number, attempt, table_id, sequence, part, parts, count, crc = numbers
    head = ImageHead(
        scan=ScanName(Ts(barrier_ts), number, attempt),
        table_id=TableId(table_id),
        sequence=sequence,
        part=part,
        parts=parts,
        count=count,
        crc=crc,
        last=last,
        start=bytes(start),
        end=bytes(end),
    )
    return head, columns


def decode_image_columns(head: ImageHead, columns: memoryview) -> ImageRows:
    """Return the rows of a whole batch; the buffers are wrapped, not copied.

    Raises:
        CorruptDataError: the columns are not those that the head tells of.
    """
    try:
        if zlib.crc32(columns) != head.crc:
            raise ValueError("checksum does not fit")
        at = binary_size(columns, head.count)
        return ImageRows(key=unpack_binary(columns[:at], head.count), value=unpack_binary(columns[at:], head.count))
    except ValueError as error:
        raise CorruptDataError(
            "image batch does not decode", table_id=head.table_id, scan=head.scan, sequence=head.sequence, reason=error
        ) from error


def _joined_size(column: BinaryArray) -> int:
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    return int(offsets[-1] - offsets[0])
