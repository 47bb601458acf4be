"""Conditions of event filters over whole columns: the twin of ``Bound.of``, with the same answers.

AND, OR, XOR, NOT and IS work on masks. A comparison of an integer column with an integer works on its numbers. Every
other test of one column looks at each distinct value once, and one of several columns at each row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.tidb.mysql_types import STRING_TYPES
from schemas.tidb.value import Value
from sorters.core.columnar.spans import BoolArray
from sorters.core.filter.value_expression.parts import Bound, Operand, OutOfRangeError
from sorters.core.mount.column import NUMBER_TYPES, Column

_COMPARE = {
    "=": np.equal,
    "<>": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_NULL = -1


@dataclass(frozen=True, slots=True)
class _Truth:
    """Where a condition is true, and where it is false; NULL is neither."""

    true: BoolArray
    false: BoolArray


def true_rows(condition: Bound, columns: Sequence[Column], count: int) -> BoolArray:
    """Tell in which of n rows a bound condition is true: bool, shape n.

    Raises:
        OutOfRangeError: arithmetic of a row that the condition gets to leaves its type.
    """
    try:
        return _truth(condition, columns, count).true
    except OutOfRangeError:
        # Masks look at all sides, also where AND and OR would have stopped before; the rows themselves tell.
        return np.array(list(_one_by_one(condition, columns, count)), np.bool_)


def _one_by_one(condition: Bound, columns: Sequence[Column], count: int) -> Iterator[bool]:
    for number, row in enumerate(_rows(condition, columns, count)):
        try:
            yield condition.of(row) == 1
        except OutOfRangeError as error:
            error.row = number
            raise


def _truth(part: Bound, columns: Sequence[Column], count: int) -> _Truth:
    if part.logic:
        return _joined(part.logic, [_truth(inner, columns, count) for inner in part.parts])
    if not part.offsets:
        return _of_codes(np.full(count, _code(part.of({})), np.int8))
    if part.near is not None:
        offset, operator, value = part.near
        return _near(columns[offset], operator, value)
    if len(part.offsets) == 1:
        (offset,) = part.offsets
        return _of_codes(_by_distinct(part, offset, columns[offset]))
    return _of_codes(np.array([_code(part.of(row)) for row in _rows(part, columns, count)], np.int8))


def _joined(logic: str, parts: list[_Truth]) -> _Truth:
    first, last = parts[0], parts[-1]
    match logic:
        case "NOT":
            return _Truth(first.false, first.true)
        case "AND":
            return _Truth(first.true & last.true, first.false | last.false)
        case "OR":
            return _Truth(first.true | last.true, first.false & last.false)
        case "XOR":
            unlike = (first.true & last.false) | (first.false & last.true)
            return _Truth(unlike, (first.true & last.true) | (first.false & last.false))
        case "IS NULL":
            known = first.true | first.false
            return _Truth(~known, known)
        case _:
            holds = first.true if logic == "IS TRUE" else first.false
            return _Truth(holds, ~holds)


def _near(column: Column, operator: str, value: int) -> _Truth:
    numbers = column.numbers
    limits = np.iinfo(numbers.dtype)
    if limits.min <= value <= limits.max:
        holds = _COMPARE[operator](numbers, numbers.dtype.type(value))
    else:
        holds = np.full(
            len(column), operator == "<>" or ((operator[0] == "<") == (value > limits.max) and operator != "=")
        )
    valid = column.valid
    return _Truth(holds, ~holds) if valid is None else _Truth(holds & valid, ~holds & valid)


def _of_codes(codes: npt.NDArray[np.int8]) -> _Truth:
    return _Truth(codes == 1, codes == 0)


def _code(value: Operand) -> int:
    return _NULL if value is None else int(value)


def _by_distinct(part: Bound, offset: int, column: Column) -> npt.NDArray[np.int8]:
    """Return 1, 0 or NULL's code by row, from the distinct values of the only column."""
    null = np.int8(_code(part.of({offset: None})))
    if column.spec.tp in NUMBER_TYPES:
        valid = np.ones(len(column), np.bool_) if column.valid is None else column.valid
        distinct, index = np.unique(column.numbers[valid], return_inverse=True)
        by_row = np.full(len(column), null, np.int8)
        by_row[valid] = _codes(part, offset, distinct.tolist())[index.reshape(-1)]
        return by_row
    words = column.text.dictionary_encode()
    values = [_mounted(column, word) for word in words.dictionary.to_pylist()]
    codes = np.append(_codes(part, offset, values), null)
    indices = words.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
    truths: npt.NDArray[np.int8] = codes[indices]
    return truths


def _codes(part: Bound, offset: int, values: Sequence[Value]) -> npt.NDArray[np.int8]:
    return np.array([_code(part.of({offset: value})) for value in values], np.int8)


def _mounted(column: Column, word: bytes) -> Value:
    return word if column.spec.tp in STRING_TYPES else word.decode("utf-8", "surrogateescape")


def _rows(part: Bound, columns: Sequence[Column], count: int) -> list[dict[int, Value]]:
    values = {offset: _values(columns[offset]) for offset in part.offsets}
    return [{offset: column[row] for offset, column in values.items()} for row in range(count)]


def _values(column: Column) -> list[Value]:
    if column.spec.tp not in NUMBER_TYPES:
        return [None if word is None else _mounted(column, word) for word in column.text.to_pylist()]
    numbers: list[Any] = column.numbers.tolist()
    valid = column.valid
    return numbers if valid is None else [n if ok else None for n, ok in zip(numbers, valid.tolist(), strict=True)]
