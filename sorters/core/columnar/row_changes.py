"""Row changes of one table taken apart and joined.

The columnar steps cost per call, so few long batches beat many short ones.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.changes import RowChanges
from schemas.ids import Ts


def rows_between(rows: RowChanges, after_ts: Ts, upto_ts: Ts) -> RowChanges:
    """Return the rows with ``after_ts < commit_ts <= upto_ts``, in their order; ``rows`` itself if that is all."""
    keep = (rows.commit_ts > after_ts) & (rows.commit_ts <= upto_ts)
    return rows if keep.all() else rows_where(rows, keep)


def rows_where(rows: RowChanges, keep: npt.NDArray[np.bool_]) -> RowChanges:
    """Return the rows for which ``keep`` is true, in their order."""
    mask = pa.array(keep)
    return RowChanges(
        table_id=rows.table_id,
        commit_ts=rows.commit_ts[keep],
        start_ts=rows.start_ts[keep],
        op=rows.op[keep],
        key=rows.key.filter(mask),
        value=rows.value.filter(mask),
        old_value=rows.old_value.filter(mask),
        txn_source=rows.txn_source[keep],
    )


def slices_of_rows(rows: RowChanges, rows_max: int) -> Iterator[RowChanges]:
    """Yield all rows in their order, at most ``rows_max`` at a time; ``rows`` itself if it holds no more."""
    if len(rows) <= rows_max:
        yield rows
        return
    number = np.arange(len(rows)) // rows_max
    for slice_number in range(int(number[-1]) + 1):
        yield rows_where(rows, number == slice_number)


def join_rows(parts: Sequence[RowChanges]) -> RowChanges:
    """Return the rows of one table as one; that alone if it is one already."""
    if len(parts) == 1:
        return parts[0]
    return RowChanges(
        table_id=parts[0].table_id,
        commit_ts=np.concatenate([part.commit_ts for part in parts]),
        start_ts=np.concatenate([part.start_ts for part in parts]),
        op=np.concatenate([part.op for part in parts]),
        key=pa.concat_arrays([part.key for part in parts]),
        value=pa.concat_arrays([part.value for part in parts]),
        old_value=pa.concat_arrays([part.old_value for part in parts]),
        txn_source=np.concatenate([part.txn_source for part in parts]),
    )
