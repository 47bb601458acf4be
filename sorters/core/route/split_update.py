"""Which updates leave as a delete and an insert: those that change a unique or handle key (TiCDC's sink-side rule).

An update is split if any column with the unique-key or handle-key flag has another text in the new row than in the old
one, columns of nullable unique indexes included; NULL's text is ``null``. Halves keep start_ts and commit_ts. The order
within a transaction (deletes, then updates, then inserts) comes from the position of output records, whose op the
halves carry. ``output-raw-change-event`` turns splitting off.

Source: pingcap/tiflow ``cdc/model/sink.go``, ``shouldSplitUpdateEvent`` and ``trySplitAndSortUpdateEvent``.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.tidb.mysql_types import CdcFlag
from schemas.tidb.table import TableVersion

StringArray = BinaryArray
"""``pyarrow`` (Large)String or (Large)Binary array of value texts, nulls for NULL."""
_NULL_TEXT = b"null"


def split_columns(table: TableVersion) -> tuple[int, ...]:
    """Return the offsets into ``TableVersion.columns`` whose change splits an update."""
    keys = CdcFlag.UNIQUE_KEY | CdcFlag.HANDLE_KEY
    return tuple(column.offset for column in table.columns if column.cdc_flag & keys)


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


def _null_as_text(texts: StringArray) -> StringArray:
    if not texts.null_count:
        return texts
    is_text = pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)
    return pc.fill_null(texts, _NULL_TEXT.decode() if is_text else _NULL_TEXT)
