"""Operators of bits in conditions: of integers, in 64 bits without a sign.

Source: pingcap/tidb ``pkg/expression/builtin_op.go``.
"""

from typing import Final

from sorters.core.filter.value_expression.parts import Bound, MisfitError, Operand, Row, ValueKind, made_of

_BITS: Final = 64
_MASK: Final = (1 << _BITS) - 1
OPERATORS: Final = frozenset({"&", "|", "^", "<<", ">>"})


def bits(at: int, operator: str, left: Bound, right: Bound) -> Bound:
    """Return one of ``OPERATORS``.

    Raises:
        MisfitError: a side is no integer.
    """
    _check(operator, left, right)

    def of(row: Row) -> Operand:
        first, second = left.of(row), right.of(row)
        if first is None or second is None:
            return None
        assert isinstance(first, int)
        assert isinstance(second, int)
        return _joined(operator, first & _MASK, second & _MASK)

    return made_of(at, ValueKind.INT, of, (left, right), unsigned=True)


def inverted(at: int, operand: Bound) -> Bound:
    """Return ``~``.

    Raises:
        MisfitError: it is no integer.
    """
    _check("~", operand)

    def of(row: Row) -> Operand:
        value = operand.of(row)
        return None if value is None else ~int(value) & _MASK

    return made_of(at, ValueKind.INT, of, (operand,), unsigned=True)


def _joined(operator: str, left: int, right: int) -> int:
    match operator:
        case "&":
            return left & right
        case "|":
            return left | right
        case "^":
            return left ^ right
    if right >= _BITS:
        return 0
    return (left << right) & _MASK if operator == "<<" else left >> right


def _check(operator: str, *operands: Bound) -> None:
    for operand in operands:
        if operand.kind not in {ValueKind.INT, ValueKind.NULL}:
            raise MisfitError(
                f"`{operator}` of {operand.what or 'an operand'}, which is {operand.kind.value}, is not supported",
                operand.at,
            )
