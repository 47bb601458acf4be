"""The widest row that a table's columns allow, and how large a message the protocol makes of it.

The row goes through the changefeed's own encoder, so what a protocol adds is not guessed. Texts are taken as plain
letters, four bytes each where the character set has such; JSON escapes can make a real row's message longer. A row of
large TEXT or BLOB columns is encoded twice at small sizes: what it grows by from one to the other, it grows on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from schemas.ids import TableId
from schemas.tidb.keys import row_key
from schemas.tidb.mysql_types import DATETIME_TYPES, INTEGER_TYPES, STRING_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from schemas.tidb.value import Value
from sorters.core.columnar.spans import Spans
from sorters.core.encode.open.encoder import OpenProtocolEncoder
from sorters.core.encode.wire.compressed import CompressedEncoder, Compression
from sorters.core.encode.wire.protocol import Encoder, SchemaIds
from sorters.core.mount.column import RowNames
from sorters.core.mount.mounted import MountedColumns, MountedPart, RowKind

ROW_BYTES_MAX: Final = 6 * 1024 * 1024
"""TiDB refuses a larger row unless ``txn-entry-size-limit`` says otherwise."""
_WHOLE_BYTES_MAX: Final = 64 * 1024
"""Rows up to here are encoded whole; larger ones at this size and at twice that."""
_COMMIT_TS: Final = 450_000_000_000_000_000
_ENCODED_AT_MS: Final = 1_700_000_000_000
_INTEGER_BITS: Final = {
    MysqlType.TINYINT: 8,
    MysqlType.SMALLINT: 16,
    MysqlType.MEDIUMINT: 24,
    MysqlType.INT: 32,
    MysqlType.BIGINT: 64,
}
_BLOB_BYTES: Final = {
    MysqlType.TINYBLOB: 2**8 - 1,
    MysqlType.BLOB: 2**16 - 1,
    MysqlType.MEDIUMBLOB: 2**24 - 1,
    MysqlType.LONGBLOB: 2**32 - 1,
}
_CHARACTER_BYTES: Final = {"utf8mb4": 4, "utf8": 3, "utf8mb3": 3, "gbk": 3, "gb18030": 4}
"""In UTF-8, in which TiDB keeps texts of these sets; others have one."""
_LONGEST_UINT64: Final = 10**19
"""As many digits as the largest one, and far from 0 also where a protocol wraps it into a signed number."""
_VECTOR_LENGTH_MAX: Final = 16_383


@dataclass(frozen=True, slots=True)
class WidestMessage:
    """The largest message that a row of a table can become, by its columns."""

    bytes: int
    """Key and value."""
    row_capped: bool
    """The columns would allow more than TiDB lets a row have."""


def widest_message(table: TableVersion, encoder: Encoder, topic: str) -> WidestMessage:
    """Return the larger of an INSERT's and an UPDATE's message; both sides of the UPDATE are as wide as they can be.

    Args:
        table: as messages hold it, less what a column selector leaves out.
        encoder: the changefeed's; what it compresses is counted as it was before.

    Raises:
        EncodeRefusedError: the protocol has no form for such a row.
    """
    encoder = _not_compressing(encoder)
    ids: SchemaIds = {text.key: 1 for text in encoder.schemas(table, topic)}
    room = [_room(spec) for spec in table.columns]
    total = sum(room)

    def sized(row_bytes: int) -> int:
        level = _level(room, row_bytes)
        row = tuple(_value(spec, min(most, level)) for spec, most in zip(table.columns, room, strict=True))
        return max(_encoded(table, encoder, topic, ids, kind, row) for kind in (RowKind.INSERT, RowKind.UPDATE))

    if total <= _WHOLE_BYTES_MAX:
        return WidestMessage(sized(total), row_capped=False)
    small, large = sized(_WHOLE_BYTES_MAX), sized(2 * _WHOLE_BYTES_MAX)
    row_bytes = min(total, ROW_BYTES_MAX)
    grown = (large - small) * (row_bytes - _WHOLE_BYTES_MAX) // _WHOLE_BYTES_MAX
    return WidestMessage(small + grown, row_capped=total > ROW_BYTES_MAX)


def _not_compressing(encoder: Encoder) -> Encoder:
    if isinstance(encoder, CompressedEncoder):
        return encoder.inner
    return replace(encoder, compression=Compression.NONE) if isinstance(encoder, OpenProtocolEncoder) else encoder


def _encoded(
    table: TableVersion, encoder: Encoder, topic: str, ids: SchemaIds, kind: RowKind, row: tuple[Value, ...]
) -> int:
    key = np.frombuffer(row_key(TableId(table.table_id), (1 << 63) - 1), np.uint8)
    first, ts = np.zeros(1, np.int64), np.array([_COMMIT_TS], np.int64)
    part = MountedPart(
        table=table,
        kind=kind,
        rows=first,
        commit_ts=ts,
        start_ts=ts - 1,
        names=RowNames(table.name, Spans(key, first, np.array([len(key)], np.int64)), ts),
        new_rows=[row],
        old_rows=[row] if kind is RowKind.UPDATE else None,
    )
    mounted = MountedColumns(table=table, count=1, parts=(part,))
    encoded = encoder.encode_rows(mounted, topic=topic, encoded_at_ms=_ENCODED_AT_MS, schema_ids=ids)
    return len(encoded.keys[0].as_py() or b"") + len(encoded.values[0].as_py() or b"")


def _level(room: Sequence[int], row_bytes: int) -> int:
    """Return to how many bytes each column may be filled so that a row has ``row_bytes``."""
    left = row_bytes
    for number, most in enumerate(sorted(room)):
        share = left // (len(room) - number)
        if most > share:
            return share
        left -= most
    return max(room, default=0)


def _room(spec: ColumnVersion) -> int:
    """Return the most bytes that a column's value takes in a row."""
    if spec.tp in _BLOB_BYTES:
        most = _BLOB_BYTES[spec.tp]
        return min(most, spec.flen) if spec.tp is MysqlType.BLOB and spec.flen > 0 else most
    if spec.tp in STRING_TYPES:
        return max(spec.flen, 1) * (1 if spec.binary else _CHARACTER_BYTES.get(spec.charset, 1))
    if spec.tp is MysqlType.JSON:
        return ROW_BYTES_MAX
    if spec.tp is MysqlType.VECTOR:
        return 4 * (spec.flen if spec.flen > 0 else _VECTOR_LENGTH_MAX)
    return 8


def _value(spec: ColumnVersion, most: int) -> Value:  # one return a kind of type
    """Return a value that takes the most digits, or ``most`` bytes of the row."""
    tp = spec.tp
    if tp in STRING_TYPES:
        return (b"\xff" if spec.binary else b"x") * most
    if tp in INTEGER_TYPES and tp in _INTEGER_BITS:
        bits = _INTEGER_BITS[tp]
        if spec.unsigned:
            return _LONGEST_UINT64 if bits == 64 else (1 << bits) - 1
        return -(1 << bits - 1)
    match tp:
        case MysqlType.JSON:
            return f'"{"x" * max(most - 2, 0)}"'
        case MysqlType.VECTOR:
            return (-1.2345678e-30,) * (most // 4)
        case MysqlType.FLOAT:
            return -3.4028234663852886e38
        case MysqlType.DOUBLE:
            return -1.7976931348623157e308
        case MysqlType.DECIMAL:
            scale = max(spec.decimal, 0)
            whole = max(spec.flen - scale, 1)
            return "-" + "9" * whole + ("." + "9" * scale if scale else "")
        case MysqlType.ENUM:
            return max(range(1, len(spec.elems) + 1), key=lambda at: len(spec.elems[at - 1]), default=0)
        case MysqlType.SET:
            return (1 << len(spec.elems)) - 1
        case MysqlType.BIT:
            return (1 << min(max(spec.flen, 1), 64)) - 1
        case MysqlType.YEAR:
            return 2155
        case MysqlType.TIME:
            return "-838:59:59" + _fraction(spec)
        case MysqlType.DATE | MysqlType.NEWDATE:
            return "9999-12-31"
        case _ if tp in DATETIME_TYPES:
            # The last TIMESTAMP is in 2038; DATETIMEs have as many digits.
            return "2037-12-31 23:59:59" + _fraction(spec)
        case _:
            return None


def _fraction(spec: ColumnVersion) -> str:
    return "." + "9" * spec.decimal if spec.decimal > 0 else ""
