"""Rows larger than a record: parts come together however readers share the log; landings given up say nothing."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edges.kafka.offsets import TopicReader
from schemas.changes import Op, RowChanges
from schemas.errors import CorruptDataError
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.region_batch import RegionBatch, decode_region_batch, encode_region_batch, read_batch_head
from schemas.rawlog.row_parts import PART_OVERHEAD_BYTES, PartJoiner, cut_record
from sorters.core.cut.cut import Cut
from sorters.cut.raw_records import raw_records

PARTITIONS = 2


def record_of(ts: int, value: bytes) -> bytes:
    rows = RowChanges(
        table_id=TableId(7),
        commit_ts=np.array([ts]),
        start_ts=np.array([ts - 1]),
        op=np.array([Op.PUT], np.int8),
        key=pa.array([b"key"], pa.binary()),
        value=pa.array([value], pa.binary()),
        old_value=pa.array([b"old"], pa.binary()),
        txn_source=np.array([0]),
    )
    return encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1)


class MemoryReader(TopicReader):
    """A topic in memory, of which partition p is read in turn with the others, as Kafka hands records out."""

    def __init__(self, log: list[list[bytes]]) -> None:
        self._log = log

    def read_all(self, ranges: object) -> Iterator[tuple[int, int, bytes]]:
        left = {partition: list(range(*pair)) for partition, pair in ranges.items()}  # type: ignore[attr-defined]
        while any(left.values()):
            for partition, offsets in left.items():
                if offsets:
                    offset = offsets.pop(0)
                    yield partition, offset, self._log[partition][offset]


@given(st.binary(max_size=3_000), st.integers(PART_OVERHEAD_BYTES + 1, 600), st.integers(0, 2**64 - 1))
def test_record_cut_and_joined_is_the_same_and_no_part_is_larger_than_allowed(
    value: bytes, bytes_max: int, landing: int
) -> None:
    record, joiner = record_of(5, value), PartJoiner()
    parts = list(cut_record(record, bytes_max, landing))
    assert max(map(len, parts)) <= bytes_max
    assert {(read_batch_head(part).count, read_batch_head(part).max_commit_ts) for part in parts} == {(0, 5)}
    *none, whole = [joiner.take(0, part) for part in parts]
    assert (whole, set(none), joiner.open_partitions) == (record, {None} if none else set(), set())


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[list[bytes]], list[int]]:
    """A log of landings, some given up halfway, interleaved in each partition; and the ts of what was landed whole."""
    log, landed = [], []
    ts = 10
    for partition in range(PARTITIONS):
        producers: list[list[bytes]] = []
        for landing in range(draw(st.integers(0, 5))):
            ts += 1
            record = record_of(ts, bytes(draw(st.integers(0, 400))))
            parts = list(cut_record(record, 250, 100 * partition + landing)) if draw(st.booleans()) else [record]
            kept = parts[: draw(st.integers(1, len(parts)))] if draw(st.booleans()) else parts
            if len(kept) == len(parts):
                landed.append(ts)
            producers.append(kept)
        records: list[bytes] = []
        while any(producers):
            chosen = draw(st.sampled_from([producer for producer in producers if producer]))
            records.append(chosen.pop(0))
        log.append(records)
    return log, landed


@given(logs(), st.integers(1, 4), st.integers(9, 30), st.integers(9, 30))
def test_tasks_that_share_a_cut_read_each_whole_row_once(
    drawn: tuple[list[list[bytes]], list[int]], tasks: int, one_ts: int, other_ts: int
) -> None:
    log, landed = drawn
    after_ts, upto_ts = sorted((one_ts, other_ts))
    ends = tuple(map(len, log))
    cut = Cut(
        after_ts=Ts(after_ts), upto_ts=Ts(upto_ts), start=(0,) * PARTITIONS, end=ends, may_repeat=False, ddl_end=0
    )
    read_ts = []
    for number in range(tasks):
        for record in raw_records(MemoryReader(log), cut, lambda _: None, number, tasks):
            read_ts += decode_region_batch(record).rows.commit_ts.tolist()
    within = [ts for ts in read_ts if after_ts < ts <= upto_ts]
    assert sorted(within) == [ts for ts in landed if after_ts < ts <= upto_ts]


def test_part_read_as_a_batch_is_refused() -> None:
    part = next(cut_record(record_of(5, b"v" * 900), 400, 1))
    with pytest.raises(CorruptDataError, match="does not decode") as caught:
        decode_region_batch(part)
    assert "part of a larger record" in str(caught.value.fields["reason"])
