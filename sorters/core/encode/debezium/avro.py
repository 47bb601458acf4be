"""debezium-avro: Debezium's messages in Avro, by schemas of a registry: rows, and in a test mode DDL and watermarks.

Source: pingcap/ticdc ``pkg/sink/codec/debezium/avro.go`` of 2026-08-18. Other than in debezium's JSON ``source`` says
snapshot, gtid, thread and query as null, and there is no ``transaction``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from functools import partial

import pyarrow as pa

from schemas.ids import Ts, physical_ms
from schemas.tidb.mysql_types import CdcFlag
from schemas.tidb.table import ColumnVersion, TableVersion
from schemas.tidb.value import Value
from schemas.varint import long_bytes
from sorters.core.encode.avro.encoder import KEY_SUFFIX, VALUE_SUFFIX
from sorters.core.encode.avro.row_encoder import AvroRowEncoder
from sorters.core.encode.debezium.avro_companions import companion_bytes, companion_texts
from sorters.core.encode.debezium.avro_schema import avro_schemas
from sorters.core.encode.debezium.avro_values import column_avro, value_avro
from sorters.core.encode.debezium.encoder import OPS, READ, DebeziumEncoder, where_read
from sorters.core.encode.debezium.values import NoFormError
from sorters.core.encode.wire.avro_varint import longs
from sorters.core.encode.wire.protocol import (
    DdlMessage,
    EncodedMessage,
    EncodedRows,
    Messages,
    SchemaIds,
    SchemaMissingError,
    SchemaText,
    in_row_order,
    refused,
)
from sorters.core.encode.wire.schema_head import id_head, schema_head
from sorters.core.encode.wire.segments import Segment, join
from sorters.core.mount.column import Column
from sorters.core.mount.mounted import MountedColumns, MountedPart, RowKind

_NO_ROW, _ROW = b"\x00", b"\x02"
"""Branches of ``before`` and ``after``."""
_NULL, _VALUE = b"\x00", b"\x02"


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return long_bytes(len(data)) + data


_SNAPSHOT = _VALUE + _text("incremental")
"""``source.snapshot`` of a row that was read while changes went on; of a change it is null."""
_SOURCE_HEAD = _text("2.4.0.Final") + _text("TiCDC")
_AFTER_TABLE = b"\x00" + _NULL + b"\x00" + b"\x00" + b"\x00" + _NULL + _NULL
"""server_id 0, gtid null, file '', pos 0, row 0, thread and query null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumAvroEncoder(AvroRowEncoder):
    """debezium-avro with its options, also of the changefeed file. With ``enable_tidb_extension`` schemas name TiDB's
    types; in the test mode DDL and watermarks have schemas under subjects of their own.
    """

    output_old_value: bool = True
    """``[sink.debezium]``: an UPDATE holds the row before it too."""
    cluster_id: str = "default"
    """What TiCDC's server is told as ``--cluster-id``."""
    zone: tzinfo = UTC
    """The zone in which rows are mounted; TIMESTAMPs are written in UTC."""
    companion_ids: tuple[tuple[str, int], ...] = ()
    """Ids of the schemas of DDL and watermark messages, by subject."""

    def schemas(self, table: TableVersion, topic: str) -> tuple[SchemaText, ...]:
        """Return the schemas of keys and values."""
        texts = avro_schemas(table, self.cluster_id, self._modes, extension=self.enable_tidb_extension)
        return tuple(
            SchemaText(topic + suffix, table.table_id, table.version, text)
            for suffix, text in zip((KEY_SUFFIX, VALUE_SUFFIX), texts, strict=True)
        )

    def _head(self, schema_ids: SchemaIds, suffix: str, table: TableVersion, topic: str) -> bytes:
        return schema_head(schema_ids, topic + suffix, table, glue=self.glue)

    def topic_part(self, table: TableVersion, topic: str, schema_ids: SchemaIds) -> bytes:
        """Return the heads of keys and values, which name schemas."""
        return b"".join(self._head(schema_ids, suffix, table, topic) for suffix in (KEY_SUFFIX, VALUE_SUFFIX))

    def encode_rows(
        self, mounted: MountedColumns, *, topic: str, encoded_at_ms: int, schema_ids: SchemaIds
    ) -> EncodedRows:
        """Encode a batch. ``encoded_at_ms`` is the wall time that stands in ``ts_ms``.

        Raises:
            EncodeRefusedError: a DATETIME or TIMESTAMP is no time of the calendar, or an unsigned BIGINT is no long.
            SchemaMissingError: ``schema_ids`` lacks a schema.
        """
        head = partial(self._head, schema_ids)
        messages = []
        for part in mounted.parts:
            make = self._rows if part.is_scalar else self._columns
            heads = head(KEY_SUFFIX, part.table, topic), head(VALUE_SUFFIX, part.table, topic)
            messages.append(make(part, *heads, encoded_at_ms))
        return in_row_order(mounted, messages)

    def companion_schemas(self) -> tuple[SchemaText, ...]:
        """Return the schemas of DDL and watermarks."""
        return companion_texts(self.cluster_id) if self._test_mode else ()

    def with_companions(self, schema_ids: SchemaIds) -> "DebeziumAvroEncoder":
        """Return the encoder that knows the ids of :meth:`companion_schemas`."""
        texts = self.companion_schemas()
        ids = tuple((text.subject, schema_ids[text.key]) for text in texts)
        return replace(self, companion_ids=ids)

    def encode_ddl(self, event: DdlMessage, *, encoded_at_ms: int = 0) -> EncodedMessage | None:
        """Encode a DDL event; there is none but in the test mode, nor of changes that Debezium does not know.

        Raises:
            SchemaMissingError: its schema was not registered.
        """
        return self._companion(self._json.encode_ddl(event, encoded_at_ms=encoded_at_ms)) if self._test_mode else None

    def encode_watermark(self, ts: Ts, *, encoded_at_ms: int = 0) -> EncodedMessage | None:
        """Encode a watermark; there is none but in the test mode.

        Raises:
            SchemaMissingError: its schema was not registered.
        """
        if not self._test_mode:
            return None
        return self._companion(self._json.encode_watermark(ts, encoded_at_ms=encoded_at_ms))

    @property
    def _json(self) -> DebeziumEncoder:
        return DebeziumEncoder(enable_tidb_extension=True, cluster_id=self.cluster_id)

    def _companion(self, message: EncodedMessage | None) -> EncodedMessage | None:
        if message is None:
            return None
        heads = {subject: id_head(schema_id, glue=self.glue) for subject, schema_id in self.companion_ids}
        if not heads:
            raise SchemaMissingError("no schema ids for DDL and watermarks", cluster_id=self.cluster_id)
        key, value = (companion_bytes(self.cluster_id, part or b"", heads) for part in (message.key, message.value))
        return EncodedMessage(key, value)

    def _has_before(self, part: MountedPart) -> bool:
        return part.kind is RowKind.UPDATE and self.output_old_value

    def _source_parts(self, part: MountedPart) -> tuple[bytes, bytes, bytes]:
        """Return what stands before ``ts_ms``, between ``snapshot`` and ``commit_ts``, and after that."""
        cluster = _text(self.cluster_id)
        middle = _text(part.table.schema) + _text(part.table.table) + _AFTER_TABLE
        return _SOURCE_HEAD + cluster, middle, cluster

    # The columnar form.

    def _columns(self, part: MountedPart, key_head: bytes, value_head: bytes, encoded_at_ms: int) -> Messages:
        count, specs = len(part), part.table.columns
        columns = part.old_columns() if part.kind is RowKind.DELETE else part.new_columns()
        row = [self._segments(part, column) for column in columns]
        keys = [row[spec.offset] for spec in specs if spec.cdc_flag & CdcFlag.HANDLE_KEY]
        before: list[Segment] = [_NO_ROW]
        if self._has_before(part):
            before = [_ROW]
            for old, new, segments in zip(part.old_columns(), columns, row, strict=True):
                before += segments if old.same_as(new) else self._segments(part, old)
        here: list[Segment] = [_ROW, *(segment for segments in row for segment in segments)]
        head, middle, tail = self._source_parts(part)
        value: list[Segment] = [value_head, *here, _NO_ROW] if part.kind is RowKind.DELETE else []
        value = value or [value_head, *before, *here]
        value += [head, longs(part.commit_ts >> 18), where_read(part, _SNAPSHOT, _NULL), middle]
        value += [longs(part.commit_ts), tail, b"\x02", where_read(part, READ, OPS[part.kind])]
        key = (segment for segments in keys for segment in segments)
        return join(count, [key_head, *key]), join(count, [*value, long_bytes(encoded_at_ms)])

    def _segments(self, part: MountedPart, column: Column) -> list[Segment]:
        try:
            return column_avro(column, self._modes, self.zone)
        except NoFormError as error:
            raise refused(part, error.row, column.spec.name, error.why) from None

    # The scalar twin.

    def _rows(self, part: MountedPart, key_head: bytes, value_head: bytes, encoded_at_ms: int) -> Messages:
        data = part.old_rows if part.kind is RowKind.DELETE else part.new_rows
        assert data is not None
        keys, values, (head, middle, tail) = list[bytes](), list[bytes](), self._source_parts(part)
        for number, row in enumerate(data):
            fields = self._fields(part, number, row)
            here = _ROW + b"".join(fields)
            keys.append(
                key_head
                + b"".join(
                    field
                    for spec, field in zip(part.table.columns, fields, strict=True)
                    if spec.cdc_flag & CdcFlag.HANDLE_KEY
                )
            )
            before = _NO_ROW
            if self._has_before(part):
                assert part.old_rows is not None
                before = _ROW + b"".join(self._fields(part, number, part.old_rows[number]))
            sides = here + _NO_ROW if part.kind is RowKind.DELETE else before + here
            ts, is_read = Ts(int(part.commit_ts[number])), bool(part.is_read[number])
            source = head + long_bytes(physical_ms(ts)) + (_SNAPSHOT if is_read else _NULL) + middle
            op = b"\x02" + (READ if is_read else OPS[part.kind])
            values.append(value_head + sides + source + long_bytes(ts) + tail + op + long_bytes(encoded_at_ms))
        return pa.array(keys, pa.binary()), pa.array(values, pa.binary())

    def _fields(self, part: MountedPart, number: int, row: Sequence[Value]) -> list[bytes]:
        return [self._field(part, number, spec, row[spec.offset]) for spec in part.table.columns]

    def _field(self, part: MountedPart, number: int, spec: ColumnVersion, value: Value) -> bytes:
        try:
            return value_avro(spec, value, self._modes, self.zone)
        except NoFormError as error:
            raise refused(part, number, spec.name, error.why) from None
