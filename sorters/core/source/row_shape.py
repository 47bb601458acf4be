"""The columns of a DataFrame: TiDB's types as Arrow's, and which versions of a table fit them. Pure.

Signed integers have Spark's type of the same width, unsigned ones the next wider; BIGINT UNSIGNED, and BIT of 64, are
decimal(20, 0). DECIMAL keeps its digits up to Spark's 38, and is a string beyond. DATETIME has no zone, TIMESTAMP is a
moment. TIME is a string, for lakehouse tables have no type for it. A SET is an array of its names. All columns may be
null: a zero date is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa

from schemas.tidb.mysql_types import STRING_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from sorters.core.source.errors import SourceTableError

CHANGE_TYPE, COMMIT_TS, COMMIT_TIME = "_change_type", "_commit_version", "_commit_timestamp"
CHANGE_FIELDS: Final = (
    pa.field(CHANGE_TYPE, pa.string()),
    pa.field(COMMIT_TS, pa.int64()),
    pa.field(COMMIT_TIME, pa.timestamp("us", tz="UTC")),
)
"""What stands behind the table's columns, named as Delta's change feed names them."""
SPARK_DIGITS_MAX: Final = 38
UNSIGNED_LONG: Final = pa.decimal128(20, 0)
_INTEGERS: Final = {
    MysqlType.TINYINT: (pa.int8(), pa.int16()),
    MysqlType.SMALLINT: (pa.int16(), pa.int32()),
    MysqlType.MEDIUMINT: (pa.int32(), pa.int32()),
    MysqlType.INT: (pa.int32(), pa.int64()),
    MysqlType.BIGINT: (pa.int64(), UNSIGNED_LONG),
}
_OTHERS: Final = {
    MysqlType.FLOAT: pa.float32(),
    MysqlType.DOUBLE: pa.float64(),
    MysqlType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    MysqlType.DATETIME: pa.timestamp("us"),
    MysqlType.DATE: pa.date32(),
    MysqlType.NEWDATE: pa.date32(),
    MysqlType.TIME: pa.string(),
    MysqlType.YEAR: pa.int32(),
    MysqlType.JSON: pa.string(),
    MysqlType.ENUM: pa.string(),
    MysqlType.SET: pa.list_(pa.string()),
    MysqlType.VECTOR: pa.list_(pa.float32()),
}
_WIDTHS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), UNSIGNED_LONG)
_BIT_LONG_MAX: Final = 63


def arrow_type(spec: ColumnVersion) -> Any:
    """Return the ``pyarrow.DataType`` of a column.

    Raises:
        SourceTableError: TiDB's type has none.
    """
    if spec.tp in _INTEGERS:
        return _INTEGERS[spec.tp][spec.unsigned]
    if spec.tp in STRING_TYPES:
        return pa.binary() if spec.binary else pa.string()
    if spec.tp is MysqlType.DECIMAL:
        scale = max(spec.decimal, 0)
        return pa.decimal128(spec.flen, scale) if scale <= spec.flen <= SPARK_DIGITS_MAX else pa.string()
    if spec.tp is MysqlType.BIT:
        return pa.int64() if spec.flen <= _BIT_LONG_MAX else UNSIGNED_LONG
    if spec.tp in _OTHERS:
        return _OTHERS[spec.tp]
    raise SourceTableError("spark has no type for a column", column=spec.name, type=spec.tp.name)


@dataclass(frozen=True, slots=True)
class RowShape:
    """The table's columns as a query has them, by TiDB's column ids; the change's own stand behind them."""

    columns: tuple[ColumnVersion, ...]
    version: int
    """The ts of the DDL that made them."""

    @classmethod
    def of(cls, table: TableVersion) -> Self:
        """Return the shape of a table version.

        Raises:
            SourceTableError: Spark cannot have its columns.
        """
        columns = tuple(spec for spec in table.columns if not spec.hidden)
        taken = {field.name for field in CHANGE_FIELDS}
        for spec in columns:
            arrow_type(spec)
            if spec.name.lower() in taken:
                raise SourceTableError(
                    "table has a column that is called as one of the change's own",
                    table=table.name,
                    column=spec.name,
                )
        return cls(columns, int(table.version))

    @property
    def arrow(self) -> Any:
        """The ``pyarrow.Schema`` of a batch."""
        return pa.schema([*(pa.field(spec.name, arrow_type(spec)) for spec in self.columns), *CHANGE_FIELDS])

    def misfit(self, table: TableVersion) -> str:
        """Return why rows of a version cannot have this shape; '': they can.

        An older version may lack columns, which its rows then have as TiDB reads them, by their default; and it may
        have others, which are gone. A newer one has the same columns: a query that went on without one that came
        would lose what stands in it.
        """
        known = {spec.id: spec for spec in table.columns if not spec.hidden}
        names = {spec.name.lower(): spec.id for spec in known.values()}
        for spec in self.columns:
            other = known.get(spec.id)
            if other is None and names.get(spec.name.lower(), spec.id) != spec.id:
                return f"column {spec.name} was made anew"
            if other is not None and not _widens(arrow_type(other), arrow_type(spec)):
                return f"column {spec.name} is {arrow_type(other)} there, and {arrow_type(spec)} here"
        if table.version > self.version:
            return self._newer_misfit(tuple(known.values()))
        return ""

    def _newer_misfit(self, others: Sequence[ColumnVersion]) -> str:
        mine = {(spec.id, spec.name, str(arrow_type(spec))) for spec in self.columns}
        theirs = {(spec.id, spec.name, str(arrow_type(spec))) for spec in others}
        changed = sorted({name for _, name, _ in mine ^ theirs})
        return f"other columns: {', '.join(changed)}" if changed else ""


def _widens(narrow: Any, wide: Any) -> bool:
    """Tell whether each value of a type is one of another."""
    if narrow == wide:
        return True
    if narrow in _WIDTHS and wide in _WIDTHS and narrow != UNSIGNED_LONG:
        return bool(_WIDTHS.index(narrow) < _WIDTHS.index(wide))
    decimals = pa.types.is_decimal(narrow) and pa.types.is_decimal(wide)
    return bool(decimals and narrow.scale == wide.scale and narrow.precision <= wide.precision)
