"""Comparisons of conditions: what compares with what, IN, and LIKE.

Source: pingcap/tidb ``pkg/expression/builtin_compare.go`` and ``pkg/util/collate``.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from schemas.config.filter.re2 import Expression, byte_literal
from sorters.core.filter.value_expression.general_ci import weights
from sorters.core.filter.value_expression.json_values import json_test
from sorters.core.filter.value_expression.parts import (
    LITERAL_COLLATION,
    NUMBERS,
    Bound,
    MisfitError,
    Operand,
    Row,
    ValueKind,
    constant,
    flag,
    time_text,
    truth,
)

_PADDED = frozenset({"utf8mb4_bin", "utf8_bin", "ascii_bin", "latin1_bin", "gbk_bin", "gb18030_bin"})
BY_WEIGHTS = frozenset({"utf8mb4_general_ci", "utf8_general_ci"})
"""Collations of :mod:`sorters.core.filter.value_expression.general_ci`."""
_KNOWN = _PADDED | BY_WEIGHTS | {"binary", "utf8mb4_0900_bin"}
_OTHER_ORDER = frozenset({"gbk_bin", "gb18030_bin"})
"""Sorted by their own bytes, which rows do not hold: they can only be equal or not."""
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)")
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}


def comparison(at: int, operator: str, left: Bound, right: Bound) -> Bound:
    left, right = _beside(left, right), _beside(right, left)
    if ValueKind.JSON in {left.kind, right.kind} and not {ValueKind.OTHER, ValueKind.NULL} & {left.kind, right.kind}:
        holds = json_test(operator, left, right)
    else:
        form = _comparable(at, operator, left, right)
        holds = lambda first, second: _holds(operator, *form(first, second))  # noqa: E731

    def of(row: Row) -> Operand:
        first, second = left.of(row), right.of(row)
        if first is None or second is None:
            return flag(first is second) if operator == "<=>" else None
        return flag(holds(first, second))

    made = truth(at, of, left, right)
    for first, second, name in ((left, right, operator), (right, left, _FLIPPED.get(operator, ""))):
        is_column = first.kind is ValueKind.INT and len(first.offsets) == 1 and bool(first.what)
        is_number = second.kind is ValueKind.INT and second.constant and name in _FLIPPED
        if is_column and is_number and isinstance(value := second.of({}), int):
            return replace(made, near=(next(iter(first.offsets)), name, value))
    return made


def _beside(operand: Bound, other: Bound) -> Bound:
    """Return a hexadecimal or bit literal as its bytes where it stands beside a text or another one."""
    if operand.raw is None or (other.kind is not ValueKind.TEXT and other.raw is None):
        return operand
    return constant(operand.at, ValueKind.TEXT, operand.raw, what=operand.what)


def _holds(operator: str, first: Operand, second: Operand) -> bool:
    match operator:
        case "=" | "<=>":
            return first == second
        case "<>":
            return first != second
        case "<":
            return first < second  # type: ignore[operator]
        case "<=":
            return first <= second  # type: ignore[operator]
        case ">":
            return first > second  # type: ignore[operator]
        case _:
            return first >= second  # type: ignore[operator]


def _comparable(
    at: int, operator: str, left: Bound, right: Bound
) -> Callable[[Operand, Operand], tuple[Operand, Operand]]:
    """Return what brings two values, none of them NULL, into a form in which they compare."""
    kinds = {left.kind, right.kind}
    if ValueKind.OTHER in kinds:
        operand = left if left.kind is ValueKind.OTHER else right
        raise MisfitError(f"{operand.what} is {operand.kind.value}", operand.at)
    if ValueKind.NULL in kinds:
        return lambda first, second: (first, second)
    if kinds <= NUMBERS:
        if ValueKind.REAL in kinds and not (_is_refined(left, right) or _is_refined(right, left)):
            return lambda first, second: (float(first), float(second))  # type: ignore[arg-type]
        return lambda first, second: (first, second)
    if kinds == {ValueKind.TIME}:
        return lambda first, second: (first, second)
    if kinds == {ValueKind.TEXT}:
        form = text_form(at, operator, left, right)
        return lambda first, second: (form(first), form(second))
    text, other_side = (left, right) if left.kind is ValueKind.TEXT else (right, left)
    if text.kind is ValueKind.TEXT and text.constant:
        value = _converted(at, text, other_side)
        return (lambda first, second: (value, second)) if text is left else (lambda first, second: (first, value))
    names = [operand.what or "an operand" for operand in (left, right)]
    raise MisfitError(
        f"{names[0]} is {left.kind.value} and {names[1]} {right.kind.value}: they do not compare here", at
    )


def _is_refined(integer: Bound, number: Bound) -> bool:
    """Tell whether TiDB compares exactly although one side is a double (``refineArgs``): it makes the double, which is
    written down, an integer.
    """
    return integer.kind is ValueKind.INT and not integer.constant and number.constant


def _converted(at: int, text: Bound, other: Bound) -> Operand:
    """Return a text that is written down as the other side's kind."""
    raw = text.of({})
    assert isinstance(raw, bytes)
    word = raw.decode("utf-8", "surrogateescape")
    if other.kind is ValueKind.TIME:
        time = time_text(word)
        if time is None:
            raise MisfitError(f"'{word}' is no time as `YYYY-MM-DD hh:mm:ss.ffffff`", text.at)
        return time
    if not _NUMBER.fullmatch(word):
        raise MisfitError(f"'{word}' is no number, and {other.what or 'the other side'} is {other.kind.value}", text.at)
    return float(word) if other.kind is ValueKind.REAL else Decimal(word)


def text_form(at: int, operator: str, left: Bound, right: Bound) -> Callable[[Operand], Operand]:
    """Return what brings texts of two parts into a form that compares by its bytes or characters.

    Raises:
        MisfitError: their collations differ, or compare in a way that we do not know.
    """
    collations = {operand.collation for operand in (left, right) if operand.collation != LITERAL_COLLATION}
    if len(collations) > 1:
        raise MisfitError(f"texts of two collations, {' and '.join(sorted(collations))}, do not compare here", at)
    collation = next(iter(collations), "utf8mb4_bin")
    _check_collation(left if left.collation else right, collation, at)
    if collation in _OTHER_ORDER and operator not in {"=", "<>", "<=>"}:
        raise MisfitError(f"`{operator}` under collation {collation} is not supported", at)
    if collation in BY_WEIGHTS:
        return lambda text: weights(_decoded(text.rstrip(b" "))) if isinstance(text, bytes) else text
    if collation in _PADDED:
        return lambda text: text.rstrip(b" ") if isinstance(text, bytes) else text
    return lambda text: text


def _check_collation(operand: Bound, collation: str, at: int) -> None:
    if collation not in _KNOWN:
        raise MisfitError(
            f"{operand.what} has collation {collation}; supported are binary, those that end in _bin, and general_ci",
            at,
        )


def collated(at: int, operand: Bound, collation: str) -> Bound:
    """Return a text under another collation of its character set.

    Raises:
        MisfitError: it is no text, of another character set, or the collation compares in a way that we do not know.
    """
    if operand.kind is ValueKind.NULL:
        return operand
    if operand.kind is not ValueKind.TEXT:
        raise MisfitError(
            f"COLLATE of {operand.what or 'an operand'}, which is {operand.kind.value}, is not supported", at
        )
    charset = operand.collation.partition("_")[0] or "utf8mb4"
    if collation.partition("_")[0] != charset:
        raise MisfitError(f"COLLATE {collation} of a text in character set {charset} is not supported", at)
    made = replace(operand, at=at, collation=collation)
    _check_collation(replace(made, what=f"COLLATE: {operand.what or 'the text'}"), collation, at)
    return made


def bare_text(operand: Bound) -> str:
    """Return the collation of a text whose bytes rows hold as they are.

    Raises:
        MisfitError: they do not.
    """
    if operand.collation.partition("_")[0] in {"gbk", "gb18030", "latin1"}:
        raise MisfitError(f"a cast of {operand.what or 'a text'} in {operand.collation} is not supported", operand.at)
    return operand.collation


def one_of(at: int, operand: Bound, items: list[Bound]) -> Bound:
    odd = next((item for item in items if item.kind is ValueKind.JSON is not operand.kind), None)
    if odd is not None:  # TiDB looks at it as a value of the operand's type
        raise MisfitError(f"IN of {operand.kind.value} takes no JSON", odd.at)
    equal = [comparison(at, "=", operand, item) for item in items]

    def of(row: Row) -> Operand:
        result: Operand = 0
        for test in equal:
            value = test.of(row)
            if value == 1:
                return 1
            result = None if value is None else result
        return result

    return truth(at, of, operand, *items)


def like(at: int, text_operand: Bound, pattern: Bound, escape: str) -> Bound:
    raw = pattern_of("LIKE", text_operand, pattern)
    if raw is None:
        return replace(constant(at, ValueKind.INT, None), is_truth=True)
    collation = text_operand.collation or "utf8mb4_bin"
    _check_collation(text_operand, collation, at)
    by_weights = collation in BY_WEIGHTS
    expression = like_expression(_decoded(raw), escape, by_byte=collation == "binary", by_weights=by_weights)

    def of(row: Row) -> Operand:
        text = text_operand.of(row)
        if text is None:
            return None
        assert isinstance(text, bytes)
        return flag(expression.fullmatch(_encoded(weights(_decoded(text))) if by_weights else text))

    return truth(at, of, text_operand)


def pattern_of(name: str, text: Bound, pattern: Bound) -> bytes | None:
    """Return the pattern that a text is held against; None: one of both is NULL, and so is what comes of it.

    Raises:
        MisfitError: one of them is no text, or the pattern hangs on the row.
    """
    for side in (text, pattern):
        if side.kind not in {ValueKind.TEXT, ValueKind.NULL}:
            raise MisfitError(
                f"{name} of {side.what or 'an operand'}, which is {side.kind.value}, is not supported", side.at
            )
    if not pattern.constant:
        raise MisfitError(f"{name} takes a pattern that is written down", pattern.at)
    raw = pattern.of({})
    if raw is None or text.kind is ValueKind.NULL:
        return None
    assert isinstance(raw, bytes)
    return raw


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def like_expression(pattern: str, escape: str, *, by_byte: bool, by_weights: bool = False) -> Expression:
    """Return LIKE's pattern over bytes; ``_`` is one byte, or one character of UTF-8. ``by_weights``: what it is held
    against are weights.
    """
    turn = weights if by_weights else str
    one_char = rb"[\x00-\xff]" if by_byte else rb"(?:[\x00-\x7f]|[\xc0-\xff][\x80-\xbf]*|[\x80-\xbf])"
    patterns, at = list[bytes](), 0
    while at < len(pattern):
        char = pattern[at]
        if char == escape and at + 1 < len(pattern):
            at += 1
            patterns.append(byte_literal(_encoded(turn(pattern[at]))))
        elif char == "%":
            patterns.append(rb"[\x00-\xff]*")
        elif char == "_":
            patterns.append(one_char)
        else:
            patterns.append(byte_literal(_encoded(turn(char))))
        at += 1
    return Expression(b"".join(patterns))
