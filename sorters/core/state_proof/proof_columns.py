"""A column as a state proof sees it: its text form, and whether a DDL leaves its texts as they were."""

from functools import lru_cache

from schemas.errors import ConfigError
from schemas.state_proof.column_kind import ColumnKind, TextForm
from schemas.tidb.mysql_types import DATETIME_TYPES, INTEGER_TYPES, STRING_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion

_FORMS = {
    **dict.fromkeys(INTEGER_TYPES, TextForm.INTEGER),
    **dict.fromkeys((*DATETIME_TYPES, MysqlType.TIME), TextForm.TIME),
    MysqlType.FLOAT: TextForm.FLOAT,
    MysqlType.DOUBLE: TextForm.DOUBLE,
    MysqlType.DECIMAL: TextForm.DECIMAL,
    MysqlType.BIT: TextForm.BIT,
    MysqlType.YEAR: TextForm.YEAR,
    MysqlType.ENUM: TextForm.ENUM,
    MysqlType.SET: TextForm.SET,
    MysqlType.JSON: TextForm.JSON,
    MysqlType.VECTOR: TextForm.VECTOR,
}


def proof_columns(table: TableVersion) -> tuple[ColumnVersion, ...]:
    """Return the columns of which a table's rows are hashed, in table order: all that stand in its rows."""
    return tuple(column for column in table.columns if not column.hidden)


@lru_cache(maxsize=4_096)
def kind_of(column: ColumnVersion) -> ColumnKind:
    """Return a column's kind, as :func:`schemas.state_proof.column_kind.column_kind` reads it from SQL.

    Raises:
        ConfigError: a type that has no text form.
    """
    if column.tp in STRING_TYPES:
        return ColumnKind(TextForm.BYTES if column.binary else TextForm.TEXT)
    form = _FORMS.get(column.tp)
    if form is None:
        raise ConfigError("this type has no text form for a state proof", type=column.tp.name, column=column.name)
    if form in {TextForm.ENUM, TextForm.SET}:
        return ColumnKind(form, elems=column.elems)
    return ColumnKind(form, bits=column.flen if form is TextForm.BIT else None)


def keeps_texts(before: ColumnVersion, after: ColumnVersion) -> bool:
    """Tell whether every value of a column shows the same text after a DDL; False may also mean: not known.

    TiDB gives a column whose values it writes anew another id, so this is of what it changes in place.
    """
    first, second = kind_of(before), kind_of(after)
    if before.id != after.id or first.form is not second.form:
        return False
    match first.form:
        case TextForm.ENUM | TextForm.SET:
            assert first.elems is not None and second.elems is not None
            return second.elems[: len(first.elems)] == first.elems
        case TextForm.INTEGER:
            return before.unsigned == after.unsigned
        case TextForm.DECIMAL:
            return before.decimal == after.decimal
        case TextForm.TIME:
            return (before.tp, before.decimal) == (after.tp, after.decimal)
        case TextForm.BIT:
            return before.flen == after.flen
        case TextForm.BYTES:  # a BINARY has zeros behind it, up to its length
            fixed = MysqlType.STRING in {before.tp, after.tp}
            return not fixed or (before.tp, before.flen) == (after.tp, after.flen)
        case TextForm.TEXT:  # a CHAR has no blanks at its end
            return (before.tp is MysqlType.STRING) == (after.tp is MysqlType.STRING)
        case _:
            return True
