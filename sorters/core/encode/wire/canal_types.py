"""canal's codes, in JSON and in protobuf: ``sqlType`` (java.sql.Types) by column type, and the event type of a DDL.

Source: pingcap/ticdc ``pkg/sink/codec/canal/helper.go``.
"""

from dataclasses import dataclass

import numpy as np

from schemas.tidb.mysql_types import STRING_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion
from schemas.tidb.value import Value
from sorters.core.columnar.spans import BoolArray
from sorters.core.mount.column import Column

_BLOB, _VARCHAR = 2004, 12
_SQL_TYPES = {
    MysqlType.TINYINT: -6,
    MysqlType.SMALLINT: 5,
    MysqlType.INT: 4,
    MysqlType.MEDIUMINT: 4,
    MysqlType.BIGINT: -5,
    MysqlType.FLOAT: 7,
    MysqlType.DOUBLE: 8,
    MysqlType.DECIMAL: 3,
    MysqlType.DATE: 91,
    MysqlType.NEWDATE: 91,
    MysqlType.DATETIME: 93,
    MysqlType.TIMESTAMP: 93,
    MysqlType.TIME: 92,
    MysqlType.ENUM: 4,
    MysqlType.SET: -7,
    MysqlType.BIT: -7,
    MysqlType.STRING: 1,
    MysqlType.TINYBLOB: 2005,
    MysqlType.BLOB: 2005,
    MysqlType.MEDIUMBLOB: 2005,
    MysqlType.LONGBLOB: 2005,
}
"""The rest (VARCHAR, YEAR, JSON, VECTOR) is VARCHAR."""
_PROMOTIONS = {
    MysqlType.TINYINT: (127, 5),
    MysqlType.SMALLINT: (32767, 4),
    MysqlType.INT: (2**31 - 1, -5),
    MysqlType.BIGINT: (2**63 - 1, 3),
}
_DDL_EVENT_TYPES = {
    "CREATE": (3,),
    "RENAME": (14, 47),
    "CINDEX": (7, 9, 32),
    "DINDEX": (8, 10, 33),
    "ALTER": (5, 6, 12, 13, 15, 17, 18, 19, 20, 22, 23, 37, 38, 41, 61, 64, 71, 72),
    "ERASE": (4,),
    "TRUNCATE": (11,),
}
_EVENT_TYPE_OF_DDL = {ddl: name for name, ddls in _DDL_EVENT_TYPES.items() for ddl in ddls}


def sql_type(column: ColumnVersion) -> int:
    """Return the code of a column's type."""
    if column.tp in STRING_TYPES and column.binary:
        return _BLOB
    return _SQL_TYPES.get(column.tp, _VARCHAR)


def sql_type_of(column: ColumnVersion, value: Value) -> int:
    """Return the code of one value: an unsigned integer too large for its type's sign has the next larger type's."""
    raised = _promotion(column)
    if raised is not None and isinstance(value, int) and value > raised[0]:
        return raised[1]
    return sql_type(column)


@dataclass(frozen=True, slots=True)
class BeyondSign:
    """Unsigned integers that are too large for their type's sign."""

    rows: BoolArray
    code: int
    """Theirs; the others' is :func:`sql_type`."""


def beyond_sign(column: Column) -> BeyondSign | None:
    """Return the values of a column that have another code than the others; None: there are none."""
    raised = _promotion(column.spec)
    if raised is None:
        return None
    big: BoolArray = column.numbers > np.uint64(raised[0])
    if column.valid is not None:
        big &= column.valid
    return BeyondSign(big, raised[1]) if big.any() else None


def _promotion(column: ColumnVersion) -> tuple[int, int] | None:
    """Return (limit, code of values beyond it); None: the type has no other code."""
    return _PROMOTIONS.get(column.tp) if column.unsigned else None


def ddl_event_type(ddl_type: int) -> str:
    """Return the ``type`` of a DDL message from TiDB's action type; the rest is QUERY."""
    return _EVENT_TYPE_OF_DDL.get(ddl_type, "QUERY")
