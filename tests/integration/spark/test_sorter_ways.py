"""A cut may be done on the driver or by Spark tasks, in memory or not: the topics must not show which."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import SchemaRegistryClient

from compose.stack.local import Addresses
from schemas.config.changefeed import load_changefeed
from schemas.config.client_options import librdkafka_options, librdkafka_producer_options
from schemas.config.settings import ChangefeedConfig
from schemas.ids import RegionId, TableId, Ts, physical_ms
from schemas.rawlog.image_batch import ScanName
from schemas.rawlog.images import IdRange, KeyRange
from schemas.rawlog.record_check import NO_TABLE, RecordDamagedError, RowsCheck, Whose, check_headers
from schemas.rawlog.region_batch import RegionBatch, decode_region_batch, encode_region_batch
from schemas.rawlog.row_parts import PART_OVERHEAD_BYTES, cut_record
from schemas.sink.fence import Fence, decode_fence
from schemas.sink.image_note import ImageNote
from schemas.sink.position import decode_position
from sorters.core.cut.cut import Cut, cut_between, frontier_for
from sorters.core.cut.images import LeftOut
from sorters.core.feed.feed import compile_feed
from sorters.cut.damaged_records import DamagedRecord, is_damaged
from sorters.cut.leave import GIVEN
from sorters.cut.raw_records import raw_records
from sorters.cut.record_window import RecordWindow
from sorters.cut.record_writer import NOWHERE
from sorters.log.blackhole_topics import BlackholeTopics
from sorters.log.topic_admin import TopicAdmin
from sorters.registry.confluent import ConfluentRegistry
from sorters.registry.named import NoRegistry
from sorters.run import cut_job
from sorters.run.cut_job import CutJob
from sorters.run.lake_run import OwnReads
from sorters.run.preparation import Preparation
from sorters.run.schema_feed import SchemaFeed
from sorters.spark import cut as spark_cut
from sorters.spark.session import create_session
from tests.support.rawlog.raw_log import (
    START_TS,
    Change,
    RawLog,
    SinkRecord,
    read_topic,
    recorded,
    row_changes,
    row_key,
    sbtest1_changes,
)

TABLE = 114
PARTITIONS = 3
ROWS, IMAGE_ROWS = 20_000, 2_500
"""Changes; rows of each of two tables' images."""
WAYS = {
    "driver": (2**40, -1, True, 0),
    "one task": (-1, 2**40, True, 0),
    "tasks": (-1, -1, True, 0),
    "tasks through Spark": (-1, -1, False, 2**40),
    "tasks through Spark with runs in a file": (-1, -1, False, 0),
}
"""Bytes up to which a cut goes to the driver, or to one task; whether several tasks share files, bytes that one keeps
in memory if not."""


@pytest.fixture(scope="module")
def spark(stack: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    session = create_session("local[2]", "ways", tmp_path_factory.mktemp("ways"))
    yield session
    session.stop()


@pytest.mark.parametrize(("protocol", "repeats"), [("canal-json", False), ("open-protocol", True), ("simple", True)])
def test_cut_done_each_way_gives_the_same_records_in_the_same_order(
    protocol: str,
    repeats: bool,
    stack: Addresses,
    spark: Any,
    fresh_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, topic = RawLog(stack.kafka, fresh_name("up")), fresh_name("sink")
    info, rows = recorded("sbtest1")
    second = {**info, "id": TABLE + 1, "name": {"O": "second", "L": "second"}}
    log.snapshot([info, second])
    changes = sbtest1_changes(ROWS, START_TS + 1)
    for partition, mine in enumerate((changes[0::2], changes[1::2][::-1])):
        for start in range(0, len(mine), 1_000):
            log.rows(TABLE, mine[start : start + 1_000], partition)
    if repeats:
        log.rows(TABLE, changes[100:500], 1, may_repeat=True)
    upto_ts = Ts(START_TS + 10 * ROWS)
    chunks = tuple(
        log.image(
            ScanName(upto_ts, number, 0),
            KeyRange.of_table(TableId(table)),
            {row_key(table, 1_000_000 + at): rows[at % len(rows)].value for at in range(IMAGE_ROWS)},
        )
        for number, table in enumerate((TABLE, TABLE + 1))
    )
    log.advance(upto_ts, repeats=repeats)
    config = load_changefeed(
        f"kafka://{stack.kafka}/{topic}?protocol={protocol}&enable-tidb-extension=true&partition-num={PARTITIONS}",
        {"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value"}]}},
    )
    raw_config = {"bootstrap.servers": stack.kafka}
    schemas = SchemaFeed(raw_config, log.topics.ddl)
    admin = TopicAdmin(librdkafka_options(config), partitions=PARTITIONS, replication=1, auto_create=True)
    preparation = Preparation(lambda: spark, compile_feed(config, "default"), schemas, admin, None, start_ts=START_TS)
    job = CutJob(
        lambda: spark,
        RecordWindow.maker(raw_config, log.topics.region_events),
        topics=log.topics,
        raw_config=raw_config,
        sink_config=librdkafka_producer_options(config),
        next_fence=(Fence(7, attempt).encode() for attempt in count(1)).__next__,
    )
    before, after = (frontier_for(record, lambda _: False) for record in log.frontier)
    read_again = LeftOut((IdRange(TableId(TABLE), TableId(TABLE + 1)),), {})
    cut = replace(cut_between(before, after, START_TS, upto_ts, chunks=chunks), read_again=read_again)
    large = job.large()
    folders = large.runs_parent
    assert folders is not None
    written: dict[str, list[SinkRecord]] = {}
    try:
        program = preparation.begin(cut)
        for schemas_of_tables in preparation.schemas_at_start(cut, physical_ms(upto_ts)):
            job.write(program, schemas_of_tables)
        # simple tells the table's schema to each partition before all else: it is the changefeed's first cut.
        records = read_topic(stack.kafka, topic)
        assert len(records) == (2 * PARTITIONS if protocol == "simple" else 0)
        for way, (driver_bytes_max, task_bytes_max, share_files, memory_bytes_max) in WAYS.items():
            large.runs_parent = folders if share_files else None
            monkeypatch.setattr(cut_job, "DRIVER_CUT_BYTES_MAX", driver_bytes_max)
            monkeypatch.setattr(cut_job, "TASK_CUT_BYTES_MAX", task_bytes_max)
            monkeypatch.setattr(spark_cut, "MEMORY_BYTES_MAX", memory_bytes_max)
            seen = {(record.partition, record.offset) for record in records}
            companions = preparation.companions(cut, physical_ms(upto_ts))
            ran = job.run(cut, preparation, companions, physical_ms(upto_ts), GIVEN)
            assert ran.counts.rows == ROWS + 2 * IMAGE_ROWS + (400 if repeats else 0)
            assert ran.counts.by_spark == (way != "driver")
            assert ran.counts.raw_bytes > 100 * ROWS
            records = read_topic(stack.kafka, topic)
            written[way] = [record for record in records if (record.partition, record.offset) not in seen]
            assert not list(folders.glob("tidebus-runs-*"))
    finally:
        job.close()
        schemas.close()
    plain = {
        way: [(record.partition, record.key, record.value, record.position, record.images) for record in records]
        for way, records in written.items()
    }
    events = {"open-protocol": _open_protocol_rows}.get(protocol, lambda _: 1)
    assert sum(events(record) for record in written["driver"]) == ROWS + 2 * IMAGE_ROWS + PARTITIONS
    if protocol != "open-protocol":  # of which a message may hold changes and rows of an image
        of_images = [record for record in written["driver"] if decode_position(record.position).start_ts == upto_ts]
        assert len(of_images) == 2 * IMAGE_ROWS
    assert all(plain[way] == plain["driver"] for way in WAYS)
    notes = [record.images for record in written["driver"] if record.images]
    assert notes == [ImageNote(0, (("sb", "sbtest1"), ("sb", "second")), ()).encode()] * PARTITIONS, "of watermarks"
    fences = {way: sorted({decode_fence(record.fence) for record in records}) for way, records in written.items()}
    attempts = [{fence.attempt for fence in fences[way]} for way in WAYS]
    assert all(len(each) == 1 for each in attempts)
    assert attempts == sorted(attempts, key=min), "each way is another attempt, and newer"
    assert {way: all(fence.task > 0 for fence in fences[way]) for way in WAYS} == {way: way != "driver" for way in WAYS}
    for partition in range(PARTITIONS):
        positions = [record.position for record in written["driver"] if record.partition == partition]
        assert positions == sorted(set(positions))


@contextmanager
def _blackhole_job(log: RawLog, spark: Any, config: ChangefeedConfig) -> Iterator[tuple[CutJob, Preparation]]:
    """Yield what runs the cuts of a changefeed whose rows go nowhere."""
    raw_config = {"bootstrap.servers": log.kafka}
    schemas = SchemaFeed(raw_config, log.topics.ddl)
    feed, topics, registry = compile_feed(config, "default"), BlackholeTopics(config), NoRegistry()
    preparation = Preparation(lambda: spark, feed, schemas, topics, registry, start_ts=START_TS)
    job = CutJob(
        lambda: spark,
        RecordWindow.maker(raw_config, log.topics.region_events),
        topics=log.topics,
        raw_config=raw_config,
        sink_config=NOWHERE,
    )
    try:
        yield job, preparation
    finally:
        job.close()
        schemas.close()


def _cut_to(log: RawLog, upto_ts: Ts) -> Cut:
    """Return the cut between the two frontier records of a log."""
    before, after = (frontier_for(record, lambda _: False) for record in log.frontier)
    return cut_between(before, after, START_TS, upto_ts)


def test_raw_record_that_is_damaged_and_decodes_stops_each_way_only_changefeeds_that_want_its_table_and_do_not_skip_it(
    stack: Addresses, spark: Any, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log, changes = RawLog(stack.kafka, fresh_name("up")), sbtest1_changes(100, START_TS + 1)
    info = recorded("sbtest1")[0]
    log.snapshot([info, {**info, "id": TABLE + 1, "name": {"O": "second", "L": "second"}}])
    log.rows(TABLE, changes[:50], 1)
    rows = row_changes(TABLE, changes[50:])
    sent = encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1)
    value = rows.value[7].as_py()
    damaged = sent.replace(value, value[:-1] + bytes([value[-1] ^ 1]), 1)
    assert len(decode_region_batch(damaged).rows) == 50
    log.raw(damaged, 1, check_headers(RowsCheck.of(rows), sent, Whose.of(rows)))
    log.rows(TABLE + 1, sbtest1_changes(10, START_TS + 1), 1)
    upto_ts = Ts(START_TS + 10_000)
    log.advance(upto_ts)
    uri = f"blackhole:///{fresh_name('nowhere')}?protocol=canal-json"
    config = load_changefeed(uri, {"filter": {"rules": ["sb.sbtest1"], "skip-damaged-records": ["1:0", "0:1"]}})
    with _blackhole_job(log, spark, config) as (job, preparation):
        cut = _cut_to(log, upto_ts)
        preparation.begin(cut)
        for way in ("driver", "one task", "tasks"):
            monkeypatch.setattr(cut_job, "DRIVER_CUT_BYTES_MAX", WAYS[way][0])
            monkeypatch.setattr(cut_job, "TASK_CUT_BYTES_MAX", WAYS[way][1])
            with pytest.raises(RecordDamagedError) as raised:
                job.run(cut, preparation, preparation.companions(cut, 1), 1, GIVEN)
            fields = raised.value.fields
            assert (fields["topic"], fields["partition"], fields["offset"]) == (log.topics.region_events, 1, 1), way
            assert (fields["table"], fields["table_id"]) == ("sb.sbtest1", TABLE), way
    skipping = {"filter": {"rules": ["sb.sbtest1"], "skip-damaged-records": ["1:1"]}}
    for overlay, kept, is_skipped in (({"filter": {"rules": ["sb.second"]}}, 10, False), (skipping, 50, True)):
        with _blackhole_job(log, spark, load_changefeed(uri, overlay)) as (job, preparation):
            preparation.begin(cut)
            for way in ("driver", "one task", "tasks"):
                monkeypatch.setattr(cut_job, "DRIVER_CUT_BYTES_MAX", WAYS[way][0])
                monkeypatch.setattr(cut_job, "TASK_CUT_BYTES_MAX", WAYS[way][1])
                ran = job.run(cut, preparation, preparation.companions(cut, 1), 1, GIVEN)
                assert (ran.counts.rows, ran.damaged) == (kept, 1 if way == "driver" else 0), "told once in a run"
                last_ts = Ts(int(rows.commit_ts.max()))
                assert ran.counts.damaged == {DamagedRecord((1, 1), TableId(TABLE), last_ts, is_skipped)}, way
    own = OwnReads("lake", {"bootstrap.servers": stack.kafka}, log.topics, tmp_path)
    with closing(own.reader(log.topics.region_events, lambda: False)) as reader:
        read = list(raw_records(reader, cut, lambda _: None))  # as a lake's run reads a cut that it cannot hold
    assert [is_damaged(record) for record in read] == [False, True, False]


@pytest.mark.parametrize(
    "foreign", [b"hello", b"\0\0\0\0\7\2\4\0\x0ahello\0\0\0\0"], ids=["text", "as if it were a part"]
)
def test_raw_record_of_somebody_else_stops_each_way_and_is_passed_over_where_it_is_named(
    stack: Addresses, spark: Any, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, foreign: bytes
) -> None:
    log = RawLog(stack.kafka, fresh_name("up"))
    log.snapshot([recorded("sbtest1")[0]])
    log.rows(TABLE, sbtest1_changes(50, START_TS + 1), 1)
    log.raw(foreign, 1)
    upto_ts = Ts(START_TS + 10_000)
    log.advance(upto_ts)
    uri, cut = f"blackhole:///{fresh_name('nowhere')}?protocol=canal-json", _cut_to(log, upto_ts)
    for skipped in ([], ["1:1"]):
        overlay = {"filter": {"rules": ["sb.*"], "skip-damaged-records": skipped}}
        with _blackhole_job(log, spark, load_changefeed(uri, overlay)) as (job, preparation):
            preparation.begin(cut)
            for way in ("driver", "one task", "tasks"):
                monkeypatch.setattr(cut_job, "DRIVER_CUT_BYTES_MAX", WAYS[way][0])
                monkeypatch.setattr(cut_job, "TASK_CUT_BYTES_MAX", WAYS[way][1])
                if not skipped:
                    with pytest.raises(RecordDamagedError) as raised:
                        job.run(cut, preparation, preparation.companions(cut, 1), 1, GIVEN)
                    fields = raised.value.fields
                    assert (fields["topic"], fields["partition"], fields["offset"]) == (log.topics.region_events, 1, 1)
                    continue
                ran = job.run(cut, preparation, preparation.companions(cut, 1), 1, GIVEN)
                assert ran.counts.rows == 50, way
                assert ran.counts.damaged == {DamagedRecord((1, 1), NO_TABLE, Ts(0), True)}, way


def test_cut_of_a_blackhole_is_made_each_way_and_written_nowhere(
    stack: Addresses, spark: Any, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, rows = RawLog(stack.kafka, fresh_name("up")), 500
    log.snapshot([recorded("sbtest1")[0]])
    log.rows(TABLE, sbtest1_changes(rows, START_TS + 1), 1)
    upto_ts = Ts(START_TS + 10 * rows)
    log.advance(upto_ts)
    nowhere = fresh_name("nowhere")
    config = load_changefeed(f"blackhole:///{nowhere}?protocol=debezium-avro")
    with _blackhole_job(log, spark, config) as (job, preparation):
        cut = _cut_to(log, upto_ts)
        preparation.begin(cut)
        for way, (driver_bytes_max, task_bytes_max, _, memory_bytes_max) in WAYS.items():
            monkeypatch.setattr(cut_job, "DRIVER_CUT_BYTES_MAX", driver_bytes_max)
            monkeypatch.setattr(cut_job, "TASK_CUT_BYTES_MAX", task_bytes_max)
            monkeypatch.setattr(spark_cut, "MEMORY_BYTES_MAX", memory_bytes_max)
            counts = job.run(cut, preparation, preparation.companions(cut, 1), 1, GIVEN).counts
            assert (counts.rows, counts.by_spark) == (rows, way != "driver")
    assert not [
        topic
        for topic in AdminClient({"bootstrap.servers": stack.kafka}).list_topics(timeout=20).topics
        if nowhere in topic
    ]


@pytest.mark.parametrize(
    ("tables_at_once", "task_bytes_max", "protocol"),
    [(0, -1, "avro"), (500, -1, "avro"), (0, 2**40, "debezium-avro"), (500, 2**40, "avro")],
)
def test_cut_by_spark_makes_topics_and_schemas_of_tables_that_have_rows_or_of_few_for_a_large_one(
    tables_at_once: int,
    task_bytes_max: int,
    protocol: str,
    stack: Addresses,
    spark: Any,
    fresh_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, (info, rows) = fresh_name("up"), recorded("sbtest1")
    log, tables = RawLog(stack.kafka, name), [f"{name}-{number}" for number in range(4)]
    log.snapshot([{**info, "id": TABLE + at, "name": {"O": table, "L": table}} for at, table in enumerate(tables)])
    for at in (0, 2):  # the second one in three parts, of which a task reads behind its share
        change = Change(START_TS + 1 + at, row_key(TABLE + at, 1), rows[0].value)
        whole = encode_region_batch(
            RegionBatch(region_id=RegionId(1), may_repeat=False, rows=row_changes(TABLE + at, [change])), 1
        )
        for part in cut_record(whole, PART_OVERHEAD_BYTES + len(whole) // 3 + 1, at) if at else (whole,):
            log.raw(part, 1)
    log.advance(START_TS + 10)
    registry = ConfluentRegistry(stack.registry_access)
    rules = [{"matcher": ["*.*"], "topic": "{schema}_{table}"}]
    uri = f"kafka://{stack.kafka}/{name}?protocol={protocol}&partition-num=1"
    uri += f"&schema-registry={stack.schema_registry}"
    config = load_changefeed(uri, {"sink": {"dispatchers": rules}})
    raw_config = {"bootstrap.servers": stack.kafka}
    schemas = SchemaFeed(raw_config, log.topics.ddl)
    admin = TopicAdmin(librdkafka_options(config), partitions=1, replication=1, auto_create=True)
    feed = compile_feed(config, "default")
    preparation = Preparation(lambda: spark, feed, schemas, admin, registry, start_ts=START_TS)
    sink_config = librdkafka_producer_options(config)
    job = CutJob(
        lambda: spark,
        RecordWindow.maker(raw_config, log.topics.region_events),
        topics=log.topics,
        raw_config=raw_config,
        sink_config=sink_config,
    )
    monkeypatch.setattr(cut_job, "DRIVER_CUT_BYTES_MAX", -1)
    monkeypatch.setattr(cut_job, "TASK_CUT_BYTES_MAX", task_bytes_max)
    monkeypatch.setattr(cut_job, "TABLES_AT_ONCE_MAX", tables_at_once)
    first, second = (frontier_for(record, lambda _: False) for record in log.frontier)
    cut = cut_between(first, second, START_TS, Ts(START_TS + 10))
    try:
        preparation.begin(cut)
        assert job.run(cut, preparation, preparation.companions(cut, 1), 1, GIVEN).counts.rows == 2
    finally:
        job.close()
        schemas.close()
        registry.close()
    made = [f"sb_{table}" for table in tables]
    ready = [made[0], made[2]] if tables_at_once == 0 or task_bytes_max > 0 else made
    topics = AdminClient({"bootstrap.servers": stack.kafka}).list_topics(timeout=20).topics
    assert {topic for topic in topics if name in topic and not topic.startswith("tidebus.")} == {name, *ready}
    with SchemaRegistryClient({"url": stack.schema_registry}) as client:
        subjects = client.get_subjects()
    wanted = {f"{topic}-{side}" for topic in ready for side in ("key", "value")}
    assert {subject for subject in subjects if name in subject} == wanted
    assert [len(read_topic(stack.kafka, made[at])) for at in (0, 2)] == [1, 1]


def _open_protocol_rows(record: SinkRecord) -> int:
    """Return how many events a message holds: after the version, each one's key stands behind its length."""
    key, at, rows = record.key or b"", 8, 0
    while at < len(key):
        at, rows = at + 8 + int.from_bytes(key[at : at + 8], "big"), rows + 1
    return rows
