"""Binary JSON to text for many rows at once.

The documents of one column mostly have one shape, or a few: the same keys and types, with other numbers and strings. So
the first document is read in Python as a guess (:mod:`sorters.core.columnar.json_shapes`); all others are compared with
it and taken apart with a fixed number of numpy calls; those that differ go round again. Documents that no shape of the
first ``SHAPES_MAX`` covers are read one by one, each distinct one once.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import BusError, CorruptDataError
from schemas.tidb.binary_json import json_text
from sorters.core.columnar.escape import JSON_TEXT, Escaper
from sorters.core.columnar.json_shapes import Leaf, LeafKind, match_shape, shape_of
from sorters.core.columnar.numbers import float_text, integer_text
from sorters.core.columnar.spans import Spans, words_ending

Corrupt = Callable[[int, str], BusError]
"""Makes the error for a row that does not decode."""

SHAPES_MAX = 24
ROWS_MIN = 32
"""Fewer rows left are read one by one."""
_PLAIN_MIN, _PLAIN_END = 1e-15, 1e15
"""Doubles outside are printed with an exponent, by the scalar code."""


def json_texts(spans: Spans, corrupt: Corrupt, outer: Escaper | None = None) -> Any:
    """Return the texts as a ``pyarrow.BinaryArray``; ``outer``: escaped, as part of another JSON string.

    Raises:
        CorruptDataError: a value does not decode (made by ``corrupt``).
    """
    row_numbers, parts = [], []
    for rows, written in _by_shape(spans):
        if written is None:
            parts.append(_one_by_one(spans.take(rows), _naming(corrupt, rows), outer))
        else:
            fits, segments = written
            parts.append(_join([_segment(segment, fits, outer) for segment in segments], len(rows)))
        row_numbers.append(rows)
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate(row_numbers)) if row_numbers else np.zeros(0, np.int64)
    return pa.concat_arrays(parts or [pa.array([], pa.binary())]).take(pa.array(order))


def check_json(spans: Spans, corrupt: Corrupt) -> None:
    """Raise what :func:`json_texts` would, writing nothing: what fits a shape decodes."""
    for rows, written in _by_shape(spans):
        if written is None:
            _one_by_one(spans.take(rows), _naming(corrupt, rows), None)


Found = tuple[npt.NDArray[np.bool_], list[bytes | Leaf]]
"""Which of the rows that were compared fit a shape, and its segments."""


def _by_shape(spans: Spans) -> Iterator[tuple[npt.NDArray[np.int64], Found | None]]:
    """Yield the rows of each shape, and at last those that must be read one by one (None)."""
    left = np.arange(len(spans))
    for _ in range(SHAPES_MAX):
        if len(left) < ROWS_MIN:
            break
        rest = spans.take(left)
        shape = shape_of(rest[0])
        if shape is None:
            break
        fits, segments = match_shape(shape, rest)
        if fits.any():
            yield left[fits], (fits, segments)
        if not fits[0]:  # a shape that its own document does not fit cannot be told from a corrupt one
            break
        left = left[~fits]
    if len(left):
        yield left, None


def _naming(corrupt: Corrupt, rows: npt.NDArray[np.int64]) -> Corrupt:
    """Return ``corrupt`` for row numbers among ``rows``."""
    return lambda row, why: corrupt(int(rows[row]), why)


def _join(segments: list[Any], count: int) -> Any:
    if all(isinstance(segment, bytes) for segment in segments):
        return pa.repeat(pa.scalar(b"".join(segments), pa.binary()), count)
    scalars = [pa.scalar(segment, pa.binary()) if isinstance(segment, bytes) else segment for segment in segments]
    return pc.binary_join_element_wise(*scalars, pa.scalar(b"", pa.binary()))


def _segment(segment: bytes | Leaf, fits: npt.NDArray[np.bool_], outer: Escaper | None) -> Any:
    if isinstance(segment, bytes):
        return outer.value(segment) if outer else segment
    spans = segment.spans if fits.all() else segment.spans.take(fits)
    if segment.kind is LeafKind.STRING:
        text = JSON_TEXT.column(spans.to_arrow())
        return outer.column(text) if outer else text
    words = words_ending(spans.buffer, spans.end)
    match segment.kind:
        case LeafKind.INT64:
            return integer_text(words.view(np.int64))
        case LeafKind.UINT64:
            return integer_text(words)
        case _:
            return double_texts(words.view(np.float64))


def double_texts(values: npt.NDArray[np.float64]) -> Any:
    """Return finite doubles as TiDB prints them in JSON: shortest digits, ``.0`` on whole numbers."""
    text = float_text(values, single=False)
    whole = values == np.trunc(values)
    if whole.any():
        pointed = pc.binary_join_element_wise(text, pa.scalar(b".0", pa.binary()), pa.scalar(b"", pa.binary()))
        text = pc.if_else(pa.array(whole), pointed, text)
    size = np.abs(values)
    extreme = (size != 0) & ((size < _PLAIN_MIN) | (size >= _PLAIN_END))
    if extreme.any():
        numbers = pa.array(values[extreme]).dictionary_encode()
        forms = [json_text(b"\x0b" + np.float64(value).tobytes()).encode() for value in numbers.dictionary.to_pylist()]
        text = pc.replace_with_mask(text, pa.array(extreme), pa.array(forms, pa.binary()).take(numbers.indices))
    return text


def _one_by_one(spans: Spans, corrupt: Corrupt, outer: Escaper | None) -> Any:
    words = spans.to_arrow().dictionary_encode()
    texts = []
    for index, data in enumerate(words.dictionary.to_pylist()):
        try:
            text = json_text(data).encode("utf-8", "surrogateescape")
        except CorruptDataError as error:
            raise corrupt(words.indices.to_pylist().index(index), error.message) from error
        texts.append(outer.value(text) if outer else text)
    return pa.array(texts, pa.binary()).take(words.indices)
