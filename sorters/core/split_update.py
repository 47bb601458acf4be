"""Which updates leave as a delete and an insert: those that change a unique or handle key (TiCDC's sink-side rule).

An update is split if any column with the unique-key or handle-key flag has another text in the new row than in the old
one, columns of nullable unique indexes included; NULL's text is ``null``. Halves keep start_ts and commit_ts. The order
within a transaction (deletes, then updates, then inserts) comes from the position of output records, whose op the
halves carry. ``output-raw-change-event`` turns splitting off.

Source: pingcap/tiflow ``cdc/model/sink.go``, ``shouldSplitUpdateEvent`` and ``trySplitAndSortUpdateEvent``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.position import RowOp
from schemas.tidb.mysql_types import CdcFlag
from schemas.tidb.table import TableVersion
from sorters.core.columnar.mounted import MountedPart, RowKind

StringArray = Any
"""``pyarrow`` (Large)String or (Large)Binary array of value texts, nulls for NULL."""
Text = str | bytes | None
_NULL_TEXT = b"null"


def split_columns(table: TableVersion) -> tuple[int, ...]:
    """Return the offsets into ``TableVersion.columns`` whose change splits an update."""
    keys = CdcFlag.UNIQUE_KEY | CdcFlag.HANDLE_KEY
    return tuple(column.offset for column in table.columns if column.cdc_flag & keys)


def must_split(old: Sequence[Text], new: Sequence[Text]) -> bool:
    """Tell whether one update is split; the texts are those of :func:`split_columns`, in one order."""
    return any(_as_bytes(a) != _as_bytes(b) for a, b in zip(old, new, strict=True))


def split_mask(
    old: Sequence[StringArray], new: Sequence[StringArray], is_update: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Tell which of n rows are split: bool, shape n; False where ``is_update`` is.

    ``old`` and ``new`` hold one array of n value texts per column of :func:`split_columns`; what stands in a row that
    is no update does not matter.
    """
    differs = np.zeros(len(is_update), np.bool_)
    if is_update.any():
        for before, after in zip(old, new, strict=True):
            unequal = pc.not_equal(_null_as_text(before), _null_as_text(after))
            differs |= unequal.to_numpy(zero_copy_only=False)
    return differs & is_update


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Output rows made of n input rows. All shapes are m = n + number of split updates."""

    row: npt.NDArray[np.int64]
    """Input row of each output row; ascending, a split one twice in turn."""
    op: npt.NDArray[np.int8]
    """:class:`RowOp` of each output row; of a split update first DELETE (its old values), then INSERT (its new)."""


def split_rows(op: npt.NDArray[np.int8], split: npt.NDArray[np.bool_]) -> SplitRows:
    """Expand n rows with their :class:`RowOp` by the mask of :func:`split_mask`."""
    counts = np.where(split, 2, 1)
    row = np.repeat(np.arange(len(op), dtype=np.int64), counts)
    out = op[row].astype(np.int8)
    ends = np.cumsum(counts)[split]
    out[ends - 2] = RowOp.DELETE
    out[ends - 1] = RowOp.INSERT
    return SplitRows(row, out)


def _as_bytes(text: Text) -> bytes:
    if text is None:
        return _NULL_TEXT
    return text.encode() if isinstance(text, str) else text


def _null_as_text(texts: StringArray) -> StringArray:
    if not texts.null_count:
        return texts
    is_text = pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)
    return pc.fill_null(texts, _NULL_TEXT.decode() if is_text else _NULL_TEXT)


def part_split_mask(part: MountedPart) -> npt.NDArray[np.bool_]:
    """Tell which rows of an UPDATE part are split: bool, one per row of the part."""
    assert part.kind is RowKind.UPDATE
    before, after, offsets = part.old_columns(), part.new_columns(), split_columns(part.table)
    old, new = ([side[offset].text for offset in offsets] for side in (before, after))
    return split_mask(old, new, np.ones(len(part), np.bool_))
