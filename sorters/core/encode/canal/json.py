"""canal-json: one JSON object per row change, built by joining literals with escaped column texts.

Sources: PingCAP's docs, and pingcap/ticdc ``pkg/sink/codec/canal/canal_json_encoder.go`` for what the docs leave open.
One difference: TiCDC writes ``mysqlType`` in Go's random map order, we in the table's.
"""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.ids import Ts, physical_ms
from schemas.tidb.mysql_types import STRING_TYPES, CdcFlag, MysqlType
from schemas.tidb.table import ColumnVersion
from schemas.tidb.value import Value
from sorters.core.columnar.base64_texts import base64_texts
from sorters.core.columnar.escape import CANAL
from sorters.core.columnar.numbers import integer_text
from sorters.core.encode.wire.canal_types import beyond_sign, ddl_event_type, sql_type, sql_type_of
from sorters.core.encode.wire.mysql_names import mysql_type_name
from sorters.core.encode.wire.protocol import (
    DdlMessage,
    EncodedMessage,
    EncodedRows,
    LargeRow,
    Messages,
    Partitions,
    RowEncoder,
    SchemaIds,
    in_row_order,
    no_keys,
)
from sorters.core.encode.wire.segments import Segment, join, or_else, without_first_byte
from sorters.core.mount.column import Column, value_text
from sorters.core.mount.mounted import MountedColumns, MountedPart, RowKind

_TYPE_NAMES = {RowKind.INSERT: b"INSERT", RowKind.UPDATE: b"UPDATE", RowKind.DELETE: b"DELETE"}
_NEEDS_ESCAPE = STRING_TYPES | {MysqlType.JSON}
"""Texts of all other types are digits and punctuation that JSON takes as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanalJsonEncoder(RowEncoder):
    """canal-json with its options, named as in the sink URI and the changefeed file."""

    enable_tidb_extension: bool = False
    only_output_updated_columns: bool = False
    """``old`` of an UPDATE holds only columns that changed."""
    content_compatible: bool = False
    """``mysqlType`` with parameters, and only updated columns."""
    delete_only_output_handle_key_columns: bool = False
    output_row_key: bool = False
    """The extension holds the row's key in TiKV, in base64."""
    large: LargeRow | None = None
    """Set: every row is too large, and its message holds the handle key and this."""

    def for_large(self, large: LargeRow) -> Self:
        """Return the encoder of rows that are too large."""
        return replace(self, large=large)

    @property
    def takes_alike_tables(self) -> bool:
        return True

    @property
    def ddl_partitions(self) -> Partitions:
        return Partitions.FIRST

    @property
    def watermark_partitions(self) -> Partitions:
        return Partitions.ALL if self.enable_tidb_extension else Partitions.NONE

    def encode_rows(
        self, mounted: MountedColumns, *, topic: str = "", encoded_at_ms: int, schema_ids: SchemaIds | None = None
    ) -> EncodedRows:
        """Encode a batch; keys are null. ``encoded_at_ms`` is the wall time that stands in ``ts``."""
        return in_row_order(mounted, [self._part(part, encoded_at_ms) for part in mounted.parts])

    def encode_ddl(self, event: DdlMessage, *, encoded_at_ms: int) -> EncodedMessage:
        """Encode a DDL event."""
        return self._message(
            database=event.schema,
            table=event.table,
            is_ddl=True,
            kind=ddl_event_type(event.ddl_type),
            ts=event.commit_ts,
            encoded_at_ms=encoded_at_ms,
            sql=event.query,
            extension=b"commitTs",
        )

    def encode_watermark(self, ts: Ts, *, encoded_at_ms: int) -> EncodedMessage | None:
        """Encode a watermark; there is none without the TiDB extension."""
        if not self.enable_tidb_extension:
            return None
        return self._message(
            database="",
            table="",
            is_ddl=False,
            kind="TIDB_WATERMARK",
            ts=ts,
            encoded_at_ms=encoded_at_ms,
            sql="",
            extension=b"watermarkTs",
        )

    def _message(
        self,
        *,
        database: str,
        table: str,
        is_ddl: bool,
        kind: str,
        ts: Ts,
        encoded_at_ms: int,
        sql: str,
        extension: bytes,
    ) -> EncodedMessage:
        head = b'{"id":0,"database":%s,"table":%s,"pkNames":null,"isDdl":%s,"type":"%s","es":%d,"ts":%d,"sql":%s' % (
            _quoted(database),
            _quoted(table),
            b"true" if is_ddl else b"false",
            kind.encode(),
            physical_ms(ts),
            encoded_at_ms,
            _quoted(sql),
        )
        tail = b',"_tidb":{"%s":%d}}' % (extension, ts) if self.enable_tidb_extension else b"}"
        return EncodedMessage(None, head + b',"sqlType":null,"mysqlType":null,"data":null,"old":null' + tail)

    def _part(self, part: MountedPart, encoded_at_ms: int) -> Messages:
        if part.is_scalar:
            values = pa.array(self._rows(part, encoded_at_ms), pa.binary())
        else:
            values = self._columns(part, encoded_at_ms)
        return no_keys(len(part)), values

    def _chosen(self, part: MountedPart) -> list[int]:
        """Offsets of the columns that the message holds."""
        handle_only = part.kind is RowKind.DELETE and self.delete_only_output_handle_key_columns
        if handle_only or self.large is not None:
            return [spec.offset for spec in part.table.columns if spec.cdc_flag & CdcFlag.HANDLE_KEY]
        return [spec.offset for spec in part.table.columns]

    def _only_updated(self) -> bool:
        return self.only_output_updated_columns or self.content_compatible

    def _mark(self) -> bytes:
        """What the extension says of a row that is too large, behind its commitTs."""
        if self.large is None:
            return b""
        if self.large.location is None:
            return b',"onlyHandleKey":true'
        return b',"claimCheckLocation":' + _quoted(self.large.location)

    def _head(self, part: MountedPart) -> Segment:
        """Everything in front of the value of ``es``."""
        keys = b",".join(_quoted(spec.name) for spec in part.table.columns if spec.cdc_flag & CdcFlag.PRIMARY_KEY)
        return part.of_table(
            lambda table: (
                b'{"id":0,"database":%s,"table":%s,"pkNames":[%s],"isDdl":false,"type":"%s","es":'
                % (_quoted(table.schema), _quoted(table.table), keys, _TYPE_NAMES[part.kind])
            )
        )

    def _mysql_types(self, specs: Sequence[ColumnVersion]) -> bytes:
        names = (
            b"%s:%s" % (_quoted(spec.name), _quoted(mysql_type_name(spec, parameters=self.content_compatible)))
            for spec in specs
        )
        return b',"mysqlType":{' + b",".join(names) + b"}"

    # The columnar form.

    def _columns(self, part: MountedPart, encoded_at_ms: int) -> BinaryArray:
        chosen = self._chosen(part)
        columns = part.old_columns() if part.kind is RowKind.DELETE else part.new_columns()
        data = [columns[offset] for offset in chosen]
        quoted = [_quoted_column(column) for column in data]
        segments: list[Segment] = [self._head(part), integer_text(part.commit_ts >> 18)]
        segments += [b',"ts":%d,"sql":"","sqlType":' % encoded_at_ms, *_sql_types(data)]
        segments += [self._mysql_types([column.spec for column in data]), b',"old":']
        if part.kind is RowKind.UPDATE:
            old = part.old_columns()
            before = [
                text if old[offset].same_as(columns[offset]) else _quoted_column(old[offset])
                for offset, text in zip(chosen, quoted, strict=True)
            ]
            names = [column.spec.name for column in data]
            segments += _updated(len(part), names, before, quoted) if self._only_updated() else _object(names, before)
        else:
            segments.append(b"null")
        segments += [b',"data":', *_object([column.spec.name for column in data], quoted)]
        if self.enable_tidb_extension:
            segments += [b',"_tidb":{"commitTs":', integer_text(part.commit_ts), self._mark()]
            if self.output_row_key:
                segments += [b',"rowkey":"', base64_texts(part.names.keys.to_arrow()), b'"']
            segments.append(b"}")
        return join(len(part), [*segments, b"}"])

    # The scalar twin.

    def _rows(self, part: MountedPart, encoded_at_ms: int) -> list[bytes]:
        data = part.old_rows if part.kind is RowKind.DELETE else part.new_rows
        assert data is not None
        before = part.old_rows if part.kind is RowKind.UPDATE else None
        specs = [part.table.columns[offset] for offset in self._chosen(part)]
        names = [_quoted(spec.name) + b":" for spec in specs]
        head, mysql_types = self._head(part), self._mysql_types(specs)
        assert isinstance(head, bytes), "rows go one by one where they are of one table"
        messages = []
        for number, row in enumerate(data):
            commit_ts = int(part.commit_ts[number])
            texts = [_value_json(spec, row[spec.offset]) for spec in specs]
            codes = [
                b"%s%d" % (name, sql_type_of(spec, row[spec.offset])) for name, spec in zip(names, specs, strict=True)
            ]
            old = b"null"
            if before is not None:
                were = [_value_json(spec, before[number][spec.offset]) for spec in specs]
                old = _object_text(names, were, but=texts if self._only_updated() else None)
            tail = b"}"
            if self.enable_tidb_extension:
                row_key = b',"rowkey":"%s"' % b64encode(part.names.keys[number]) if self.output_row_key else b""
                tail = b',"_tidb":{"commitTs":%d%s%s}}' % (commit_ts, self._mark(), row_key)
            middle = b'%d,"ts":%d,"sql":"","sqlType":{%s}' % (commit_ts >> 18, encoded_at_ms, b",".join(codes))
            messages.append(
                head + middle + mysql_types + b',"old":' + old + b',"data":' + _object_text(names, texts) + tail
            )
        return messages


def _quoted(text: str) -> bytes:
    return b'"' + CANAL.value(text.encode("utf-8", "surrogateescape")) + b'"'


def _quoted_column(column: Column) -> list[Segment]:
    """Return the segments of a column's JSON values: ``"text"``, or ``null``."""
    text = column.escaped(CANAL) if column.spec.tp in _NEEDS_ESCAPE else column.text
    if not text.null_count:
        return [b'"', text, b'"']
    if text.null_count == len(text):
        return [b"null"]
    return [or_else(pc.binary_join_element_wise(b'"', text, b'"', b""), b"null")]


def _object(names: Sequence[str], values: Sequence[list[Segment]]) -> list[Segment]:
    """Return the segments of ``[{"name":value,…}]``."""
    segments: list[Segment] = [b"[{"]
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        segments += [(b"," if number else b"") + _quoted(name) + b":", *value]
    return [*segments, b"}]"]


def _updated(
    count: int, names: Sequence[str], before: Sequence[list[Segment]], after: Sequence[list[Segment]]
) -> list[Segment]:
    """Return ``[{…}]`` of the values before, where they differ from those after."""
    members = []
    for name, old, new in zip(names, before, after, strict=True):
        was, is_now = join(count, old), join(count, new)
        member = join(count, [b"," + _quoted(name) + b":", was])
        members.append(pc.if_else(pc.equal(was, is_now), pa.scalar(b"", pa.binary()), member))
    return [b"[{", without_first_byte(join(count, members)), b"}]"]


def _sql_types(columns: Sequence[Column]) -> list[Segment]:
    """Return the segments of ``{"name":code,…}``; an unsigned integer's code depends on the value."""
    segments: list[Segment] = [b"{"]
    for number, column in enumerate(columns):
        segments.append((b"," if number else b"") + _quoted(column.spec.name) + b":")
        code: Segment = b"%d" % sql_type(column.spec)
        beyond = beyond_sign(column)
        if beyond is not None:
            big = pa.scalar(b"%d" % beyond.code, pa.binary())
            code = pc.if_else(pa.array(beyond.rows), big, pa.scalar(code, pa.binary()))
        segments.append(code)
    return [*segments, b"}"]


def _object_text(names: Sequence[bytes], values: Sequence[bytes], but: Sequence[bytes] | None = None) -> bytes:
    """Return ``[{name:value,…}]``, without the values that equal those of ``but``."""
    others = but if but is not None else [b""] * len(values)
    members = (name + value for name, value, other in zip(names, values, others, strict=True) if value != other)
    return b"[{" + b",".join(members) + b"}]"


def _value_json(spec: ColumnVersion, value: Value) -> bytes:
    text = value_text(spec, value)
    if text is None:
        return b"null"
    if spec.tp in _NEEDS_ESCAPE:
        text = CANAL.value(text, blob=spec.tp in STRING_TYPES and spec.binary)
    return b'"' + text + b'"'
