"""Functions of texts. They count characters, or bytes where the text is binary.

Source: pingcap/tidb ``pkg/expression/builtin_string.go``, ``builtin_encryption.go``, ``builtin_math.go`` (CRC32).
"""

import hashlib
import zlib
from collections.abc import Callable, Sequence
from typing import Final

from schemas.config.filter.re2 import Expression
from sorters.core.filter.value_expression.comparison import BY_WEIGHTS, pattern_of, text_form
from sorters.core.filter.value_expression.parts import (
    LITERAL_COLLATION,
    Bound,
    MisfitError,
    Operand,
    Row,
    ValueKind,
    constant,
    flag,
    made_of,
    truth,
)

_UTF8: Final = ("utf8mb4_", "utf8_", "ascii_")
_BLANK: Final = b" "
_UINT64_MASK: Final = (1 << 64) - 1
OF_ONE_TEXT: Final = frozenset(
    {
        "ASCII",
        "CHAR_LENGTH",
        "CRC32",
        "HEX",
        "LENGTH",
        "LOWER",
        "LTRIM",
        "MD5",
        "REVERSE",
        "RTRIM",
        "SHA1",
        "TRIM",
        "UPPER",
    }
)
_OF_DIGITS: Final = frozenset({"CRC32", "MD5", "SHA1", "CONCAT", "CONCAT_WS"})
"""Functions that take an integer as its digits too."""
_NUMBERS_OF: Final[dict[str, Callable[[bytes], int]]] = {
    "ASCII": lambda text: text[0] if text else 0,
    "CRC32": zlib.crc32,
    "LENGTH": len,
}
_TEXTS_OF: Final[dict[str, Callable[[bytes], bytes]]] = {
    "LTRIM": lambda text: text.lstrip(_BLANK),
    "RTRIM": lambda text: text.rstrip(_BLANK),
    "TRIM": lambda text: text.strip(_BLANK),
}
_DIGESTS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "HEX": lambda text: text.hex().upper().encode(),
    "MD5": lambda text: hashlib.md5(text, usedforsecurity=False).hexdigest().encode(),
    "SHA1": lambda text: hashlib.sha1(text, usedforsecurity=False).hexdigest().encode(),
}


def of_one_text(at: int, name: str, operand: Bound) -> Bound:
    """Return a function of ``OF_ONE_TEXT``."""
    if name == "HEX" and operand.kind is ValueKind.INT and not operand.is_bits:
        return _text(at, _strict(_hex_of, operand), [operand])
    read = _reader(at, name, operand)
    if name in _NUMBERS_OF:
        count = _NUMBERS_OF[name]
        return made_of(at, ValueKind.INT, _strict(lambda text: count(read(text)), operand), [operand])
    if name == "CHAR_LENGTH":
        return made_of(
            at, ValueKind.INT, _strict(lambda text: len(_characters(operand, read(text))), operand), [operand]
        )
    if name in _DIGESTS:
        digest = _DIGESTS[name]
        return _text(at, _strict(lambda text: digest(read(text)), operand), [operand])
    if name in _TEXTS_OF:
        change = _TEXTS_OF[name]
    elif name == "REVERSE":
        change = lambda text: _joined(operand, list(reversed(_characters(operand, text))))  # noqa: E731
    else:
        turn = _upper if name == "UPPER" else _lower
        change = (lambda text: text) if operand.collation == "binary" else (lambda text: _encoded(turn(_decoded(text))))
    return _text(at, _strict(lambda text: change(read(text)), operand), [operand], operand.collation)


def concat(at: int, name: str, arguments: Sequence[Bound]) -> Bound:
    """CONCAT, NULL if one of them is, or CONCAT_WS, which passes over NULL behind the separator."""
    readers = [_reader(at, name, argument) for argument in arguments]
    collation = _one_collation(at, name, arguments)

    def of(row: Row) -> Operand:
        values = [argument.of(row) for argument in arguments]
        texts = [None if value is None else read(value) for value, read in zip(values, readers, strict=True)]
        if name == "CONCAT_WS":
            separator, *others = texts
            return None if separator is None else separator.join(text for text in others if text is not None)
        return None if None in texts else b"".join(text for text in texts if text is not None)

    return _text(at, of, arguments, collation)


def part_of(at: int, name: str, text: Bound, numbers: Sequence[Bound]) -> Bound:
    """LEFT, RIGHT or SUBSTRING."""
    read = _reader(at, name, text)
    for number in numbers:
        if number.kind not in {ValueKind.INT, ValueKind.NULL}:
            raise MisfitError(f"{name} takes integers, and this is {number.kind.value}", number.at)

    def of(row: Row) -> Operand:
        value, counts = text.of(row), [number.of(row) for number in numbers]
        if value is None or None in counts:
            return None
        characters = _characters(text, read(value))
        first, *more = (int(count) for count in counts if count is not None)
        if name == "LEFT":
            return _joined(text, characters[: max(first, 0)])
        if name == "RIGHT":
            return _joined(text, characters[len(characters) - min(max(first, 0), len(characters)) :])
        start = first - 1 if first > 0 else len(characters) + first
        if not first or start < 0:
            return b""
        return _joined(text, characters[start : start + max(more[0], 0)] if more else characters[start:])

    return _text(at, of, [text, *numbers], text.collation)


def replaced(at: int, arguments: Sequence[Bound]) -> Bound:
    """REPLACE, which minds case whatever the collation."""
    readers = [_reader(at, "REPLACE", argument) for argument in arguments]
    collation = _one_collation(at, "REPLACE", arguments)

    def of(row: Row) -> Operand:
        values = [argument.of(row) for argument in arguments]
        if None in values:
            return None
        text, old, new = (read(value) for value, read in zip(values, readers, strict=True))
        return text.replace(old, new) if old else text

    return _text(at, of, arguments, collation)


def located(at: int, name: str, part: Bound, text: Bound) -> Bound:
    """LOCATE and INSTR: the first character, from 1, at which a text holds another; 0: nowhere."""
    readers = _reader(at, name, part), _reader(at, name, text)
    text_form(at, name, part, text)
    _refuse_weights(at, name, part, text)

    def of(row: Row) -> Operand:
        wanted, whole = part.of(row), text.of(row)
        if wanted is None or whole is None:
            return None
        characters = _characters(text, readers[1](whole))
        sought = _characters(text, readers[0](wanted))
        ends = range(len(characters) - len(sought) + 1)
        return next((start + 1 for start in ends if characters[start : start + len(sought)] == sought), 0)

    return made_of(at, ValueKind.INT, of, [part, text])


def strcmp(at: int, left: Bound, right: Bound) -> Bound:
    for side in (left, right):
        _reader(at, "STRCMP", side)
    form = text_form(at, "<", left, right)

    def of(row: Row) -> Operand:
        first, second = left.of(row), right.of(row)
        if first is None or second is None:
            return None
        low, high = form(first), form(second)
        return (low > high) - (low < high)  # type: ignore[operator]

    return made_of(at, ValueKind.INT, of, [left, right])


def regexp(at: int, text: Bound, pattern: Bound) -> Bound:
    """REGEXP: RE2's, as TiDB's is Go's."""
    raw = pattern_of("REGEXP", text, pattern)
    if raw is None:
        return constant(at, ValueKind.NULL, None)
    text_form(at, "=", text, pattern)
    _refuse_weights(at, "REGEXP", text)
    if text.collation == "binary":
        raise MisfitError("REGEXP of a binary text is not supported", text.at)
    if not raw:
        raise MisfitError("REGEXP takes no empty pattern", pattern.at)
    try:
        expression = Expression(_decoded(raw))
    except ValueError as error:
        raise MisfitError(str(error), pattern.at) from None

    def of(row: Row) -> Operand:
        value = text.of(row)
        return None if value is None else flag(expression.search(value))  # type: ignore[arg-type]

    return truth(at, of, text)


def _refuse_weights(at: int, name: str, *operands: Bound) -> None:
    for operand in operands:
        if operand.collation in BY_WEIGHTS:
            raise MisfitError(f"{name} of a text under collation {operand.collation} is not supported", at)


def _hex_of(number: Operand) -> bytes:
    assert isinstance(number, int)
    return b"%X" % (number & _UINT64_MASK)


def _strict(change: Callable[[Operand], Operand], operand: Bound) -> Callable[[Row], Operand]:
    def of(row: Row) -> Operand:
        value = operand.of(row)
        return None if value is None else change(value)

    return of


def _text(
    at: int, of: Callable[[Row], Operand], operands: Sequence[Bound], collation: str = LITERAL_COLLATION
) -> Bound:
    return made_of(at, ValueKind.TEXT, of, operands, collation=collation)


def _reader(at: int, name: str, operand: Bound) -> Callable[[Operand], bytes]:
    """Return what makes a text of the operand's values.

    Raises:
        MisfitError: TiDB would convert it, or count bytes that rows do not hold.
    """
    if operand.kind is ValueKind.INT and name in _OF_DIGITS and not operand.is_bits:
        return lambda value: b"%d" % int(value)  # type: ignore[arg-type]
    if operand.kind not in {ValueKind.TEXT, ValueKind.NULL}:
        raise MisfitError(
            f"{name} of {operand.what or 'an operand'}, which is {operand.kind.value}, is not supported", operand.at
        )
    collation = operand.collation
    if collation not in {LITERAL_COLLATION, "binary"} and not collation.startswith(_UTF8):
        raise MisfitError(f"{name} of a text under collation {collation} is not supported", operand.at)
    return lambda value: value  # type: ignore[return-value]


def _one_collation(at: int, name: str, operands: Sequence[Bound]) -> str:
    collations = {operand.collation for operand in operands if operand.kind is ValueKind.TEXT} - {LITERAL_COLLATION}
    if len(collations) > 1:
        raise MisfitError(
            f"{name} of texts of two collations, {' and '.join(sorted(collations))}, is not supported", at
        )
    return next(iter(collations), LITERAL_COLLATION)


def _characters(operand: Bound, text: bytes) -> Sequence[str | int]:
    return list(text) if operand.collation == "binary" else _decoded(text)


def _joined(operand: Bound, characters: Sequence[str | int]) -> bytes:
    if operand.collation == "binary":
        return bytes(int(byte) for byte in characters)
    return _encoded("".join(str(character) for character in characters))


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _lower(text: str) -> str:
    """Return the text with each character's own small form, as Go has it: lengths stay."""
    return text.lower() if text.isascii() else "".join(char.lower()[0] for char in text)


def _upper(text: str) -> str:
    if text.isascii():
        return text.upper()
    return "".join(next((form for form in (char.upper(), char.title()) if len(form) == 1), char) for char in text)
