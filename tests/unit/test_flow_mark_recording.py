"""Flow marks over the whole recording of a real TiDB: processors take what the sorter's own encoders have made."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pytest

from consumers.processors.core.apply.partition import PartitionQueue, start_position
from consumers.processors.core.flow_book import FlowBook, FlowBrokenError
from consumers.processors.core.storage.partition import NotedEnd, PartitionLines
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts
from schemas.sink.flow_mark import read_mark
from schemas.sink.position import POSITION_CLASS_AT, PositionClass
from sorters.core.cut.cut import Cut
from sorters.core.feed.companions import watermark_records
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.flow.flow_marks import FlowMarker
from sorters.core.records.order import OUTPUT_SCHEMA, OutputRecords
from sorters.core.records.runs import merge_runs, pack_run, split_runs, unpack_run
from sorters.cut.raw_cut import RawCut
from sorters.cut.small_cut import whole_cut
from sorters.cut.worker import FeedProgram, output_records
from tests.support.mounting import recorded_store
from tests.support.recording import committed_changes
from tests.unit.test_flow_recording import records

PARTITIONS = 3
DATABASE, FOLDER = "mysql://u@h:1/", "file:///folder?protocol=csv"
JSON_FOLDER = "file:///folder?protocol=canal-json"
Read = Callable[[bytes, int, bytes | None, bytes], None]


def _feed(uri: str) -> CompiledFeed:
    feed = compile_feed(load_changefeed(uri, {}), "default", {"": PARTITIONS})
    return replace(feed, flow_writer="7-0.1.0")


def _cuts() -> list[Cut]:
    stamps = sorted({change.commit_ts for change in committed_changes()})
    borders = [1, 2, stamps[len(stamps) // 2], stamps[-1]]
    return [
        Cut(after_ts=Ts(after), upto_ts=Ts(upto), start=(0,), end=(9,), may_repeat=False, ddl_end=0)
        for after, upto in pairwise(borders)
    ]


def _written(cut: Cut, feed: CompiledFeed) -> OutputRecords:
    program = FeedProgram(recorded_store(), feed)
    watermarks = watermark_records(cut.upto_ts, [""], feed, 1)
    made = whole_cut(cut, RawCut(list(records()), 0), program, watermarks, 1, 1 << 40)
    assert made is not None
    return made.records


def _database_reader(partition: int) -> tuple[FlowBook, Read]:
    queue = PartitionQueue(partition, start_position(Ts(1)), 0)

    def read(position: bytes, offset: int, key: bytes | None, value: bytes) -> None:
        queue.feed(position=position, offset=offset, key=key, value=value)
        while queue.claim(200, bytes_max=1 << 20) is not None:
            queue.arrived()

    return queue.flow, read


def _folder_reader(partition: int) -> tuple[FlowBook, Read]:
    lines = PartitionLines.at(NotedEnd(), partition)

    def read(position: bytes, offset: int, key: bytes | None, value: bytes) -> None:
        lines.take(offset, key, value, position)

    return lines.flow, read


def _of_partition(uri: str, partition: int) -> Iterator[tuple[bytes, bytes | None, bytes]]:
    feed = _feed(uri)
    for cut in _cuts():
        for record in _written(cut, feed).to_pylist():
            if record["partition"] == partition:
                yield record["position"], record["key"], record["value"]


@pytest.mark.parametrize(
    ("uri", "reader"),
    [(DATABASE, _database_reader), (FOLDER, _folder_reader), (JSON_FOLDER, _folder_reader)],
    ids=["database", "csv", "canal-json"],
)
def test_recording_through_sorter_and_processor_is_proven_and_a_lost_message_is_found(
    uri: str, reader: Callable[[int], tuple[FlowBook, Read]]
) -> None:
    rows = 0
    for partition in range(PARTITIONS):
        log = list(_of_partition(uri, partition))
        book, read = reader(partition)
        for offset, (position, key, value) in enumerate(log):
            read(position, offset, key, value)
        assert (book.proven, book.unproven) == (2, 1)
        messages = [at for at, (position, *_) in enumerate(log) if position[POSITION_CLASS_AT] == PositionClass.ROW]
        rows += len(messages)
        if not messages:
            continue
        lost = messages[len(messages) // 2]
        _, read = reader(partition)
        with pytest.raises(FlowBrokenError):
            for offset, (position, key, value) in enumerate(log):
                if offset != lost:
                    read(position, offset, key, value)
    assert rows > 20


def test_marks_of_a_job_of_two_steps_are_those_of_a_cut_on_the_driver() -> None:
    feed, cut = _feed(DATABASE), _cuts()[1]
    assert feed.row_join is not None
    program, slots = FeedProgram(recorded_store(), feed), 2
    tables = [*output_records(iter(records()), cut, program, 1), watermark_records(cut.upto_ts, [""], feed, 1)]
    runs = [[unpack_run(pack_run(run)) for table in tables for slot, run in split_runs(table, slots) if slot == number]
            for number in range(slots)]  # fmt: skip
    written = []
    for mine in runs:
        marker = FlowMarker(cut.after_ts, feed.flow_writer)
        windows = feed.row_join.stream(marker.stream(merge_runs(mine, may_repeat=False, rows=100)))
        written += [record for window in map(marker.marked, windows) for record in window.to_pylist()]
    expected = _marks(_written(cut, feed))
    assert len(expected) == PARTITIONS
    assert _marks(pa.Table.from_pylist(written, OUTPUT_SCHEMA)) == expected


def _marks(written: OutputRecords) -> dict[int, object]:
    return {
        record["partition"]: read_mark(record["value"])
        for record in written.to_pylist()
        if record["position"][POSITION_CLASS_AT] == PositionClass.WATERMARK
    }
