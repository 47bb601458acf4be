"""simple in Avro: the messages of :mod:`sorters.core.encode.simple.json` as one schema-less Avro record each.

The schema is the union of all named types in TiCDC's ``message.json``, so each message starts with the branch of
``Message``. Row values are a map of a union; TiCDC writes it in Go's random map order, we in the table's. Sources:
PingCAP's docs, and pingcap/tiflow ``pkg/sink/codec/simple/avro.go`` for what they leave open; where pingcap/ticdc's
differs, says docs/formats/kafka-sink-protocols.md §4.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.ids import Ts
from schemas.tidb.mysql_types import STRING_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from schemas.tidb.value import Value
from schemas.varint import long_bytes
from sorters.core.encode.simple.checksum_fields import avro_union, avro_unions
from sorters.core.encode.simple.encoder import SimpleEncoder, ddl_tables, message_columns, physical_table_id
from sorters.core.encode.simple.schema import NULL, PRESENT, raw, schema_avro, sized
from sorters.core.encode.wire.avro_varint import floats, lengths, longs
from sorters.core.encode.wire.canal_types import ddl_event_type
from sorters.core.encode.wire.protocol import DdlMessage, EncodedMessage, LargeRow
from sorters.core.encode.wire.segments import Segment, join, or_else
from sorters.core.mount.column import FLOAT_TYPES, NUMBER_TYPES, Column, value_text
from sorters.core.mount.mounted import MountedPart, RowKind

_MESSAGE = b"\x16"
"""Branch 11 of the union of all types."""
_WATERMARK, _BOOTSTRAP, _DDL, _DML = (_MESSAGE + 2 * long_bytes(kind) + b"\x02" for kind in range(4))
"""``type``, the branch of ``payload``, and the payload's version 1."""
_DDL_TYPES = ("CREATE", "ALTER", "ERASE", "RENAME", "TRUNCATE", "CINDEX", "DINDEX", "QUERY")
_DML_TYPES = {RowKind.INSERT: b"\x00", RowKind.UPDATE: b"\x02", RowKind.DELETE: b"\x04"}
_LONG, _FLOAT, _DOUBLE, _STRING, _BYTES, _TIMESTAMP, _UNSIGNED_BIGINT = (long_bytes(branch) for branch in range(1, 8))
"""Branches of a value; 0 is null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleAvroEncoder(SimpleEncoder):
    """simple with ``encoding-format = "avro"``."""

    def encode_ddl(self, event: DdlMessage, *, encoded_at_ms: int) -> EncodedMessage:
        """Encode a DDL event with the table's schemas after and before it."""
        kind = long_bytes(_DDL_TYPES.index(ddl_event_type(event.ddl_type)))
        times = long_bytes(event.commit_ts) + long_bytes(encoded_at_ms)
        tables = b"".join(NULL if table is None else PRESENT + schema_avro(table) for table in ddl_tables(event))
        return EncodedMessage(None, _DDL + kind + sized(raw(event.query)) + times + tables)

    def encode_bootstrap(self, table: TableVersion, *, encoded_at_ms: int) -> EncodedMessage:
        """Encode the message that tells consumers a table's schema."""
        return EncodedMessage(None, _BOOTSTRAP + long_bytes(encoded_at_ms) + schema_avro(table))

    def encode_watermark(self, ts: Ts, *, encoded_at_ms: int) -> EncodedMessage:
        """Encode a watermark."""
        return EncodedMessage(None, _WATERMARK + long_bytes(ts) + long_bytes(encoded_at_ms))

    # The columnar form.

    def _columns(self, part: MountedPart, encoded_at_ms: int) -> BinaryArray:
        head, middle = _frame(part, encoded_at_ms, self.large)
        segments: list[Segment] = [longs(part.commit_ts, head), middle, *avro_unions(part.checksums)]
        specs = message_columns(part.table, self.large)
        values: list[list[Segment]] = []
        if part.kind is not RowKind.DELETE:
            new = part.new_columns()
            values = [self._column(new[spec.offset]) for spec in specs]
            segments += _map(specs, values)
        else:
            segments.append(NULL)
        if part.kind is RowKind.INSERT:
            segments.append(NULL)
        else:
            old = part.old_columns()
            if values:
                same = [old[spec.offset].same_as(new[spec.offset]) for spec in specs]
                values = [
                    text if equal else self._column(old[spec.offset])
                    for spec, text, equal in zip(specs, values, same, strict=True)
                ]
            else:
                values = [self._column(old[spec.offset]) for spec in specs]
            segments += _map(specs, values)
        return join(len(part), segments)

    def _column(self, column: Column) -> list[Segment]:
        """Return the segments of a column's name and values."""
        name, mark = sized(raw(column.spec.name)), self._mark(column.spec)
        valid = column.valid
        if valid is None or valid.all():
            return _value_segments(column, name + mark)
        if not valid.any():
            return [name + NULL]
        whole = join(len(column), _value_segments(column, mark))
        if not whole.null_count:  # the segments come from numbers, which know no null
            whole = pc.if_else(pa.array(valid), whole, pa.scalar(None, pa.binary()))
        return [name, or_else(whole, NULL)]

    # The scalar twin.

    def _rows(self, part: MountedPart, encoded_at_ms: int) -> list[bytes]:
        head, middle = _frame(part, encoded_at_ms, self.large)
        specs = message_columns(part.table, self.large)
        names = [sized(raw(spec.name)) for spec in specs]
        messages = []
        for number, commit_ts in enumerate(part.commit_ts.tolist()):
            body = head + long_bytes(commit_ts) + middle + avro_union(part.checksums, number)
            for rows in (part.new_rows, part.old_rows):
                if rows is None:
                    body += NULL
                    continue
                row = rows[number]
                texts = (name + self._value(spec, row[spec.offset]) for name, spec in zip(names, specs, strict=True))
                body += PRESENT + long_bytes(len(specs)) + b"".join(texts) + b"\x00"
            messages.append(body)
        return messages

    def _value(self, spec: ColumnVersion, value: Value) -> bytes:
        if value is None:
            return NULL
        mark = self._mark(spec)
        if spec.tp in FLOAT_TYPES:
            return mark + struct.pack("<f" if spec.tp is MysqlType.FLOAT else "<d", value)
        if spec.tp in NUMBER_TYPES:
            assert isinstance(value, int)
            return mark + long_bytes(value - (1 << 64) if value >= 1 << 63 else value)
        return mark + sized(value_text(spec, value) or b"")

    def _mark(self, spec: ColumnVersion) -> bytes:
        """Return the branch of a column's values, and what stands in the branch before them."""
        match spec.tp:
            case MysqlType.FLOAT:
                return _FLOAT
            case MysqlType.DOUBLE:
                return _DOUBLE
            case MysqlType.TIMESTAMP:
                return _TIMESTAMP + sized(raw(self.location))
            case MysqlType.BIGINT if spec.unsigned:
                return _UNSIGNED_BIGINT
            case tp if tp in NUMBER_TYPES:
                return _LONG
            case tp if tp in STRING_TYPES and spec.binary:
                return _BYTES
            case _:
                return _STRING


def _frame(part: MountedPart, encoded_at_ms: int, large: LargeRow | None) -> tuple[bytes, bytes]:
    """Return what stands before commitTs, and what between it and the checksum."""
    table = part.table
    names = sized(raw(table.schema)) + sized(raw(table.table)) + long_bytes(physical_table_id(part))
    middle = long_bytes(encoded_at_ms) + long_bytes(table.update_ts) + _marks(large)
    return _DML + names + _DML_TYPES[part.kind], middle


def _marks(large: LargeRow | None) -> bytes:
    """Return claimCheckLocation and handleKeyOnly."""
    if large is None:
        return NULL + NULL
    location = NULL if large.location is None else PRESENT + sized(raw(large.location))
    return location + PRESENT + b"\x01"


def _map(specs: Sequence[ColumnVersion], values: Sequence[list[Segment]]) -> list[Segment]:
    """Return a map that is there: one block, and the empty one that ends it."""
    return [PRESENT + long_bytes(len(specs)), *(segment for value in values for segment in value), b"\x00"]


def _value_segments(column: Column, prefix: bytes) -> list[Segment]:
    tp = column.spec.tp
    if tp in FLOAT_TYPES:
        return [floats(column.numbers, prefix, single=tp is MysqlType.FLOAT)]
    if tp in NUMBER_TYPES:
        return [longs(column.numbers.view(np.int64), prefix)]
    return [lengths(column.text, prefix), column.text]
