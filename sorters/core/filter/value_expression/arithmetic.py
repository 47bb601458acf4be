"""Arithmetic of conditions: integers in 64 bits, decimals exactly, doubles.

Source: pingcap/tidb ``pkg/expression/builtin_arithmetic.go``.
"""

import math
from collections.abc import Callable
from decimal import ROUND_DOWN, Context, Decimal
from typing import Final

from sorters.core.filter.value_expression.parts import (
    INT64,
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

_EXACT = Context(prec=200)
_DIGITS_MAX, _SCALE_MAX = 65, 30
_UINT64: Final = (0, (1 << 64) - 1)
_WORD: Final = 9
"""Digits that TiDB's decimals keep together."""
_WORDS_MAX: Final = 9
_PLACES_MORE: Final = 4
"""``div_precision_increment``."""


def negative(at: int, operand: Bound) -> Bound:
    if operand.kind is ValueKind.NULL:
        return operand
    if operand.kind not in NUMBERS:
        raise MisfitError(f"`-` of {operand.what or 'an operand'}, which is {operand.kind.value}, is not supported", at)

    def of(row: Row) -> Operand:
        value = operand.of(row)
        if value is None:
            return None
        assert isinstance(value, int | float | Decimal)
        return (
            _in_range(-value, INT64)
            if isinstance(value, int)
            else _EXACT.minus(value)
            if isinstance(value, Decimal)
            else -value
        )

    return Bound(
        kind=operand.kind,
        at=at,
        of=of,
        offsets=operand.offsets,
        scale=operand.scale,
        digits=operand.digits,
        constant=operand.constant,
    )


def divided(at: int, left: Bound, right: Bound) -> Bound:
    """``/``: of exact numbers a decimal, cut behind the word of nine digits that holds the dividend's places and four.

    Source: pingcap/tidb ``pkg/types/mydecimal.go``, ``doDivMod``.
    """
    kind = _wider(at, "/", left, right)
    if kind is ValueKind.NULL:
        return constant(at, ValueKind.NULL, None)
    scale = min(left.scale + _PLACES_MORE, _SCALE_MAX)
    free = -left.scale % _WORD + -right.scale % _WORD
    words = sum(-(-places // _WORD) for places in (left.scale, right.scale, max(_PLACES_MORE - free, 0)))
    digits = left.digits + right.scale
    if kind is not ValueKind.REAL and words + digits // _WORD + 1 > _WORDS_MAX:
        raise MisfitError("`/` may give a decimal of more digits than there are", at)
    step = Decimal(1).scaleb(-_WORD * words)

    def of(row: Row) -> Operand:
        first, second = left.of(row), right.of(row)
        if first is None or second is None or second == 0:
            return None
        if kind is ValueKind.REAL:
            result = float(first) / float(second)
            if math.isinf(result):
                raise OutOfRangeError(f"{first!r} / {second!r} is out of range of a DOUBLE")
            return result
        quotient = _EXACT.divide(Decimal(first), Decimal(second))  # type: ignore[arg-type]
        return quotient.quantize(step, ROUND_DOWN, _EXACT)

    wide = ValueKind.REAL if kind is ValueKind.REAL else ValueKind.DECIMAL
    return made_of(at, wide, of, (left, right), scale=scale, digits=digits)


def _wider(at: int, operator: str, left: Bound, right: Bound) -> ValueKind:
    """Return the kind that two numbers are computed in; NULL where one of them is."""
    for operand in (left, right):
        if operand.kind not in NUMBERS and operand.kind is not ValueKind.NULL:
            raise MisfitError(
                f"`{operator}` of {operand.what or 'an operand'}, which is {operand.kind.value}, is not supported", at
            )
    kinds = {left.kind, right.kind}
    return next((kind for kind in (ValueKind.NULL, ValueKind.REAL, ValueKind.DECIMAL) if kind in kinds), ValueKind.INT)


def _in_range(value: int, bounds: tuple[int, int]) -> int:
    if not bounds[0] <= value <= bounds[1]:
        raise OutOfRangeError(f"{value} is out of range of a {'signed' if bounds is INT64 else 'unsigned'} BIGINT")
    return value


def arithmetic(at: int, operator: str, left: Bound, right: Bound) -> Bound:
    kind = _wider(at, operator, left, right)
    if kind is ValueKind.NULL:
        return constant(at, ValueKind.NULL, None)
    if operator == "DIV" and kind is not ValueKind.INT:
        raise MisfitError("`DIV` of other numbers than integers is not supported", at)
    scale = left.scale + right.scale if operator == "*" else max(left.scale, right.scale)
    digits = left.digits + right.digits if operator == "*" else max(left.digits, right.digits) + 1
    if kind is ValueKind.DECIMAL and (scale > _SCALE_MAX or scale + digits > _DIGITS_MAX):
        raise MisfitError(
            f"`{operator}` may give a decimal of more than {_DIGITS_MAX} digits, {_SCALE_MAX} after the point", at
        )
    unsigned = left.unsigned if operator == "%" else left.unsigned or right.unsigned
    work = {ValueKind.INT: _integers, ValueKind.DECIMAL: _decimals, ValueKind.REAL: _reals}[kind](operator, unsigned)

    def of(row: Row) -> Operand:
        first, second = left.of(row), right.of(row)
        return None if first is None or second is None else work(first, second)

    return Bound(
        kind=kind, at=at, of=of, offsets=left.offsets | right.offsets, unsigned=unsigned, scale=scale, digits=digits,
        constant=left.constant and right.constant,
    )  # fmt: skip


def _integers(operator: str, unsigned: bool) -> Callable[[Operand, Operand], Operand]:
    bounds = _UINT64 if unsigned else INT64

    def of(first: Operand, second: Operand) -> Operand:
        assert isinstance(first, int)
        assert isinstance(second, int)
        match operator:
            case "+":
                return _in_range(first + second, bounds)
            case "-":
                return _in_range(first - second, bounds)
            case "*":
                return _in_range(first * second, bounds)
        if second == 0:
            return None
        whole = abs(first) // abs(second)
        if operator == "DIV":
            return _in_range(whole if (first < 0) == (second < 0) else -whole, bounds)
        rest = abs(first) - whole * abs(second)
        return -rest if first < 0 else rest

    return of


def _decimals(operator: str, unsigned: bool) -> Callable[[Operand, Operand], Operand]:
    def of(first: Operand, second: Operand) -> Operand:
        left, right = Decimal(first), Decimal(second)  # type: ignore[arg-type]
        match operator:
            case "+":
                return _EXACT.add(left, right)
            case "-":
                return _EXACT.subtract(left, right)
            case "*":
                return _EXACT.multiply(left, right)
        return None if right == 0 else _EXACT.remainder(left, right)

    return of


def _reals(operator: str, unsigned: bool) -> Callable[[Operand, Operand], Operand]:
    def of(first: Operand, second: Operand) -> Operand:
        left, right = float(first), float(second)  # type: ignore[arg-type]
        if operator == "%":
            return None if right == 0 else math.fmod(left, right)
        result = left + right if operator == "+" else left - right if operator == "-" else left * right
        if math.isinf(result):
            raise OutOfRangeError(f"{left} {operator} {right} is out of range of a DOUBLE")
        return result

    return of
