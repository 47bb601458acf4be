"""The rows of one raw record that a cut has."""

from schemas.changes import RowChanges
from schemas.rawlog.batch_head import BatchHead
from schemas.rawlog.region_batch import decode_region_batch
from sorters.core.columnar.row_changes import rows_between
from sorters.core.cut.cut import Cut


def rows_of_record(record: bytes, head: BatchHead, cut: Cut) -> RowChanges:
    """Return the rows of a record that lie within a cut, in their order.

    Most records lie within one as a whole, and ``head`` says so: their rows are not looked at one by one.

    Raises:
        CorruptDataError, RecordDamagedError: see :func:`schemas.rawlog.region_batch.decode_region_batch`.
    """
    rows = decode_region_batch(record).rows
    if cut.after_ts < head.min_commit_ts and head.max_commit_ts <= cut.upto_ts:
        return rows
    return rows_between(rows, cut.after_ts, cut.upto_ts)
