"""Committed row changes as columns: the one in-memory shape that matcher, raw log, mounter and dry run share."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from schemas.ids import TableId


class Op(IntEnum):
    """cdcpb ``Event.Row.OpType``: an insert is a PUT without an old value."""

    PUT = 1
    DELETE = 2


class BinaryArray(Protocol):
    """``pyarrow.BinaryArray`` or ``StringArray`` (int32 offsets), as far as we use it: pyarrow ships no types."""

    nbytes: int
    offset: int
    null_count: int
    type: Any

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...

    def take(self, rows: Any) -> "BinaryArray": ...

    def filter(self, mask: Any) -> "BinaryArray": ...

    def slice(self, offset: int, length: int | None = None) -> "BinaryArray": ...

    def to_pylist(self) -> list[bytes]: ...

    def buffers(self) -> list[Any]: ...

    def is_valid(self) -> Any: ...

    def is_null(self) -> Any: ...

    def drop_null(self) -> "BinaryArray": ...

    def dictionary_encode(self) -> Any: ...

    def equals(self, other: Any) -> bool: ...

    def cast(self, _type: Any) -> "BinaryArray": ...

    def fill_null(self, _value: Any) -> "BinaryArray": ...


@dataclass(frozen=True, kw_only=True)
class RowChanges:
    """``n`` committed row changes of one physical table, in any order, repeats allowed. What is found out of all
    of them is kept, for a hundred changefeeds may ask for it.

    Shapes: every column has length ``n``. ``commit_ts``, ``start_ts`` and ``txn_source`` are int64, ``op`` int8
    (:class:`Op`); ``key`` is the raw TiKV key (``t…_r…``, not memcomparable-padded), ``value`` the row value (empty
    for a DELETE), ``old_value`` the previous row value (empty: there was none).
    """

    table_id: TableId
    commit_ts: npt.NDArray[np.int64]
    start_ts: npt.NDArray[np.int64]
    op: npt.NDArray[np.int8]
    key: BinaryArray
    value: BinaryArray
    old_value: BinaryArray
    txn_source: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.commit_ts)

    @cached_property
    def value_bytes(self) -> int:
        """How long values and old values are together."""
        return self.value.nbytes + self.old_value.nbytes

    @cached_property
    def held_bytes(self) -> int:
        """How long keys, values and old values are together."""
        return self.key.nbytes + self.value_bytes

    @cached_property
    def ts_span(self) -> tuple[int, int]:
        """The lowest and the highest commit_ts; there must be a row."""
        return int(self.commit_ts.min()), int(self.commit_ts.max())

    @cached_property
    def has_deletes(self) -> bool:
        return bool((self.op == Op.DELETE).any())

    @cached_property
    def deletes_of_nothing(self) -> npt.NDArray[np.bool_] | None:
        """Which rows are DELETEs of a row that was not there; None: there are none."""
        if not self.has_deletes:
            return None
        ends = np.frombuffer(self.old_value.buffers()[1], np.int32)[self.old_value.offset :][: len(self) + 1]
        is_nothing = (self.op == Op.DELETE) & (ends[1:] == ends[:-1])
        return is_nothing if is_nothing.any() else None
