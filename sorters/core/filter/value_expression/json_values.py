"""JSON in conditions: ``JSON_EXTRACT`` and ``->`` by one path, ``JSON_UNQUOTE`` and ``->>``, and comparisons.

A value is its text as TiDB prints it, of which a path takes a part. Beside JSON a text is a JSON string, TRUE and FALSE
are booleans, and values of two types compare by the order of their types: a number is never a string. Dates and
binary values in JSON, which only CAST makes, are strings here. Source: pingcap/tidb ``pkg/types/json_binary.go``,
``json_binary_functions.go``, ``json_path_expr.go`` and ``pkg/expression/builtin_compare.go``.
"""

import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Final

from sorters.core.filter.value_expression.parts import (
    NUMBERS,
    Bound,
    MisfitError,
    Operand,
    Row,
    ValueKind,
    constant,
    made_of,
)

_SPACE: Final = r"[ \t\n\r]*"
_LEG: Final = re.compile(
    rf'{_SPACE}(?:\.{_SPACE}(?:(?P<name>[^\W\d][\w$]*|\$[\w$]*)|(?P<quoted>"(?:[^"\\]|\\.)*"))|\[{_SPACE}(?P<index>\d+){_SPACE}\])'
)
_READ: Final = json.JSONDecoder(strict=False)
_EPSILON: Final = 1e-8
"""Between an integer and a double that TiDB takes for the same."""
_NULL, _NUMBER, _STRING, _OBJECT, _ARRAY, _BOOLEAN = range(6)
"""Types in the order of their values."""
_TYPES: Final = {'"': _STRING, "{": _OBJECT, "[": _ARRAY, "t": _BOOLEAN, "f": _BOOLEAN, "n": _NULL}
_UTF8: Final = ("", "utf8mb4", "utf8", "ascii")
_HOLDS: Final[dict[str, Callable[[int], bool]]] = {
    "=": lambda order: order == 0,
    "<=>": lambda order: order == 0,
    "<>": lambda order: order != 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}

_Scalar = tuple[int, int | float | str]
"""A type and, of the same type, what orders."""


def extracted(at: int, document: Bound, path: Bound) -> Bound:
    """Return JSON_EXTRACT by one path that is written down; NULL where it leads nowhere.

    Raises:
        MisfitError: the document is no JSON, or the path is none or has ``*``, ``**``, ``last`` or ``to``.
    """
    if document.kind is ValueKind.NULL or path.kind is ValueKind.NULL:
        return constant(at, ValueKind.NULL, None)
    if document.kind is not ValueKind.JSON:
        raise MisfitError(
            f"JSON_EXTRACT takes JSON, and {document.what or 'this'} is {document.kind.value}", document.at
        )
    raw = path.of({}) if path.constant and path.kind is ValueKind.TEXT else None
    if not isinstance(raw, bytes):
        raise MisfitError("JSON_EXTRACT takes a path that is written down", path.at)
    legs = _legs(raw.decode("utf-8", "surrogateescape"), path.at)

    def of(row: Row) -> Operand:
        text = document.of(row)
        return None if text is None else _part(str(text), legs)

    return made_of(at, ValueKind.JSON, of, [document])


def unquoted(at: int, value: Bound) -> Bound:
    """Return JSON_UNQUOTE of JSON: a string without its quotes, the text of all else."""
    if value.kind is ValueKind.NULL:
        return constant(at, ValueKind.NULL, None)
    if value.kind is not ValueKind.JSON:
        raise MisfitError(f"JSON_UNQUOTE takes JSON, and {value.what or 'this'} is {value.kind.value}", value.at)

    def of(row: Row) -> Operand:
        text = value.of(row)
        if text is None:
            return None
        plain = str(text)
        return (_READ.decode(plain) if plain[0] == '"' else plain).encode("utf-8", "surrogateescape")

    return made_of(at, ValueKind.TEXT, of, [value], collation="utf8mb4_bin")


def json_test(operator: str, left: Bound, right: Bound) -> Callable[[Operand, Operand], bool]:
    """Return how a comparison judges two values, none of them NULL, of which one is JSON.

    Raises:
        MisfitError: both are, or the other side is none that JSON compares with here.
    """
    sides = _scalar_of(left, right), _scalar_of(right, left)
    holds = _HOLDS[operator]
    return lambda first, second: holds(_order(sides[0](first), sides[1](second)))


def _scalar_of(operand: Bound, other: Bound) -> Callable[[Operand], _Scalar]:
    if operand.kind is ValueKind.JSON:
        if other.kind is ValueKind.JSON:
            raise MisfitError("two JSON values do not compare here", other.at)
        return lambda value: _scalar(str(value))
    if operand.kind in NUMBERS and not operand.is_bits:
        return lambda value: _number(value, is_truth=operand.is_truth)
    if operand.kind is ValueKind.TEXT and operand.collation.partition("_")[0] in _UTF8 and operand.raw is None:
        return lambda value: (_STRING, value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else "")
    raise MisfitError(f"{operand.what or 'an operand'} is {operand.kind.value}: it compares with no JSON", operand.at)


def _number(value: Operand, *, is_truth: bool) -> _Scalar:
    if is_truth or isinstance(value, bool):
        return _BOOLEAN, int(bool(value))
    if isinstance(value, Decimal):
        return _NUMBER, float(value)
    assert isinstance(value, int | float)
    return _NUMBER, value


def _scalar(text: str) -> _Scalar:
    kind = _TYPES.get(text[0], _NUMBER)
    if kind in {_OBJECT, _ARRAY, _NULL}:
        return kind, 0
    return kind, _READ.raw_decode(text)[0]


def _order(left: _Scalar, right: _Scalar) -> int:
    if left[0] != right[0]:
        return left[0] - right[0]
    first, second = left[1], right[1]
    if isinstance(first, str) and isinstance(second, str):
        low, high = (side.encode("utf-8", "surrogateescape") for side in (first, second))
        return (low > high) - (low < high)
    assert not isinstance(first, str) and not isinstance(second, str)
    if isinstance(first, float) != isinstance(second, float) and abs(float(first) - float(second)) < _EPSILON:
        return 0
    return (first > second) - (first < second)


def _legs(path: str, at: int) -> list[str | int]:
    legs = list[str | int]()
    text = path.strip(" \t\n\r")
    end = 1
    while text.startswith("$") and end < len(text):
        match = _LEG.match(text, end)
        if match is None:
            break
        end = match.end()
        if match["index"] is not None:
            legs.append(int(match["index"]))
        else:
            legs.append(match["name"] if match["quoted"] is None else _READ.decode(match["quoted"]))
    if not text.startswith("$") or end < len(text):
        raise MisfitError(f'path `{path}` is not supported; supported are `$`, `.name`, `."name"` and `[number]`', at)
    return legs


def _part(text: str, legs: Sequence[str | int]) -> str | None:
    start = 0
    for leg in legs:
        kind = text[start]
        if isinstance(leg, int) and kind != "[":
            entry = start if leg == 0 else None  # what is no array is its own first element
        elif isinstance(leg, str) and kind != "{":
            entry = None
        else:
            entry = _entry(text, start + 1, leg)
        if entry is None:
            return None
        start = entry
    return text[start : _READ.raw_decode(text, start)[1]]


def _entry(text: str, at: int, wanted: str | int) -> int | None:
    """Return where an object's value of a key, or an array's element, begins; ``at``: behind the bracket."""
    number = 0
    while text[at] not in "]}":
        key: str | int = number
        if isinstance(wanted, str):
            key, at = _READ.raw_decode(text, at)
            at += len(": ")
        if key == wanted:
            return at
        at = _READ.raw_decode(text, at)[1]
        at += len(", ") if text[at] == "," else 0
        number += 1
    return None
