"""Parts of a condition over a table's rows: kinds of values, columns, literals and truths."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from decimal import Decimal
from enum import Enum
from typing import Final

from schemas.config.filter.expression_nodes import Bits, Literal
from schemas.tidb.mysql_types import DATETIME_TYPES, INTEGER_TYPES, STRING_TYPES, MysqlType
from schemas.tidb.packed_time import text_in_zone
from schemas.tidb.table import ColumnVersion
from schemas.tidb.value import Value

Row = Mapping[int, Value] | Sequence[Value]
"""Mounted values by the column's offset; those of ``Bound.offsets`` are enough."""
Operand = int | Decimal | float | bytes | str | None


class MisfitError(ValueError):
    """A condition does not fit a table; ``column``: the one that is missing, or empty."""

    def __init__(self, message: str, at: int, column: str = "") -> None:
        super().__init__(f"{message} at character {at}")
        self.column = column


class OutOfRangeError(ValueError):
    """A number leaves its type."""

    row: int = 0
    """Of the columns, where whole columns were looked at."""


class ValueKind(Enum):
    """What a part of a condition is."""

    INT = "an integer"
    DECIMAL = "a decimal"
    REAL = "a floating-point number"
    TEXT = "a text"
    TIME = "a time"
    JSON = "JSON"
    NULL = "NULL"
    OTHER = "of a type that conditions cannot compare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A part of a condition that knows its columns."""

    kind: ValueKind
    at: int
    of: Callable[[Row], Operand]
    """Its value in a row."""
    offsets: frozenset[int]
    """Columns that it reads."""
    unsigned: bool = False
    scale: int = 0
    digits: int = 20
    """Before the point."""
    collation: str = ""
    constant: bool = False
    is_bits: bool = False
    """A column of type BIT: an integer that is a text of bytes where a text is wanted."""
    raw: bytes | None = None
    """Of a hexadecimal or bit literal, which is these bytes beside a text."""
    what: str = ""
    """How an error calls it."""
    is_truth: bool = False
    """INT with no other value than 1, 0 and NULL."""
    logic: str = ""
    """NOT, AND, OR, XOR, or an ``IS`` of a truth, over ``parts``; empty: there is no such structure."""
    parts: tuple["Bound", ...] = ()
    near: tuple[int, str, int] | None = None
    """Column, comparison and integer, where it is no more than that."""


NUMBERS = frozenset({ValueKind.INT, ValueKind.DECIMAL, ValueKind.REAL})
INT64: Final = (-(1 << 63), (1 << 63) - 1)
LITERAL_COLLATION = ""
"""A text without a column takes the other side's."""
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?)?")


def column_part(at: int, spec: ColumnVersion, zone: tzinfo = UTC) -> Bound:
    """Return a column's value; ``zone``: see :func:`~sorters.core.filter.value_expression.expression.bind`."""
    offset, tp, what = spec.offset, spec.tp, f"column `{spec.name}`"

    def made(kind: ValueKind, of: Callable[[Value], Operand], **more: object) -> Bound:
        def read(row: Row) -> Operand:
            value = row[offset]
            return None if value is None else of(value)

        return Bound(kind=kind, at=at, of=read, offsets=frozenset({offset}), what=what, **more)  # type: ignore[arg-type]

    is_bits = tp is MysqlType.BIT
    if tp in INTEGER_TYPES or is_bits:
        return made(ValueKind.INT, lambda v: v, unsigned=spec.unsigned or is_bits, is_bits=is_bits)  # type: ignore[arg-type,return-value]
    if tp in {MysqlType.FLOAT, MysqlType.DOUBLE}:
        return made(ValueKind.REAL, lambda v: v)  # type: ignore[arg-type,return-value]
    if tp is MysqlType.DECIMAL:
        scale = max(spec.decimal, 0)
        digits = (spec.flen if spec.flen > 0 else 10) - scale
        return made(ValueKind.DECIMAL, lambda v: Decimal(str(v)), scale=scale, digits=digits)
    if tp in STRING_TYPES:
        return made(ValueKind.TEXT, lambda v: v, collation=spec.collation)  # type: ignore[arg-type,return-value]
    if tp is MysqlType.ENUM:
        names = {number: elem.encode("utf-8", "surrogateescape") for number, elem in enumerate(spec.elems, 1)}
        return made(ValueKind.TEXT, lambda v: names.get(v, b""), collation=spec.collation)  # type: ignore[arg-type]
    if tp is MysqlType.TIMESTAMP and zone is not UTC:
        return made(ValueKind.TIME, lambda v: _moved(str(v), zone), scale=max(spec.decimal, 0))
    if tp in DATETIME_TYPES:
        return made(ValueKind.TIME, lambda v: time_text(str(v)), scale=max(spec.decimal, 0))
    if tp is MysqlType.JSON:
        return made(ValueKind.JSON, lambda v: v)  # type: ignore[arg-type,return-value]
    return made(ValueKind.OTHER, lambda v: b"")


def _moved(text: str, zone: tzinfo) -> Operand:
    try:
        return time_text(text_in_zone(text, zone))
    except ValueError:  # no time of the calendar, which no zone can move
        return time_text(text)


def constant(at: int, kind: ValueKind, value: Operand, **more: object) -> Bound:
    return Bound(kind=kind, at=at, of=lambda row: value, offsets=frozenset(), constant=True, **more)  # type: ignore[arg-type]


def made_of(at: int, kind: ValueKind, of: Callable[[Row], Operand], operands: Iterable[Bound], **more: object) -> Bound:
    """Return what is computed from other parts, without a column's name."""
    parts = tuple(operands)
    offsets = frozenset[int]().union(*(part.offsets for part in parts))
    is_constant = all(part.constant for part in parts)
    return Bound(kind=kind, at=at, of=of, offsets=offsets, constant=is_constant, **more)  # type: ignore[arg-type]


def literal_part(node: Literal) -> Bound:
    match node.value:
        case None:
            return constant(node.at, ValueKind.NULL, None)
        case int() as value:
            return constant(node.at, ValueKind.INT, value, unsigned=value > INT64[1])
        case float() as value:
            return constant(node.at, ValueKind.REAL, value)
        case Decimal() as value:
            digits, exponent = len(value.as_tuple().digits), int(value.as_tuple().exponent)
            scale = max(-exponent, 0)
            return constant(node.at, ValueKind.DECIMAL, value, scale=scale, digits=max(digits - scale, 1))
        case text:
            return constant(node.at, ValueKind.TEXT, text.encode("utf-8", "surrogateescape"), what=f"text '{text}'")


def bits_part(node: Bits) -> Bound:
    """Return a hexadecimal or bit literal: an integer that has :attr:`Bound.raw`; one that is longer, a text."""
    what = f"literal x'{node.data.hex()}'"
    data = node.data.lstrip(b"\0")
    if len(data) > 8:
        return constant(node.at, ValueKind.TEXT, node.data, raw=node.data, what=what)
    value = int.from_bytes(data, "big")
    return constant(node.at, ValueKind.INT, value, unsigned=True, is_bits=True, raw=node.data, what=what)


def time_text(text: str) -> str | None:
    """Return the time as 26 characters, which sort as times do; None: it is not written as a time in full."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    day, clock, fraction = match.groups()
    return f"{day} {clock or '00:00:00'}.{(fraction or '').ljust(6, '0')}"


def flag(value: bool) -> int:
    return 1 if value else 0


def truth(at: int, of: Callable[[Row], Operand], *operands: Bound) -> Bound:
    offsets = frozenset[int]().union(*(operand.offsets for operand in operands))
    constant = all(operand.constant for operand in operands)
    return Bound(kind=ValueKind.INT, at=at, of=of, offsets=offsets, constant=constant, is_truth=True)


def logic_of(at: int, operator: str, parts: tuple[Bound, ...], of: Callable[[Row], Operand]) -> Bound:
    return replace(truth(at, of, *parts), logic=operator, parts=parts)


def as_truth(operand: Bound) -> Bound:
    if operand.is_truth:
        return operand
    if operand.kind is ValueKind.NULL:
        return replace(operand, kind=ValueKind.INT, is_truth=True)
    if operand.kind not in NUMBERS:
        raise MisfitError(f"{operand.what or 'an operand'} is no condition but {operand.kind.value}", operand.at)
    return truth(operand.at, lambda row: flag(v != 0) if (v := operand.of(row)) is not None else None, operand)
