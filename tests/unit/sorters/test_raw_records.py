"""What is read of a cut: a record that is none of the raw log is named by its place, and no more than may be held."""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pytest

from schemas.changes import RowChanges
from schemas.errors import CorruptDataError
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.rawlog.row_parts import cut_record
from sorters.core.cut.cut import Cut
from sorters.cut.raw_cut import read_cut
from sorters.cut.raw_records import raw_records


class OneBadRecord:
    """A log whose partition 1 holds, at offset 7, what somebody else has written there."""

    def read_all(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
        start, end = ranges[1]
        if start <= 7 < end:
            yield 1, 7, b"\x00garbage"


def test_raw_record_that_is_none_is_named_by_partition_and_offset() -> None:
    cut = Cut(after_ts=Ts(1), upto_ts=Ts(9), start=(0, 5), end=(0, 9), may_repeat=False, ddl_end=0)
    with pytest.raises(CorruptDataError) as raised:
        list(raw_records(OneBadRecord(), cut, lambda _: None))
    assert (raised.value.fields["partition"], raised.value.fields["offset"]) == (1, 7)


class OneLargeRow:
    """A log in which a capture has begun again and again to land a row in parts, and has landed it at last."""

    def __init__(self) -> None:
        ts, nothing = np.array([5], np.int64), pa.array([b""], pa.binary())
        rows = RowChanges(
            table_id=TableId(7), commit_ts=ts, start_ts=ts - 1, op=np.ones(1, np.int8),
            key=pa.array([b"k"], pa.binary()), value=pa.array([b"v" * 5_000], pa.binary()),
            old_value=nothing, txn_source=np.zeros(1, np.int64),
        )  # fmt: skip
        self.record = encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1)
        given_up = [list(cut_record(self.record, 1_000, landing))[:-1] for landing in range(9)]
        self._values = [part for parts in given_up for part in parts] + list(cut_record(self.record, 1_000, 9))
        self.bytes, self.read = sum(map(len, self._values)), 0

    @property
    def end(self) -> int:
        return len(self._values)

    def read_all(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
        for offset in range(*ranges[0]):
            self.read += len(self._values[offset])
            yield 0, offset, self._values[offset]


def test_driver_reads_no_more_of_a_cut_than_it_may_hold_though_no_row_of_it_is_whole_yet() -> None:
    log = OneLargeRow()
    cut = Cut(after_ts=Ts(1), upto_ts=Ts(9), start=(0,), end=(log.end,), may_repeat=True, ddl_end=0)
    assert read_cut(log, cut, 10_000) is None
    assert log.read <= 11_000
    whole = read_cut(OneLargeRow(), cut, log.bytes)
    assert whole is not None
    assert (whole.records, whole.raw_bytes) == ([log.record], log.bytes)
