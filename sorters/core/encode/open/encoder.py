"""open-protocol: JSON keys and values behind their lengths; a message may hold the keys and values of several rows.

A message's key is the version (u64, 1) and then length (u64) and JSON of each row's key; its value is length and JSON
of each row's value; all numbers big-endian. Rows come out of here as messages of one row each, and
:mod:`sorters.core.records.row_batches` joins those that stand one after the other in a partition.

Sources: PingCAP's docs, and pingcap/tiflow ``pkg/sink/codec/open`` and ``pkg/sink/codec/internal`` for what they leave
open. JSON is Go's ``encoding/json`` of maps, so columns stand in the order of their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.ids import Ts
from schemas.tidb.keys import decode_row_key
from schemas.tidb.mysql_types import CdcFlag
from schemas.tidb.table import ColumnVersion
from sorters.core.columnar.escape import GO_JSON
from sorters.core.columnar.numbers import integer_text
from sorters.core.columnar.spans import words_ending
from sorters.core.encode.open.batches import VERSION_HEAD, OpenJoiner
from sorters.core.encode.open.values import column_json, value_json
from sorters.core.encode.wire.compressed import Compression
from sorters.core.encode.wire.protocol import (
    DdlMessage,
    EncodedMessage,
    EncodedRows,
    LargeRow,
    Messages,
    RowEncoder,
    SchemaIds,
    in_row_order,
)
from sorters.core.encode.wire.segments import Segment, join, without_first_byte
from sorters.core.mount.column import Column
from sorters.core.mount.mounted import MountedColumns, MountedPart, RowKind

_ROW, _DDL, _WATERMARK = 1, 2, 3
_SIDE = {RowKind.INSERT: b"u", RowKind.UPDATE: b"u", RowKind.DELETE: b"d"}
_INT_KEY_BYTES = 19
"""A row key with an integer handle, the hidden one too: ``t``, table id, ``_r``, handle."""
_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenProtocolEncoder(RowEncoder):
    """open-protocol with its options, named as in the changefeed file."""

    output_old_value: bool = True
    """``[sink.open]``: an UPDATE holds the row before it too."""
    only_output_updated_columns: bool = False
    """Of the row before an UPDATE only columns that changed."""
    delete_only_output_handle_key_columns: bool = False

    max_batch_size: int = 1
    """Rows of one message at most."""
    large: LargeRow | None = None
    """Set: every row is too large, and its message holds the handle key and this."""
    compression: Compression = Compression.NONE
    """Of each value behind its length; a watermark has none."""

    def for_large(self, large: LargeRow) -> Self:
        """Return the encoder of rows that are too large."""
        return replace(self, large=large)

    @property
    def takes_alike_tables(self) -> bool:
        return True

    @property
    def joiner(self) -> OpenJoiner | None:
        return OpenJoiner(self.max_batch_size) if self.max_batch_size > 1 else None

    def encode_rows(
        self, mounted: MountedColumns, *, topic: str = "", encoded_at_ms: int = 0, schema_ids: SchemaIds | None = None
    ) -> EncodedRows:
        """Encode a batch, one row a message. Nothing in it depends on topic or encode time."""
        return in_row_order(
            mounted, [self._rows(part) if part.is_scalar else self._columns(part) for part in mounted.parts]
        )

    def encode_ddl(self, event: DdlMessage, *, encoded_at_ms: int = 0) -> EncodedMessage:
        """Encode a DDL event."""
        names = b"".join(
            b',"%s":%s' % (key, _quoted(name)) for key, name in ((b"scm", event.schema), (b"tbl", event.table)) if name
        )
        key = b'{"ts":%d%s,"t":%d}' % (event.commit_ts, names, _DDL)
        return _message(key, self.compression.of(b'{"q":%s,"t":%d}' % (_quoted(event.query), event.ddl_type)))

    def encode_watermark(self, ts: Ts, *, encoded_at_ms: int = 0) -> EncodedMessage:
        """Encode a watermark: its value is a length of zero."""
        return _message(b'{"ts":%d,"t":%d}' % (ts, _WATERMARK), b"")

    def _chosen(self, part: MountedPart) -> list[ColumnVersion]:
        """The columns that a message holds, in the order of their names."""
        handle_only = part.kind is RowKind.DELETE and self.delete_only_output_handle_key_columns
        handle_only = handle_only or self.large is not None
        chosen = [spec for spec in part.table.columns if not handle_only or spec.cdc_flag & CdcFlag.HANDLE_KEY]
        return sorted(chosen, key=lambda spec: spec.name.encode("utf-8", "surrogateescape"))

    def _has_old(self, part: MountedPart) -> bool:
        return part.kind is RowKind.UPDATE and self.output_old_value

    # The columnar form.

    def _columns(self, part: MountedPart) -> Messages:
        columns = part.old_columns() if part.kind is RowKind.DELETE else part.new_columns()
        chosen = self._chosen(part)
        values = [column_json(columns[spec.offset]) for spec in chosen]
        names = [_column_head(spec) for spec in chosen]
        segments: list[Segment] = [b'{"%s":{' % _SIDE[part.kind], *_members(names, values), b"}"]
        if self._has_old(part):
            segments += self._old(part, columns, chosen, values)
        segments.append(b"}")
        if self.compression is not Compression.NONE:
            segments = [self.compression.column(join(len(part), segments))]
        return _framed_keys(part, self.large), _framed(len(part), segments)

    def _old(
        self, part: MountedPart, new: Sequence[Column], chosen: Sequence[ColumnVersion], values: Sequence[list[Segment]]
    ) -> list[Segment]:
        """Return the segments of ``,"p":{…}``."""
        old = part.old_columns()
        same = [old[spec.offset].same_as(new[spec.offset]) for spec in chosen]
        before = [
            text if equal else column_json(old[spec.offset])
            for spec, text, equal in zip(chosen, values, same, strict=True)
        ]
        names = [_column_head(spec) for spec in chosen]
        if not self.only_output_updated_columns:
            return [b',"p":{', *_members(names, before), b"}"]
        count, members = len(part), []
        for name, was, now, equal in zip(names, before, values, same, strict=True):
            if equal:
                continue
            texts = join(count, was), join(count, now)
            member = join(count, [b",", name, texts[0], b"}"])
            members.append(pc.if_else(pc.equal(*texts), pa.scalar(b"", pa.binary()), member))
        if not members:
            return []
        inner = join(count, members)
        whole = join(count, [b',"p":{', without_first_byte(inner), b"}"])
        return [pc.if_else(pc.equal(inner, pa.scalar(b"", pa.binary())), pa.scalar(b"", pa.binary()), whole)]

    # The scalar twin.

    def _rows(self, part: MountedPart) -> Messages:
        data = part.old_rows if part.kind is RowKind.DELETE else part.new_rows
        assert data is not None
        specs = self._chosen(part)
        names = [_column_head(spec) for spec in specs]
        keys, values = [], []
        for number, row in enumerate(data):
            texts = [value_json(spec, row[spec.offset]) for spec in specs]
            body = b'{"%s":{%s}' % (_SIDE[part.kind], _object(names, texts))
            if self._has_old(part):
                assert part.old_rows is not None
                before = [value_json(spec, part.old_rows[number][spec.offset]) for spec in specs]
                old = _object(names, before, but=texts if self.only_output_updated_columns else None)
                body += b',"p":{%s}' % old if old else b""
            message = _message(_row_key(part, number, self.large), self.compression.of(body + b"}"))
            keys.append(message.key)
            values.append(message.value)
        return pa.array(keys, pa.binary()), pa.array(values, pa.binary())


def _message(key: bytes, value: bytes) -> EncodedMessage:
    return EncodedMessage(VERSION_HEAD + len(key).to_bytes(8, "big") + key, len(value).to_bytes(8, "big") + value)


def _quoted(text: str) -> bytes:
    return b'"' + GO_JSON.value(text.encode("utf-8", "surrogateescape")) + b'"'


def _column_head(spec: ColumnVersion) -> bytes:
    """Return a column's member up to its value; ``}`` closes it."""
    handle = b'"h":true,' if spec.cdc_flag & CdcFlag.HANDLE_KEY else b""
    return b'%s:{"t":%d,%s"f":%d,"v":' % (_quoted(spec.name), spec.tp, handle, spec.cdc_flag)


def _members(names: Sequence[bytes], values: Sequence[list[Segment]]) -> list[Segment]:
    segments: list[Segment] = []
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        segments += [(b"," if number else b"") + name, *value, b"}"]
    return segments


def _object(names: Sequence[bytes], values: Sequence[bytes], but: Sequence[bytes] | None = None) -> bytes:
    """Return the members, without those whose value equals that of ``but``."""
    others = but if but is not None else [None] * len(values)
    return b",".join(n + v + b"}" for n, v, other in zip(names, values, others, strict=True) if v != other)


def _mark(large: LargeRow | None) -> bytes:
    if large is None:
        return b""
    return b',"ohk":true' if large.location is None else b',"ccl":' + _quoted(large.location)


def _row_key_parts(part: MountedPart, large: LargeRow | None) -> tuple[Segment, bytes]:
    """Return what stands between ts and row id, and what ends a row's key."""
    names = part.of_table(lambda table: b',"scm":%s,"tbl":%s' % (_quoted(table.schema), _quoted(table.table)))
    physical = b""
    if part.table.partitions and len(part):
        physical = b',"ptn":%d' % decode_row_key(part.names.keys[0]).table_id
    return names, physical + b',"t":%d%s}' % (_ROW, _mark(large))


def _row_key(part: MountedPart, row: int, large: LargeRow | None) -> bytes:
    names, tail = _row_key_parts(part, large)
    key = part.names.keys[row]
    handle = decode_row_key(key).int_handle() if len(key) == _INT_KEY_BYTES else 0
    return b'{"ts":%d%s%s%s' % (part.commit_ts[row], names, b',"rid":%d' % handle if handle else b"", tail)


def _framed_keys(part: MountedPart, large: LargeRow | None) -> BinaryArray:
    """Return ``{"ts":…,"scm":…,"tbl":…,"rid":…,"ptn":…,"t":1}`` of each row behind version and length.

    ``rid`` is the integer handle, left out where it is 0 or there is none.
    """
    count, keys = len(part), part.names.keys
    names, tail = _row_key_parts(part, large)
    segments: list[Segment] = [b'{"ts":', integer_text(part.commit_ts), names]
    is_int = keys.length == _INT_KEY_BYTES
    if is_int.any():
        handles = np.where(is_int, (words_ending(keys.buffer, keys.end).byteswap() ^ _SIGN).view(np.int64), 0)
        ids = join(count, [b',"rid":', integer_text(handles)])
        zero = handles == 0
        segments.append(pc.if_else(pa.array(zero), pa.scalar(b"", pa.binary()), ids) if zero.any() else ids)
    return _framed(count, [*segments, tail], VERSION_HEAD)


def _framed(count: int, segments: Sequence[Segment], head: bytes = b"") -> BinaryArray:
    """Join the segments behind ``head`` and their length."""
    lengths = np.zeros(count, np.int64)
    for segment in segments:
        if isinstance(segment, bytes):
            lengths += len(segment)
        else:
            lengths += pc.binary_length(segment).to_numpy(zero_copy_only=False)
    data = pa.py_buffer(lengths.astype(">u8"))
    words = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), count, [None, data]).cast(pa.binary())
    return join(count, [head, words, *segments])
