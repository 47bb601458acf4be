"""A column of mounted rows: where its values come from, and the forms in which encoders take them.

Values are decoded when an encoder first asks, and once: an update's old side costs a protocol without old values
nothing. Values come from the row value (:class:`RowColumn`) or the row key (:class:`KeyColumn`); other sources, and
rows that differ in that, are in :mod:`sorters.core.mount.filled_columns`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from schemas.errors import BusError
from schemas.tidb.mysql_types import DATETIME_TYPES, INTEGER_TYPES, STRING_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion
from schemas.tidb.value import Value
from sorters.core.columnar.decimals import DigitsError, check_digits, decimal_misfits, decimal_texts, unscaled_int64
from sorters.core.columnar.escape import Escaper
from sorters.core.columnar.json_texts import check_json, json_texts
from sorters.core.columnar.numbers import (
    FLOAT_BYTES,
    decode_floats,
    decode_integers,
    float_text,
    integer_misfits,
    integer_text,
    plain_digits,
)
from sorters.core.columnar.spans import BoolArray, IntArray, Spans
from sorters.core.columnar.times import datetime_texts, duration_texts, in_zone, no_calendar_times
from sorters.core.columnar.vectors import vector_misfits, vector_texts
from sorters.core.mount.keys import KeyValues
from sorters.core.mount.scalar import CorruptRowError

FLOAT_TYPES = frozenset({MysqlType.FLOAT, MysqlType.DOUBLE})
NUMBER_TYPES = INTEGER_TYPES | FLOAT_TYPES | {MysqlType.YEAR, MysqlType.ENUM, MysqlType.SET, MysqlType.BIT}
"""Types with a number as their mounted value."""
_BYTES_TYPES = STRING_TYPES | {MysqlType.JSON, MysqlType.DECIMAL, MysqlType.VECTOR}
"""Types whose row bytes are no single machine word."""
LATE_TYPES = frozenset({MysqlType.JSON, MysqlType.DECIMAL})
"""Types whose values may turn out corrupt only when they are decoded; what others hold is checked when it is mounted. A
TIMESTAMP is one too, where it is moved to another zone than UTC.
"""
_DATE_TYPES = frozenset({MysqlType.DATE, MysqlType.NEWDATE})
Numbers = npt.NDArray[Any]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class RowNames:
    """What an error says about a row: its table, and its key and commit_ts by row number."""

    table: str
    keys: Spans
    commit_ts: IntArray

    def take(self, rows: npt.NDArray[Any]) -> "RowNames":
        return RowNames(self.table, self.keys.take(rows), self.commit_ts[rows])

    def corrupt(self, row: int, reason: str, **fields: object) -> CorruptRowError:
        """Return the error for a row, as the scalar mounter words it; the caller raises it."""
        where = {"table": self.table, "key": self.keys[row].hex(), "commit_ts": int(self.commit_ts[row])}
        return CorruptRowError("row does not decode", **where, reason=reason, **fields)


def is_signed(column: ColumnVersion) -> bool:
    """Tell whether an integer column's row bytes are two's complement. YEAR is, though TiDB flags it unsigned."""
    if column.tp in {MysqlType.YEAR, MysqlType.TIME}:
        return True
    return column.tp in INTEGER_TYPES and not column.unsigned


class Column:
    """``len`` values of one table column, in the order of the rows."""

    spec: ColumnVersion

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def valid(self) -> BoolArray | None:
        """False where the value is NULL; None: there is no NULL."""
        raise NotImplementedError

    @property
    def numbers(self) -> Numbers:
        """int64, uint64 or (FLOAT, DOUBLE) float64, of NUMBER_TYPES only; junk where not valid."""
        raise NotImplementedError

    @property
    def text(self) -> Any:
        """``pyarrow.BinaryArray``, null for NULL: numbers in digits, strings and blobs as they are, the rest as TiDB
        prints.

        ENUM, SET and BIT are their numbers here; floats have no exponent.
        """
        raise NotImplementedError

    @property
    def vectors(self) -> Any:
        """VECTOR only: ``pyarrow.BinaryArray`` of the values as rows hold them, null for NULL."""
        raise NotImplementedError

    def escaped(self, escaper: Escaper) -> Any:
        """Return :attr:`text` as the inside of JSON strings; blobs are read as ISO-8859-1."""
        return escaper.column(self.text, blob=self.spec.tp in STRING_TYPES and self.spec.binary)

    def same_as(self, other: "Column") -> bool:
        """Tell, where that is cheap, whether all values are those of ``other``; False may also mean: not known.

        An UPDATE mostly leaves most columns as they were, and what was written once for the new side need not be
        written again for the old one.
        """
        return self is other

    @property
    def unscaled(self) -> IntArray | None:
        """DECIMAL only: the value times ``10**spec.decimal``; None if one might not fit into int64. Junk where not
        valid.
        """
        raise NotImplementedError

    def check(self, like: "Column | None" = None) -> None:
        """Look at values that may be corrupt and that nobody has decoded yet; those of ``like`` are known to be sound.

        Raises:
            CorruptRowError: one does not decode.
        """

    def take(self, rows: npt.NDArray[np.int64]) -> "Column":
        raise NotImplementedError


def misfits(spec: ColumnVersion, spans: Spans) -> BoolArray | None:
    """Tell which values of the row format cannot be this column's; None: all can. JSON is checked when it is read,
    strings always fit.
    """
    if spec.tp is MysqlType.DECIMAL:
        bad = decimal_misfits(spans)
    elif spec.tp is MysqlType.VECTOR:
        bad = vector_misfits(spans)
    elif spec.tp in FLOAT_TYPES:
        bad = spans.length != FLOAT_BYTES
    elif spec.tp in NUMBER_TYPES or spec.tp in DATETIME_TYPES or spec.tp is MysqlType.TIME:
        bad = integer_misfits(spans)
    else:
        return None
    return bad if bad.any() else None


def _checked(decode: Callable[[], Result], spec: ColumnVersion, names: RowNames) -> Result:
    """Decode decimals; a corrupt one becomes the error that names its row."""
    try:
        return decode()
    except DigitsError as error:
        raise names.corrupt(error.row, "decimal has a digit group that is too large", column=spec.name) from None


def _raw_text(spec: ColumnVersion, raw: Numbers, zone: tzinfo) -> Any:
    """Write the numbers of a row or key (packed times, nanoseconds, integers, floats) as text."""
    fsp = max(spec.decimal, 0)
    if spec.tp in FLOAT_TYPES:
        return float_text(raw, single=spec.tp is MysqlType.FLOAT)
    if spec.tp is MysqlType.TIME:
        return duration_texts(raw, fsp)
    if spec.tp is MysqlType.TIMESTAMP:
        return datetime_texts(in_zone(raw, zone), fsp)
    if spec.tp in DATETIME_TYPES:
        return datetime_texts(raw, fsp, date_only=spec.tp in _DATE_TYPES)
    return integer_text(raw)


class RowColumn(Column):
    """Values that all stand in row values."""

    valid: ClassVar[None] = None

    def __init__(self, spec: ColumnVersion, spans: Spans, names: RowNames, zone: tzinfo) -> None:
        self.spec, self._spans, self._names, self._zone = spec, spans, names, zone
        moved = spec.tp is MysqlType.TIMESTAMP and zone is not UTC
        self._sound = spec.tp not in LATE_TYPES and not moved
        """All values are known to decode."""

    def __len__(self) -> int:
        return len(self._spans)

    def check(self, like: Column | None = None) -> None:
        if self._sound:
            return
        if self.spec.tp is MysqlType.TIMESTAMP:
            self._check_calendar()
        elif like is not None and self.same_as(like):
            pass
        elif self.spec.tp is MysqlType.DECIMAL:
            _checked(lambda: check_digits(self._spans), self.spec, self._names)
        else:
            check_json(self._spans, self._corrupt)
        self._sound = True

    @cached_property
    def numbers(self) -> Numbers:
        if self.spec.tp in FLOAT_TYPES:
            return decode_floats(self._spans, single=self.spec.tp is MysqlType.FLOAT)
        return decode_integers(self._spans, signed=is_signed(self.spec))

    @cached_property
    def text(self) -> Any:
        text = self._text()
        self._sound = True
        return text

    def _text(self) -> Any:
        match self.spec.tp:
            case MysqlType.DECIMAL:
                return _checked(lambda: decimal_texts(self._spans), self.spec, self._names)
            case MysqlType.VECTOR:
                return vector_texts(self._spans)
            case MysqlType.JSON:
                return json_texts(self._spans, self._corrupt)
            case tp if tp in NUMBER_TYPES or tp in DATETIME_TYPES or tp is MysqlType.TIME:
                return self._number_text()
            case _:
                return self._spans.to_arrow()

    @property
    def vectors(self) -> Any:
        return self._spans.to_arrow()

    def same_as(self, other: Column) -> bool:
        if not isinstance(other, RowColumn):
            return False
        if self.spec.tp in _BYTES_TYPES:
            return self._spans.same_bytes(other._spans)
        return bool((self.numbers.view(np.int64) == other.numbers.view(np.int64)).all())  # bits: 0.0 is not -0.0

    def _number_text(self) -> Any:
        if self.spec.tp is MysqlType.TIMESTAMP:
            self._check_calendar()
        return _raw_text(self.spec, self.numbers, self._zone)

    def _check_calendar(self) -> None:
        """A TIMESTAMP that must be moved to another zone must be a time."""
        if self._zone is not UTC:
            bad = no_calendar_times(self.numbers)
            if bad.any():
                raise self._corrupt(int(bad.argmax()), "timestamp is no time of the calendar")

    def escaped(self, escaper: Escaper) -> Any:
        if self.spec.tp is MysqlType.JSON:  # its own quotes and punctuation are escaped once a shape, not once a row
            text = json_texts(self._spans, self._corrupt, escaper)
            self._sound = True
            return text
        return super().escaped(escaper)

    def _corrupt(self, row: int, why: str) -> BusError:
        return self._names.corrupt(row, why, column=self.spec.name)

    @cached_property
    def unscaled(self) -> IntArray | None:
        scale = max(self.spec.decimal, 0)
        number = _checked(lambda: unscaled_int64(self._spans, scale), self.spec, self._names)
        self._sound = self._sound or number is not None
        return number

    def take(self, rows: npt.NDArray[np.int64]) -> "RowColumn":
        return RowColumn(self.spec, self._spans.take(rows), self._names.take(rows), self._zone)


class KeyColumn(Column):
    """Values that all stand in row keys."""

    valid: ClassVar[None] = None

    def __init__(self, spec: ColumnVersion, values: KeyValues, names: RowNames, zone: tzinfo) -> None:
        self.spec, self._values, self._names, self._zone = spec, values, names, zone

    def __len__(self) -> int:
        values = self._values.numbers if self._values.numbers is not None else self._values.spans
        assert values is not None
        return len(values)

    @property
    def numbers(self) -> Numbers:
        assert self._values.numbers is not None
        return self._values.numbers

    @cached_property
    def text(self) -> Any:
        if self._values.numbers is not None:
            return _raw_text(self.spec, self._values.numbers, self._zone)
        spans = self._values.spans
        assert spans is not None
        if self.spec.tp is MysqlType.DECIMAL:
            return _checked(lambda: decimal_texts(spans), self.spec, self._names)
        return spans.to_arrow()

    @cached_property
    def unscaled(self) -> IntArray | None:
        spans, scale = self._values.spans, max(self.spec.decimal, 0)
        assert spans is not None
        return _checked(lambda: unscaled_int64(spans, scale), self.spec, self._names)

    def check(self, like: Column | None = None) -> None:
        if self.spec.tp is MysqlType.DECIMAL and like is not self:
            spans = self._values.spans
            assert spans is not None
            _checked(lambda: check_digits(spans), self.spec, self._names)

    def take(self, rows: npt.NDArray[np.int64]) -> "KeyColumn":
        numbers, spans = self._values.numbers, self._values.spans
        taken = KeyValues(None if numbers is None else numbers[rows], None if spans is None else spans.take(rows))
        return KeyColumn(self.spec, taken, self._names.take(rows), self._zone)


def value_text(spec: ColumnVersion, value: Value) -> bytes | None:
    """Return one mounted value as :attr:`Column.text` has it."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, tuple):
        return b"[" + b",".join(_float_digits(item, single=True) for item in value) + b"]"
    if isinstance(value, float):
        return _float_digits(value, single=spec.tp is MysqlType.FLOAT)
    return b"%d" % value


def _float_digits(value: float, *, single: bool) -> bytes:
    return plain_digits(str(np.float32(value)) if single else repr(value)).encode()
