"""Values as CSV fields of TiCDC's storage sink, whole columns at once and one by one.

Numbers stand bare, all else is text: in quotes, or with backslashes where there is no quote character. ENUM and SET are
their names, DECIMAL, JSON and times text, bytes base64 or hex.

Source: pingcap/tiflow ``pkg/sink/codec/csv/csv_message.go``, ``fromColValToCsvVal`` and ``formatValue``.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.tidb.mysql_types import INTEGER_TYPES, STRING_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion
from schemas.tidb.value import Value
from sorters.core.columnar.base64_texts import base64_texts
from sorters.core.columnar.escape import data_of
from sorters.core.encode.debezium.values import enum_name, set_names
from sorters.core.encode.wire.segments import or_else
from sorters.core.mount.column import FLOAT_TYPES, Column, value_text

_BARE_TYPES = INTEGER_TYPES | {MysqlType.YEAR, MysqlType.BIT}
_EXPONENT_FROM, _EXPONENT_BELOW = 6, -4
"""Go's ``%v`` is ``%g``: with the shortest digits it takes an exponent from 1e6 on, and below 1e-4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvForm:
    """How fields are written: ``[sink.csv]``."""

    delimiter: str = ","
    quote: str = '"'
    """One character, or none."""
    null: str = "\\N"
    binary_encoding_method: Literal["base64", "hex"] = "base64"

    @property
    def _escapes(self) -> list[tuple[bytes, bytes]]:
        """What to replace by what, one after the other."""
        if self.quote:
            return [(self.quote.encode(), self.quote.encode() * 2)]
        delimiter = "".join("\\" + char for char in self.delimiter)
        escapes = [(b"\\", b"\\\\"), (b"\r", b"\\r"), (b"\n", b"\\n"), (self.delimiter.encode(), delimiter.encode())]
        # A delimiter of one of these is escaped by then.
        return escapes if self.delimiter not in ("\\", "\r", "\n") else escapes[:3]

    def text(self, value: bytes) -> bytes:
        """Return one text as a field.

        >>> CsvForm().text(b'2" nail')
        b'"2"" nail"'
        """
        for seen, form in self._escapes:
            value = value.replace(seen, form)
        return self.quote.encode() + value + self.quote.encode()

    def texts(self, array: BinaryArray) -> BinaryArray:
        """Return a ``pyarrow.BinaryArray`` of texts as fields; nulls stay null."""
        data = data_of(array)
        for seen, form in self._escapes:
            if (data == seen[0]).any():
                array = pc.replace_substring(array, seen, form)
        quote = pa.scalar(self.quote.encode(), pa.binary())
        return pc.binary_join_element_wise(quote, array, quote, b"") if self.quote else array

    def value(self, spec: ColumnVersion, value: Value) -> bytes:
        """Return one mounted value as a field."""
        if value is None:
            return self.null.encode()
        if spec.tp in FLOAT_TYPES:
            assert isinstance(value, float)
            return float_field(value, single=spec.tp is MysqlType.FLOAT)
        text = value_text(spec, value)
        assert text is not None
        if spec.tp in _BARE_TYPES:
            return text
        if spec.tp in _NAMES:
            assert isinstance(value, int)
            return self.text(_NAMES[spec.tp](spec, value).encode("utf-8", "surrogateescape"))
        if spec.tp in STRING_TYPES and spec.binary:
            text = text.hex().encode() if self.binary_encoding_method == "hex" else base64.b64encode(text)
        return self.text(text)

    def column(self, column: Column) -> BinaryArray:
        """Return a column's fields: ``pyarrow.BinaryArray`` without nulls."""
        return or_else(self._column(column), self.null.encode())

    def _column(self, column: Column) -> BinaryArray:
        spec = column.spec
        if spec.tp in FLOAT_TYPES:
            return _floats(column)
        if spec.tp in _BARE_TYPES:
            return column.text
        if spec.tp in _NAMES:
            return self.texts(_names(column))
        if spec.tp in STRING_TYPES and spec.binary:
            if self.binary_encoding_method == "base64":
                return self.texts(base64_texts(column.text))
            return self.texts(_by_word(column.text, lambda word: word.hex().encode()))
        return self.texts(column.text)


_NAMES: dict[MysqlType, Callable[[ColumnVersion, int], str]] = {MysqlType.ENUM: enum_name, MysqlType.SET: set_names}


def float_field(value: float, *, single: bool) -> bytes:
    """Return a float as Go's ``%v``: shortest digits.

    >>> float_field(250.0, single=False), float_field(1234567.5, single=False), float_field(1.5e-7, single=False)
    (b'250', b'1.2345675e+06', b'1.5e-07')
    """
    text = str(np.float32(value)) if single else repr(value)
    sign, digits, exponent = Decimal(text).normalize().as_tuple()
    assert isinstance(exponent, int)
    power = len(digits) - 1 + exponent
    if value == 0 or _EXPONENT_BELOW <= power < _EXPONENT_FROM:
        plain = format(Decimal(text), "f")
        return (plain.rstrip("0").rstrip(".") if "." in plain else plain).encode()
    mantissa = "".join(map(str, digits))
    mantissa = mantissa[0] + ("." + mantissa[1:] if len(mantissa) > 1 else "")
    return f"{'-' if sign else ''}{mantissa}e{'-' if power < 0 else '+'}{abs(power):02d}".encode()


def _floats(column: Column) -> BinaryArray:
    numbers = np.abs(column.numbers)
    extreme = (numbers != 0) & ((numbers < 1e-4) | (numbers >= 1e6))
    if column.valid is not None:
        extreme &= column.valid
    if not extreme.any():
        return column.text
    single = column.spec.tp is MysqlType.FLOAT
    forms = [float_field(value, single=single) for value in column.numbers[extreme].tolist()]
    return pc.replace_with_mask(column.text, pa.array(extreme), pa.array(forms, pa.binary()))


def _names(column: Column) -> BinaryArray:
    name_of = _NAMES[column.spec.tp]
    return _by_word(column.text, lambda word: name_of(column.spec, int(word)).encode("utf-8", "surrogateescape"))


def _by_word(array: BinaryArray, form: Callable[[bytes], bytes]) -> BinaryArray:
    """Write each distinct value once; nulls stay null."""
    words = array.dictionary_encode()
    return pa.array([form(word) for word in words.dictionary.to_pylist()], pa.binary()).take(words.indices)
