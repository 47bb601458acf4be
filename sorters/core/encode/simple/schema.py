"""The table schemas that simple's DDL and BOOTSTRAP messages carry, in JSON and in Avro.

Source: pingcap/tiflow ``pkg/sink/codec/simple/message.go`` and ``avro.go``; where pingcap/ticdc differs, says
docs/formats/kafka-sink-protocols.md §4. The two disagree: JSON says ``decimal`` of every type but FLOAT and DOUBLE
where it is not 0, Avro of DECIMAL only; Avro says ``unsigned`` and ``zerofill`` of all numbers.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from schemas.tidb.mysql_types import INTEGER_TYPES, MysqlFlag, MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from schemas.varint import long_bytes
from sorters.core.columnar.escape import GO_JSON
from sorters.core.encode.wire.mysql_names import bare_type_name
from sorters.core.mount.column import FLOAT_TYPES

_SIGNED_TYPES = INTEGER_TYPES | FLOAT_TYPES | {MysqlType.BIT, MysqlType.YEAR, MysqlType.DECIMAL}
_NAMED_TYPES = frozenset({MysqlType.ENUM, MysqlType.SET})
NULL, PRESENT = b"\x00", b"\x02"
"""Branches of ``["null", T]``."""
_FALSE, _TRUE = b"\x00", b"\x01"


@dataclass(frozen=True, slots=True)
class _Index:
    name: str
    unique: bool
    primary: bool
    nullable: bool
    columns: tuple[str, ...]


def raw(text: str) -> bytes:
    """Return a name's bytes; some are no UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def quoted(text: str) -> bytes:
    """Return a JSON string."""
    return b'"%s"' % GO_JSON.value(raw(text))


def sized(data: bytes) -> bytes:
    """Return Avro's string or bytes."""
    return long_bytes(len(data)) + data


def _indexes(table: TableVersion) -> list[_Index]:
    """The table's indexes; a primary key that is only in the row key comes last, as ``primary``."""
    nullable = {column.name: column.nullable for column in table.all_columns}
    indexes = [
        _Index(
            index.name, index.unique, index.primary, any(nullable[n] for n in index.column_names), index.column_names
        )
        for index in table.indexes
    ]
    if table.pk_is_handle and not any(index.primary for index in indexes):
        names = tuple(table.columns[offset].name for offset in table.key_columns)
        indexes.append(_Index("primary", unique=True, primary=True, nullable=False, columns=names))
    return indexes


def _columns(table: TableVersion) -> list[ColumnVersion]:
    """All columns, virtual generated ones too, by id."""
    return sorted(table.all_columns, key=lambda column: column.id)


def schema_json(table: TableVersion) -> bytes:
    """Return ``{"schema":…}`` of a table version."""
    return b'{"schema":%s,"table":%s,"tableID":%d,"version":%d,"columns":[%s],"indexes":[%s]}' % (
        quoted(table.schema),
        quoted(table.table),
        table.table_id,
        table.update_ts,
        b",".join(_column_json(column) for column in _columns(table)),
        b",".join(_index_json(index) for index in _indexes(table)),
    )


def _column_json(column: ColumnVersion) -> bytes:
    kind = b'{"mysqlType":%s,"charset":%s,"collate":%s' % (
        quoted(bare_type_name(column)),
        quoted(column.charset),
        quoted(column.collation),
    )
    if column.flen:
        kind += b',"length":%d' % column.flen
    if column.decimal and column.tp not in FLOAT_TYPES:
        kind += b',"decimal":%d' % column.decimal
    if column.elems:
        kind += b',"elements":[%s]' % b",".join(quoted(elem) for elem in column.elems)
    kind += b',"unsigned":true' if column.unsigned else b""
    kind += b',"zerofill":true' if column.mysql_flag & MysqlFlag.ZEROFILL else b""
    nullable = b"true" if column.nullable else b"false"
    return b'{"name":%s,"dataType":%s},"nullable":%s,"default":%s}' % (
        quoted(column.name),
        kind,
        nullable,
        _default_json(column),
    )


def _default_json(column: ColumnVersion) -> bytes:
    if column.default is None:
        return b"null"
    if column.tp is MysqlType.BIT and not column.default_is_expression:
        return b"%d" % int.from_bytes(column.default.encode("latin-1"), "big")
    return quoted(column.default)


def _index_json(index: _Index) -> bytes:
    flags = (b"true" if flag else b"false" for flag in (index.unique, index.primary, index.nullable))
    return b'{"name":%s,"unique":%s,"primary":%s,"nullable":%s,"columns":[%s]}' % (
        quoted(index.name),
        *flags,
        b",".join(quoted(name) for name in index.columns),
    )


def schema_avro(table: TableVersion) -> bytes:
    """Return a ``TableSchema`` record in Avro binary."""
    return b"".join(
        (
            sized(raw(table.schema)),
            sized(raw(table.table)),
            long_bytes(table.table_id),
            long_bytes(table.update_ts),
            _array([_column_avro(column) for column in _columns(table)]),
            _array([_index_avro(index) for index in _indexes(table)]),
        )
    )


def _array(items: Iterable[bytes]) -> bytes:
    """One block, as Avro writes it, and the empty one that ends it."""
    items = list(items)
    return (long_bytes(len(items)) + b"".join(items) if items else b"") + b"\x00"


def _column_avro(column: ColumnVersion) -> bytes:
    kind = sized(raw(bare_type_name(column))) + sized(raw(column.charset)) + sized(raw(column.collation))
    kind += long_bytes(column.flen)
    kind += PRESENT + long_bytes(column.decimal) if column.tp is MysqlType.DECIMAL else NULL
    kind += PRESENT + _array(sized(raw(elem)) for elem in column.elems) if column.tp in _NAMED_TYPES else NULL
    if column.tp in _SIGNED_TYPES:
        kind += PRESENT + _boolean(column.unsigned)
        kind += PRESENT + _boolean(bool(column.mysql_flag & MysqlFlag.ZEROFILL))
    else:
        kind += NULL + NULL
    return sized(raw(column.name)) + kind + _boolean(column.nullable) + _default_avro(column)


def _default_avro(column: ColumnVersion) -> bytes:
    if column.default is None:
        return NULL
    is_bytes = column.tp is MysqlType.BIT and not column.default_is_expression
    return PRESENT + sized(column.default.encode("latin-1") if is_bytes else raw(column.default))


def _index_avro(index: _Index) -> bytes:
    flags = b"".join(_boolean(flag) for flag in (index.unique, index.primary, index.nullable))
    return sized(raw(index.name)) + flags + _array([sized(raw(name)) for name in index.columns])


def _boolean(flag: bool) -> bytes:
    return _TRUE if flag else _FALSE
