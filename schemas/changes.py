"""Committed row changes as columns: the one in-memory shape that matcher, raw log, mounter and dry run share."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.ids import TableId


class Op(IntEnum):
    """cdcpb ``Event.Row.OpType``: an insert is a PUT without an old value."""

    PUT = 1
    DELETE = 2


BinaryArray = Any
"""``pyarrow.BinaryArray`` (int32 offsets, no nulls); pyarrow ships no types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """``n`` committed row changes of one physical table, in any order, repeats allowed.

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
