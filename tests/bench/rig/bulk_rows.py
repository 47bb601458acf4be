"""Raw logs of millions of sysbench rows, made by column: row by row it would take longer than what is measured."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.changes import Op, RowChanges
from schemas.ids import RegionId, TableId
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from tests.support.rawlog.raw_log import RawLog, recorded, row_key

ROWS_PER_BATCH = 1_200
"""About 256 KiB, as producers land a busy table."""
KEY_BYTES = 19


def bulk_rows(table_id: int, handles: npt.NDArray[np.int64], commit_ts: npt.NDArray[np.int64]) -> RowChanges:
    """Return inserts of the recorded sbtest1 rows under these handles; a transaction started one ts before it ended."""
    count, (_, rows) = len(handles), recorded("sbtest1")
    keys = np.tile(np.frombuffer(row_key(table_id, 0), np.uint8), (count, 1))
    keys[:, KEY_BYTES - 8 :] = (handles.astype(np.uint64) ^ (1 << 63)).astype(">u8")[:, None].view(np.uint8)
    key = pa.FixedSizeBinaryArray.from_buffers(pa.binary(KEY_BYTES), count, [None, pa.py_buffer(keys)])
    values = pa.array([row.value for row in rows], pa.binary())
    return RowChanges(
        table_id=TableId(table_id),
        commit_ts=commit_ts.astype(np.int64),
        start_ts=commit_ts.astype(np.int64) - 1,
        op=np.full(count, Op.PUT, np.int8),
        key=key.cast(pa.binary()),
        value=values.take(pa.array(handles % len(rows))),
        old_value=pa.array([b""] * count, pa.binary()),
        txn_source=np.zeros(count, np.int64),
    )


def fill(
    log: RawLog,
    start: int,
    end: int,
    *,
    table_of: Callable[[int], int],
    ts_of: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]],
    rows_per_batch: int = ROWS_PER_BATCH,
    publish_every: int = 0,
) -> None:
    """Write rows ``[start, end)`` to the raw log, batch after batch over its partitions, every other one reversed.

    ``table_of`` takes a batch's number. With ``publish_every`` a frontier record follows so many batches; ``ts_of``
    must rise then.
    """
    for number, at in enumerate(range(start, end, rows_per_batch)):
        handles = np.arange(at, min(at + rows_per_batch, end), dtype=np.int64)
        if number % 2:
            handles = handles[::-1]
        rows = bulk_rows(table_of(number), handles, ts_of(handles))
        record = encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1)
        log.raw(record, number % log.partitions)
        if publish_every and (number + 1) % publish_every == 0:
            log.advance(int(ts_of(handles).max()))
