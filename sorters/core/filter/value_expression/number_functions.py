"""Functions of numbers, and casts.

Source: pingcap/tidb ``pkg/expression/builtin_math.go`` and ``builtin_cast.go``.
"""

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal
from typing import Final

from schemas.config.filter.expression_nodes import Cast
from sorters.core.filter.value_expression.comparison import bare_text
from sorters.core.filter.value_expression.parts import (
    INT64,
    LITERAL_COLLATION,
    NUMBERS,
    Bound,
    MisfitError,
    Operand,
    OutOfRangeError,
    Row,
    ValueKind,
    constant,
    made_of,
)
from sorters.core.filter.value_expression.time_functions import of_one_time

_EXACT: Final = Context(prec=200)
_INT_DIGITS: Final = 18
"""Of a decimal that surely fits into an integer."""
_SCALE_MAX: Final = 30
OF_ONE_NUMBER: Final = frozenset({"ABS", "CEIL", "FLOOR", "SIGN"})


def of_one_number(at: int, name: str, operand: Bound) -> Bound:
    """Return a function of ``OF_ONE_NUMBER``."""
    if operand.kind is ValueKind.NULL:
        return constant(at, ValueKind.NULL, None)
    _check_number(name, operand)
    if name == "SIGN":
        return made_of(at, ValueKind.INT, _strict(lambda value: (value > 0) - (value < 0), operand), [operand])
    if name == "ABS":
        return _like(at, operand, _strict(_absolute, operand))
    if operand.kind is ValueKind.INT:
        return _like(at, operand, operand.of)
    if operand.kind is ValueKind.REAL:
        whole: Callable[[float], int] = math.ceil if name == "CEIL" else math.floor
        return _like(at, operand, _strict(lambda value: float(whole(value)), operand))
    mode = ROUND_CEILING if name == "CEIL" else ROUND_FLOOR
    of = _strict(lambda value: int(value.to_integral_value(mode)), operand)
    kind = ValueKind.INT if operand.digits < _INT_DIGITS else ValueKind.DECIMAL
    return made_of(at, kind, of, [operand], digits=operand.digits + 1)


def rounded(at: int, name: str, operand: Bound, places: Bound | None) -> Bound:
    """ROUND, half away from zero for exact numbers, or TRUNCATE; to places that are written down."""
    if operand.kind is ValueKind.NULL:
        return constant(at, ValueKind.NULL, None)
    _check_number(name, operand)
    count = 0 if places is None else places.of({}) if places.constant and places.kind is ValueKind.INT else None
    if not isinstance(count, int) or not 0 <= count <= _SCALE_MAX:
        raise MisfitError(f"{name} takes a number of places from 0 to {_SCALE_MAX} that is written down", at)
    if operand.kind is ValueKind.INT:
        return _like(at, operand, operand.of)
    if operand.kind is ValueKind.REAL:
        raise MisfitError(f"{name} of a floating-point number is not supported", operand.at)
    scale = min(count, operand.scale)
    step, mode = Decimal(1).scaleb(-scale), ROUND_HALF_UP if name == "ROUND" else ROUND_DOWN
    of = _strict(lambda value: Decimal(value).quantize(step, mode, _EXACT), operand)
    return made_of(at, ValueKind.DECIMAL, of, [operand], scale=scale, digits=operand.digits + 1)


def cast(node: Cast, operand: Bound) -> Bound:
    """Return a value as another type, where TiDB's own rules leave no doubt.

    Raises:
        MisfitError: they do, or it is not supported.
    """
    at = node.at
    if operand.kind is ValueKind.NULL:
        return constant(at, ValueKind.NULL, None)
    match node.type, operand.kind:
        case (("SIGNED" | "UNSIGNED"), ValueKind.INT):
            signed = node.type == "SIGNED"
            return made_of(
                at, ValueKind.INT, _strict(lambda v: _wrapped(v, signed), operand), [operand], unsigned=not signed
            )
        case "SIGNED", ValueKind.DECIMAL:
            return made_of(at, ValueKind.INT, _strict(_to_int64, operand), [operand])
        case "DOUBLE", kind if kind in NUMBERS:
            return made_of(at, ValueKind.REAL, _strict(float, operand), [operand])
        case "DECIMAL", ValueKind.INT | ValueKind.DECIMAL:
            return _to_decimal(node, operand)
        case "DATE", ValueKind.TIME | ValueKind.TEXT:
            return of_one_time(at, "DATE", operand)
        case "CHAR" | "BINARY", ValueKind.INT | ValueKind.TEXT if not operand.is_bits:
            return _to_text(node, operand)
    raise MisfitError(
        f"a cast of {operand.what or 'an operand'}, which is {operand.kind.value}, to {node.type} is not supported", at
    )


def _to_decimal(node: Cast, operand: Bound) -> Bound:
    digits, scale = node.length or 10, node.scale
    step = Decimal(1).scaleb(-scale)
    limit = Decimal(10) ** (digits - scale) - step

    def of(row: Row) -> Operand:
        value = operand.of(row)
        if value is None:
            return None
        number = Decimal(value).quantize(step, ROUND_HALF_UP, _EXACT)  # type: ignore[arg-type]
        return max(min(number, limit), -limit)  # too large: the nearest that fits, with a warning in TiDB

    return made_of(node.at, ValueKind.DECIMAL, of, [operand], scale=scale, digits=digits - scale)


def _to_text(node: Cast, operand: Bound) -> Bound:
    if operand.kind is ValueKind.INT:
        of: Callable[[Row], Operand] = _strict(lambda value: b"%d" % value, operand)
        collation = LITERAL_COLLATION
    else:
        of, collation = operand.of, bare_text(operand)
    if node.type == "BINARY":
        return made_of(node.at, ValueKind.TEXT, of, [operand], collation="binary")
    if collation == "binary":
        raise MisfitError("a cast of a binary text to CHAR is not supported", node.at)
    length = node.length

    def cut(row: Row) -> Operand:
        text = of(row)
        if text is None or length is None:
            return text
        assert isinstance(text, bytes)
        return text.decode("utf-8", "surrogateescape")[:length].encode("utf-8", "surrogateescape")

    return made_of(node.at, ValueKind.TEXT, cut, [operand], collation="utf8mb4_bin")


def _wrapped(value: int, signed: bool) -> int:
    low = value & (1 << 64) - 1
    return low - (1 << 64) if signed and low > INT64[1] else low


def _to_int64(value: Decimal) -> int:
    return max(INT64[0], min(INT64[1], int(value.quantize(Decimal(1), ROUND_HALF_UP, _EXACT))))


def _absolute(value: int | float | Decimal) -> Operand:
    if value == INT64[0] and isinstance(value, int):
        raise OutOfRangeError(f"ABS of {value} is out of range of a BIGINT")
    return value.copy_abs() if isinstance(value, Decimal) else abs(value)


def _check_number(name: str, operand: Bound) -> None:
    if operand.kind not in NUMBERS:
        raise MisfitError(
            f"{name} of {operand.what or 'an operand'}, which is {operand.kind.value}, is not supported", operand.at
        )


def _strict(change: Callable[..., Operand], operand: Bound) -> Callable[[Row], Operand]:
    def of(row: Row) -> Operand:
        value = operand.of(row)
        return None if value is None else change(value)

    return of


def _like(at: int, operand: Bound, of: Callable[[Row], Operand]) -> Bound:
    return made_of(
        at, operand.kind, of, [operand], unsigned=operand.unsigned, scale=operand.scale, digits=operand.digits
    )
