"""MySQL's binary decimals to text and to unscaled integers, all rows at once.

Layout (pingcap/tidb ``pkg/types/mydecimal.go``, ``ToBin``): precision byte, fraction byte, then groups of nine digits
in four bytes, big-endian, with a shorter group first (integer part) and last (fraction); a negative number has all
bytes inverted, and the first bit is flipped. Rows of one column share precision and fraction, but for rows from before
a MODIFY COLUMN; the code works per distinct pair.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sorters.core.columnar.spans import BoolArray, Bytes, IntArray, Spans, constant_or_none, gather, matrix_spans
from sorters.core.columnar.times import DIGIT_PAIRS

GROUP_DIGITS, GROUP_BYTES = 9, 4
BYTES_OF_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
PRECISION_MAX = 81
"""MyDecimal's word buffer holds nine groups."""
INT64_DIGITS = 18
"""Decimals of so many digits fit into an int64."""


def binary_bytes(precision: int, fraction: int) -> int:
    """Return how many bytes follow the two header bytes."""
    whole = precision - fraction
    return (
        whole // GROUP_DIGITS * GROUP_BYTES
        + BYTES_OF_DIGITS[whole % GROUP_DIGITS]
        + fraction // GROUP_DIGITS * GROUP_BYTES
        + BYTES_OF_DIGITS[fraction % GROUP_DIGITS]
    )


_BINARY_BYTES = np.full((256, 256), 1 << 30, np.int64)
for _precision in range(1, PRECISION_MAX + 1):
    for _fraction in range(_precision + 1):
        _BINARY_BYTES[_precision, _fraction] = binary_bytes(_precision, _fraction)


def encoded_bytes(head: Bytes) -> IntArray:
    """Return the whole length of the decimals whose two header bytes these are; huge where the header is illegal."""
    return _BINARY_BYTES[head[:, 0], head[:, 1]] + 2


def decimal_misfits(spans: Spans) -> BoolArray:
    """Tell which ranges are no decimals."""
    bad = spans.length < 3
    good = np.flatnonzero(~bad)
    fits = spans.take(good)
    bad[good] = encoded_bytes(gather(fits.buffer, fits.start, 2)) > fits.length
    return bad


def _pairs(spans: Spans) -> tuple[IntArray, int | None]:
    head = gather(spans.buffer, spans.start, 2)
    pairs = head[:, 0].astype(np.int64) << 8 | head[:, 1]
    return pairs, constant_or_none(pairs)


class DigitsError(Exception):
    """A group of digits holds a larger number than it has digits; ``row`` is the first such row's number."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def _groups(spans: Spans, precision: int, fraction: int) -> tuple[list[tuple[int, IntArray]], BoolArray]:
    """Return the digit groups (digits, values), first the integer part's, and which numbers are negative."""
    matrix = gather(spans.buffer, spans.start + 2, binary_bytes(precision, fraction))
    negative = matrix[:, 0] < 0x80
    matrix[:, 0] ^= 0x80
    if negative.any():
        matrix ^= np.where(negative, np.uint8(0xFF), np.uint8(0))[:, None]
    whole = precision - fraction
    sizes = [whole % GROUP_DIGITS] + [GROUP_DIGITS] * (whole // GROUP_DIGITS)
    sizes += [GROUP_DIGITS] * (fraction // GROUP_DIGITS) + [fraction % GROUP_DIGITS]
    groups, at = [], 0
    for digits in sizes:
        if not digits:
            continue
        width = BYTES_OF_DIGITS[digits]
        value = matrix[:, at].astype(np.int64)
        for byte in range(at + 1, at + width):
            value = value << 8 | matrix[:, byte]
        if len(value) and value.max() >= 10**digits:
            raise DigitsError(int((value >= 10**digits).argmax()))
        groups.append((digits, value))
        at += width
    return groups, negative


def check_digits(spans: Spans) -> None:
    """Raise what :func:`decimal_texts` would, writing nothing.

    Raises:
        DigitsError: a value is corrupt.
    """
    pairs, pair = _pairs(spans)
    if pair is not None:
        _groups(spans, pair >> 8, pair & 0xFF)
        return
    for each in np.unique(pairs):
        work = partial(_groups, precision=int(each) >> 8, fraction=int(each) & 0xFF)
        _of_rows(np.flatnonzero(pairs == each), work, spans)


def _of_rows(rows: IntArray, work: Callable[[Spans], Any], spans: Spans) -> Any:
    """Do some work on some rows; an error names the row by its number among all."""
    try:
        return work(spans.take(rows))
    except DigitsError as error:
        raise DigitsError(int(rows[error.row])) from None


def unscaled_int64(spans: Spans, scale: int) -> IntArray | None:
    """Return the numbers times ``10**scale``, or None where one of them might not fit or has more digits than that.

    Raises:
        DigitsError: a value is corrupt.
    """
    pairs, pair = _pairs(spans)
    if pair is None and len(spans):
        result = np.empty(len(spans), np.int64)
        for each in np.unique(pairs):
            rows = np.flatnonzero(pairs == each)
            part = _of_rows(rows, lambda some: unscaled_int64(some, scale), spans)
            if part is None:
                return None
            result[rows] = part
        return result
    precision, fraction = (pair or 0x100) >> 8, (pair or 0) & 0xFF
    if fraction > scale:
        return None
    groups, negative = _groups(spans, precision, fraction)
    if precision + scale - fraction > INT64_DIGITS and _digits_used(groups) + scale - fraction > INT64_DIGITS:
        return None
    total = np.zeros(len(spans), np.int64)
    for digits, value in groups:
        total = total * 10**digits + value
    signed: IntArray = np.where(negative, -total, total) * 10 ** (scale - fraction)
    return signed


def _digits_used(groups: list[tuple[int, IntArray]]) -> int:
    """Return how many digits the largest number has: wide columns mostly hold small ones."""
    used = 0
    for digits, value in groups:
        top = int(value.max()) if len(value) else 0
        used = used + digits if used else len(str(top)) if top else 0
    return used


def decimal_texts(spans: Spans) -> Any:
    """Return ``[-]digits[.digits]`` with the fraction digits that each value has.

    Raises:
        DigitsError: a value is corrupt.
    """
    pairs, pair = _pairs(spans)
    if pair is not None:
        return _texts(spans, pair >> 8, pair & 0xFF)
    if not len(spans):
        return pa.array([], pa.binary())
    parts, row_numbers = [], []
    for each in np.unique(pairs):
        rows = np.flatnonzero(pairs == each)
        parts.append(_of_rows(rows, partial(_texts, precision=int(each) >> 8, fraction=int(each) & 0xFF), spans))
        row_numbers.append(rows)
    return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(row_numbers))))


def _texts(spans: Spans, precision: int, fraction: int) -> Any:
    groups, negative = _groups(spans, precision, fraction)
    if negative.any():
        negative &= np.logical_or.reduce([value != 0 for _, value in groups])  # there is no -0
    whole = max(precision - fraction, 1)
    point = 1 + whole
    width = point + (1 + fraction if fraction else 0)
    matrix = np.empty((len(spans), width), np.uint8)  # sign, integer digits, [., fraction digits]
    at = 1
    if precision == fraction:
        matrix[:, 1] = ord("0")
        at = 2
    for digits, value in groups:
        if at == point and fraction:
            matrix[:, point] = ord(".")
            at += 1
        _put_digits(matrix, at, digits, value)
        at += digits
    first = (matrix[:, 1 : point - 1] != ord("0")).argmax(axis=1) + 1 if whole > 1 else np.ones(len(spans), np.int64)
    if whole > 1:
        first = np.where(matrix[np.arange(len(spans)), first] == ord("0"), point - 1, first)
    start = first - negative
    signed = np.flatnonzero(negative)
    matrix[signed, start[signed]] = ord("-")
    return matrix_spans(matrix, start, np.full(len(spans), width, np.int64)).to_arrow()


def _put_digits(matrix: Bytes, at: int, digits: int, value: IntArray) -> None:
    """Write ``digits`` (1 to 9) decimal digits of each value."""
    end = at + digits
    while end - at >= 2:
        value, pair = np.divmod(value, 100) if end - at > 2 else (value, value)
        matrix[:, end - 2 : end] = DIGIT_PAIRS[pair].view(np.uint8).reshape(-1, 2)
        end -= 2
    if end > at:
        matrix[:, at] = value + ord("0")


def unscaled(text: str, scale: int) -> int:
    """Return a decimal text times ``10**scale``, exactly; digits beyond the scale are cut towards minus infinity.

    >>> unscaled("-1.20", 4), unscaled("-1.25", 1)
    (-12000, -13)
    """
    whole, _, part = text.partition(".")
    number = int(whole + part.ljust(scale, "0"))
    beyond: int = 10 ** max(len(part) - scale, 0)
    return number // beyond


def unscaled_wide(texts: Any, scale: int) -> npt.NDArray[np.uint8]:
    """Return texts times ``10**scale`` as 32-byte little-endian two's complement, shape ``(n, 32)``; null reads as
    0.
    """
    plain = pc.fill_null(texts, b"0").cast(pa.string())
    try:
        wide = plain.cast(pa.decimal256(76, scale))
    except pa.ArrowInvalid:  # some text has more fraction digits than the scale, from before a MODIFY COLUMN
        numbers = (unscaled(text, scale).to_bytes(32, "little", signed=True) for text in plain.to_pylist())
        return np.frombuffer(b"".join(numbers), np.uint8).reshape(len(plain), 32)
    return np.frombuffer(wide.buffers()[1], np.uint8, len(wide) * 32, wide.offset * 32).reshape(len(wide), 32)
