"""Hashes of many mounted rows at once: the columnar twin of :func:`schemas.state_proof.row_text.row_hash`.

Texts and their hexadecimal digits are made by column. Only MD5 itself, which SQL computes too, is asked for row by row:
numpy's arithmetic would take it in some 500 steps for each 64 bytes, and be slower than the library from two such on.
"""

from collections.abc import Sequence
from hashlib import md5
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.state_proof.column_kind import ColumnKind, TextForm
from schemas.state_proof.row_text import NULL_TEXT, row_hash, value_text
from schemas.tidb.table import ColumnVersion
from schemas.tidb.value import Value
from sorters.core.columnar.numbers import float_text
from sorters.core.columnar.spans import spans_of
from sorters.core.mount.column import Column
from sorters.core.state_proof.proof_columns import kind_of

Hashes = npt.NDArray[np.uint64]
_DIGITS = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), np.uint16)
"""Both digits of each byte."""
_SEPARATOR = pa.scalar(b",", pa.binary())
_DIGEST_WORDS = 2


def hashes_of_columns(columns: Sequence[Column], known: dict[int, tuple[Column, Any]] | None = None) -> Hashes:
    """Return the hash of each row, uint64.

    Args:
        columns: of a proof, in its order, mounted in UTC.
        known: digits that were made of columns at these places; those of columns that hold the same are taken from
            it, and the others go in.
    """
    digits = []
    for number, column in enumerate(columns):
        before = known.get(number) if known is not None else None
        if before is not None and column.same_as(before[0]):
            digits.append(before[1])
            continue
        digits.append(_upper_digits(proof_text(column)))
        if known is not None:
            known[number] = column, digits[-1]
    joined = pc.binary_join_element_wise(*digits, _SEPARATOR, null_handling="replace", null_replacement=NULL_TEXT)
    return _md5_halves(joined)


def hashes_of_rows(specs: Sequence[ColumnVersion], offsets: Sequence[int], rows: Sequence[tuple[Value, ...]]) -> Hashes:
    """Return the same of rows as the scalar mounter has them; ``offsets`` are those of the proof's columns in a row."""
    kinds = [kind_of(spec) for spec in specs]
    hashes = (
        row_hash([value_text(kind, row[offset]) for kind, offset in zip(kinds, offsets, strict=True)]) for row in rows
    )
    return np.fromiter(hashes, np.uint64, len(rows))


def proof_text(column: Column) -> BinaryArray:
    """Return a column's texts as a proof has them, null for NULL."""
    kind = kind_of(column.spec)
    match kind.form:
        case TextForm.FLOAT | TextForm.DOUBLE:
            # Of a FLOAT, too, the double's digits; and zero has no sign.
            return float_text(column.numbers + 0.0, column.valid, single=False)
        case TextForm.BIT:
            return _bytes_of_bits(column, kind)
        case TextForm.YEAR:
            return pc.utf8_lpad(column.text.cast(pa.string()), 4, "0").cast(pa.binary())
        case TextForm.ENUM | TextForm.SET:
            return _names(column, kind)
        case _:
            return column.text


def _names(column: Column, kind: ColumnKind) -> BinaryArray:
    distinct, number = np.unique(_where_valid(column), return_inverse=True)
    texts = pa.array([value_text(kind, int(value)) for value in distinct], pa.binary())
    return texts.take(_masked(number.reshape(-1), column))


def _bytes_of_bits(column: Column, kind: ColumnKind) -> BinaryArray:
    assert kind.bits is not None
    width = (kind.bits + 7) // 8
    words = _where_valid(column).astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - width :]
    data = pa.py_buffer(np.ascontiguousarray(words))
    texts = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(column), [None, data]).cast(pa.binary())
    return texts if column.valid is None else texts.take(_masked(np.arange(len(column)), column))


def _where_valid(column: Column) -> npt.NDArray[np.uint64]:
    numbers = column.numbers.astype(np.uint64)
    return numbers if column.valid is None else np.where(column.valid, numbers, np.uint64(0))


def _masked(rows: npt.NDArray[np.int64], column: Column) -> Any:
    return pa.array(rows, mask=None if column.valid is None else ~column.valid)


def _upper_digits(texts: BinaryArray) -> BinaryArray:
    """Return the hexadecimal digits of each text, null for null."""
    spans = spans_of(texts)
    first, last = (int(spans.start[0]), int(spans.end[-1])) if len(texts) else (0, 0)
    offsets = np.empty(len(texts) + 1, np.int32)
    offsets[0], offsets[1:] = 0, (spans.end - first) * 2
    digits = pa.py_buffer(_DIGITS[spans.buffer[first:last]])
    validity = None
    if texts.null_count:
        validity = pa.py_buffer(np.packbits(np.asarray(texts.is_valid()), bitorder="little"))
    return pa.BinaryArray.from_buffers(pa.binary(), len(texts), [validity, pa.py_buffer(offsets), digits])


def _md5_halves(texts: BinaryArray) -> Hashes:
    spans = spans_of(texts)
    view = memoryview(spans.buffer.data)
    bounds = zip(spans.start.tolist(), spans.end.tolist(), strict=True)
    digests = b"".join([md5(view[start:end], usedforsecurity=False).digest() for start, end in bounds])
    return np.frombuffer(digests, ">u8")[::_DIGEST_WORDS].astype(np.uint64)
