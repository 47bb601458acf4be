"""Columns that do not stand in rows or keys as a whole: defaults, values of the scalar path, and mixtures."""

from collections.abc import Sequence
from datetime import tzinfo
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.tidb.mysql_types import MysqlType
from schemas.tidb.packed_time import text_in_zone
from schemas.tidb.row_checksum import vector_bytes
from schemas.tidb.table import ColumnVersion
from schemas.tidb.value import Value
from sorters.core.columnar.escape import Escaper
from sorters.core.columnar.spans import BoolArray, IntArray
from sorters.core.mount.column import FLOAT_TYPES, LATE_TYPES, Column, Numbers, is_signed, value_text
from sorters.core.mount.row_v2 import ABSENT, VALUE, State


class ValuesColumn(Column):
    """Mounted values of the scalar path."""

    def __init__(self, spec: ColumnVersion, values: Sequence[Value]) -> None:
        self.spec, self._values = spec, values

    def __len__(self) -> int:
        return len(self._values)

    @cached_property
    def valid(self) -> BoolArray | None:
        valid = np.array([value is not None for value in self._values], np.bool_)
        return None if valid.all() else valid

    @cached_property
    def numbers(self) -> Numbers:
        dtype = np.float64 if self.spec.tp in FLOAT_TYPES else np.int64 if is_signed(self.spec) else np.uint64
        return np.array([0 if value is None else value for value in self._values], dtype)

    @cached_property
    def text(self) -> Any:
        return pa.array([value_text(self.spec, value) for value in self._values], pa.binary())

    @property
    def vectors(self) -> Any:
        packed = [vector_bytes(value) if isinstance(value, tuple) else None for value in self._values]
        return pa.array(packed, pa.binary())

    @property
    def unscaled(self) -> IntArray | None:
        return None  # encoders then read the text

    def take(self, rows: npt.NDArray[np.int64]) -> "ValuesColumn":
        return ValuesColumn(self.spec, [self._values[row] for row in rows.tolist()])


class ConstantColumn(Column):
    """A column that the rows say nothing about: its default in every row."""

    def __init__(self, spec: ColumnVersion, value: Value, count: int) -> None:
        self.spec, self._value, self._count = spec, value, count

    def __len__(self) -> int:
        return self._count

    @property
    def valid(self) -> BoolArray | None:
        return np.zeros(self._count, np.bool_) if self._value is None else None

    @cached_property
    def numbers(self) -> Numbers:
        single = ValuesColumn(self.spec, [self._value]).numbers
        return np.full(self._count, single[0], single.dtype)

    @cached_property
    def text(self) -> Any:
        return pa.repeat(pa.scalar(value_text(self.spec, self._value), pa.binary()), self._count)

    @property
    def vectors(self) -> Any:
        return pa.repeat(ValuesColumn(self.spec, [self._value]).vectors[0], self._count)

    @property
    def unscaled(self) -> IntArray | None:
        return None if self._value is not None else np.zeros(self._count, np.int64)

    def same_as(self, other: Column) -> bool:
        return isinstance(other, ConstantColumn) and (self._value, self._count) == (other._value, other._count)

    def take(self, rows: npt.NDArray[np.int64]) -> "ConstantColumn":
        return ConstantColumn(self.spec, self._value, len(rows))


def absent_column(spec: ColumnVersion, count: int, zone: tzinfo) -> ConstantColumn:
    """Return the column of rows that were written without it."""
    value = spec.absent_value
    if spec.tp is MysqlType.TIMESTAMP and isinstance(value, str):
        value = text_in_zone(value, zone)
    return ConstantColumn(spec, value, count)


class MixedColumn(Column):
    """Rows that hold a value, NULL, or nothing, mixed; ``present`` has the rows in state VALUE only, ``absent`` all."""

    def __init__(self, spec: ColumnVersion, state: State, present: Column, absent: Column) -> None:
        self.spec, self._state, self._present, self._absent = spec, state, present, absent

    def __len__(self) -> int:
        return len(self._state)

    @cached_property
    def valid(self) -> BoolArray | None:
        valid: BoolArray = self._state == VALUE
        absent, absent_valid = self._state == ABSENT, self._absent.valid
        valid |= absent if absent_valid is None else absent & absent_valid
        return valid

    @cached_property
    def numbers(self) -> Numbers:
        present = self._present.numbers
        merged = self._absent.numbers.copy() if self._has_absent else np.zeros(len(self), present.dtype)
        merged[self._state == VALUE] = present
        return merged

    @cached_property
    def text(self) -> Any:
        return self._merged(self._present.text, self._absent.text if self._has_absent else None)

    @property
    def vectors(self) -> Any:
        return self._merged(self._present.vectors, self._absent.vectors if self._has_absent else None)

    def escaped(self, escaper: Escaper) -> Any:
        return self._merged(self._present.escaped(escaper), self._absent.escaped(escaper) if self._has_absent else None)

    def _merged(self, present: Any, absent: Any | None) -> Any:
        here = self._state == VALUE
        spread = present.take(pa.array(np.cumsum(here) - 1, mask=~here))
        return spread if absent is None else pc.if_else(pa.array(self._state == ABSENT), absent, spread)

    @cached_property
    def unscaled(self) -> IntArray | None:
        present, absent = self._present.unscaled, self._absent.unscaled if self._has_absent else None
        if present is None or (self._has_absent and absent is None):
            return None
        merged = np.zeros(len(self), np.int64) if absent is None else absent.copy()
        merged[self._state == VALUE] = present
        return merged

    @cached_property
    def _has_absent(self) -> bool:
        return bool((self._state == ABSENT).any())

    def same_as(self, other: Column) -> bool:
        return (
            isinstance(other, MixedColumn)
            and bool((self._state == other._state).all())
            and self._present.same_as(other._present)
            and (not self._has_absent or self._absent.same_as(other._absent))
        )

    def check(self, like: Column | None = None) -> None:
        if like is not None and self.spec.tp in LATE_TYPES and self.same_as(like):
            return
        self._present.check()
        if self._has_absent:
            self._absent.check()

    def take(self, rows: npt.NDArray[np.int64]) -> "MixedColumn":
        here = self._state == VALUE
        chosen = rows[here[rows]]
        present = self._present.take((np.cumsum(here) - 1)[chosen])
        return MixedColumn(self.spec, self._state[rows], present, self._absent.take(rows))


class PatchedColumn(Column):
    """``base`` with the values of ``patch`` at ``rows`` (ascending)."""

    def __init__(self, base: Column, rows: IntArray, patch: Column) -> None:
        self.spec, self._base, self._rows, self._patch = base.spec, base, rows, patch

    def __len__(self) -> int:
        return len(self._base)

    @cached_property
    def valid(self) -> BoolArray | None:
        valid = np.ones(len(self), np.bool_) if self._base.valid is None else self._base.valid.copy()
        valid[self._rows] = True if self._patch.valid is None else self._patch.valid
        return None if valid.all() else valid

    @cached_property
    def numbers(self) -> Numbers:
        numbers = self._base.numbers.copy()
        numbers[self._rows] = self._patch.numbers
        return numbers

    @cached_property
    def text(self) -> Any:
        return self._patched(self._base.text, self._patch.text)

    @property
    def vectors(self) -> Any:
        return self._patched(self._base.vectors, self._patch.vectors)

    def _patched(self, base: Any, patch: Any) -> Any:
        mask = np.zeros(len(self), np.bool_)
        mask[self._rows] = True
        return pc.replace_with_mask(base, pa.array(mask), patch)

    @property
    def unscaled(self) -> IntArray | None:
        return None

    def check(self, like: Column | None = None) -> None:
        self._base.check()

    def take(self, rows: npt.NDArray[np.int64]) -> Column:
        index = np.searchsorted(self._rows, rows)
        patched = self._rows[np.minimum(index, len(self._rows) - 1)] == rows
        base = self._base.take(rows)
        if not patched.any():
            return base
        return PatchedColumn(base, np.flatnonzero(patched), self._patch.take(index[patched]))
