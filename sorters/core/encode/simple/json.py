"""simple in JSON: row messages that name a schema version, and messages that bring the schema.

Values are strings, binary ones in base64; a TIMESTAMP is an object with its time zone. Sources: PingCAP's docs, and
pingcap/ticdc ``pkg/sink/codec/simple/message.go`` for what they leave open. ``data`` and ``old`` are maps of Go's
``encoding/json``, so columns stand in the order of their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.ids import Ts
from schemas.tidb.mysql_types import STRING_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from schemas.tidb.value import Value
from sorters.core.columnar.base64_texts import base64_texts
from sorters.core.columnar.escape import GO_JSON
from sorters.core.columnar.numbers import integer_text
from sorters.core.encode.simple.checksum_fields import json_member, json_members
from sorters.core.encode.simple.encoder import SimpleEncoder, ddl_tables, message_columns, physical_table_id
from sorters.core.encode.simple.schema import quoted, raw, schema_json
from sorters.core.encode.wire.canal_types import ddl_event_type
from sorters.core.encode.wire.protocol import DdlMessage, EncodedMessage, LargeRow
from sorters.core.encode.wire.segments import Segment, join, or_else
from sorters.core.mount.column import Column, value_text
from sorters.core.mount.mounted import MountedPart, RowKind

_TYPE_NAMES = {RowKind.INSERT: b"INSERT", RowKind.UPDATE: b"UPDATE", RowKind.DELETE: b"DELETE"}
_NEEDS_ESCAPE = STRING_TYPES | {MysqlType.JSON}
"""Texts of all other types are digits and punctuation that JSON takes as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleJsonEncoder(SimpleEncoder):
    """simple with ``encoding-format = "json"``."""

    @property
    def takes_alike_tables(self) -> bool:
        return True

    def encode_ddl(self, event: DdlMessage, *, encoded_at_ms: int) -> EncodedMessage:
        """Encode a DDL event with the table's schemas after and before it."""
        after, before = ddl_tables(event)
        body = b'{"version":1,"type":"%s","sql":%s,"commitTs":%d,"buildTs":%d' % (
            ddl_event_type(event.ddl_type).encode(),
            quoted(event.query),
            event.commit_ts,
            encoded_at_ms,
        )
        for name, table in ((b"tableSchema", after), (b"preTableSchema", before)):
            body += b',"%s":%s' % (name, schema_json(table)) if table is not None else b""
        return EncodedMessage(None, body + b"}")

    def encode_bootstrap(self, table: TableVersion, *, encoded_at_ms: int) -> EncodedMessage:
        """Encode the message that tells consumers a table's schema."""
        head = b'{"version":1,"type":"BOOTSTRAP","commitTs":0,"buildTs":%d' % encoded_at_ms
        return EncodedMessage(None, head + b',"tableSchema":%s}' % schema_json(table))

    def encode_watermark(self, ts: Ts, *, encoded_at_ms: int) -> EncodedMessage:
        """Encode a watermark."""
        return EncodedMessage(
            None, b'{"version":1,"type":"WATERMARK","commitTs":%d,"buildTs":%d}' % (ts, encoded_at_ms)
        )

    # The columnar form.

    def _columns(self, part: MountedPart, encoded_at_ms: int) -> BinaryArray:
        head, middle = _frame(part, encoded_at_ms, self.large)
        specs = _by_name(message_columns(part.table, self.large))
        segments: list[Segment] = [head, integer_text(part.commit_ts), middle]
        segments += json_members(part.checksums)
        values: list[list[Segment]] = []
        if part.kind is not RowKind.DELETE:
            new = part.new_columns()
            values = [self._column(new[spec.offset]) for spec in specs]
            segments += [b',"data":{', *_members(specs, values), b"}"]
        if part.kind is not RowKind.INSERT:
            old = part.old_columns()
            if values:
                values = [
                    text if old[spec.offset].same_as(new[spec.offset]) else self._column(old[spec.offset])
                    for spec, text in zip(specs, values, strict=True)
                ]
            else:
                values = [self._column(old[spec.offset]) for spec in specs]
            segments += [b',"old":{', *_members(specs, values), b"}"]
        return join(len(part), [*segments, b"}"])

    def _column(self, column: Column) -> list[Segment]:
        """Return the segments of a column's values."""
        spec = column.spec
        before, after = self._around(spec)
        if spec.tp in STRING_TYPES and spec.binary:
            text = base64_texts(column.text)
        elif spec.tp in _NEEDS_ESCAPE:
            text = column.escaped(GO_JSON)
        else:
            text = column.text
        if not text.null_count:
            return [before, text, after]
        if text.null_count == len(text):
            return [b"null"]
        return [or_else(pc.binary_join_element_wise(before, text, after, b""), b"null")]

    # The scalar twin.

    def _rows(self, part: MountedPart, encoded_at_ms: int) -> list[bytes]:
        head, middle = _frame(part, encoded_at_ms, self.large)
        assert isinstance(head, bytes) and isinstance(middle, bytes), "rows go one by one where they are of one table"
        specs = _by_name(message_columns(part.table, self.large))
        messages = []
        for number, commit_ts in enumerate(part.commit_ts.tolist()):
            body = head + b"%d" % commit_ts + middle + json_member(part.checksums, number)
            for name, rows in ((b"data", part.new_rows), (b"old", part.old_rows)):
                if rows is not None:
                    members = (
                        quoted(spec.name) + b":" + self._value(spec, rows[number][spec.offset]) for spec in specs
                    )
                    body += b',"%s":{%s}' % (name, b",".join(members))
            messages.append(body + b"}")
        return messages

    def _value(self, spec: ColumnVersion, value: Value) -> bytes:
        text = value_text(spec, value)
        if text is None:
            return b"null"
        before, after = self._around(spec)
        if spec.tp in STRING_TYPES and spec.binary:
            text = base64_texts(pa.array([text], pa.binary()))[0].as_py()
        elif spec.tp in _NEEDS_ESCAPE:
            text = GO_JSON.value(text)
        return before + text + after

    def _around(self, spec: ColumnVersion) -> tuple[bytes, bytes]:
        """Return what stands before and after a value's text."""
        if spec.tp is MysqlType.TIMESTAMP:
            return b'{"location":%s,"value":"' % quoted(self.location), b'"}'
        return b'"', b'"'


def _frame(part: MountedPart, encoded_at_ms: int, large: LargeRow | None) -> tuple[Segment, Segment]:
    """Return what stands before the value of ``commitTs``, and what between it and the columns."""

    def head(table: TableVersion) -> bytes:
        return b'{"version":1,"database":%s,"table":%s,"tableID":%d,"type":"%s","commitTs":' % (
            quoted(table.schema),
            quoted(table.table),
            physical_table_id(part) if table.partitions else table.table_id,
            _TYPE_NAMES[part.kind],
        )

    def middle(table: TableVersion) -> bytes:
        version = b',"schemaVersion":%d' % table.update_ts if table.update_ts else b""
        return b',"buildTs":%d' % encoded_at_ms + version + _mark(large)

    return part.of_table(head), part.of_table(middle)


def _mark(large: LargeRow | None) -> bytes:
    if large is None:
        return b""
    location = b',"claimCheckLocation":' + quoted(large.location) if large.location is not None else b""
    return location + b',"handleKeyOnly":true'


def _by_name(specs: Sequence[ColumnVersion]) -> list[ColumnVersion]:
    return sorted(specs, key=lambda spec: raw(spec.name))


def _members(specs: Sequence[ColumnVersion], values: Sequence[list[Segment]]) -> list[Segment]:
    segments: list[Segment] = []
    for number, (spec, value) in enumerate(zip(specs, values, strict=True)):
        segments += [(b"," if number else b"") + quoted(spec.name) + b":", *value]
    return segments
