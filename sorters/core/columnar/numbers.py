"""Decode the number types of row format v2, and write numbers as text the way Go does.

Integers are little-endian in the smallest of 1, 2, 4 or 8 bytes; floats are the memcomparable form of the double.
"""

from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from sorters.core.columnar.spans import BoolArray, Spans, constant_or_none, words_ending

_SIGN_BIT = np.uint64(1 << 63)
FLOAT_BYTES = 8


def integer_misfits(spans: Spans) -> BoolArray:
    """Tell which ranges have no length that an integer can have."""
    length = spans.length
    misfits: BoolArray = (length != 1) & (length != 2) & (length != 4) & (length != 8)
    return misfits


def decode_integers(spans: Spans, *, signed: bool) -> npt.NDArray[Any]:
    """Decode to int64 or uint64; every length is one of 1, 2, 4, 8."""
    words = words_ending(spans.buffer, spans.end)
    length = constant_or_none(spans.length)
    if signed:
        shift = np.int64(64 - 8 * length) if length else (64 - 8 * spans.length)
        return words.view(np.int64) >> shift
    return words >> (np.uint64(64 - 8 * length) if length else (64 - 8 * spans.length).astype(np.uint64))


def decode_floats(spans: Spans, *, single: bool) -> npt.NDArray[np.float64]:
    """Decode 8-byte memcomparable doubles; NaN and infinity become 0, as in TiCDC; ``single``: rounded to 32 bits."""
    return floats_of_bits(words_ending(spans.buffer, spans.end).byteswap(), single=single)


def floats_of_bits(bits: npt.NDArray[np.uint64], *, single: bool) -> npt.NDArray[np.float64]:
    """Turn memcomparable bits back into doubles."""
    values = np.where(bits & _SIGN_BIT, bits & ~_SIGN_BIT, ~bits).view(np.float64)
    if single:
        with np.errstate(over="ignore", invalid="ignore"):
            values = values.astype(np.float32).astype(np.float64)
    if not np.isfinite(values).all():
        values = np.where(np.isfinite(values), values, 0.0)
    return values


def integer_text(values: npt.NDArray[Any], valid: BoolArray | None = None) -> BinaryArray:
    """Return decimal text as a ``pyarrow.BinaryArray``, null where not valid."""
    array = pa.array(values) if valid is None else pa.array(values, mask=~valid)
    return array.cast(pa.string()).view(pa.binary())


def float_text(values: npt.NDArray[np.float64], valid: BoolArray | None = None, *, single: bool) -> BinaryArray:
    """Return text like Go's ``strconv.FormatFloat(v, 'f', -1, bits)``: shortest digits, never an exponent.

    Arrow writes shortest digits too, but with an exponent outside of about 1e-6 … 1e10 and with ``.0`` behind some
    whole numbers; each distinct text of those is rewritten once.
    """
    numbers = values.astype(np.float32) if single else values
    array = pa.array(numbers) if valid is None else pa.array(numbers, mask=~valid)
    text = array.cast(pa.string())
    odd = pc.fill_null(pc.or_(pc.match_substring(text, "e"), pc.ends_with(text, ".0")), False)
    odd = pc.or_(odd, pc.fill_null(pc.equal(text, "-0"), False))
    if not pc.any(odd).as_py():
        return text.view(pa.binary())
    words = text.filter(odd).dictionary_encode()
    plain = pa.array([plain_digits(word) for word in words.dictionary.to_pylist()], pa.string())
    return pc.replace_with_mask(text, odd, plain.take(words.indices)).view(pa.binary())


def plain_digits(text: str) -> str:
    """Write a float's digits without exponent and without an empty fraction.

    >>> plain_digits("1.5e-7"), plain_digits("2.0"), plain_digits("-0")
    ('0.00000015', '2', '-0')
    """
    digits = format(Decimal(text), "f")
    return digits.rstrip("0").rstrip(".") if "." in digits else digits
