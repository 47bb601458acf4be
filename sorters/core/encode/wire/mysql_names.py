"""TiDB's names of column types, as canal-json carries them in ``mysqlType``."""

from schemas.tidb.mysql_types import MysqlFlag, MysqlType
from schemas.tidb.table import ColumnVersion

_NAMES = {
    MysqlType.UNSPECIFIED: "unspecified",
    MysqlType.TINYINT: "tinyint",
    MysqlType.SMALLINT: "smallint",
    MysqlType.INT: "int",
    MysqlType.FLOAT: "float",
    MysqlType.DOUBLE: "double",
    MysqlType.NULL: "null",
    MysqlType.TIMESTAMP: "timestamp",
    MysqlType.BIGINT: "bigint",
    MysqlType.MEDIUMINT: "mediumint",
    MysqlType.DATE: "date",
    MysqlType.TIME: "time",
    MysqlType.DATETIME: "datetime",
    MysqlType.YEAR: "year",
    MysqlType.NEWDATE: "date",
    MysqlType.VARCHAR: "varchar",
    MysqlType.BIT: "bit",
    MysqlType.VECTOR: "vector",
    MysqlType.JSON: "json",
    MysqlType.DECIMAL: "decimal",
    MysqlType.ENUM: "enum",
    MysqlType.SET: "set",
    MysqlType.TINYBLOB: "tinytext",
    MysqlType.MEDIUMBLOB: "mediumtext",
    MysqlType.LONGBLOB: "longtext",
    MysqlType.BLOB: "text",
    MysqlType.VAR_STRING: "var_string",
    MysqlType.STRING: "char",
    MysqlType.GEOMETRY: "geometry",
}
_BINARY_NAMES = {
    MysqlType.TINYBLOB: "tinyblob",
    MysqlType.MEDIUMBLOB: "mediumblob",
    MysqlType.LONGBLOB: "longblob",
    MysqlType.BLOB: "blob",
    MysqlType.VARCHAR: "varbinary",
    MysqlType.VAR_STRING: "var_string",
    MysqlType.STRING: "binary",
}
_NO_SIGN = frozenset({MysqlType.BIT, MysqlType.YEAR})
DISPLAY_LENGTH = {
    MysqlType.TINYINT: 4,
    MysqlType.SMALLINT: 6,
    MysqlType.MEDIUMINT: 9,
    MysqlType.INT: 11,
    MysqlType.BIGINT: 20,
    MysqlType.BIT: 1,
    MysqlType.STRING: 1,
    MysqlType.VARCHAR: 5,
    MysqlType.VAR_STRING: 5,
    MysqlType.YEAR: 4,
    MysqlType.DECIMAL: 10,
    MysqlType.FLOAT: 12,
    MysqlType.DOUBLE: 22,
}
"""Length where FieldType has -1, for types that show one; pingcap/tidb ``mysql.GetDefaultFieldLengthAndDecimal``."""
_WITH_FRACTION = frozenset({MysqlType.TIMESTAMP, MysqlType.DATETIME, MysqlType.TIME})
_WITH_LENGTH = frozenset(DISPLAY_LENGTH) - {MysqlType.DECIMAL, MysqlType.FLOAT, MysqlType.DOUBLE}


def bare_type_name(column: ColumnVersion) -> str:
    """Return the type's name without length and sign, as TiDB's ``types.TypeToStr``."""
    name = _NAMES[column.tp]
    return _BINARY_NAMES.get(column.tp, name) if column.binary else name


def mysql_type_name(column: ColumnVersion, *, parameters: bool) -> str:
    """Return the type's name; ``parameters``: with length, elements and so on (canal-json's content-compatible
    form).
    """
    name = bare_type_name(column)
    if parameters:
        name += _parameters(column)
    if column.tp not in _NO_SIGN:
        if column.unsigned:
            name += " unsigned"
        if column.mysql_flag & MysqlFlag.ZEROFILL:
            name += " zerofill"
    return name


def _parameters(column: ColumnVersion) -> str:
    """Source: pingcap/tidb ``pkg/parser/types/field_type.go``, ``CompactStr``."""
    tp, length = column.tp, column.flen if column.flen != -1 else DISPLAY_LENGTH.get(column.tp, -1)
    if tp in {MysqlType.ENUM, MysqlType.SET}:
        elems = (elem.replace("\\", "\\\\").replace("'", "''") for elem in column.elems)
        return "('" + "','".join(elems) + "')"
    if tp in _WITH_FRACTION:
        return f"({column.decimal})" if column.decimal > 0 else ""
    if tp is MysqlType.DECIMAL:
        return f"({length},{max(column.decimal, 0)})"
    if tp in {MysqlType.FLOAT, MysqlType.DOUBLE}:
        return f"({length},{column.decimal})" if column.decimal > 0 else ""
    if tp is MysqlType.VECTOR:
        return f"({length})" if column.flen != -1 else ""
    return f"({length})" if tp in _WITH_LENGTH else ""
