"""Puller and DDL feed against the embedded cluster, a real Kafka and a real registry: what lands is what TiDB wrote."""

import functools
import struct
import time
import urllib.parse
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from compose.stack.local import Addresses, LocalStack
from consumers.control.core.frontier.frontier import FrontierInputs, advance, first_record
from producers.pull.core.match.change_columns import Change
from producers.pull.ddl.ddl_feed import DdlFeed
from producers.pull.puller import Puller
from producers.region_server.recording import Replay, read_recording
from producers.region_server.server import RegionServer
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError
from schemas.ids import CaptureId, TableId, Ts, UpstreamId
from schemas.rawlog.ddl_record import DdlRecord, decode_ddl_record
from schemas.rawlog.frontier import DdlReport, FrontierRecord
from schemas.rawlog.region_batch import decode_region_batch
from schemas.tidb.spans import TableSpan
from tests.support.recorded.job_rows import EARLY_JOBS
from tests.support.recorded.recording import TIDB_DATA, CommittedChange, committed_changes, oracle, row_table_id
from tests.support.upstream.late_address import LateAddress

CAPTURE = CaptureId("c1")
REPLAY_SPEED = 2.0
"""Of the recording's 14 s: what is killed or stopped soon after the first rows landed has most of them before it."""
HALF = 0.5
"""Where a replay waits until the test has seen what is to happen in the midst of it, however slow the machine."""


@contextmanager
def replayed_cluster() -> Iterator[tuple[RegionServer, Replay]]:
    server = RegionServer(stores=3, min_ts_interval_ms=100)
    replay = Replay(server, read_recording(TIDB_DATA))
    with server:
        yield server, replay


def wait_until(
    done: Callable[[], bool], errors: list[BusError], timeout_s: float = 180.0, poll_s: float = 0.05
) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert not errors, [str(error) for error in errors]
        assert time.monotonic() < deadline
        time.sleep(poll_s)


def read_partition(kafka: str, topic: str, partition: int, low: int, high: int) -> list[bytes]:
    """Return the values at offsets ``[low, high)``."""
    values: list[bytes] = []
    if low >= high:
        return values
    consumer: Any = Consumer({"bootstrap.servers": kafka, "group.id": "test", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, partition, low)])
        deadline = time.monotonic() + 30
        while low + len(values) < high:
            assert time.monotonic() < deadline
            for message in consumer.consume(1000, timeout=0.5):
                assert message.error() is None
                if message.offset() < high:
                    assert message.offset() == low + len(values)
                    values.append(message.value())
    finally:
        consumer.close()
    return values


RawLog = list[list[tuple[TableId, list[Change]]]]
"""Per partition, by offset: the batches' tables and changes."""


def read_raw_log(kafka: str, topic: str, last: FrontierRecord) -> RawLog:
    log: RawLog = []
    for partition, high in enumerate(last.high):
        log.append([])
        for value in read_partition(kafka, topic, partition, 0, high):
            rows = decode_region_batch(value).rows
            numbers = (column.tolist() for column in (rows.commit_ts, rows.start_ts, rows.op))
            texts = (column.to_pylist() for column in (rows.key, rows.value, rows.old_value))
            log[-1].append((rows.table_id, list(zip(*numbers, *texts, rows.txn_source.tolist(), strict=True))))
    return log


def cut(log: RawLog, first: FrontierRecord, second: FrontierRecord) -> dict[TableId, set[Change]]:
    """Cut the raw log as the frontier law says."""
    by_table: dict[TableId, set[Change]] = defaultdict(set)
    for batches, low, high in zip(log, first.low, second.high, strict=True):
        for table_id, changes in batches[low:high]:
            wanted = {change for change in changes if first.resolved_ts < change[0] <= second.resolved_ts}
            if wanted:
                by_table[table_id] |= wanted
    return by_table


@functools.cache
def all_changes() -> list[CommittedChange]:
    return list(committed_changes())


def recorded(tables: set[TableId], after_ts: int, to_ts: int) -> dict[TableId, set[Change]]:
    wanted: dict[TableId, set[Change]] = defaultdict(set)
    for change in all_changes():
        table_id = row_table_id(change.key)
        if table_id in tables and after_ts < change.commit_ts <= to_ts and change.txn_source < 1 << 8:
            op = 1 if change.op == "put" else 2
            wanted[TableId(table_id)].add(
                (change.commit_ts, change.start_ts, op, change.key, change.value, change.old_value, change.txn_source)
            )
    return wanted


def user_tables() -> set[TableId]:
    return {TableId(t) for change in all_changes() if (t := row_table_id(change.key)) and t < 1 << 47}


def publish_next(
    records: list[FrontierRecord], puller: Puller, capture: CaptureId, tables: set[TableId]
) -> FrontierRecord:
    """Do the owner's part once. No DDL feed takes part here: it counts as infinitely far."""
    ddl = DdlReport(landed_ts=Ts(1 << 62), end=0)
    record = advance(
        records[-1],
        FrontierInputs({capture: puller.report()}, ddl, dict.fromkeys(map(TableSpan.of_table, tables), capture)),
    )
    if record != records[-1]:
        records.append(record)
        puller.published(record)
    return records[-1]


def new_puller(server: RegionServer, stack: Addresses, upstream: UpstreamId, capture: str, **more: object) -> Puller:
    return Puller(
        capture=CaptureId(capture),
        upstream=upstream,
        pd_address=server.pd_address,
        kafka=stack.kafka_access,
        schema_registry=stack.registry_access,
        **more,  # type: ignore[arg-type]
    )


def test_puller_stopped_in_mid_landing_and_started_again_then_the_frontier_law_holds(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    """Two lives of a capture: the second knows only the published frontier."""
    upstream, errors = UpstreamId(fresh_name("u")), list[BusError]()
    with replayed_cluster() as (server, replay):
        tables = user_tables()
        puller = new_puller(server, stack, upstream, "c1", on_fatal=errors.append)
        records = [first_record(1, replay.bootstrap_ts, puller.partitions)]

        def publish(alive: Puller, capture: str) -> FrontierRecord:
            return publish_next(records, alive, CaptureId(capture), tables)

        puller.start()
        puller.assign(dict.fromkeys(map(TableSpan.of_table, tables), replay.bootstrap_ts))
        server.spawn(replay.run(REPLAY_SPEED, until=HALF, wait_for_subscriber=True)).result()
        wait_until(lambda: publish(puller, "c1").resolved_ts > replay.bootstrap_ts, errors)
        running = server.spawn(replay.run(REPLAY_SPEED))
        wait_until(lambda: puller.stats().in_flight > 0, errors, poll_s=0.001)  # somewhere in the middle
        assert not replay.progress.finished
        puller.stop()
        mid = records[-1]

        again = new_puller(server, stack, upstream, "c2", on_fatal=errors.append, frontier=mid)
        again.start()
        again.assign(dict.fromkeys(map(TableSpan.of_table, tables), mid.resolved_ts))
        running.result()
        end_ts = replay.progress.last_ts
        wait_until(lambda: publish(again, "c2").resolved_ts >= end_ts, errors)
        stats = again.stats()
        again.stop()
    assert stats.tables == len(tables)
    assert not stats.broker_reason
    last, topic = records[-1], again.topics.region_events
    log = read_raw_log(stack.kafka, topic, last)
    for first in (records[0], mid, records[len(records) // 2]):
        landed = cut(log, first, last)
        assert landed == recorded(tables, first.resolved_ts, last.resolved_ts)


def test_puller_when_the_broker_is_killed_in_mid_landing_then_it_goes_on_and_the_frontier_law_holds(
    stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    upstream, errors, tables = UpstreamId(fresh_name("u")), list[BusError](), user_tables()
    given = Addresses(zookeeper=stack.zookeeper, schema_registry=stack.schema_registry)
    with LocalStack(data=tmp_path, given=given) as own, replayed_cluster() as (server, replay):
        puller = new_puller(server, own.addresses, upstream, "c1", on_fatal=errors.append)
        records = [first_record(1, replay.bootstrap_ts, puller.partitions)]
        puller.start()
        puller.assign(dict.fromkeys(map(TableSpan.of_table, tables), replay.bootstrap_ts))
        running = server.spawn(replay.run(REPLAY_SPEED, until=HALF, wait_for_subscriber=True))

        def resolved_ts() -> Ts:
            return publish_next(records, puller, CaptureId("c1"), tables).resolved_ts

        wait_until(lambda: resolved_ts() > replay.bootstrap_ts, errors)
        own.children["kafka"].kill()
        running.result()
        server.call(replay.run(REPLAY_SPEED))
        wait_until(lambda: "has not acknowledged" in puller.stats().broker_reason, errors)
        stuck_at = resolved_ts()
        assert stuck_at < replay.progress.last_ts, "what no broker has cannot count as landed"
        own.children["kafka"].start()
        own.wait_ready("kafka")
        wait_until(lambda: resolved_ts() >= replay.progress.last_ts, errors)
        puller.stop()
        topic, last = puller.topics.region_events, records[-1]
        log = read_raw_log(own.addresses.kafka, topic, last)
    for first in (records[0], records[len(records) // 2]):
        assert cut(log, first, last) == recorded(tables, first.resolved_ts, last.resolved_ts)


def test_ddl_feed_over_a_recording_then_every_job_of_tidb_is_there_in_order_and_once(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    upstream, errors = UpstreamId(fresh_name("u")), list[BusError]()
    taken: list[DdlRecord] = []
    with replayed_cluster() as (server, replay):

        def new_feed() -> DdlFeed:
            return DdlFeed(
                upstream=upstream,
                pd_address=server.pd_address,
                kafka=stack.kafka_access,
                start_ts=replay.bootstrap_ts,
                on_fatal=errors.append,
            )

        feed = new_feed()
        assert feed.start() == replay.bootstrap_ts
        running = server.spawn(replay.run())

        def jobs() -> int:
            taken.extend(feed.take())
            return sum(record.kind == "job" for record in taken)

        wait_until(lambda: jobs() > 20, errors)
        feed.stop()
        running.result()
        jobs()
        first_life = list(taken)

        feed = new_feed()
        taken = []
        assert feed.start() == replay.bootstrap_ts
        end_ts = replay.progress.last_ts
        wait_until(lambda: feed.report().landed_ts >= end_ts, errors)
        jobs()
        end = feed.report().end
        feed.stop()
    assert taken[: len(first_life)] == first_life, "a restart reads what has landed, and takes no second snapshot"
    values = read_partition(stack.kafka, feed.topics.ddl, 0, 0, end)
    assert [decode_ddl_record(value) for value in values] == taken
    kinds = [record.kind for record in taken]
    snapshot_ts = replay.bootstrap_ts
    assert kinds.count("snapshot_end") == 1
    assert kinds.index("snapshot_end") < kinds.index("job")
    assert [record.ts for record in taken if record.kind == "job"] == sorted(r.ts for r in taken if r.kind == "job")
    landed = [(record.ts, record.payload["id"]) for record in taken if record.kind == "job"]
    events = [(line["commit_ts"], line["job_id"]) for line in oracle("ddl_events")]
    missed = [event for event in events if event[0] > snapshot_ts and event not in landed]
    assert missed == [(job.done_ts, job.id) for job in EARLY_JOBS]
    assert {(job.ts, job.id) for job in EARLY_JOBS} <= set(landed)
    store = SchemaStore.empty()
    for record in taken:
        store.apply(record)
    tables = {version.name for version in store.tables_at(end_ts)}
    assert {"d1.t_all", "sb.sbtest1"} <= tables, sorted(tables)


class SchemaMemory:
    """Over two lives of a capture."""

    schema_id: int | None = None

    def read(self) -> int | None:
        return self.schema_id

    def write(self, schema_id: int) -> None:
        self.schema_id = schema_id


def test_puller_while_the_registry_is_away_lands_and_has_the_schemas_id_when_it_comes(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    upstream, errors, memory = UpstreamId(fresh_name("u")), list[BusError](), SchemaMemory()
    url = urllib.parse.urlsplit(stack.schema_registry)
    late = LateAddress()
    away = replace(stack, schema_registry=url._replace(netloc=late.address).geturl())
    with replayed_cluster() as (server, replay):
        puller = new_puller(server, away, upstream, "c1", on_fatal=errors.append, schema_memory=memory)
        topic = puller.topics.region_events
        records = [first_record(1, replay.bootstrap_ts, puller.partitions)]
        tables = user_tables()
        puller.start()
        puller.assign(dict.fromkeys(map(TableSpan.of_table, tables), replay.bootstrap_ts))
        running = server.spawn(replay.run(REPLAY_SPEED, wait_for_subscriber=True))
        wait_until(
            lambda: publish_next(records, puller, CaptureId("c1"), tables).resolved_ts > replay.bootstrap_ts, errors
        )
        assert memory.read() is None
        late.open(url.netloc)
        wait_until(lambda: memory.schema_id is not None, errors)
        running.result()
        wait_until(
            lambda: publish_next(records, puller, CaptureId("c1"), tables).resolved_ts >= replay.progress.last_ts,
            errors,
        )
        puller.stop()
        late.close()
        again = new_puller(server, away, upstream, "c2", on_fatal=errors.append, schema_memory=memory)
        assert again.schema_id == memory.schema_id, "the registry is away again, and not asked"
        again.stop()
    with stack.registry_access.client() as client:
        registered = client.get_latest_version(f"{topic}-value").schema_id
    assert memory.schema_id == registered
    last = records[-1]
    values = [
        value
        for partition, high in enumerate(last.high)
        for value in read_partition(stack.kafka, topic, partition, 0, high)
    ]
    ids = {struct.unpack_from(">bI", value)[1] for value in values}
    assert ids == {0, registered}, "what landed before it came has no id, and what landed then has its"
