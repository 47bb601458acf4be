"""MySQL's type codes and flags as TiDB's FieldType carries them, and the flags that TiCDC hands to encoders.

Sources: pingcap/tidb ``pkg/parser/mysql/type.go`` (codes and flags), pingcap/tiflow ``cdc/model/sink.go`` (CDC flags).
"""

from enum import IntEnum, IntFlag


class MysqlType(IntEnum):
    """``FieldType.Tp``."""

    UNSPECIFIED = 0
    """Of a view's columns."""
    TINYINT = 1
    SMALLINT = 2
    INT = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    BIGINT = 8
    MEDIUMINT = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    VECTOR = 225
    JSON = 245
    DECIMAL = 246
    ENUM = 247
    SET = 248
    TINYBLOB = 249
    MEDIUMBLOB = 250
    LONGBLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


INTEGER_TYPES = frozenset({MysqlType.TINYINT, MysqlType.SMALLINT, MysqlType.MEDIUMINT, MysqlType.INT, MysqlType.BIGINT})
STRING_TYPES = frozenset(
    {
        MysqlType.VARCHAR,
        MysqlType.VAR_STRING,
        MysqlType.STRING,
        MysqlType.TINYBLOB,
        MysqlType.BLOB,
        MysqlType.MEDIUMBLOB,
        MysqlType.LONGBLOB,
    }
)
"""CHAR, VARCHAR, TEXT and their binary twins: raw bytes in a row, told apart by charset."""
DATETIME_TYPES = frozenset({MysqlType.DATE, MysqlType.NEWDATE, MysqlType.DATETIME, MysqlType.TIMESTAMP})
"""Stored as one packed uint64."""


class MysqlFlag(IntFlag):
    """``FieldType.Flag``; only the bits that change data are named."""

    NOT_NULL = 1 << 0
    PRIMARY_KEY = 1 << 1
    UNIQUE_KEY = 1 << 2
    MULTIPLE_KEY = 1 << 3
    UNSIGNED = 1 << 5
    ZEROFILL = 1 << 6
    BINARY = 1 << 7
    AUTO_INCREMENT = 1 << 9
    ON_UPDATE_NOW = 1 << 13


class CdcFlag(IntFlag):
    """What TiCDC tells about a column: unlike MySQL, every column of an index carries the index's flag."""

    BINARY = 1 << 0
    HANDLE_KEY = 1 << 1
    GENERATED = 1 << 2
    PRIMARY_KEY = 1 << 3
    UNIQUE_KEY = 1 << 4
    MULTIPLE_KEY = 1 << 5
    NULLABLE = 1 << 6
    UNSIGNED = 1 << 7


SCHEMA_STATE_PUBLIC = 5
"""``SchemaState``: columns and indexes in any other state belong to a DDL that is under way."""
