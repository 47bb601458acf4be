"""Flow marks over the whole recording of a real TiDB: processors take what the sorter's own encoders have made."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from consumers.processors.core.apply.partition import PartitionQueue, start_position
from consumers.processors.core.flow_book import FlowBook, FlowBrokenError
from consumers.processors.core.storage.partition import NotedEnd, PartitionLines
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts
from schemas.producer_figures import NO_PRODUCER, ProducerFigures
from schemas.sink.flow_mark import read_mark
from schemas.sink.position import POSITION_CLASS_AT, PositionClass
from sorters.core.cut.cut import Cut
from sorters.core.feed.companions import watermark_records
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.records.order import OutputRecords
from sorters.core.records.runs import pack_run, split_runs
from sorters.cut.raw_cut import RawCut
from sorters.cut.whole_cut import whole_cut
from sorters.cut.worker import FeedProgram, output_records
from sorters.spark.tasks.two_steps import WriteTask, write_runs
from tests.support.recorded.mounting import recorded_store
from tests.support.recorded.recording import committed_changes
from tests.unit.proofs.test_flow_recording import records

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


class _Collector:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.records = list[dict[str, Any]]()

    def write(self, records: OutputRecords, fence: bytes, note: None) -> None:
        assert not fence and note is None
        self.records += records.to_pylist()

    def finish(self) -> None: ...

    def figures(self) -> ProducerFigures:
        return NO_PRODUCER


def test_marks_of_a_job_of_two_steps_are_those_of_a_cut_on_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, cut = _feed(DATABASE), _cuts()[1]
    program, slots = FeedProgram(recorded_store(), feed), 2
    tables = [*output_records(iter(records()), cut, program, 1), watermark_records(cut.upto_ts, [""], feed, 1)]
    runs = [(slot, pack_run(run).to_pybytes()) for table in tables for slot, run in split_runs(table, slots)]
    task = WriteTask(
        may_repeat=False,
        folder=None,
        row_join=feed.row_join,
        sink_config={},
        batch_bytes=1 << 20,
        memory_bytes_max=1 << 30,
        after_ts=cut.after_ts,
        flow_writer=feed.flow_writer,
    )
    collector = _Collector()
    monkeypatch.setattr("sorters.spark.tasks.two_steps.lend_writer", lambda *_: nullcontext(collector))
    for number in range(slots):
        assert list(write_runs((run for slot, run in runs if slot == number), task))
    expected = _marks(_written(cut, feed).to_pylist())
    assert len(expected) == PARTITIONS
    assert _marks(collector.records) == expected


def _marks(written: list[dict[str, Any]]) -> dict[int, object]:
    return {
        record["partition"]: read_mark(record["value"])
        for record in written
        if record["position"][POSITION_CLASS_AT] == PositionClass.WATERMARK
    }
