"""CASE, IF and their kin, and functions that pick one of their arguments.

What they may give is of one kind: integers become decimals or doubles beside such, and texts and times stay
among themselves. Source: pingcap/tidb ``pkg/expression/builtin_control.go`` and ``builtin_compare.go``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from sorters.core.filter.value_expression.comparison import comparison
from sorters.core.filter.value_expression.parts import (
    LITERAL_COLLATION,
    NUMBERS,
    Bound,
    MisfitError,
    Operand,
    Row,
    ValueKind,
    as_truth,
    constant,
    flag,
    made_of,
    truth,
)


def if_else(at: int, condition: Bound, then: Bound, otherwise: Bound) -> Bound:
    return case(at, [(as_truth(condition), then)], otherwise)


def ifnull(at: int, arguments: Sequence[Bound]) -> Bound:
    """COALESCE, and IFNULL, which is one of two."""
    shape, convert = _merged(at, arguments)

    def of(row: Row) -> Operand:
        return next((convert(value) for argument in arguments if (value := argument.of(row)) is not None), None)

    return _shaped(at, shape, of, arguments)


def nullif(at: int, first: Bound, second: Bound) -> Bound:
    equal = comparison(at, "=", first, second)
    return _shaped(at, first, lambda row: None if equal.of(row) == 1 else first.of(row), (first, second))


def isnull(at: int, operand: Bound) -> Bound:
    return truth(at, lambda row: flag(operand.of(row) is None), operand)


def case(at: int, branches: Sequence[tuple[Bound, Bound]], otherwise: Bound | None) -> Bound:
    """Return the result of the first branch whose condition is true."""
    last = otherwise or constant(at, ValueKind.NULL, None)
    results = [*(result for _, result in branches), last]
    shape, convert = _merged(at, results)

    def of(row: Row) -> Operand:
        for condition, result in branches:
            if condition.of(row) == 1:
                value = result.of(row)
                break
        else:
            value = last.of(row)
        return None if value is None else convert(value)

    return _shaped(at, shape, of, [*(condition for condition, _ in branches), *results])


def extreme(at: int, name: str, arguments: Sequence[Bound]) -> Bound:
    """GREATEST or LEAST; NULL if one of them is."""
    shape, convert = _merged(at, arguments)
    if shape.kind not in NUMBERS | {ValueKind.TIME, ValueKind.NULL}:
        raise MisfitError(f"{name} of {shape.kind.value} is not supported", at)
    pick: Callable[..., Operand] = max if name == "GREATEST" else min

    def of(row: Row) -> Operand:
        values = [argument.of(row) for argument in arguments]
        return None if None in values else pick(convert(value) for value in values)

    return _shaped(at, shape, of, arguments)


def _shaped(at: int, shape: Bound, of: Callable[[Row], Operand], operands: Sequence[Bound]) -> Bound:
    if shape.kind is ValueKind.NULL:
        return constant(at, ValueKind.NULL, None)
    return made_of(
        at,
        shape.kind,
        of,
        operands,
        unsigned=shape.unsigned,
        scale=shape.scale,
        digits=shape.digits,
        collation=shape.collation,
        is_bits=shape.is_bits,
    )


def _merged(at: int, results: Sequence[Bound]) -> tuple[Bound, Callable[[Operand], Operand]]:
    """Return what stands for the type of all results, and what brings a value of any of them into it."""
    known = [result for result in results if result.kind is not ValueKind.NULL]
    if not known:
        return results[0], lambda value: value
    kinds = {result.kind for result in known}
    if kinds <= NUMBERS:
        return _merged_numbers(known, kinds)
    if len(kinds) > 1 or ValueKind.OTHER in kinds:
        shown = " and ".join(sorted(kind.value for kind in kinds))
        raise MisfitError(f"results of {shown} have no common type here", at)
    collations = {result.collation for result in known} - {LITERAL_COLLATION}
    if len(collations) > 1:
        raise MisfitError(f"texts of two collations, {' and '.join(sorted(collations))}, are no one result here", at)
    collation = next(iter(collations), LITERAL_COLLATION)
    return replace(known[0], collation=collation), lambda value: value


def _merged_numbers(known: Sequence[Bound], kinds: set[ValueKind]) -> tuple[Bound, Callable[[Operand], Operand]]:
    if ValueKind.REAL in kinds:
        shape = next(result for result in known if result.kind is ValueKind.REAL)
        return shape, lambda value: None if value is None else float(value)
    scale, digits = max(result.scale for result in known), max(result.digits for result in known)
    signs, is_bits = {result.unsigned for result in known}, any(result.is_bits for result in known)
    kind = ValueKind.DECIMAL if ValueKind.DECIMAL in kinds or len(signs) > 1 else ValueKind.INT
    return replace(
        known[0], kind=kind, scale=scale, digits=digits, unsigned=signs == {True}, is_bits=is_bits
    ), lambda value: value
