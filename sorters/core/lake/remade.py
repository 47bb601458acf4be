"""Which columns a DDL has made anew, and whether rows of before still hold what TiDB's have.

A change of type that rewrites rows gives a column another id. TiKV does not deliver the rows that it rewrites, so a
lake table that shows rows as they are may go on with a field only where each value surely stays what it was. What is
not known to keep values is taken not to: strings that get shorter lose trailing spaces even in a strict sql_mode.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import SchemaChange
from schemas.tidb.mysql_types import INTEGER_TYPES, STRING_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from sorters.core.lake.columns import LakeColumn

_MODE_STRICT: Final = 1 << 21 | 1 << 22
"""STRICT_TRANS_TABLES and STRICT_ALL_TABLES, as TiDB stores a sql_mode: an integer that does not fit fails the DDL."""
_BITS: Final = {
    MysqlType.TINYINT: 8,
    MysqlType.SMALLINT: 16,
    MysqlType.MEDIUMINT: 24,
    MysqlType.INT: 32,
    MysqlType.BIGINT: 64,
}
_LENGTH_IN_CHARS: Final = frozenset({MysqlType.VARCHAR, MysqlType.VAR_STRING, MysqlType.STRING})
_BYTES_OF_CHAR: Final = 4
_NAMES: Final = frozenset({MysqlType.ENUM, MysqlType.SET})


@dataclass(frozen=True, slots=True)
class Remade:
    """What is known of the columns of a table version that have other ids than the fields that were theirs."""

    post: TableVersion
    pre: TableVersion | None = None
    """Before the DDL; None: a filter leaves the DDL out, or several."""
    is_strict: bool = False
    """The DDL ran in a strict sql_mode."""
    former: Mapping[int, int] = field(default_factory=dict)
    """Ids of columns that the DDL has made anew, under another name too, and what they were before."""

    @classmethod
    def by_ddl(cls, change: SchemaChange, pre: TableVersion | None, post: TableVersion) -> Self:
        """Return what a DDL says."""
        is_strict = bool(change.job.sql_mode & _MODE_STRICT)
        if pre is None or change.job.type is not DdlType.MODIFY_COLUMN:
            return cls(post, pre, is_strict)
        old, new = ({column.id for column in version.columns} for version in (pre, post))
        went, came = old - new, new - old
        is_one = len(went) == len(came) == 1
        return cls(post, pre, is_strict, dict(zip(came, went, strict=True)) if is_one else {})

    def keeps_values(self, field_id: int, field_type: str, column: LakeColumn) -> bool:
        """Tell whether rows of before, in the field of a former id, surely hold what TiDB has in the column.

        Where the DDL adds the column, and the field is left from one that a filter has let nobody drop, they do: the
        field is filled then.
        """
        after = next(each for each in self.post.columns if each.id == column.id)
        known = () if self.pre is None else self.pre.columns
        before = next((each for each in known if each.id == field_id), None)
        if before is not None:
            return keeps_values(before, after, is_strict=self.is_strict)
        if self.pre is not None and all(each.name.lower() != column.name.lower() for each in known):
            return True
        return _keeps_all_of(field_type, after)


def keeps_values(before: ColumnVersion, after: ColumnVersion, *, is_strict: bool) -> bool:
    """Tell whether each value of a column surely is the same in another one that TiDB has made of it.

    ``is_strict``: the DDL fails where an integer does not fit.
    """
    if before.tp in INTEGER_TYPES and after.tp in INTEGER_TYPES:
        (low, high), (lowest, highest) = _range(before), _range(after)
        return is_strict or (lowest <= low and high <= highest)
    if _type(before) == _type(after):
        return True
    if before.tp is MysqlType.YEAR:
        return after.tp in INTEGER_TYPES and after.tp is not MysqlType.TINYINT
    if before.tp is MysqlType.DECIMAL and after.tp is MysqlType.DECIMAL:
        keeps_sign = before.unsigned or not after.unsigned
        return keeps_sign and before.decimal == after.decimal and before.flen <= after.flen
    if before.tp in _NAMES:
        return _keeps_names(before, after)
    return before.tp in STRING_TYPES and after.tp in STRING_TYPES and _keeps_strings(before, after)


def _type(column: ColumnVersion) -> tuple[object, ...]:
    return column.tp, column.unsigned, column.flen, column.decimal, column.charset, column.elems


def _range(column: ColumnVersion) -> tuple[int, int]:
    bits = _BITS[column.tp]
    return (0, (1 << bits) - 1) if column.unsigned else (-1 << bits - 1, (1 << bits - 1) - 1)


def _keeps_names(before: ColumnVersion, after: ColumnVersion) -> bool:
    """TiDB looks names up; those of a SET come out in its order."""
    if after.tp in _NAMES and before.tp is MysqlType.ENUM:
        return set(before.elems) <= set(after.elems)
    if after.tp in _NAMES:
        return after.tp is MysqlType.SET and tuple(name for name in after.elems if name in before.elems) == before.elems
    sizes = [len(name.encode()) for name in before.elems]
    longest = sum(sizes) + len(sizes) if before.tp is MysqlType.SET else max(sizes, default=0)
    return after.tp in STRING_TYPES and _keeps_chars(before, after) and longest <= after.flen


def _keeps_strings(before: ColumnVersion, after: ColumnVersion) -> bool:
    """BINARY pads, and CHAR has no trailing spaces."""
    is_char = [each.tp is MysqlType.STRING for each in (before, after)]
    if (after.binary and any(is_char)) or (is_char[1] and not is_char[0]):
        return False
    in_bytes = before.tp in _LENGTH_IN_CHARS and after.tp not in _LENGTH_IN_CHARS and not before.binary
    length = before.flen * (_BYTES_OF_CHAR if in_bytes else 1)
    return _keeps_chars(before, after) and 0 < length <= after.flen


def _keeps_chars(before: ColumnVersion, after: ColumnVersion) -> bool:
    return before.charset == after.charset or (not before.binary and after.charset == "utf8mb4")


def _keeps_all_of(field_type: str, after: ColumnVersion) -> bool:
    """Tell the same of any column that a field may have been, whose lake type the column's is or widens."""
    if after.tp is MysqlType.DECIMAL:
        return not after.unsigned and field_type != "string"
    return after.tp in (MysqlType.INT, MysqlType.BIGINT) and not after.unsigned
