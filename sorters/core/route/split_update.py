"""Which updates leave as a delete and an insert: those that change a unique or handle key (TiCDC's sink-side rule).

An update is split if any column with the unique-key or handle-key flag has another text in the new row than in the old
one, columns of nullable unique indexes included; NULL's text is ``null``. Halves keep start_ts and commit_ts. The order
within a transaction (deletes, then updates, then inserts) comes from the position of output records, whose op the
halves carry. ``output-raw-change-event`` turns splitting off.

Two kinds of tables have all their updates split where a database is written: those without a key, since a row is found
there by what it holds, and those with a unique key over an expression or a virtual column. Rows do not hold what such a
key holds, so that any update may change it; and who writes a batch's last rows alone must know which keys became free.

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
from sorters.core.mount.mounted import MountedPart, RowKind

StringArray = BinaryArray
"""``pyarrow`` (Large)String or (Large)Binary array of value texts, nulls for NULL."""
_NULL_TEXT = b"null"


def split_columns(table: TableVersion) -> tuple[int, ...]:
    """Return the offsets into ``TableVersion.columns`` whose change splits an update."""
    keys = CdcFlag.UNIQUE_KEY | CdcFlag.HANDLE_KEY
    return tuple(column.offset for column in table.columns if column.cdc_flag & keys)


def has_unseen_unique(table: TableVersion) -> bool:
    """Tell whether a unique key has a column that is in no row: a virtual one, as TiDB makes for an expression, too."""
    return any(index.unique and len(index.offsets) != len(index.column_names) for index in table.indexes)


def may_free_keys(table: TableVersion) -> bool:
    """Tell whether an update may take a value out of a unique or handle key."""
    return has_unseen_unique(table) or any(not table.columns[offset].in_key for offset in split_columns(table))


def split_by_keys(part: MountedPart) -> list[MountedPart]:
    """Divide updates of a unique or handle key into their halves; other parts stay as they are."""
    if part.kind is not RowKind.UPDATE:
        return [part]
    # A column in the row key cannot differ: both sides of an update have one key.
    offsets = [offset for offset in split_columns(part.table) if not part.table.columns[offset].in_key]
    if not offsets:
        return [part]
    old, new = part.old_columns(), part.new_columns()
    mask = split_mask([old[at].text for at in offsets], [new[at].text for at in offsets], np.ones(len(part), np.bool_))
    if not mask.any():
        return [part]
    halves = part.split(np.flatnonzero(mask))
    return [part.take(np.flatnonzero(~mask)), *halves] if not mask.all() else [*halves]


def split_all(part: MountedPart) -> list[MountedPart]:
    """Divide all updates into their halves."""
    return [part] if part.kind is not RowKind.UPDATE else [*part.split(np.arange(len(part)))]


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
