"""A sink topic gets more partitions, under a running sorter and between two: what is new is used from a border on."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from compose.stack.local import Addresses
from schemas.ids import Ts
from schemas.sink.position import PositionClass, decode_position
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import START_TS, RawLog, SinkRecord, read_topic, recorded, sbtest1_changes
from tests.support.upstream.feed_sink import wait_until

TABLE, ROWS = 114, 60
STEP = 10 * ROWS
DEADLINE_S = 240.0
DISPATCH = {"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value"}]}}
LOOKS_AT_EACH_EPOCH = "from sorters.run import topic_growth; topic_growth.LOOK_S, topic_growth.LOOKS_SHARE = 0.0, 1e9"
KILLED_BEFORE_IT_REPORTS = """
import os, signal
from sorters.run.nodes.status import StatusBoard
report = StatusBoard.report
def dying(self, **figures):
    if figures:
        os.kill(os.getpid(), signal.SIGKILL)
    report(self)
StatusBoard.report = dying
"""


@pytest.fixture
def raw_log(stack: Addresses, fresh_name: Callable[[str], str]) -> RawLog:
    log = RawLog(stack.kafka, fresh_name("up"))
    log.snapshot([recorded("sbtest1")[0]])
    return log


@pytest.fixture
def sorters(stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path) -> Iterator[Callable[[str], Sorter]]:
    """Return what makes sorters of one changefeed, each on a machine of its own, with what happens to it."""
    name, made = fresh_name("feed"), list[Sorter]()

    def make(trouble: str = "") -> Sorter:
        sorter = Sorter(stack.kafka, stack.zookeeper, tmp_path / str(len(made)), name, trouble=trouble)
        made.append(sorter)
        return sorter

    yield make
    for sorter in made:
        sorter.close()


@pytest.fixture
def topic(stack: Addresses, fresh_name: Callable[[str], str]) -> str:
    name = fresh_name("sink")
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(120)
    return name


def grow(kafka: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(120)
    wait_until(lambda: len(admin.list_topics(timeout=20).topics[topic].partitions) == partitions, lambda: topic)


def land(log: RawLog, step: int) -> Ts:
    """Let a step's rows land and be covered; return its ts."""
    log.rows(TABLE, sbtest1_changes(ROWS, START_TS + 1 + step * STEP, step * ROWS), step % 2)
    upto_ts = Ts(START_TS + (step + 1) * STEP)
    log.advance(upto_ts)
    return upto_ts


def sink(kafka: str, topic: str, protocol: str = "canal-json") -> str:
    return f"kafka://{kafka}/{topic}?protocol={protocol}&enable-tidb-extension=true"


def in_partition(records: list[SinkRecord], partition: int) -> list[tuple[bytes | None, bytes | None, bytes]]:
    return [(record.key, record.value, record.position) for record in records if record.partition == partition]


def classes_above(records: list[SinkRecord], ts: Ts, partition: int) -> list[PositionClass]:
    mine = (decode_position(record.position) for record in records if record.partition == partition)
    return [position.position_class for position in mine if position.commit_ts > ts]


def killed(sorter: Sorter) -> None:
    sorter.start()
    assert sorter.process is not None
    assert sorter.process.wait(DEADLINE_S) == -signal.SIGKILL, sorter.log()


def test_topic_that_grows_under_a_running_sorter_gets_rows_and_watermarks_in_its_new_partitions(
    stack: Addresses, raw_log: RawLog, sorters: Callable[[str], Sorter], topic: str
) -> None:
    sorter = sorters(LOOKS_AT_EACH_EPOCH)
    sorter.create(raw_log.upstream, sink(stack.kafka, topic), start_ts=START_TS, config=DISPATCH)
    first_ts = land(raw_log, 0)
    sorter.start()
    sorter.wait_checkpoint(first_ts)
    grow(stack.kafka, topic, 5)
    sorter.wait_checkpoint(land(raw_log, 1))
    records = read_topic(stack.kafka, topic)
    for partition in range(5):
        after = classes_above(records, first_ts, partition)
        assert after[-1] is PositionClass.WATERMARK
        assert PositionClass.ROW in after, partition
        positions = [position for _, _, position in in_partition(records, partition)]
        assert positions == sorted(set(positions))
    rows = [record for record in records if decode_position(record.position).position_class is PositionClass.ROW]
    assert len({record.position for record in rows}) == 2 * ROWS
    assert sorter.log().count("sink topics have grown") == 1
    assert "run failed" not in sorter.log(), "it needs no restart to learn of them"


def test_topic_that_grew_after_a_sorter_was_killed_gets_the_begun_epoch_where_it_was_and_the_next_in_all(
    stack: Addresses, raw_log: RawLog, sorters: Callable[[str], Sorter], topic: str
) -> None:
    first, second = sorters(KILLED_BEFORE_IT_REPORTS), sorters("")
    first.create(raw_log.upstream, sink(stack.kafka, topic), start_ts=START_TS, config=DISPATCH)
    first_ts = land(raw_log, 0)
    killed(first)
    before = read_topic(stack.kafka, topic)
    assert len(before) == ROWS + 2
    grow(stack.kafka, topic, 5)
    second_ts = land(raw_log, 1)
    second.start()
    second.wait_checkpoint(second_ts)
    after = read_topic(stack.kafka, topic)
    for partition in (0, 1):
        written = in_partition(before, partition)
        assert in_partition(after, partition)[: 2 * len(written)] == written * 2
    for partition in range(2, 5):
        positions = [decode_position(position) for _, _, position in in_partition(after, partition)]
        assert min(position.commit_ts for position in positions) > first_ts, "nothing of the begun epoch"
        assert positions[-1].position_class is PositionClass.WATERMARK
        assert any(position.position_class is PositionClass.ROW for position in positions)


def test_epoch_above_the_border_is_repeated_with_the_schemas_that_new_partitions_are_told(
    stack: Addresses, raw_log: RawLog, sorters: Callable[[str], Sorter], topic: str
) -> None:
    first, dies, last = sorters(""), sorters(KILLED_BEFORE_IT_REPORTS), sorters("")
    first.create(raw_log.upstream, sink(stack.kafka, topic, "simple"), start_ts=START_TS, config=DISPATCH)
    first_ts = land(raw_log, 0)
    first.start()
    first.wait_checkpoint(first_ts)
    first.stop()
    grow(stack.kafka, topic, 5)
    second_ts = land(raw_log, 1)
    killed(dies)
    before = read_topic(stack.kafka, topic)
    grow(stack.kafka, topic, 7)
    last.start()
    last.wait_checkpoint(second_ts)
    last.wait_checkpoint(land(raw_log, 2))
    after = read_topic(stack.kafka, topic)
    for partition in range(2, 5):
        written = in_partition(before, partition)
        classes = [decode_position(position).position_class for _, _, position in written]
        assert classes[0] is PositionClass.BOOTSTRAP, "a row's schema is told before the row"
        assert classes[1:].count(PositionClass.BOOTSTRAP) == 0
        assert in_partition(after, partition)[: 2 * len(written)] == written * 2
    for partition in (5, 6):
        positions = [decode_position(position) for _, _, position in in_partition(after, partition)]
        assert positions[0].position_class is PositionClass.BOOTSTRAP
        assert min(position.commit_ts for position in positions[1:]) > second_ts
    for partition in (0, 1):
        written_at = [position for _, _, position in in_partition(before, partition)]
        assert written_at == sorted(set(written_at)), "nothing is told again where it was told"
