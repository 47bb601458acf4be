"""Arithmetic of conditions: integers in 64 bits, decimals exactly, doubles.

Source: pingcap/tidb ``pkg/expression/builtin_arithmetic.go``.
"""

import math
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Final

from sorters.core.filter.parts import (
    INT64,
    NUMBERS,
    Bound,
    Kind,
    MisfitError,
    Operand,
    OutOfRangeError,
    Row,
    constant,
)

_EXACT = Context(prec=200)
_DIGITS_MAX, _SCALE_MAX = 65, 30
_UINT64: Final = (0, (1 << 64) - 1)


def negative(at: int, one: Bound) -> Bound:
    if one.kind is Kind.NULL:
        return one
    if one.kind not in NUMBERS:
        raise MisfitError(f"`-` of {one.what or 'an operand'}, which is {one.kind.value}, is not supported", at)

    def of(row: Row) -> Operand:
        value = one.of(row)
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
        kind=one.kind, at=at, of=of, offsets=one.offsets, scale=one.scale, digits=one.digits, constant=one.constant
    )


def _in_range(value: int, bounds: tuple[int, int]) -> int:
    if not bounds[0] <= value <= bounds[1]:
        raise OutOfRangeError(f"{value} is out of range of a {'signed' if bounds is INT64 else 'unsigned'} BIGINT")
    return value


def arithmetic(at: int, operator: str, left: Bound, right: Bound) -> Bound:
    for one in (left, right):
        if one.kind not in NUMBERS and one.kind is not Kind.NULL:
            raise MisfitError(
                f"`{operator}` of {one.what or 'an operand'}, which is {one.kind.value}, is not supported", at
            )
    if Kind.NULL in {left.kind, right.kind}:
        return constant(at, Kind.NULL, None)
    kinds = {left.kind, right.kind}
    kind = Kind.REAL if Kind.REAL in kinds else Kind.DECIMAL if Kind.DECIMAL in kinds else Kind.INT
    if operator == "DIV" and kind is not Kind.INT:
        raise MisfitError("`DIV` of other numbers than integers is not supported", at)
    scale = left.scale + right.scale if operator == "*" else max(left.scale, right.scale)
    digits = left.digits + right.digits if operator == "*" else max(left.digits, right.digits) + 1
    if kind is Kind.DECIMAL and (scale > _SCALE_MAX or scale + digits > _DIGITS_MAX):
        raise MisfitError(
            f"`{operator}` may give a decimal of more than {_DIGITS_MAX} digits, {_SCALE_MAX} after the point", at
        )
    unsigned = left.unsigned if operator == "%" else left.unsigned or right.unsigned
    work = {Kind.INT: _integers, Kind.DECIMAL: _decimals, Kind.REAL: _reals}[kind](operator, unsigned)

    def of(row: Row) -> Operand:
        one, other = left.of(row), right.of(row)
        return None if one is None or other is None else work(one, other)

    return Bound(
        kind=kind, at=at, of=of, offsets=left.offsets | right.offsets, unsigned=unsigned, scale=scale, digits=digits,
        constant=left.constant and right.constant,
    )  # fmt: skip


def _integers(operator: str, unsigned: bool) -> Callable[[Operand, Operand], Operand]:
    bounds = _UINT64 if unsigned else INT64

    def of(one: Operand, other: Operand) -> Operand:
        assert isinstance(one, int)
        assert isinstance(other, int)
        match operator:
            case "+":
                return _in_range(one + other, bounds)
            case "-":
                return _in_range(one - other, bounds)
            case "*":
                return _in_range(one * other, bounds)
        if other == 0:
            return None
        whole = abs(one) // abs(other)
        if operator == "DIV":
            return _in_range(whole if (one < 0) == (other < 0) else -whole, bounds)
        rest = abs(one) - whole * abs(other)
        return -rest if one < 0 else rest

    return of


def _decimals(operator: str, unsigned: bool) -> Callable[[Operand, Operand], Operand]:
    def of(one: Operand, other: Operand) -> Operand:
        left, right = Decimal(one), Decimal(other)  # type: ignore[arg-type]
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
    def of(one: Operand, other: Operand) -> Operand:
        left, right = float(one), float(other)  # type: ignore[arg-type]
        if operator == "%":
            return None if right == 0 else math.fmod(left, right)
        found = left + right if operator == "+" else left - right if operator == "-" else left * right
        if math.isinf(found):
            raise OutOfRangeError(f"{left} {operator} {right} is out of range of a DOUBLE")
        return found

    return of
