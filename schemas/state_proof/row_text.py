"""The text of a value and the hash of a row, as TiDB's SQL computes them: docs/formats/state-proofs.md.

A table's proof is the number of its rows and the XOR of their hashes, so a change takes the old row's hash out and puts
the new one's in. The hash is from MD5: in a sum of CRC32, which is affine, two values that changed places would cancel.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, NoReturn

import numpy as np

from schemas.errors import CorruptDataError
from schemas.state_proof.column_kind import ColumnKind, TextForm
from schemas.tidb.value import Value

NULL_TEXT = b"~"
"""Of a row's text; no byte of hexadecimal digits."""
_HASH_BYTES = 8
SUMS: Final = 1 << 64
"""How many sums of hashes there are."""


def value_text(kind: ColumnKind, value: Value | Decimal) -> bytes | None:
    """Return a value's text, None for NULL.

    Args:
        kind: of its column.
        value: as mounted, or as the client library has it. A TIMESTAMP is in the zone in which the proof is made.

    Raises:
        CorruptDataError: no value of the type, or one whose type's text lacks the names of an ENUM or SET, or the
            length of a BIT.
    """
    if value is None:
        return None
    try:
        return _text(kind, value)
    except (ValueError, TypeError, OverflowError, IndexError, ArithmeticError) as error:
        raise CorruptDataError(
            "value has no text of its type", type=kind.form.value, value=repr(value)[:100], reason=repr(error)
        ) from error


def row_hash(texts: Sequence[bytes | None]) -> int:
    """Return the 64-bit hash of a row's texts, in column order.

    >>> row_hash([b"1", None]) == int(hashlib.md5(b"31,~").hexdigest()[:16], 16)
    True
    """
    return text_hash(b",".join([NULL_TEXT if text is None else text.hex().upper().encode() for text in texts]))


def text_hash(joined: bytes) -> int:
    """Return the 64-bit hash of a row's text: the first half of its MD5."""
    return int.from_bytes(hashlib.md5(joined, usedforsecurity=False).digest()[:_HASH_BYTES], "big")


@dataclass(frozen=True, slots=True)
class TableProof:
    """What a table holds: the number of its rows, and the XOR of their hashes."""

    rows: int = 0
    xor: int = 0
    sum: int | None = None
    """Of the hashes, modulo 2^64, where a table without a key is compared: out of the XOR goes what stands there an
    even number of times. None: nobody has asked."""

    def changed(self, old: int | None, new: int | None) -> "TableProof":
        """Return the proof after one change.

        Args:
            old: hash of the row before; None: there was none.
            new: hash of the row after; None: it is gone.
        """
        before, after = old or 0, new or 0
        return TableProof(
            self.rows - (old is not None) + (new is not None),
            self.xor ^ before ^ after,
            None if self.sum is None else (self.sum - before + after) % SUMS,
        )

    def with_rows_of(self, other: "TableProof") -> "TableProof":
        """Return the proof of both one's rows; its sum is known where both are."""
        added = None if self.sum is None or other.sum is None else (self.sum + other.sum) % SUMS
        return TableProof(self.rows + other.rows, self.xor ^ other.xor, added)


def double_text(value: float) -> bytes:
    """Return the shortest digits that give the double again, without exponent, as Go's ``FormatFloat(v, 'f', -1, 64)``.

    >>> [double_text(value) for value in (1e15, 1e16, 0.1, 1e-7, -0.0)]
    [b'1000000000000000', b'10000000000000000', b'0.1', b'0.0000001', b'0']
    """
    text = repr(value + 0.0)
    if "e" in text:
        text = f"{Decimal(text):f}"
    return text.removesuffix(".0").encode()


def _text(kind: ColumnKind, value: Value | Decimal) -> bytes:
    match kind.form:
        case TextForm.TEXT | TextForm.BYTES | TextForm.JSON | TextForm.TIME | TextForm.ENUM | TextForm.SET:
            if isinstance(value, bytes | str):
                return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
            return _names(kind, _integer(value)).encode()
        case TextForm.DECIMAL:
            return f"{Decimal(value):f}".encode() if isinstance(value, str | Decimal) else _refuse(value)
        case TextForm.FLOAT:
            return double_text(float(np.float32(value)))  # type: ignore[arg-type]
        case TextForm.DOUBLE:
            return double_text(float(value))  # type: ignore[arg-type]
        case TextForm.INTEGER:
            return b"%d" % _integer(value)
        case TextForm.YEAR:
            return b"%04d" % _integer(value)
        case TextForm.BIT:
            return value if isinstance(value, bytes) else _bits(kind, _integer(value))
        case TextForm.VECTOR:
            return value.encode() if isinstance(value, str) else _vector(value)


def _integer(value: object) -> int:
    return int(value) if isinstance(value, int | str) else _refuse(value)


def _bits(kind: ColumnKind, value: int) -> bytes:
    if kind.bits is None:
        raise ValueError("the type does not say how many bits")
    return value.to_bytes((kind.bits + 7) // 8, "big")


def _names(kind: ColumnKind, number: int) -> str:
    """Return an ENUM's name (0: the empty one that stands for an error), or a SET's."""
    if kind.form not in {TextForm.ENUM, TextForm.SET}:
        _refuse(number)
    if kind.elems is None:
        raise ValueError("the type does not say its names")
    if kind.form is TextForm.ENUM:
        return ("", *kind.elems)[number]
    return ",".join(name for bit, name in enumerate(kind.elems) if number >> bit & 1)


def _vector(value: object) -> bytes:
    if not isinstance(value, tuple):
        _refuse(value)
    items = (np.format_float_positional(np.float32(item), unique=True, trim="-") for item in value)
    return f"[{','.join(items)}]".encode()


def _refuse(value: object) -> NoReturn:
    raise TypeError(f"not of this type: {type(value).__name__}")
