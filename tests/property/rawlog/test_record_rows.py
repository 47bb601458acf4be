"""Which rows of a raw record a cut has, beside a look at each row."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from schemas.changes import Op, RowChanges
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch, read_batch_head
from sorters.core.cut.cut import Cut
from sorters.cut.record_rows import rows_of_record

ANY_CUT = Cut(after_ts=Ts(0), upto_ts=Ts(0), start=(0,), end=(1,), may_repeat=False, ddl_end=0)
moments = st.integers(1, 20)


def _record(commit_ts: list[int]) -> bytes:
    ts = np.array(commit_ts, np.int64)
    values = pa.array([b"%d:%d" % pair for pair in enumerate(commit_ts)], pa.binary())
    rows = RowChanges(
        table_id=TableId(7),
        commit_ts=ts,
        start_ts=ts - 1,
        op=np.full(len(ts), Op.PUT, np.int8),
        key=values,
        value=values,
        old_value=values,
        txn_source=np.zeros(len(ts), np.int64),
    )
    return encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1)


@given(commit_ts=st.lists(moments, min_size=1, max_size=6), after_ts=moments, width=st.integers(0, 20))
def test_a_cut_has_the_rows_above_its_start_and_up_to_its_end(commit_ts: list[int], after_ts: int, width: int) -> None:
    record, upto_ts = _record(commit_ts), after_ts + width
    cut = replace(ANY_CUT, after_ts=Ts(after_ts), upto_ts=Ts(upto_ts))
    rows = rows_of_record(record, read_batch_head(record), cut)
    expected = [(ts, b"%d:%d" % (at, ts)) for at, ts in enumerate(commit_ts) if after_ts < ts <= upto_ts]
    assert list(zip(rows.commit_ts.tolist(), rows.key.to_pylist(), strict=True)) == expected
