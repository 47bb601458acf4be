"""What a sorter does when its surroundings or its input are bad: one process, one changefeed after another.

The process and its Spark session are shared, for each start costs more than a test; no test needs another one's state.
"""

import http.client
import json
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from compose.stack.local import Addresses
from schemas.ddl.job import DdlDecodeError, DdlType, undecodable_record
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import HeldDdl
from schemas.sink.position import PositionClass, decode_position
from schemas.tidb.row_v2 import encode_row_v2
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import START_TS, RawLog, SinkRecord, read_topic, recorded, row_key, sbtest1_changes
from tests.support.recorded.ddl_jobs import job
from tests.support.upstream.late_address import LateAddress

TABLE = 114
ROWS, ROWS_TS = 100, START_TS + 2_000
"""What most tests write, and the ts up to which that is."""
BAD_TS, LAST_TS = START_TS + 5_000, START_TS + 9_000
UNDECODABLE = DdlRecord(kind="job", ts=Ts(BAD_TS), payload={"id": BAD_TS, "type": int(DdlType.ADD_COLUMN)})
UNKNOWN_TABLE_DROPPED = job(BAD_TS, DdlType.DROP_TABLE, schema_id=1, table_id=999, schema="sb", query="DROP TABLE `x`")


def unread(meta: bytes) -> DdlRecord:
    """Return what a producer lands that could not read the row of a job."""
    table = {"cols": [{"id": 2, "name": {"O": "job_meta", "L": "job_meta"}}]}
    error = DdlDecodeError("no", reason="too new")
    row = encode_row_v2({2: meta})
    return undecodable_record(b"k", row, table, start_ts=Ts(BAD_TS - 1), commit_ts=Ts(BAD_TS), error=error)


@pytest.fixture(scope="module")
def sorter(
    stack: Addresses, fresh_name: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sorter]:
    sorter = Sorter(stack.kafka, stack.zookeeper, tmp_path_factory.mktemp("sorter"), fresh_name("feed"))
    yield sorter
    sorter.close()


@pytest.fixture
def raw_log(stack: Addresses, fresh_name: Callable[[str], str]) -> RawLog:
    """Return a log with ROWS rows up to ROWS_TS."""
    log = RawLog(stack.kafka, fresh_name("up"))
    log.snapshot([recorded("sbtest1")[0]])
    log.rows(TABLE, sbtest1_changes(ROWS, START_TS + 1))
    log.advance(ROWS_TS)
    return log


@pytest.fixture
def late() -> Iterator[LateAddress]:
    address = LateAddress()
    yield address
    address.close()


def _canal_json(kafka: str, topic: str) -> str:
    return f"kafka://{kafka}/{topic}?protocol=canal-json&enable-tidb-extension=true&partition-num=1"


def _avro(kafka: str, topic: str, registry: str) -> str:
    quoted = urllib.parse.quote(registry, safe="")
    return f"kafka://{kafka}/{topic}?protocol=avro&partition-num=1&schema-registry={quoted}"


def _ids(records: list[SinkRecord]) -> list[int]:
    """Return the ids of canal-json's rows, in the order of the one partition."""
    messages = [json.loads(record.value or b"") for record in records]
    return [int(row["data"][0]["id"]) for row in messages if row["type"] == "INSERT"]


def _ask(registry: str, method: str, path: str, body: dict[str, Any] | None = None) -> None:
    """Tell the registry something that it must accept."""
    parts = urllib.parse.urlsplit(registry)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=20)
    try:
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        connection.request(method, parts.path + path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status in (200, 204), text
    finally:
        connection.close()


def test_sorter_when_registry_refuses_a_schema_fails_naming_it_and_resumes_when_it_is_allowed(
    stack: Addresses, sorter: Sorter, raw_log: RawLog, fresh_name: Callable[[str], str]
) -> None:
    topic, registry = fresh_name("sink"), stack.schema_registry
    subject = f"{topic}-value"
    other = {"type": "record", "name": "other", "fields": [{"name": "x", "type": "string"}]}
    _ask(registry, "POST", f"/subjects/{subject}/versions", {"schema": json.dumps(other)})
    _ask(registry, "PUT", f"/config/{subject}", {"compatibility": "FULL"})
    sorter.renew(raw_log.upstream, _avro(stack.kafka, topic, registry), start_ts=START_TS)
    status = sorter.wait(lambda status: status.state == "failed")
    assert status.error is not None
    assert status.error.code == "sorter.schema_refused"
    assert subject in status.error.message
    assert "sbtest1" in status.error.message
    assert status.checkpoint_ts == START_TS
    assert read_topic(stack.kafka, topic) == [], "nothing of the cut is written"
    _ask(registry, "PUT", f"/config/{subject}", {"compatibility": "NONE"})
    sorter.resume()
    sorter.wait_healthy(ROWS_TS)
    positions = [record.position for record in read_topic(stack.kafka, topic)]
    assert [decode_position(position).commit_ts for position in positions] == [
        START_TS + 1 + 10 * number for number in range(ROWS)
    ]


def test_sorter_first_cut_that_the_dispatcher_rules_do_not_fit_fails_before_anything_is_written(
    stack: Addresses, sorter: Sorter, raw_log: RawLog, fresh_name: Callable[[str], str]
) -> None:
    topic, sink = fresh_name("sink"), {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value", "index": "uk"}]}
    sorter.renew(raw_log.upstream, _canal_json(stack.kafka, topic), start_ts=START_TS, config={"sink": sink})
    status = sorter.wait(lambda status: status.state == "failed")
    assert status.error is not None
    assert status.error.code == "sorter.dispatch_failed"
    assert "table has no index `uk`" in status.error.message
    assert "sink.dispatchers[0].index" in status.error.message
    assert status.checkpoint_ts == START_TS
    sorter.create(raw_log.upstream, _canal_json(stack.kafka, topic), start_ts=START_TS)
    assert sorter.wait_checkpoint(ROWS_TS).state == "normal"
    assert _ids(read_topic(stack.kafka, topic)) == list(range(ROWS))


def test_sorter_when_registry_is_unreachable_warns_naming_it_and_goes_on_by_itself(
    stack: Addresses, sorter: Sorter, raw_log: RawLog, late: LateAddress, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("sink")
    real = urllib.parse.urlsplit(stack.schema_registry)
    registry = real._replace(netloc=late.address).geturl()
    sorter.renew(raw_log.upstream, _avro(stack.kafka, topic, registry), start_ts=START_TS)
    status = sorter.wait(lambda status: status.error is not None)
    assert status.error is not None
    assert status.state in ("pending", "warning"), "tried again by and by"
    assert status.error.code == "sorter.registry_unreachable"
    assert late.address in status.error.message
    assert "sbtest1" in status.error.message
    assert status.checkpoint_ts == START_TS
    assert read_topic(stack.kafka, topic) == []
    late.open(real.netloc)
    sorter.wait_healthy(ROWS_TS)
    assert len(read_topic(stack.kafka, topic)) == ROWS


def test_sorter_when_kafka_of_the_sink_is_unreachable_warns_naming_it_and_goes_on_by_itself(
    stack: Addresses, sorter: Sorter, raw_log: RawLog, late: LateAddress, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("sink")
    sorter.renew(raw_log.upstream, _canal_json(late.address, topic), start_ts=START_TS)
    status = sorter.wait(lambda status: status.error is not None)
    assert status.error is not None
    assert status.state in ("pending", "warning"), "tried again by and by"
    assert status.error.code == "sorter.kafka_unreachable"
    assert late.address in status.error.message
    assert status.checkpoint_ts == START_TS
    late.open(stack.kafka)
    sorter.wait_healthy(ROWS_TS)
    assert _ids(read_topic(stack.kafka, topic)) == list(range(ROWS))


def test_sorter_stopped_by_the_user_writes_nothing_until_it_is_normal_again(
    stack: Addresses, sorter: Sorter, raw_log: RawLog, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("sink")
    sink = _canal_json(stack.kafka, topic)
    sorter.renew(raw_log.upstream, sink, start_ts=START_TS)
    sorter.wait_checkpoint(ROWS_TS)
    sorter.create(raw_log.upstream, sink, start_ts=START_TS, desired_state="stopped")
    sorter.wait(lambda status: status.state == "stopped")
    raw_log.rows(TABLE, sbtest1_changes(ROWS, ROWS_TS + 1, ROWS))
    raw_log.advance(LAST_TS)
    status = sorter.status()
    assert status is not None
    assert (status.state, status.checkpoint_ts) == ("stopped", ROWS_TS)
    assert _ids(read_topic(stack.kafka, topic)) == list(range(ROWS))
    sorter.create(raw_log.upstream, sink, start_ts=START_TS)
    assert sorter.wait_checkpoint(LAST_TS).state == "normal"
    assert _ids(read_topic(stack.kafka, topic)) == list(range(2 * ROWS)), "nothing lost, nothing again"


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (UNDECODABLE, "schema.undecodable_ddl"),
        (UNKNOWN_TABLE_DROPPED, "schema.inconsistent_ddl"),
        (unread(b"\xff"), "schema.undecodable_ddl"),
    ],
    ids=["undecodable", "inconsistent", "row"],
)
def test_sorter_on_bad_ddl_job_fails_naming_it_and_writes_nothing_beyond(
    stack: Addresses,
    sorter: Sorter,
    raw_log: RawLog,
    fresh_name: Callable[[str], str],
    record: DdlRecord,
    code: str,
) -> None:
    topic = fresh_name("sink")
    sorter.renew(raw_log.upstream, _canal_json(stack.kafka, topic), start_ts=START_TS)
    sorter.wait_checkpoint(ROWS_TS)
    raw_log.ddl(record)
    raw_log.rows(TABLE, sbtest1_changes(ROWS, BAD_TS + 1, ROWS))
    raw_log.advance(LAST_TS)
    status = sorter.wait(lambda status: status.state == "failed")
    assert status.error is not None
    assert status.error.code == code
    which = f"job_id={BAD_TS}" if record.kind == "job" else "key=6b"
    for part in (which, f"commit_ts={BAD_TS}", f"start_ts={record.start_ts}", raw_log.topics.ddl, "upgrade"):
        assert part in status.error.message
    assert status.checkpoint_ts == ROWS_TS
    written = read_topic(stack.kafka, topic)
    assert _ids(written) == list(range(ROWS))
    assert max(decode_position(message.position).commit_ts for message in written) == ROWS_TS


def test_sorter_at_a_held_ddl_job_waits_unless_it_may_pass_and_goes_on_once_all_has_landed(
    stack: Addresses, sorter: Sorter, raw_log: RawLog, fresh_name: Callable[[str], str]
) -> None:
    """The job made a table that the capture did not know; a newer one lands its rows, far behind those that follow."""
    info, table_id = recorded("sbtest1")[0], 115
    made = {**info, "id": table_id, "name": {"O": "later", "L": "later"}}
    creation = job(BAD_TS, DdlType.CREATE_TABLE, schema_id=1, table_id=table_id, schema="sb", table_info=made)
    record = unread(json.dumps(creation.payload).encode())
    held = HeldDdl(ts=record.ts, start_ts=record.start_ts, low=raw_log.frontier[-1].low)
    topics = [fresh_name("sink"), fresh_name("sink")]
    raw_log.ddl(record)
    raw_log.rows(TABLE, sbtest1_changes(ROWS, BAD_TS + 1, ROWS))
    raw_log.advance(LAST_TS, held_ddl=(held,))
    ignoring = {"filter": {"ignore-txn-start-ts": [int(record.start_ts)]}}
    sorter.renew(raw_log.upstream, _canal_json(stack.kafka, topics[0]), start_ts=START_TS, config=ignoring)
    assert sorter.wait_checkpoint(LAST_TS).state == "normal"
    assert _ids(read_topic(stack.kafka, topics[0])) == list(range(2 * ROWS)), "who does not need the job passes it"
    sorter.renew(raw_log.upstream, _canal_json(stack.kafka, topics[1]), start_ts=START_TS)
    assert sorter.wait_checkpoint(BAD_TS).checkpoint_ts == BAD_TS
    late = [replace(change, key=row_key(table_id, at)) for at, change in enumerate(sbtest1_changes(5, BAD_TS + 2, 0))]
    raw_log.rows(table_id, late)
    raw_log.advance(LAST_TS + 10)
    assert sorter.wait_checkpoint(LAST_TS + 10).state == "normal"
    positions = [decode_position(message.position) for message in read_topic(stack.kafka, topics[1])]
    rows = [position.commit_ts for position in positions if position.position_class is PositionClass.ROW]
    assert rows == sorted(rows)
    assert len(rows) == 2 * ROWS + 5


def test_sorter_with_target_below_a_bad_ddl_job_finishes_and_exits(
    stack: Addresses, sorter: Sorter, raw_log: RawLog, fresh_name: Callable[[str], str]
) -> None:
    topic, target_ts = fresh_name("sink"), START_TS + 1 + 10 * 49
    raw_log.ddl(UNDECODABLE)
    raw_log.rows(TABLE, sbtest1_changes(ROWS, BAD_TS + 1, ROWS))
    raw_log.advance(LAST_TS)
    sorter.renew(raw_log.upstream, _canal_json(stack.kafka, topic), start_ts=START_TS, target_ts=Ts(target_ts))
    assert sorter.process is not None
    assert sorter.process.wait(120) == 0, sorter.log()
    status = sorter.wait(lambda status: status.state == "finished")
    assert (status.checkpoint_ts, status.error) == (target_ts, None)
    assert _ids(read_topic(stack.kafka, topic)) == list(range(50)), "the row at the target is the last one"
