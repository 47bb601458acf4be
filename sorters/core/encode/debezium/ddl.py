"""DDL messages of debezium: the statement, and the table after it as Debezium's schema history describes tables.

Source: pingcap/tiflow ``pkg/sink/codec/debezium`` (``EncodeDDLEvent``, ``helper.go``). Columns that the statement
itself defines come as it says them: a DATETIME without digits has no length there, and 0 in every later message.
"""

from dataclasses import replace

from schemas.ddl.job import DdlType
from schemas.tidb.mysql_types import MysqlFlag, MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from sorters.core.encode.debezium.schema import SOURCE_SCHEMA
from sorters.core.encode.debezium.values import CURRENT_TIMESTAMP, float_json, quoted
from sorters.core.encode.wire.mysql_names import DISPLAY_LENGTH, bare_type_name
from sorters.core.encode.wire.protocol import DdlMessage
from sorters.core.sql.columns import DefinedColumn, defined_columns

_CREATE = (DdlType.CREATE_SCHEMA, DdlType.CREATE_TABLE, DdlType.CREATE_TABLES, DdlType.CREATE_VIEW)
_DROP = (DdlType.DROP_SCHEMA, DdlType.DROP_TABLE, DdlType.DROP_INDEX, DdlType.DROP_VIEW, DdlType.TRUNCATE_TABLE)
_ALTER = (
    *(DdlType.ADD_COLUMN, DdlType.MODIFY_COLUMN, DdlType.DROP_COLUMN, DdlType.MULTI_SCHEMA_CHANGE),
    *(DdlType.ADD_PARTITION, DdlType.REMOVE_PARTITIONING, DdlType.REORGANIZE_PARTITION),
    *(DdlType.EXCHANGE_PARTITION, DdlType.ALTER_TABLE_PARTITIONING, DdlType.TRUNCATE_PARTITION, DdlType.DROP_PARTITION),
    *(DdlType.SET_DEFAULT_VALUE, DdlType.MODIFY_TABLE_COMMENT, DdlType.REBASE_AUTO_ID),
    *(DdlType.MODIFY_TABLE_CHARSET, DdlType.MODIFY_SCHEMA_CHARSET, DdlType.ADD_INDEX),
    *(DdlType.ALTER_INDEX_VISIBILITY, DdlType.RENAME_INDEX, DdlType.RENAME_TABLE, DdlType.RENAME_TABLES),
    *(DdlType.ADD_PRIMARY_KEY, DdlType.DROP_PRIMARY_KEY),
)
_KINDS = {int(ddl): kind for kind, ddls in ((b"CREATE", _CREATE), (b"ALTER", _ALTER), (b"DROP", _DROP)) for ddl in ddls}
_TIME_TYPES = frozenset({MysqlType.DATETIME, MysqlType.TIMESTAMP, MysqlType.TIME, MysqlType.YEAR})
"""Types that come as the statement says them."""
_JDBC_TYPES = {
    MysqlType.TINYINT: 5,
    MysqlType.SMALLINT: 5,
    MysqlType.MEDIUMINT: 4,
    MysqlType.INT: 4,
    MysqlType.BIGINT: -5,
    MysqlType.FLOAT: 6,
    MysqlType.DOUBLE: 8,
    MysqlType.DECIMAL: 3,
    MysqlType.DATE: 91,
    MysqlType.NEWDATE: 91,
    MysqlType.DATETIME: 93,
    MysqlType.TIMESTAMP: 2014,
    MysqlType.TIME: 92,
    MysqlType.YEAR: 4,
    MysqlType.BIT: -7,
    MysqlType.ENUM: 1,
    MysqlType.SET: 1,
    MysqlType.JSON: 1111,
    MysqlType.STRING: 1,
}
_JDBC_BINARY_TYPES = {
    MysqlType.STRING: -2,
    MysqlType.VARCHAR: -3,
    MysqlType.VAR_STRING: -3,
    MysqlType.TINYBLOB: 2004,
    MysqlType.BLOB: 2004,
    MysqlType.MEDIUMBLOB: 2004,
    MysqlType.LONGBLOB: 2004,
}
_VARCHAR_JDBC_TYPE, _ZONED_JDBC_TYPE = 12, 2014
_UNSIGNED_DISPLAYS = frozenset({MysqlType.TINYINT, MysqlType.SMALLINT, MysqlType.MEDIUMINT, MysqlType.INT})
_SHOWN_WHEN_OTHER = frozenset(
    {
        *(MysqlType.BIT, MysqlType.VARCHAR, MysqlType.STRING, MysqlType.VAR_STRING, MysqlType.VECTOR),
        *(MysqlType.BIGINT, MysqlType.FLOAT, MysqlType.DOUBLE),
    }
)
"""Types whose length is told where it is not the default."""
_CHARSET_TYPES = frozenset(
    {
        *(MysqlType.STRING, MysqlType.VARCHAR, MysqlType.ENUM, MysqlType.SET),
        *(MysqlType.TINYBLOB, MysqlType.BLOB, MysqlType.MEDIUMBLOB, MysqlType.LONGBLOB),
        *(MysqlType.TIMESTAMP, MysqlType.TIME, MysqlType.DECIMAL),
    }
)
_SCALE_TYPES = frozenset({MysqlType.DECIMAL, MysqlType.FLOAT, MysqlType.DOUBLE})
_BARE_TYPES = frozenset({MysqlType.YEAR, MysqlType.BIT, MysqlType.VARCHAR, MysqlType.STRING, MysqlType.DECIMAL})
"""Types named without length and sign."""
_HIDDEN_DECIMALS = frozenset({0, -1})

DDL_KEY_SCHEMA = (
    b'{"type":"struct","name":"io.debezium.connector.mysql.SchemaChangeKey","optional":false,"version":1,'
    b'"fields":[{"field":"databaseName","optional":false,"type":"string"}]}'
)


def _field(name: str, kind: str, *, optional: bool = True, more: bytes = b"") -> bytes:
    flag = b"true" if optional else b"false"
    return b'{"field":"%s","optional":%s,"type":"%s"%s}' % (name.encode(), flag, kind.encode(), more)


def _struct(name: bytes, fields: tuple[bytes, ...]) -> bytes:
    return b'{"name":"%s","optional":false,"type":"struct","version":1,"fields":[%s]}' % (name, b",".join(fields))


_STRING_ITEMS = b',"items":{"type":"string","optional":false}'
_COLUMN_SCHEMA = _struct(
    b"io.debezium.connector.schema.Column",
    (
        _field("name", "string", optional=False),
        _field("jdbcType", "int32", optional=False),
        _field("nativeType", "int32"),
        _field("typeName", "string", optional=False),
        _field("typeExpression", "string"),
        _field("charsetName", "string"),
        _field("length", "int32"),
        _field("scale", "int32"),
        _field("position", "int32", optional=False),
        _field("optional", "boolean"),
        _field("autoIncremented", "boolean"),
        _field("generated", "boolean"),
        _field("comment", "string"),
        _field("defaultValueExpression", "string"),
        _field("enumValues", "array", more=_STRING_ITEMS),
    ),
)
_TABLE_FIELDS = b",".join(
    (
        _field("defaultCharsetName", "string"),
        _field("primaryKeyColumnNames", "array", more=_STRING_ITEMS),
        _field("columns", "array", optional=False, more=b',"items":' + _COLUMN_SCHEMA),
        _field("comment", "string"),
    )
)
_TABLE_MORE = b',"name":"io.debezium.connector.schema.Table","version":1,"fields":[%s]' % _TABLE_FIELDS
_CHANGE_SCHEMA = _struct(
    b"io.debezium.connector.schema.Change",
    (
        _field("type", "string", optional=False),
        _field("id", "string", optional=False),
        _field("table", "struct", more=_TABLE_MORE),
    ),
)
_VALUE_FIELDS = b",".join(
    (
        SOURCE_SCHEMA,
        _field("ts_ms", "int64", optional=False),
        _field("databaseName", "string"),
        _field("schemaName", "string"),
        _field("ddl", "string"),
        _field("tableChanges", "array", optional=False, more=b',"items":' + _CHANGE_SCHEMA),
    )
)
DDL_SCHEMA = (
    b'{"optional":false,"type":"struct","version":1,"name":"io.debezium.connector.mysql.SchemaChangeValue","fields":['
    + _VALUE_FIELDS
    + b"]}"
)


def change_kind(ddl_type: int) -> bytes | None:
    """Return CREATE, ALTER or DROP; None: Debezium knows no such change."""
    return _KINDS.get(ddl_type)


def table_changes(event: DdlMessage, kind: bytes) -> bytes:
    """Return the one item of ``tableChanges``; nothing for schemas and TRUNCATE TABLE.

    Raises:
        CorruptDataError: the TableInfo does not decode.
    """
    stored = event.post or event.pre
    if stored is None or not event.table or event.ddl_type == DdlType.TRUNCATE_TABLE:
        return b""
    names = [(event.schema, event.table)]
    if event.ddl_type == DdlType.RENAME_TABLE and event.pre is not None:
        names.insert(0, (event.pre.schema, event.pre.table))
    table_id = quoted(",".join(f'"{schema}"."{table}"' for schema, table in names))
    described = b"null" if event.ddl_type == DdlType.DROP_TABLE else _table(stored.decode(), event.query)
    return b'{"type":"%s","id":%s,"table":%s}' % (kind, table_id, described)


def _table(table: TableVersion, query: str) -> bytes:
    defined = defined_columns(query)
    columns = (
        _column(_as_defined(column, defined.get(column.name.lower())), number)
        for number, column in enumerate(table.all_columns, 1)
        if not column.hidden
    )
    return b'{"defaultCharsetName":%s,"primaryKeyColumnNames":[%s],"columns":[%s],"comment":null}' % (
        quoted(table.charset),
        b",".join(quoted(name) for name in _primary_key(table)),
        b",".join(columns),
    )


def _primary_key(table: TableVersion) -> tuple[str, ...]:
    if table.pk_is_handle:
        return tuple(table.columns[offset].name for offset in table.key_columns)
    return next((index.column_names for index in table.indexes if index.primary), ())


def _as_defined(column: ColumnVersion, defined: DefinedColumn | None) -> ColumnVersion:
    if defined is None:
        return column
    column = replace(column, comment="")
    if column.tp not in _TIME_TYPES or defined.type_name != column.tp.name:
        return column
    if defined.has_default:
        column = replace(column, default=defined.default)
    if column.tp is MysqlType.YEAR:
        return replace(column, flen=defined.length)
    return replace(column, decimal=defined.length)


def _column(column: ColumnVersion, position: int) -> bytes:
    flag, jdbc = column.mysql_flag, _jdbc_type(column)
    name, expression = _type_names(column)
    length = _length(column)
    is_set = flag & MysqlFlag.AUTO_INCREMENT or (flag & MysqlFlag.ON_UPDATE_NOW and jdbc == _ZONED_JDBC_TYPE)
    elems = b"[%s]" % b",".join(quoted(f"'{elem}'") for elem in column.elems) if column.elems else b"null"
    has_charset = column.tp in _CHARSET_TYPES and column.charset and not column.binary
    has_scale = column.tp in _SCALE_TYPES and column.decimal != -1
    members = (
        (b"name", quoted(column.name)),
        (b"jdbcType", b"%d" % jdbc),
        (b"nativeType", b"null"),
        (b"comment", quoted(column.comment) if column.comment else b"null"),
        (b"defaultValueExpression", _default(column)),
        (b"enumValues", elems),
        (b"typeName", quoted(name)),
        (b"typeExpression", quoted(expression)),
        (b"charsetName", quoted(column.charset) if has_charset else b"null"),
        (b"length", b"%d" % length if length != -1 else b"null"),
        (b"scale", float_json(float(column.decimal)) if has_scale else b"null"),
        (b"position", b"%d" % position),
        (b"optional", _bool(column.nullable)),
        (b"autoIncremented", _bool(is_set)),
        (b"generated", _bool(is_set)),
    )
    return b"{%s}" % b",".join(b'"%s":%s' % member for member in members)


def _bool(value: object) -> bytes:
    return b"true" if value else b"false"


def _jdbc_type(column: ColumnVersion) -> int:
    if column.mysql_flag & MysqlFlag.BINARY and column.tp in _JDBC_BINARY_TYPES:
        return _JDBC_BINARY_TYPES[column.tp]
    return _JDBC_TYPES.get(column.tp, _VARCHAR_JDBC_TYPE)


def _type_names(column: ColumnVersion) -> tuple[str, str]:
    """Return ``typeName`` and ``typeExpression``."""
    name = bare_type_name(column).upper()
    if column.tp in _BARE_TYPES:
        return name, name
    sign = " UNSIGNED" if column.unsigned or column.mysql_flag & MysqlFlag.ZEROFILL else ""
    sign += " ZEROFILL" if column.mysql_flag & MysqlFlag.ZEROFILL else ""
    flen = column.flen if column.flen != -1 else DISPLAY_LENGTH.get(column.tp, -1)
    parameters = ""
    if column.tp is MysqlType.DOUBLE and column.decimal not in _HIDDEN_DECIMALS:
        parameters = f"({flen},{column.decimal})"
    elif column.tp is MysqlType.VECTOR and column.flen != -1:
        parameters = f"({column.flen})"
    elif column.tp is MysqlType.VAR_STRING and not column.mysql_flag & MysqlFlag.BINARY and flen != 1:
        parameters = f"({flen})"
    return name + sign, name + parameters + sign


def _length(column: ColumnVersion) -> int:
    tp, flen = column.tp, column.flen
    default = DISPLAY_LENGTH.get(tp, -1)
    if tp in {MysqlType.TIMESTAMP, MysqlType.TIME, MysqlType.DATETIME}:
        return column.decimal
    if tp in {MysqlType.YEAR, MysqlType.DECIMAL}:
        return flen
    if tp is MysqlType.SET:
        return 2 * len(column.elems) - 1
    if tp is MysqlType.ENUM:
        return 1
    if tp in _UNSIGNED_DISPLAYS:
        default -= column.unsigned
        default += tp is MysqlType.TINYINT and column.mysql_flag & MysqlFlag.ZEROFILL != 0
    elif tp not in _SHOWN_WHEN_OTHER:
        return -1
    return flen if flen != default else -1


def _default(column: ColumnVersion) -> bytes:
    text = column.default
    if text is None:
        return b"null"
    if text.upper() == CURRENT_TIMESTAMP:
        return b'"1970-01-01 00:00:00"'
    if column.tp is MysqlType.BIT:
        data = text.encode("latin-1")
        return (
            b'"%s"'
            % "".join(
                f"{byte:08b}" if number else f"{byte:0{column.flen % 8 or 1}b}" for number, byte in enumerate(data)
            ).encode()
        )
    return quoted(text)
