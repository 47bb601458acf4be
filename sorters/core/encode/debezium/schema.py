"""The schema parts of debezium messages: Kafka Connect's description of key and value, made once a table version."""

from collections.abc import Sequence
from functools import lru_cache

from schemas.avro_name import sanitize_name
from schemas.tidb.mysql_types import STRING_TYPES, CdcFlag, MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from sorters.core.encode.debezium.values import (
    CURRENT_TIMESTAMP,
    MILLISECONDS_FSP_MAX,
    MIN_TIMESTAMP_JSON,
    NoFormError,
    default_value,
    float_json,
    quoted,
    value_json,
)
from sorters.core.encode.wire.mysql_names import bare_type_name

_CACHED_TABLES = 1024
_PLAIN_NAMES = frozenset(
    {MysqlType.YEAR, MysqlType.BIT, MysqlType.VARCHAR, MysqlType.STRING, MysqlType.DECIMAL, MysqlType.UNSPECIFIED}
)
"""Types whose ``tidb_type`` says nothing of the sign."""
_SEMANTIC = {
    MysqlType.DATE: ("int32", "io.debezium.time.Date"),
    MysqlType.NEWDATE: ("int32", "io.debezium.time.Date"),
    MysqlType.TIMESTAMP: ("string", "io.debezium.time.ZonedTimestamp"),
    MysqlType.TIME: ("int64", "io.debezium.time.MicroTime"),
    MysqlType.JSON: ("string", "io.debezium.data.Json"),
    MysqlType.YEAR: ("int32", "io.debezium.time.Year"),
}
_TEXT_DEFAULTS = STRING_TYPES | {MysqlType.ENUM, MysqlType.SET, MysqlType.JSON, MysqlType.VECTOR}
_YEARS_2000, _YEARS_1900 = 70, 100


def _field(name: str, kind: str, *, optional: bool, more: bytes = b"") -> bytes:
    return b'{"type":"%s","optional":%s,%s"field":"%s"}' % (kind.encode(), _bool(optional), more, name.encode())


def _bool(value: bool) -> bytes:
    return b"true" if value else b"false"


_SNAPSHOT = (
    b'"name":"io.debezium.data.Enum","version":1,"parameters":{"allowed":"true,last,false,incremental"},'
    b'"default":"false",'
)
_SOURCE_FIELDS = (
    _field("version", "string", optional=False),
    _field("connector", "string", optional=False),
    _field("name", "string", optional=False),
    _field("ts_ms", "int64", optional=False),
    _field("snapshot", "string", optional=True, more=_SNAPSHOT),
    _field("db", "string", optional=False),
    _field("sequence", "string", optional=True),
    _field("table", "string", optional=True),
    _field("server_id", "int64", optional=False),
    _field("gtid", "string", optional=True),
    _field("file", "string", optional=False),
    _field("pos", "int64", optional=False),
    _field("row", "int32", optional=False),
    _field("thread", "int64", optional=True),
    _field("query", "string", optional=True),
)
_EXTENSION_FIELDS = (
    _field("commit_ts", "int64", optional=False),
    _field("cluster_id", "string", optional=False),
)
_START_TS_FIELD = _field("start_ts", "int64", optional=False)


def _source_schema(fields: Sequence[bytes]) -> bytes:
    name = b"io.debezium.connector.mysql.Source"
    return b'{"type":"struct","fields":[%s],"optional":false,"name":"%s","field":"source"}' % (b",".join(fields), name)


SOURCE_SCHEMA = _source_schema(_SOURCE_FIELDS)
SOURCE_SCHEMAS = {
    extension: _source_schema((*_SOURCE_FIELDS, *(_EXTENSION_FIELDS if extension else ()), _START_TS_FIELD))
    for extension in (False, True)
}
"""Of rows with a start_ts, without and with the TiDB extension: as TiCDC's new architecture, which alone writes one."""
_TRANSACTION = (
    b'{"type":"struct","fields":[%s],"optional":true,"name":"event.block","version":1,"field":"transaction"}'
    % b",".join(
        (
            _field("id", "string", optional=False),
            _field("total_order", "int64", optional=False),
            _field("data_collection_order", "int64", optional=False),
        )
    )
)
_ENVELOPE_END = b",".join(
    (
        _field("op", "string", optional=False),
        _field("ts_ms", "int64", optional=True),
        _TRANSACTION,
    )
)


def key_schema(name: str, fields: bytes = b"") -> bytes:
    """Return the schema of keys of ``{name}.Key``."""
    return b'{"type":"struct","name":%s,"optional":false,"fields":[%s]}' % (quoted(f"{name}.Key"), fields)


def envelope_schema(name: str, rows: bytes = b"", source: bytes = SOURCE_SCHEMA) -> bytes:
    """Return the schema of values of ``{name}.Envelope``; ``rows``: the fields ``before`` and ``after``."""
    return b'{"type":"struct","optional":false,"name":%s,"version":1,"fields":[%s%s,%s]}' % (
        quoted(f"{name}.Envelope"),
        rows,
        source,
        _ENVELOPE_END,
    )


@lru_cache(_CACHED_TABLES)
def table_schemas(table: TableVersion, cluster_id: str, extension: bool, start_ts: bool = False) -> tuple[bytes, bytes]:
    """Return the schemas of a table's keys and values.

    Virtual generated columns, which no row holds, stand after the others.
    """
    name = schema_name(cluster_id, table)
    columns = (*table.columns, *(column for column in table.all_columns if not column.visible))
    keys = [column for column in table.columns if column.cdc_flag & CdcFlag.HANDLE_KEY]
    fields = _fields(columns, extension)
    rows = b"".join(
        b'{"type":"struct","optional":true,"name":%s,"field":"%s","fields":[%s]},'
        % (quoted(f"{name}.Value"), side, fields)
        for side in (b"before", b"after")
    )
    source = SOURCE_SCHEMAS[extension] if start_ts else SOURCE_SCHEMA
    return key_schema(name, _fields(keys, extension)), envelope_schema(name, rows, source)


def schema_name(cluster_id: str, table: TableVersion) -> str:
    """Return ``cluster.schema.table`` as a legal Avro name; only the table's may hold dots."""
    topic = "".join(char if char.isascii() and (char.isalnum() or char in "_.") else "_" for char in table.table)
    return f"{sanitize_name(cluster_id)}.{sanitize_name(table.schema)}.{topic}"


def _fields(columns: Sequence[ColumnVersion], extension: bool) -> bytes:
    return b",".join(field_schema(column, extension=extension) for column in columns)


def field_schema(column: ColumnVersion, *, extension: bool) -> bytes:
    """Return the schema of one column."""
    kind, name, version, parameters = connect_type(column)
    members = [b'"tidb_type":%s' % quoted(tidb_type(column))] if extension else []
    members += [b'"type":"%s"' % kind.encode(), b'"optional":' + _bool(column.nullable)]
    if name:
        members.append(b'"name":"%s"' % name.encode())
    if version:
        members.append(b'"version":1')
    if parameters:
        members.append(b'"parameters":{%s}' % parameters)
    members.append(b'"field":' + quoted(column.name))
    default = None if column.default is None or column.default_is_expression else _default(column)
    if default is not None:
        members.append(b'"default":' + default)
    return b"{" + b",".join(members) + b"}"


def tidb_type(column: ColumnVersion) -> str:
    """Return TiDB's name of a column's type, with its sign."""
    sign = " unsigned" if column.unsigned and column.tp not in _PLAIN_NAMES else ""
    return bare_type_name(column) + sign


def connect_type(column: ColumnVersion) -> tuple[str, str, bool, bytes]:
    """Return Kafka Connect's type, Debezium's name of its meaning, whether that has a version, and its parameters: JSON
    members without braces.
    """
    tp = column.tp
    if tp in _SEMANTIC:
        return *_SEMANTIC[tp], True, b""
    match tp:
        case MysqlType.BIT if column.flen == 1:
            return "boolean", "", False, b""
        case MysqlType.BIT:
            return "bytes", "io.debezium.data.Bits", True, b'"length":"%d"' % column.flen
        case MysqlType.ENUM:
            allowed = (elem.replace(",", "\\,").replace("\\'", "'").replace("''", "'") for elem in column.elems)
            return "string", "io.debezium.data.Enum", True, b'"allowed":' + quoted(",".join(allowed))
        case MysqlType.SET:
            return "string", "io.debezium.data.EnumSet", True, b'"allowed":' + quoted(",".join(column.elems))
        case MysqlType.DATETIME:
            unit = "Timestamp" if column.decimal <= MILLISECONDS_FSP_MAX else "MicroTimestamp"
            return "int64", f"io.debezium.time.{unit}", True, b""
        case MysqlType.VECTOR:
            return "string", "io.debezium.data.TiDBVectorFloat32", False, b""
    return _number_type(column), "", False, b""


def _number_type(column: ColumnVersion) -> str:
    match column.tp:
        case MysqlType.TINYINT:
            return "int16"
        case MysqlType.SMALLINT:
            return "int32" if column.unsigned else "int16"
        case MysqlType.MEDIUMINT:
            return "int32"
        case MysqlType.INT:
            return "int64" if column.unsigned else "int32"
        case MysqlType.BIGINT:
            return "int64"
        case MysqlType.FLOAT:
            return "float" if column.decimal == -1 else "double"
        case MysqlType.DOUBLE | MysqlType.DECIMAL:
            return "double"
    return "string"


def _default(column: ColumnVersion) -> bytes | None:
    """Return a column's DEFAULT as its schema says it; None: the schema does not say it."""
    assert column.default is not None
    if column.tp in _TEXT_DEFAULTS:
        return quoted(column.default)
    if column.tp in {MysqlType.DATETIME, MysqlType.TIMESTAMP}:
        return _moment_default(column)
    if column.tp is MysqlType.YEAR:
        year = _number(column.default)
        if year is None:
            return None
        return float_json(year + (2000 if year < _YEARS_2000 else 1900 if year < _YEARS_1900 else 0))
    if column.tp in {MysqlType.DATE, MysqlType.NEWDATE, MysqlType.TIME, MysqlType.BIT}:
        value = default_value(column)
        if value is None:
            return b"0" if column.tp in {MysqlType.DATE, MysqlType.NEWDATE} and not column.nullable else None
        made = value_json(column, value)
        return None if made == b"null" else made
    number = _number(column.default)
    return None if number is None else float_json(number)


def _moment_default(column: ColumnVersion) -> bytes | None:
    is_datetime = column.tp is MysqlType.DATETIME
    if column.default == CURRENT_TIMESTAMP:
        made = b"0" if is_datetime else MIN_TIMESTAMP_JSON
    else:
        value = default_value(column)
        try:
            made = b"0" if value is None else value_json(column, value)
        except NoFormError:
            made = b"0"
    if made == b"null" or (made == MIN_TIMESTAMP_JSON and column.nullable):
        return None
    return made


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
