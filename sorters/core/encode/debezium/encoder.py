"""debezium: JSON keys and values as Debezium's MySQL connector writes them, with or without their schemas.

Sources: PingCAP's docs, and pingcap/tiflow ``pkg/sink/codec/debezium`` for what they leave open.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo

import numpy as np
import pyarrow as pa

from schemas.avro_name import sanitize_name
from schemas.ids import Ts, physical_ms
from schemas.tidb.mysql_types import CdcFlag
from schemas.tidb.table import ColumnVersion, TableVersion
from schemas.tidb.value import Value
from sorters.core.columnar.numbers import integer_text
from sorters.core.encode.debezium.columns import column_json
from sorters.core.encode.debezium.ddl import DDL_KEY_SCHEMA, DDL_SCHEMA, change_kind, table_changes
from sorters.core.encode.debezium.schema import envelope_schema, key_schema, table_schemas
from sorters.core.encode.debezium.values import NoFormError, quoted, value_json
from sorters.core.encode.wire.protocol import (
    DdlMessage,
    EncodedMessage,
    EncodedRows,
    Messages,
    Partitions,
    RowEncoder,
    SchemaIds,
    in_row_order,
    refused,
)
from sorters.core.encode.wire.segments import Segment, join
from sorters.core.mount.column import Column
from sorters.core.mount.mounted import MountedColumns, MountedPart, RowKind

OPS = {RowKind.INSERT: b"c", RowKind.UPDATE: b"u", RowKind.DELETE: b"d"}
READ = b"r"
"""The op of a row that was read, as Debezium's snapshots have it."""
_NO_SNAPSHOT, _SNAPSHOT = b"false", b"incremental"
"""``source.snapshot``: of a change; of a row that was read while changes went on, as Debezium's incremental snapshots
have it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumEncoder(RowEncoder):
    """debezium with its options, named as in the sink URI and the changefeed file."""

    enable_tidb_extension: bool = False
    """Schemas name TiDB's types, and there are watermarks."""
    debezium_disable_schema: bool = False
    output_old_value: bool = True
    """``[sink.debezium]``: an UPDATE holds the row before it too."""
    include_start_ts: bool = False
    """``[sink.debezium]``: the source of a row holds its transaction's start_ts."""
    cluster_id: str = "default"
    """What TiCDC's server is told as ``--cluster-id``."""
    zone: tzinfo = UTC
    """The zone in which rows are mounted; TIMESTAMPs are written in UTC."""

    @property
    def watermark_partitions(self) -> Partitions:
        return Partitions.ALL if self.enable_tidb_extension else Partitions.NONE

    def encode_rows(
        self, mounted: MountedColumns, *, topic: str = "", encoded_at_ms: int, schema_ids: SchemaIds | None = None
    ) -> EncodedRows:
        """Encode a batch. ``encoded_at_ms`` is the wall time that stands in ``payload.ts_ms``.

        Raises:
            EncodeRefusedError: a DATETIME or TIMESTAMP is no time of the calendar.
        """
        encode = self._rows, self._columns
        return in_row_order(mounted, [encode[not part.is_scalar](part, encoded_at_ms) for part in mounted.parts])

    def encode_ddl(self, event: DdlMessage, *, encoded_at_ms: int) -> EncodedMessage | None:
        """Encode a DDL event; None: Debezium knows no such change."""
        kind = change_kind(event.ddl_type)
        if kind is None:
            return None
        payload = b'{"source":%s,"ts_ms":%d,"databaseName":%s,"schemaName":null,"ddl":%s,"tableChanges":[%s]}' % (
            self._source(event.schema, event.table, event.commit_ts),
            encoded_at_ms,
            quoted(event.schema),
            quoted(event.query),
            table_changes(event, kind),
        )
        return self._message(b'{"databaseName":%s}' % quoted(event.schema), DDL_KEY_SCHEMA, payload, DDL_SCHEMA)

    def encode_watermark(self, ts: Ts, *, encoded_at_ms: int) -> EncodedMessage | None:
        """Encode a watermark; there is none without the TiDB extension."""
        if not self.enable_tidb_extension:
            return None
        name = f"{sanitize_name(self.cluster_id)}.watermark"
        source = self._source("", "", ts)
        payload = b'{"source":%s,"ts_ms":%d,"transaction":null,"op":"m"}' % (source, encoded_at_ms)
        return self._message(b"{}", key_schema(name), payload, envelope_schema(name))

    def _message(self, key: bytes, key_schema: bytes, value: bytes, value_schema: bytes) -> EncodedMessage:
        return EncodedMessage(
            b'{"payload":' + key + self._tail(key_schema),
            b'{"payload":' + value + self._tail(value_schema),
        )

    def _tail(self, schema: bytes) -> bytes:
        return b"}" if self.debezium_disable_schema else b',"schema":%s}' % schema

    def _source(self, schema: str, table: str, ts: Ts) -> bytes:
        head, middle, tail = self._source_parts(schema, table)
        return b"%s%d%s%s%s%d%s" % (head, physical_ms(ts), _SNAPSHOT_KEY, _NO_SNAPSHOT, middle, ts, tail)

    def _source_parts(self, schema: str, table: str) -> tuple[bytes, bytes, bytes]:
        """Return what stands before ``ts_ms``, between ``snapshot`` and ``commit_ts``, and after that."""
        cluster = quoted(self.cluster_id)
        head = b'{"version":"2.4.0.Final","connector":"TiCDC","name":%s,"ts_ms":' % cluster
        middle = b'","db":%s,"table":%s,"server_id":0,"gtid":null,"file":"","pos":0,"row":0,' % (
            quoted(schema),
            quoted(table),
        )
        return head, middle + b'"thread":0,"query":null,"commit_ts":', b',"cluster_id":%s}' % cluster

    def _row_source(self, part: MountedPart, number: int) -> bytes:
        head, middle, tail = self._source_parts(part.table.schema, part.table.table)
        ts = Ts(int(part.commit_ts[number]))
        start = b',"start_ts":%d' % part.start_ts[number] if self.include_start_ts else b""
        snapshot = _SNAPSHOT_KEY + (_SNAPSHOT if part.is_read[number] else _NO_SNAPSHOT)
        return b"%s%d%s%s%d%s%s" % (head, physical_ms(ts), snapshot, middle, ts, start, tail)

    def _has_before(self, part: MountedPart) -> bool:
        return part.kind is RowKind.UPDATE and self.output_old_value

    def _schemas(self, table: TableVersion) -> tuple[bytes, bytes]:
        if self.debezium_disable_schema:
            return b"", b""
        return table_schemas(table, self.cluster_id, self.enable_tidb_extension, self.include_start_ts)

    # The columnar form.

    def _columns(self, part: MountedPart, encoded_at_ms: int) -> Messages:
        count, specs = len(part), part.table.columns
        columns = part.old_columns() if part.kind is RowKind.DELETE else part.new_columns()
        after = [self._json(part, column) for column in columns]
        key_schema, value_schema = self._schemas(part.table)
        keys = [spec for spec in specs if spec.cdc_flag & CdcFlag.HANDLE_KEY]
        key = _object(keys, [after[spec.offset] for spec in keys])
        head, middle, tail = self._source_parts(part.table.schema, part.table.table)
        value: list[Segment] = [b'{"payload":{"source":' + head, integer_text(part.commit_ts >> 18), _SNAPSHOT_KEY]
        start: list[Segment] = [b',"start_ts":', integer_text(part.start_ts)] if self.include_start_ts else []
        value += [where_read(part, _SNAPSHOT, _NO_SNAPSHOT), middle, integer_text(part.commit_ts), *start, tail]
        value += [_before_op(encoded_at_ms), where_read(part, READ, OPS[part.kind]), _AFTER_OP[part.kind]]
        if self._has_before(part):
            before = [
                text if old.same_as(new) else self._json(part, old)
                for old, new, text in zip(part.old_columns(), columns, after, strict=True)
            ]
            value += [b',"before":', *_object(specs, before)]
        value += [b',"before":' if part.kind is RowKind.DELETE else b',"after":', *_object(specs, after)]
        return (
            join(count, [b'{"payload":', *key, self._tail(key_schema)]),
            join(count, [*value, b"}" + self._tail(value_schema)]),
        )

    def _json(self, part: MountedPart, column: Column) -> list[Segment]:
        try:
            return column_json(column, self.zone)
        except NoFormError as error:
            raise refused(part, error.row, column.spec.name, error.why) from None

    # The scalar twin.

    def _rows(self, part: MountedPart, encoded_at_ms: int) -> Messages:
        data = part.old_rows if part.kind is RowKind.DELETE else part.new_rows
        assert data is not None
        specs = part.table.columns
        key_schema, value_schema = self._schemas(part.table)
        keys, values = [], []
        side = b',"before":' if part.kind is RowKind.DELETE else b',"after":'
        for number, row in enumerate(data):
            texts = self._texts(part, number, row)
            named = [b"%s:%s" % (quoted(spec.name), text) for spec, text in zip(specs, texts, strict=True)]
            handle = b",".join(
                text for spec, text in zip(specs, named, strict=True) if spec.cdc_flag & CdcFlag.HANDLE_KEY
            )
            op = READ if part.is_read[number] else OPS[part.kind]
            payload = b'{"source":' + self._row_source(part, number)
            payload += _before_op(encoded_at_ms) + op + _AFTER_OP[part.kind]
            if self._has_before(part):
                assert part.old_rows is not None
                payload += b',"before":' + _object_text(specs, self._texts(part, number, part.old_rows[number]))
            message = self._message(
                b"{%s}" % handle, key_schema, payload + side + b"{%s}}" % b",".join(named), value_schema
            )
            keys.append(message.key)
            values.append(message.value)
        return pa.array(keys, pa.binary()), pa.array(values, pa.binary())

    def _texts(self, part: MountedPart, number: int, row: Sequence[Value]) -> list[bytes]:
        texts = []
        for spec in part.table.columns:
            try:
                texts.append(value_json(spec, row[spec.offset], self.zone))
            except NoFormError as error:
                raise refused(part, number, spec.name, error.why) from None
        return texts


_SNAPSHOT_KEY = b',"snapshot":"'
_AFTER_OP = {RowKind.INSERT: b'","before":null', RowKind.UPDATE: b'"', RowKind.DELETE: b'","after":null'}
"""What stands between the op and the row that each message of a kind holds."""


def _before_op(encoded_at_ms: int) -> bytes:
    """Return what stands between source and op."""
    return b',"ts_ms":%d,"transaction":null,"op":"' % encoded_at_ms


def where_read(part: MountedPart, read: bytes, other: bytes) -> Segment:
    """Return ``read`` for rows of table images, ``other`` for the rest."""
    is_read = part.is_read
    if not is_read.any():
        return other
    return read if is_read.all() else pa.array([other, read], pa.binary()).take(pa.array(is_read.astype(np.int8)))


def _object(specs: Sequence[ColumnVersion], values: Sequence[list[Segment]]) -> list[Segment]:
    """Return the segments of ``{"name":value,…}``."""
    segments: list[Segment] = [b"{"]
    for number, (spec, value) in enumerate(zip(specs, values, strict=True)):
        segments += [(b"," if number else b"") + quoted(spec.name) + b":", *value]
    return [*segments, b"}"]


def _object_text(specs: Sequence[ColumnVersion], texts: Sequence[bytes]) -> bytes:
    members = (b"%s:%s" % (quoted(spec.name), text) for spec, text in zip(specs, texts, strict=True))
    return b"{%s}" % b",".join(members)
