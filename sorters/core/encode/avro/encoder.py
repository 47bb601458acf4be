"""Avro in the Confluent wire format: byte 0, schema id (i32 big-endian), Avro binary.

A DELETE is a key with a null value; a table without a handle key has null keys. Sources: PingCAP's docs, the Avro 1.11
specification, and pingcap/ticdc ``pkg/sink/codec/avro/arvo.go`` for what they leave open.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from schemas.ids import Ts, physical_ms
from schemas.tidb.table import ColumnVersion, TableVersion
from schemas.varint import long_bytes
from sorters.core.columnar.escape import CANAL
from sorters.core.encode.avro.columns import record_segments
from sorters.core.encode.avro.row_encoder import AvroRowEncoder
from sorters.core.encode.avro.rows import field_bytes
from sorters.core.encode.avro.schema import record_schema
from sorters.core.encode.simple.checksum_fields import avro_extension, avro_extensions
from sorters.core.encode.wire.avro_varint import longs
from sorters.core.encode.wire.protocol import (
    DdlMessage,
    EncodedMessage,
    EncodedRows,
    Messages,
    SchemaIds,
    SchemaText,
    in_row_order,
    no_keys,
)
from sorters.core.encode.wire.schema_head import head_bytes, schema_head
from sorters.core.encode.wire.segments import Segment, join
from sorters.core.mount.mounted import MountedColumns, MountedPart, RowKind

_DDL_MARK, _WATERMARK_MARK = b"\1", b"\2"
_OP = {RowKind.INSERT: b"\x02c", RowKind.UPDATE: b"\x02u", RowKind.DELETE: b"\x02d"}
"""``_tidb_op`` with its length."""
_NO_ROW, _ROW = b"\x00", b"\x02"
"""Branches of ``_ticdc_before``."""
KEY_SUFFIX, VALUE_SUFFIX = "-key", "-value"


def subject_of(topic: str, suffix: str) -> str:
    """Return the registry subject of a topic's keys or values."""
    return topic.replace(".", "_") + suffix


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroEncoder(AvroRowEncoder):
    """Avro with its options. In the test mode it has DDL and watermark messages that no Confluent client can read."""

    avro_include_before_value: bool = False
    """Values hold the row before the change too, and a DELETE has one."""
    row_checksum: bool = False
    """Values carry the row checksum and have their columns in the order of their ids; needs the extension."""
    namespace: str = "default"
    """The changefeed's namespace."""

    @property
    def takes_alike_tables(self) -> bool:
        return True

    @property
    def _has_checksum(self) -> bool:
        return self.enable_tidb_extension and self.row_checksum

    def _value_columns(self, table: TableVersion) -> Sequence[ColumnVersion]:
        return sorted(table.columns, key=lambda spec: spec.id) if self._has_checksum else table.columns

    def _header(self, schema_ids: SchemaIds, suffix: str, table: TableVersion, topic: str) -> bytes:
        return schema_head(schema_ids, subject_of(topic, suffix), table, glue=self.glue)

    def schemas(self, table: TableVersion, topic: str) -> tuple[SchemaText, ...]:
        """Return the key's schema, if the table has a handle key, and the value's."""
        keys, schemas = _key_columns(table), []
        if keys:
            text = record_schema(table, keys, namespace=self.namespace, modes=self._modes, extension=False)
            schemas.append(SchemaText(subject_of(topic, KEY_SUFFIX), table.table_id, table.version, text))
        text = record_schema(
            table,
            self._value_columns(table),
            namespace=self.namespace,
            modes=self._modes,
            extension=self.enable_tidb_extension,
            checksum=self._has_checksum,
            before=self.avro_include_before_value,
        )
        return (*schemas, SchemaText(subject_of(topic, VALUE_SUFFIX), table.table_id, table.version, text))

    def topic_part(self, table: TableVersion, topic: str, schema_ids: SchemaIds) -> bytes:
        """Return the heads of keys and values, which name schemas."""
        suffixes = (KEY_SUFFIX, VALUE_SUFFIX) if _key_columns(table) else (VALUE_SUFFIX,)
        return b"".join(self._header(schema_ids, suffix, table, topic) for suffix in suffixes)

    def encode_rows(
        self, mounted: MountedColumns, *, topic: str, encoded_at_ms: int = 0, schema_ids: SchemaIds
    ) -> EncodedRows:
        """Encode a batch; see :class:`sorters.core.encode.wire.protocol.Encoder`. Nothing here depends on the encode
        time.
        """
        key_columns = _key_columns(mounted.table)
        messages = []
        for part in mounted.parts:
            head = partial(self._head, schema_ids, part, topic)
            key_head = head(KEY_SUFFIX) if key_columns else b""
            value_head = head(VALUE_SUFFIX) if self._has_value(part.kind) else b""
            make = self._scalar_part if part.is_scalar else self._columnar_part
            messages.append(make(part, key_columns, key_head, value_head))
        return in_row_order(mounted, messages)

    def _head(self, schema_ids: SchemaIds, part: MountedPart, topic: str, suffix: str) -> Any:
        """Return what stands before keys or values, a :data:`Segment`. Alike tables bring theirs, perhaps of another
        changefeed's ids.
        """
        if part.alike is None:
            return self._header(schema_ids, suffix, part.table, topic)
        size = head_bytes(glue=self.glue)  # of a topic's part the key's head stands first, if there is one
        return part.alike.topic_literals(lambda heads: heads[:size] if suffix == KEY_SUFFIX else heads[-size:])

    def _has_value(self, kind: RowKind) -> bool:
        return kind is not RowKind.DELETE or self.avro_include_before_value

    @property
    def _has_op(self) -> bool:
        return self.enable_tidb_extension or self.avro_include_before_value

    def encode_ddl(self, event: DdlMessage, *, encoded_at_ms: int = 0) -> EncodedMessage | None:
        """Encode a DDL event in the test mode; otherwise Avro has none."""
        if not self._test_mode:
            return None
        value = b'{"query":"%s","type":%d,"schema":"%s","table":"%s","commitTs":%d}' % (
            _go_text(event.query),
            event.ddl_type,
            _go_text(event.schema),
            _go_text(event.table),
            event.commit_ts,
        )
        return EncodedMessage(None, _DDL_MARK + value)

    def encode_watermark(self, ts: Ts, *, encoded_at_ms: int = 0) -> EncodedMessage | None:
        """Encode a watermark in the test mode; otherwise Avro has none."""
        return EncodedMessage(None, _WATERMARK_MARK + struct.pack(">Q", ts)) if self._test_mode else None

    def _columnar_part(
        self, part: MountedPart, key_columns: Sequence[ColumnVersion], key_head: Segment, value_head: Segment
    ) -> Messages:
        count, modes = len(part), self._modes
        columns = part.old_columns() if part.kind is RowKind.DELETE else part.new_columns()
        keys = no_keys(count)
        if key_columns:
            handle = [columns[spec.offset] for spec in key_columns]
            segments, literal = record_segments(part, handle, modes, key_head)
            keys = join(count, [*segments, literal])
        if not self._has_value(part.kind):
            return keys, pa.nulls(count, pa.binary())
        specs = self._value_columns(part.table)
        segments, literal = record_segments(part, [columns[spec.offset] for spec in specs], modes, value_head)
        if self.avro_include_before_value:
            if part.kind is RowKind.INSERT:
                literal += _NO_ROW
            else:
                old = part.old_columns()
                more, literal = record_segments(part, [old[spec.offset] for spec in specs], modes, literal + _ROW)
                segments += more
        if self._has_op:
            literal += _OP[part.kind]
        if self.enable_tidb_extension:
            segments += [longs(part.commit_ts, literal), longs(part.commit_ts >> 18)]
            literal = b""
        if self._has_checksum:
            segments += avro_extensions(part.checksums, previous=part.kind is RowKind.DELETE)
        return keys, join(count, [*segments, literal])

    def _scalar_part(
        self, part: MountedPart, key_columns: Sequence[ColumnVersion], key_head: bytes, value_head: bytes
    ) -> Messages:
        rows = part.old_rows if part.kind is RowKind.DELETE else part.new_rows
        assert rows is not None
        modes = self._modes
        value_columns = self._value_columns(part.table)
        keys, values = list[bytes | None](), list[bytes | None]()
        for number, row in enumerate(rows):
            parts = [field_bytes(part, number, spec, row[spec.offset], modes) for spec in key_columns]
            keys.append(key_head + b"".join(parts) if key_columns else None)
            if not self._has_value(part.kind):
                values.append(None)
                continue
            fields = [field_bytes(part, number, spec, row[spec.offset], modes) for spec in value_columns]
            before = self._before(part, number, value_columns)
            values.append(value_head + b"".join(fields) + before + self._extension(part, number))
        return pa.array(keys, pa.binary()), pa.array(values, pa.binary())

    def _before(self, part: MountedPart, number: int, columns: Sequence[ColumnVersion]) -> bytes:
        if not self.avro_include_before_value:
            return b""
        if part.old_rows is None:
            return _NO_ROW
        row, modes = part.old_rows[number], self._modes
        return _ROW + b"".join(field_bytes(part, number, spec, row[spec.offset], modes) for spec in columns)

    def _extension(self, part: MountedPart, row: int) -> bytes:
        if not self.enable_tidb_extension:
            return _OP[part.kind] if self._has_op else b""
        ts = Ts(int(part.commit_ts[row]))
        previous = part.kind is RowKind.DELETE
        checksum = avro_extension(part.checksums, row, previous=previous) if self.row_checksum else b""
        return _OP[part.kind] + long_bytes(ts) + long_bytes(physical_ms(ts)) + checksum


def _key_columns(table: TableVersion) -> list[ColumnVersion]:
    """The handle key's columns in table order."""
    return [table.columns[offset] for offset in sorted(set(table.handle_columns))]


def _go_text(text: str) -> bytes:
    return CANAL.value(text.encode("utf-8", "surrogateescape"))
