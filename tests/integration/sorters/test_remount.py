"""``tidebus remount``: an interval of the raw log again, in other forms, byte for byte the same each time."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from compose.foresight.explain import explained, raw_log_schemas
from compose.stack.local import Addresses
from edges.kafka.access import KafkaAccess
from edges.kafka.topic_state import topic_states
from schemas.config.changefeed import load_changefeed
from schemas.config.client_options import librdkafka_options
from schemas.ddl.job import DdlType
from schemas.errors import ConfigError
from schemas.ids import TableId, Ts, UpstreamId
from schemas.rawlog.frontier import HeldTables
from schemas.rawlog.log_state import RawLogLostError, RawLogRecreatedError, topic_ids
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from sorters.run.feed_run import TargetNotReachedError
from sorters.run.remount import IntervalGoneError, Remount, Remounted, remount
from tests.support.rawlog.raw_log import START_TS, Change, RawLog, SinkRecord, create_topic, read_topic
from tests.support.recorded.ddl_jobs import PRIMARY, column, job, table_info

TABLE, OTHER = TableId(114), TableId(115)
DDL_TS, STEP, STEPS = START_TS + 500, 100, 10


def info(table: TableId, name: str, *more: dict[str, Any]) -> dict[str, Any]:
    columns = [column(1, "id", not_null=True, flag=PRIMARY), column(2, "v"), *more]
    return table_info(table, name, columns=[spec | {"offset": offset} for offset, spec in enumerate(columns)])


def no_spark() -> Any:
    raise AssertionError("so few rows need no Spark")


@pytest.fixture
def raw_log(stack: Addresses, fresh_name: Callable[[str], str]) -> RawLog:
    """Two tables, ten rows each a step, ten frontier records; in mid-way ``t1`` gets a column."""
    log = RawLog(stack.kafka, fresh_name("up"))
    log.snapshot([info(TABLE, "t1"), info(OTHER, "t2")])
    for step in range(STEPS):
        first_ts = START_TS + STEP * step + 1
        if first_ts == DDL_TS + 1:
            wider = info(TABLE, "t1", column(3, "w", origin_default="7"))
            query = "ALTER TABLE `t1` ADD COLUMN `w` INT DEFAULT 7"
            log.ddl(job(DDL_TS, DdlType.ADD_COLUMN, schema_id=1, table_id=TABLE, schema="sb", query=query,
                        table_info=wider))  # fmt: skip
        for partition, table in enumerate((TABLE, OTHER)):
            changes = [
                Change(first_ts + at, row_key(table, 10 * step + at), encode_row_v2({2: bytes([at])}))
                for at in reversed(range(10))
            ]
            log.rows(table, changes, partition)
        log.advance(START_TS + STEP * (step + 1))
    return log


def run(log: RawLog, folder: Path, uri: str, first: int, last: int, config: dict[str, Any] | None = None) -> Remounted:
    order = Remount(
        kafka=KafkaAccess(log.kafka),
        upstream=UpstreamId(log.upstream),
        config=load_changefeed(f"kafka://{log.kafka}/{uri}", config),
        from_ts=Ts(first),
        to_ts=Ts(last),
        data_dir=folder,
    )
    return remount(no_spark, order)


def said(records: list[SinkRecord]) -> list[tuple[int, bytes | None, bytes | None, bytes]]:
    return [(record.partition, record.key, record.value, record.position) for record in records]


def test_remount_of_an_interval_twice_writes_the_same_bytes_and_nothing_beyond_it(
    raw_log: RawLog, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    form = "protocol=canal-json&enable-tidb-extension=true&partition-num=2"
    first_ts, last_ts = START_TS + 150, START_TS + 705
    topics = [fresh_name("again") for _ in range(2)]
    done = [run(raw_log, tmp_path, f"{topic}?{form}", first_ts, last_ts) for topic in topics]
    assert done[0] == done[1]
    first, second = (read_topic(raw_log.kafka, topic) for topic in topics)
    assert sorted(said(first)) == sorted(said(second))
    for partition in range(2):
        mine = [[message for message in said(records) if message[0] == partition] for records in (first, second)]
        assert mine[0] == mine[1]
    messages = [json.loads(record.value or b"") for record in first]
    inserts = [message for message in messages if message["type"] == "INSERT"]
    commit_ts = sorted(message["_tidb"]["commitTs"] for message in inserts)
    # Steps 2 to 6 whole, and the first five rows of step 7; of two tables.
    assert commit_ts == sorted(2 * [*(START_TS + 1 + 100 * s + at for s in range(2, 7) for at in range(10)),
                                    *(START_TS + 701 + at for at in range(5))])  # fmt: skip
    assert done[0].rows == len(inserts)
    assert [message["sql"] for message in messages if message["isDdl"]] == [
        "ALTER TABLE `t1` ADD COLUMN `w` INT DEFAULT 7"
    ]
    for message in inserts:
        after = message["table"] == "t1" and message["_tidb"]["commitTs"] > DDL_TS
        assert ("w" in message["data"][0]) is after
    watermarks = [message["_tidb"]["watermarkTs"] for message in messages if message["type"] == "TIDB_WATERMARK"]
    assert max(watermarks) == last_ts


def test_remount_in_another_protocol_filter_and_dispatcher_begins_with_the_schema_of_its_start(
    raw_log: RawLog, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    topic = fresh_name("again")
    config = {
        "filter": {"rules": ["sb.t1"]},
        "sink": {"dispatchers": [{"matcher": ["*.*"], "topic": topic + "_{schema}_{table}", "partition": "ts"}]},
    }
    done = run(raw_log, tmp_path, f"{topic}?protocol=simple&partition-num=1", DDL_TS, START_TS + 700, config)
    messages = [json.loads(record.value or b"") for record in read_topic(raw_log.kafka, f"{topic}_sb_t1")]
    assert done.rows == 20
    rows = [message for message in messages if message["type"] == "INSERT"]
    assert sorted(message["commitTs"] - START_TS for message in rows) == [*range(501, 511), *range(601, 611)]
    assert all(message["data"]["w"] == "7" for message in rows)
    (bootstrap,) = (message for message in messages if message["type"] == "BOOTSTRAP")
    assert [column["name"] for column in bootstrap["tableSchema"]["columns"]] == ["id", "v", "w"]
    assert messages.index(bootstrap) < messages.index(rows[0])
    assert not any(message["type"] == "ALTER" for message in messages)  # its ts is not above --from-ts


def test_remount_of_an_interval_that_the_raw_log_has_not_says_what_it_has(
    raw_log: RawLog, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    uri = f"{fresh_name('again')}?protocol=canal-json"
    with pytest.raises(IntervalGoneError, match=f"oldest_ts={START_TS}"):
        run(raw_log, tmp_path, uri, START_TS - 1, START_TS + 100)
    with pytest.raises(TargetNotReachedError, match=f"newest_ts={START_TS + STEP * STEPS}"):
        run(raw_log, tmp_path, uri, START_TS, START_TS + STEP * STEPS + 1)
    with pytest.raises(ConfigError, match="--from-ts must be below --to-ts"):
        run(raw_log, tmp_path, uri, START_TS + 5, START_TS + 5)


def test_remount_of_a_raw_log_that_was_made_anew_since_is_refused(
    stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    log, kafka = RawLog(stack.kafka, fresh_name("up"), partitions=1), KafkaAccess(stack.kafka)
    events, topics = log.topics.region_events, (log.topics.region_events, log.topics.ddl)
    log.snapshot([info(TABLE, "t1")])

    def land(first_ts: int) -> None:
        for at in range(3):
            log.rows(TABLE, [Change(first_ts + at, row_key(TABLE, at), encode_row_v2({2: bytes([at])}))])

    land(START_TS + 1)
    log.advance(START_TS + 100, topic_ids=topic_ids(log.topics, topic_states(kafka.config(), topics)))
    admin = AdminClient({"bootstrap.servers": log.kafka})
    admin.delete_topics([events])[events].result(30)
    deadline = time.monotonic() + 30
    while events in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    create_topic(log.kafka, events, 1, {})
    land(START_TS + 1000)  # at the offsets of those that are gone
    log._producer.flush()
    with pytest.raises(RawLogRecreatedError):
        run(log, tmp_path, f"{fresh_name('again')}?protocol=canal-json", START_TS, START_TS + 100)


def test_remount_up_to_where_a_raw_log_that_lost_its_end_still_has_all_is_done(
    raw_log: RawLog, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    raw_log.ends[0] += 5
    raw_log.advance(START_TS + STEP * (STEPS + 1))
    last_ts, uri = START_TS + STEP * STEPS, f"{fresh_name('again')}?protocol=canal-json"
    assert run(raw_log, tmp_path, uri, START_TS, last_ts).rows == 2 * 10 * STEPS
    with pytest.raises(RawLogLostError):
        run(raw_log, tmp_path, uri, START_TS, last_ts + STEP)


def test_remount_of_tables_that_were_held_needs_the_log_up_to_where_they_are_no_more(
    raw_log: RawLog, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    last_ts = START_TS + STEP * (STEPS + 1)
    held = HeldTables(tables=(TABLE,), ts=Ts(last_ts - STEP), low=(0,) * len(raw_log.ends))
    raw_log.advance(last_ts, held=(held,))
    raw_log.ends[0] += 5
    raw_log.advance(last_ts + 1)
    uri = f"{fresh_name('again')}?protocol=canal-json"
    with pytest.raises(RawLogLostError):
        run(raw_log, tmp_path, uri, START_TS, last_ts)
    assert run(raw_log, tmp_path, uri, START_TS, last_ts, {"filter": {"rules": ["*.t2"]}}).rows == 10 * STEPS


def test_explain_takes_tables_from_the_raw_log_and_topics_from_the_sink(
    raw_log: RawLog, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("sink")
    create_topic(raw_log.kafka, topic, 5, {"max.message.bytes": "300"})
    config = load_changefeed(
        f"kafka://{raw_log.kafka}/{topic}?protocol=canal-json",
        {"sink": {"dispatchers": [{"matcher": ["*.t2"], "topic": topic + "_new"}]}},
    )
    columns = {}
    for ts in (DDL_TS - 1, DDL_TS):
        schemas, at = raw_log_schemas(KafkaAccess(raw_log.kafka), UpstreamId(raw_log.upstream), Ts(ts))
        first, second = explained(config, schemas, at, login=librdkafka_options(config)).tables
        columns[ts] = first.columns
    assert columns == {DDL_TS - 1: 2, DDL_TS: 3}
    assert (first.table, first.topic_exists, first.partitions) == ("sb.t1", True, 5)
    assert first.limit_bytes == 300 - 128
    assert "172 are allowed" in first.trouble[0]
    assert (second.topic, second.topic_exists, second.partitions) == (f"{topic}_new", False, 3)
    assert second.trouble == ()
    assert f"{topic}_new" not in AdminClient({"bootstrap.servers": raw_log.kafka}).list_topics(timeout=20).topics
