"""States of a storage sink's partitions that get no rows: Kafka drops what they have passed, and nothing is missing."""

import random
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from consumers.control.core.replication.messages import Barrier
from consumers.processors.core.apply.executor import Work, WorkOrder
from consumers.processors.core.storage.files import PartitionState, decode_state, state_path
from consumers.processors.core.storage.partition import NotedEnd
from consumers.processors.sink_source import SinkHistoryLostError, SinkRecord
from consumers.processors.storage.begin import FilesLead, FilesShare
from consumers.processors.storage.run import StorageRun
from consumers.processors.storage.states import QUIET_S
from schemas.ids import Ts
from schemas.sink.storage_rows import FolderForm, encode_folder
from tests.property.processors.test_storage_run import SETTINGS, ListSource, MemoryStore
from tests.support.topics.storage_share import WholeStorage
from tests.support.topics.storage_topic import PARTITIONS, START_TS, Topic, message, position, visible, watermark

BUSY, QUIET = 0, 1
CUTS = 20
QUIET_STATE = state_path(SETTINGS.changefeed, QUIET)


class KeptSource(ListSource):
    """A topic whose first records are gone."""

    def __init__(self, topic: Topic, low: Mapping[int, int]) -> None:
        super().__init__(topic, random.Random(1), flows=False)
        self._low = low

    def check(self, offsets: Mapping[int, int]) -> None:
        if any(offset < self._low[number] for number, offset in offsets.items()):
            raise SinkHistoryLostError("gone", offsets=offsets)


class Life:
    """One processor from its beginning; time goes on as the test says."""

    def __init__(self, store: MemoryStore, topic: Topic, low: Mapping[int, int] | None = None) -> None:
        self.source, self.now_s = KeptSource(topic, low or dict.fromkeys(range(PARTITIONS), 0)), 0.0
        now = datetime(2026, 1, 2, tzinfo=UTC)
        self.run = StorageRun(self.source, store, SETTINGS, clock=lambda: self.now_s, now=lambda: now)
        self.whole = WholeStorage(FilesShare(self.run), FilesLead(self.run), PARTITIONS)

    def read_on(self) -> None:
        self.source.flows = True
        while not self.source.is_at_end:
            self.whole.turn()


def extend(topic: Topic, first: int, count: int) -> None:
    """Write cuts, whose rows are all of one partition."""
    form = encode_folder(FolderForm("s", "a", Ts(10)))
    for ts in range(first, first + 2 * count, 2):
        at, key = len(topic[BUSY]), b"a%06d" % ts
        topic[BUSY].append(SinkRecord(BUSY, at, position(ts, key), form, message([(ts, key, b"a|%d\n" % ts)])))
        for number, records in topic.items():
            head, value, where = watermark(ts + 1)
            records.append(SinkRecord(number, len(records), where, head, value))


def quiet_state(store: MemoryStore) -> PartitionState | None:
    content = store.files.get(QUIET_STATE)
    return None if content is None else decode_state(content, QUIET_STATE)


@pytest.fixture
def topic() -> Topic:
    topic: Topic = {number: [] for number in range(PARTITIONS)}
    extend(topic, 20, CUTS)
    return topic


@pytest.mark.parametrize("end", ["given away", "killed after a minute", "stopped"])
def test_partition_without_rows_is_read_on_after_kafka_has_dropped_what_it_has_passed(topic: Topic, end: str) -> None:
    store = MemoryStore()
    life = Life(store, topic)
    life.read_on()
    match end:
        case "stopped":
            life.whole.finish()
        case "given away":
            life.run.obey([WorkOrder(Work.END, QUIET, 7), WorkOrder(Work.END, BUSY, 8)])
        case _:
            life.now_s = QUIET_S
            life.whole.turn()
    life.run.close()
    low = {number: len(records) for number, records in topic.items()}
    extend(topic, 20 + 2 * CUTS, 1)
    life = Life(store, topic, low)
    life.read_on()
    life.whole.finish()
    life.run.close()
    assert life.whole.checkpoint_ts == 20 + 2 * CUTS + 1
    assert len(visible(store.files)["s", "a"]) == CUTS + 1


def test_state_of_a_partition_without_rows_is_written_once_a_minute_while_its_end_moves(topic: Topic) -> None:
    store = MemoryStore()
    life = Life(store, topic)
    life.now_s = QUIET_S - 1
    life.read_on()
    life.whole.turn()
    assert quiet_state(store) is None
    life.now_s = QUIET_S
    life.whole.turn()
    ts = Ts(20 + 2 * CUTS - 1)
    assert quiet_state(store) == PartitionState(NotedEnd(CUTS, b"", ts), {})
    extend(topic, ts + 1, 1)
    life.now_s = 2 * QUIET_S - 1
    life.read_on()
    life.whole.turn()
    state = quiet_state(store)
    assert state is not None
    assert state.end.offset == CUTS, "a minute has not passed"
    life.now_s = 2 * QUIET_S
    life.whole.turn()
    assert quiet_state(store) == PartitionState(NotedEnd(CUTS + 1, b"", Ts(ts + 2)), {})
    puts_left = store.puts_left
    for _ in range(5):
        life.now_s += QUIET_S
        life.whole.turn()
    life.whole.finish()
    assert store.puts_left == puts_left, "nothing has moved"
    life.run.close()


def test_partition_that_has_become_quiet_goes_on_from_its_last_watermark_with_its_index_in_place(topic: Topic) -> None:
    store = MemoryStore()
    life = Life(store, topic)
    life.read_on()
    life.whole.finish()
    head, value, where = watermark(1_000)
    topic[BUSY].append(SinkRecord(BUSY, len(topic[BUSY]), where, head, value))
    life.now_s = QUIET_S
    life.read_on()
    life.whole.turn()
    life.run.close()
    path = state_path(SETTINGS.changefeed, BUSY)
    state = decode_state(store.files[path], path)
    assert (state.end.offset, state.end.watermark_ts, state.last_files) == (len(topic[BUSY]), 1_000, {})
    assert len(visible(store.files)["s", "a"]) == CUTS


def read_elsewhere(store: MemoryStore, topic: Topic, version: Ts) -> StorageRun:
    """Return a run whose partition ends with a line of a table version; partition 0 is another processor's."""
    key, form = b"b000001", encode_folder(FolderForm("s", "b", version))
    rows = message([(501, key, b"b|501\n")])
    topic[QUIET].append(SinkRecord(QUIET, CUTS, position(501, key), form, rows))
    source = KeptSource({QUIET: topic[QUIET]}, {QUIET: 0})
    run = StorageRun(source, store, SETTINGS, clock=lambda: 0.0, now=lambda: datetime(2026, 1, 2, tzinfo=UTC))
    for work in (Work.LOCATE, Work.OPEN):
        order = WorkOrder(work, QUIET, 1, revision=1)
        run.obey([order])
        while order not in run.turn(Barrier(Ts(0)), is_restless=True):
            pass
    source.flows = True
    while not source.is_at_end:
        run.turn(Barrier(Ts(0), schemas_ts=START_TS), is_restless=False)
    return run


def test_lines_that_may_not_be_written_hold_their_partitions_state_back(topic: Topic) -> None:
    store = MemoryStore()
    run = read_elsewhere(store, topic, Ts(500))
    run.turn(Barrier(Ts(0), schemas_ts=Ts(499)), is_restless=False)
    run.flush()
    state = quiet_state(store)
    assert state is None or state.end.offset <= CUTS
    run.turn(Barrier(Ts(0), schemas_ts=Ts(500)), is_restless=False)
    state = quiet_state(store)
    assert state is not None
    assert (state.end.offset, len(state.last_files)) == (CUTS + 1, 1)
    run.close()


def test_lines_of_a_table_of_the_start_wait_until_partition_0_is_past_it(topic: Topic) -> None:
    """A leader says the start ts before anybody has read anything, and schema files of that ts are still to come."""
    store = MemoryStore()
    run = read_elsewhere(store, topic, START_TS)
    run.flush()
    assert not visible(store.files)
    run.turn(Barrier(Ts(0), schemas_ts=Ts(START_TS + 1)), is_restless=False)
    assert list(visible(store.files)) == [("s", "b")]
    run.close()
