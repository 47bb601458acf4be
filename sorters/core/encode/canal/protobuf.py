"""canal: Alibaba canal's protobuf packets, each holding one or several rows, or one DDL.

A packet holds messages, a message is an entry (header and a RowChange in bytes), and a RowChange of ours holds one row.
Rows come out of here as packets of one row each, and :mod:`sorters.core.records.row_batches` joins neighbours of a
partition.

Sources: alibaba/canal's ``EntryProtocol.proto`` and ``CanalProtocol.proto`` (``schemas/proto/canal.proto``), and
pingcap/tiflow ``pkg/sink/codec/canal/canal_entry.go`` for what TiCDC writes into which field.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.ids import Ts, physical_ms
from schemas.proto import canal_pb2 as pb
from schemas.tidb.mysql_types import STRING_TYPES, CdcFlag
from schemas.tidb.table import ColumnVersion
from schemas.tidb.value import Value
from schemas.varint import uvarint
from sorters.core.columnar.latin_texts import latin_texts
from sorters.core.encode.canal.batches import PACKET_HEAD, CanalJoiner
from sorters.core.encode.wire.avro_varint import uvarints
from sorters.core.encode.wire.canal_types import beyond_sign, ddl_event_type, sql_type, sql_type_of
from sorters.core.encode.wire.mysql_names import mysql_type_name
from sorters.core.encode.wire.protobuf_fields import MessageColumn, bytes_field, int_field, lengths_of, text_field
from sorters.core.encode.wire.protocol import (
    DdlMessage,
    EncodedMessage,
    EncodedRows,
    Messages,
    Partitions,
    RowEncoder,
    SchemaIds,
    in_row_order,
    no_keys,
)
from sorters.core.encode.wire.segments import Segment, join
from sorters.core.mount.column import Column, value_text
from sorters.core.mount.mounted import MountedColumns, MountedPart, RowKind

_EVENTS = {RowKind.INSERT: pb.INSERT, RowKind.UPDATE: pb.UPDATE, RowKind.DELETE: pb.DELETE}
_ONE_ROW = bytes_field(pb.Header.PROPS_FIELD_NUMBER, bytes_field(1, b"rowsCount") + bytes_field(2, b"1"))
_IS_VALUE = int_field(pb.Column.ISNULL_FIELD_NUMBER, 0)
_IS_NULL = int_field(pb.Column.ISNULL_FIELD_NUMBER, 1)
_PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CanalEncoder(RowEncoder):
    """canal with its one option, named as in the changefeed file."""

    delete_only_output_handle_key_columns: bool = False

    @property
    def joiner(self) -> CanalJoiner:
        return CanalJoiner()

    @property
    def ddl_partitions(self) -> Partitions:
        return Partitions.FIRST

    @property
    def watermark_partitions(self) -> Partitions:
        return Partitions.NONE

    def encode_rows(
        self, mounted: MountedColumns, *, topic: str = "", encoded_at_ms: int = 0, schema_ids: SchemaIds | None = None
    ) -> EncodedRows:
        """Encode a batch, one row a packet; keys are null. Nothing in it depends on topic or encode time."""
        return in_row_order(mounted, [self._part(part) for part in mounted.parts])

    def encode_ddl(self, event: DdlMessage, *, encoded_at_ms: int = 0) -> EncodedMessage:
        """Encode a DDL event."""
        kind = pb.EventType.Value(ddl_event_type(event.ddl_type))
        head = _header_start(), int_field(pb.Header.EXECUTETIME_FIELD_NUMBER, physical_ms(event.commit_ts))
        change = int_field(pb.RowChange.EVENTTYPE_FIELD_NUMBER, kind) + int_field(pb.RowChange.ISDDL_FIELD_NUMBER, 1)
        change += text_field(pb.RowChange.SQL_FIELD_NUMBER, _raw(event.query))
        change += text_field(pb.RowChange.DDLSCHEMANAME_FIELD_NUMBER, _raw(event.schema))
        return EncodedMessage(None, _packet(b"".join(head) + _header_end(event.schema, event.table, kind), change))

    def encode_watermark(self, ts: Ts, *, encoded_at_ms: int = 0) -> None:
        """canal has no watermarks."""
        return

    def _part(self, part: MountedPart) -> Messages:
        values = pa.array(self._rows(part), pa.binary()) if part.is_scalar else self._columns(part)
        return no_keys(len(part)), values

    def _chosen(self, part: MountedPart) -> list[ColumnVersion]:
        """The columns that a message holds."""
        handle_only = part.kind is RowKind.DELETE and self.delete_only_output_handle_key_columns
        return [spec for spec in part.table.columns if not handle_only or spec.cdc_flag & CdcFlag.HANDLE_KEY]

    # The columnar form.

    def _columns(self, part: MountedPart) -> BinaryArray:
        chosen, updated = self._chosen(part), part.kind is not RowKind.DELETE
        row: list[MessageColumn] = []
        new = part.new_columns() if updated else ()
        after = {spec.offset: _column(new[spec.offset], updated=True) for spec in chosen if updated}
        if part.kind is not RowKind.INSERT:
            old = part.old_columns()
            for spec in chosen:
                # An UPDATE mostly leaves most columns as they were.
                same = updated and old[spec.offset].same_as(new[spec.offset])
                before = after[spec.offset] if same else _column(old[spec.offset], updated=updated)
                row.append(before.as_field(pb.RowData.BEFORECOLUMNS_FIELD_NUMBER))
        row += [block.as_field(pb.RowData.AFTERCOLUMNS_FIELD_NUMBER) for block in after.values()]
        data = MessageColumn.of(*row).as_field(pb.RowChange.ROWDATAS_FIELD_NUMBER)
        change = MessageColumn.of(_change_start(part), data).as_field(pb.Entry.STOREVALUE_FIELD_NUMBER)
        header = MessageColumn.of(_header_start(), _execute_times(part.commit_ts >> 18), _row_header_end(part))
        entry = MessageColumn.of(header.as_field(pb.Entry.HEADER_FIELD_NUMBER), _ENTRY_TYPE, change)
        messages = entry.as_field(pb.Messages.MESSAGES_FIELD_NUMBER)
        packet = MessageColumn.of(PACKET_HEAD, messages.as_field(pb.Packet.BODY_FIELD_NUMBER))
        return join(len(part), packet.segments)

    # The scalar twin.

    def _rows(self, part: MountedPart) -> list[bytes]:
        chosen, updated = self._chosen(part), part.kind is not RowKind.DELETE
        start, end, change_start = _header_start(), _row_header_end(part), _change_start(part)
        messages = []
        for number in range(len(part)):
            data = b""
            sides = (
                (part.old_rows, pb.RowData.BEFORECOLUMNS_FIELD_NUMBER),
                (part.new_rows, pb.RowData.AFTERCOLUMNS_FIELD_NUMBER),
            )
            for rows, field in sides:
                for spec in chosen if rows is not None else ():
                    assert rows is not None
                    data += bytes_field(field, _column_of(spec, rows[number][spec.offset], updated=updated))
            ms = int(part.commit_ts[number]) >> 18
            time = int_field(pb.Header.EXECUTETIME_FIELD_NUMBER, ms) if ms else b""
            change = change_start + bytes_field(pb.RowChange.ROWDATAS_FIELD_NUMBER, data)
            messages.append(_packet(start + time + end, change))
        return messages


def _header_start() -> bytes:
    version = int_field(pb.Header.VERSION_FIELD_NUMBER, _PROTOCOL_VERSION)
    return version + bytes_field(pb.Header.SERVERENCODE_FIELD_NUMBER, b"UTF-8")


def _header_end(schema: str, table: str, kind: int) -> bytes:
    source = int_field(pb.Header.SOURCETYPE_FIELD_NUMBER, pb.MYSQL)
    names = text_field(pb.Header.SCHEMANAME_FIELD_NUMBER, _raw(schema))
    names += text_field(pb.Header.TABLENAME_FIELD_NUMBER, _raw(table))
    return source + names + int_field(pb.Header.EVENTTYPE_FIELD_NUMBER, kind)


def _row_header_end(part: MountedPart) -> bytes:
    return _header_end(part.table.schema, part.table.table, _EVENTS[part.kind]) + _ONE_ROW


_ENTRY_TYPE = int_field(pb.Entry.ENTRYTYPE_FIELD_NUMBER, pb.ROWDATA)


def _change_start(part: MountedPart) -> bytes:
    kind = int_field(pb.RowChange.EVENTTYPE_FIELD_NUMBER, _EVENTS[part.kind])
    return kind + int_field(pb.RowChange.ISDDL_FIELD_NUMBER, 0)


def _packet(header: bytes, change: bytes) -> bytes:
    entry = bytes_field(pb.Entry.HEADER_FIELD_NUMBER, header) + _ENTRY_TYPE
    entry += bytes_field(pb.Entry.STOREVALUE_FIELD_NUMBER, change)
    messages = bytes_field(pb.Messages.MESSAGES_FIELD_NUMBER, entry)
    return PACKET_HEAD + bytes_field(pb.Packet.BODY_FIELD_NUMBER, messages)


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _execute_times(ms: Any) -> BinaryArray:
    """Return the field of each row; proto3 leaves a zero out."""
    field = uvarints(ms.astype(np.uint64), uvarint(pb.Header.EXECUTETIME_FIELD_NUMBER << 3))
    zero = ms == 0
    return pc.if_else(pa.array(zero), pa.scalar(b"", pa.binary()), field) if zero.any() else field


def _sql_type(code: int) -> bytes:
    return int_field(pb.Column.SQLTYPE_FIELD_NUMBER, code)


def _names(spec: ColumnVersion, *, updated: bool) -> bytes:
    """Return what stands between a column's SQL type and its value."""
    key = int_field(pb.Column.ISKEY_FIELD_NUMBER, 1) if spec.cdc_flag & CdcFlag.PRIMARY_KEY else b""
    flag = int_field(pb.Column.UPDATED_FIELD_NUMBER, 1) if updated else b""
    return text_field(pb.Column.NAME_FIELD_NUMBER, _raw(spec.name)) + key + flag


def _mysql_type(spec: ColumnVersion) -> bytes:
    return text_field(pb.Column.MYSQLTYPE_FIELD_NUMBER, _raw(mysql_type_name(spec, parameters=False)))


def _column(column: Column, *, updated: bool) -> MessageColumn:
    spec = column.spec
    code: Segment = _sql_type(sql_type(spec))
    beyond = beyond_sign(column)
    if beyond is not None:
        big = pa.scalar(_sql_type(beyond.code), pa.binary())
        code = pc.if_else(pa.array(beyond.rows), big, pa.scalar(code, pa.binary()))
    return MessageColumn.of(code, _names(spec, updated=updated), *_value(column), _mysql_type(spec))


def _value(column: Column) -> Sequence[Segment]:
    """Return the segments of ``isNull`` and ``value``; proto3 leaves an empty value out."""
    text, spec = column.text, column.spec
    if text.null_count == len(text):
        return [_IS_NULL]
    if spec.tp in STRING_TYPES and spec.binary:
        text = latin_texts(text)
    sizes = lengths_of(text)
    number = uvarint(pb.Column.VALUE_FIELD_NUMBER << 3 | 2)
    prefix = uvarints(sizes.astype(np.uint64), _IS_VALUE + number)
    if sizes.all():
        return [prefix, text]
    valued = pc.fill_null(join(len(text), [prefix, text]), pa.scalar(_IS_NULL, pa.binary()))
    empty = (sizes == 0) & text.is_valid().to_numpy(zero_copy_only=False)
    if empty.any():
        valued = pc.if_else(pa.array(empty), pa.scalar(_IS_VALUE, pa.binary()), valued)
    return [valued]


def _column_of(spec: ColumnVersion, value: Value, *, updated: bool) -> bytes:
    text = value_text(spec, value)
    said = _IS_NULL
    if text is not None:
        if spec.tp in STRING_TYPES and spec.binary:
            text = text.decode("latin-1").encode()
        said = _IS_VALUE + text_field(pb.Column.VALUE_FIELD_NUMBER, text)
    return _sql_type(sql_type_of(spec, value)) + _names(spec, updated=updated) + said + _mysql_type(spec)
