"""Which columns of a table are compared, and by which of them a row is named, from what ``information_schema`` says."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from schemas.state_proof.column_kind import TextForm, column_kind
from schemas.state_proof.proof_sql import Dialect, ProofColumn, has_text
from schemas.state_proof.row_text import TableProof

_PRIMARY: Final = "PRIMARY"


@dataclass(frozen=True, slots=True)
class ColumnRow:
    """Of ``information_schema.columns``."""

    name: str
    column_type: str
    extra: str


@dataclass(frozen=True, slots=True)
class KeyRow:
    """Of ``information_schema.statistics``: a part of a unique index, in order."""

    index: str
    column: str
    nullable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What of a table is compared."""

    columns: tuple[ProofColumn, ...]
    key: tuple[ProofColumn, ...]
    """By which a row is named; of a table without a key all columns."""
    has_key: bool
    missing: tuple[str, ...]
    """Columns that the destination lacks: a difference of its own."""
    left_out: tuple[str, ...]
    """Columns whose text the destination's SQL cannot be brought to, or that a topic's messages do not hold."""

    @property
    def range_column(self) -> str | None:
        """The integer by which the table is read range by range; None: it is read whole."""
        first = self.key[0] if self.has_key else None
        return first.name if first is not None and first.kind.form is TextForm.INTEGER else None

    @property
    def nothing(self) -> TableProof:
        """The proof of no row; with a sum where rows may stand in the table more than once."""
        return TableProof(sum=None if self.has_key else 0)


def compared(
    source: Sequence[ColumnRow], key: Sequence[KeyRow], destination: Collection[str], dialect: Dialect
) -> Compared:
    """Choose the columns, in the source's order.

    Args:
        source: the upstream's columns, in table order.
        key: the parts of its unique indexes, the primary key's first.
        destination: names of the destination's columns.
        dialect: the destination's.

    Raises:
        ConfigError: a type that has no text form.
    """
    there = {name.lower() for name in destination}
    kinds = [ProofColumn(row.name, column_kind(row.column_type)) for row in _stored(source)]
    held = [column for column in kinds if column.name.lower() in there]
    columns = tuple(column for column in held if has_text(dialect, column.kind))
    by_name = {column.name.lower(): column for column in columns}
    names = _key_names(key)
    parts = tuple(by_name[name.lower()] for name in names if name.lower() in by_name)
    has_key = bool(names) and len(parts) == len(names)
    return Compared(
        columns=columns,
        key=parts if has_key else columns,
        has_key=has_key,
        missing=tuple(column.name for column in kinds if column.name.lower() not in there),
        left_out=tuple(column.name for column in held if column not in columns),
    )


def compared_in_messages(source: Sequence[ColumnRow], key: Sequence[KeyRow], keeps: Callable[[str], bool]) -> Compared:
    """Choose the columns that a topic's messages hold, in the source's order; see :func:`compared`.

    Messages name a row by what column selectors leave of its primary key, or of a unique one. Where that is not all of
    it, different rows may have one name, and the table counts as one without a key.

    Args:
        keeps: tells whether messages hold a column.
    """
    sent = [row for row in source if keeps(row.name)]
    names = {row.name.lower() for row in sent}
    nullable = {part.index for part in key if part.nullable}
    first = [part for part in key if part.index == _PRIMARY] or [part for part in key if part.index not in nullable]
    is_whole = all(part.column.lower() in names for part in first)
    what = compared(sent, first if is_whole else (), names, Dialect.TIDB)
    return replace(what, left_out=tuple(row.name for row in _stored(source) if row.name.lower() not in names))


def _stored(source: Sequence[ColumnRow]) -> list[ColumnRow]:
    """A virtual column is in no row: each database makes it from the others."""
    return [row for row in source if "VIRTUAL" not in row.extra.upper()]


def _key_names(key: Sequence[KeyRow]) -> tuple[str, ...]:
    """Return the columns of the first index in which every value is there."""
    for index in dict.fromkeys(part.index for part in key):
        parts = [part for part in key if part.index == index]
        if not any(part.nullable for part in parts):
            return tuple(part.column for part in parts)
    return ()
