"""The run's self check on a real Kafka: a raw log from the recording, topics from TiCDC's own list of mounted rows."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compose.local.self_check import SelfCheckResult, check_changefeed
from compose.stack.local import Addresses
from consumers.control.changefeeds.store import ChangefeedRequest, ChangefeedStore
from consumers.control.log.raw_log import RetainedFrontier
from producers.pull.landing.raw_log import RawLogSettings, ensure_raw_topics
from schemas.changes import Op, RowChanges
from schemas.errors import CorruptDataError
from schemas.ids import RegionId, TableId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedStatus, ZkPaths
from schemas.rawlog.ddl_record import encode_ddl_record
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.rawlog.topics import RAW_MESSAGE_BYTES_MAX, raw_partition, raw_topics
from schemas.sink.position import POSITION_HEADER, Position, PositionClass, RowOp
from tests.support.control.changefeed_status import write_status
from tests.support.control.lasting_session import lasting_session
from tests.support.recorded.recording import committed_changes, oracle, row_table_id
from tests.support.recorded.schema_feed import ddl_records

PARTITIONS = 3
LOSSY_DDL = 0xFF00
Change = Callable[[list[bytes]], list[bytes]]


@cache
def raw_batches() -> list[tuple[int, bytes]]:
    """Return (table, record) of all rows that TiKV delivers, a hundred rows a record, the first ten records twice."""
    tables = defaultdict(list)
    for change in committed_changes():
        table = row_table_id(change.key)
        if table is not None and not change.txn_source & LOSSY_DDL:
            tables[table].append(change)
    out = []
    for table, changes in tables.items():
        for at in range(0, len(changes), 100):
            part = changes[at : at + 100]
            rows = RowChanges(
                table_id=TableId(table),
                commit_ts=np.array([c.commit_ts for c in part], np.int64),
                start_ts=np.array([c.start_ts for c in part], np.int64),
                op=np.array([Op.PUT if c.op == "put" else Op.DELETE for c in part], np.int8),
                key=pa.array([c.key for c in part], pa.binary()),
                value=pa.array([c.value for c in part], pa.binary()),
                old_value=pa.array([c.old_value for c in part], pa.binary()),
                txn_source=np.array([c.txn_source for c in part], np.int64),
            )
            out.append((table, encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1)))
    return out + out[:10]


@cache
def output_partitions() -> tuple[tuple[bytes, ...], ...]:
    """Return the positions of each output partition: TiCDC's mounted rows, and a watermark at the end."""
    ops = {"insert": RowOp.INSERT, "update": RowOp.UPDATE, "delete": RowOp.DELETE}
    partitions: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    last_ts = 0
    for row in oracle("mounted"):
        if int(row.get("txn_source") or 0) & LOSSY_DDL:
            continue
        key, last_ts = bytes.fromhex(row["key"]), max(last_ts, row["commit_ts"])
        position = Position(Ts(row["commit_ts"]), PositionClass.ROW, Ts(row["start_ts"]), ops[row["op"]], key)
        partitions[crc32(key) % PARTITIONS].append(position.encode())
    mark = Position(Ts(last_ts), PositionClass.WATERMARK).encode()
    return tuple((*sorted(partition), mark) for partition in partitions)


def run_check(
    stack: Addresses,
    name: str,
    change: Change = list,
    sink: dict[str, object] | None = None,
    strays: Sequence[bytes] = (),
) -> SelfCheckResult:
    """Write raw log and topics, ``change`` applied to the first partition, and check them. ``strays`` come first in the
    raw log's.
    """
    upstream, paths = UpstreamId(name), ZkPaths(name)
    topics = raw_topics(upstream)
    ensure_raw_topics(stack.kafka_access, topics, RawLogSettings(partitions=4))
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    for future in admin.create_topics([NewTopic(f"{name}-out-d_t", PARTITIONS, 1)]).values():
        future.result(30)
    settings = {"linger.ms": 20, "message.max.bytes": RAW_MESSAGE_BYTES_MAX, "enable.idempotence": True}
    producer = Producer({"bootstrap.servers": stack.kafka, **settings})
    for record in ddl_records(committed_changes()):
        producer.produce(topics.ddl, encode_ddl_record(record), partition=0)
    producer.produce(topics.ddl, b"somebody else's", partition=0)
    for stray in strays:
        producer.produce(topics.region_events, stray, partition=0)
    for table, value in raw_batches():
        producer.produce(topics.region_events, value, partition=raw_partition(TableId(table), 4))
    for partition, positions in enumerate(output_partitions()):
        for position in change(list(positions)) if partition == 0 else positions:
            producer.produce(f"{name}-out-d_t", b"{}", partition=partition, headers=[(POSITION_HEADER, position)])
    assert producer.flush(60) == 0
    with lasting_session(stack.zookeeper_access) as session:
        store = ChangefeedStore(session, paths)
        config = {
            "sink": {"dispatchers": [{"matcher": ["*.*"], "topic": name + "-out-{schema}_{table}"}]},
            **(sink or {}),
        }
        uri = f"kafka://{stack.kafka}/{name}-default?protocol=canal-json"
        request = ChangefeedRequest(upstream=upstream, sink_uri=uri, config=config, changefeed_id="cf", start_ts=Ts(0))
        store.create(request, RetainedFrontier(Ts(0), Ts(1)))
        end_ts = Ts(max(int.from_bytes(partition[-1][:8], "big") for partition in output_partitions()))
        write_status(store, "cf", ChangefeedStatus(state="normal", checkpoint_ts=end_ts, resolved_ts=end_ts))
    return check_changefeed(stack.kafka_access, stack.zookeeper_access, cluster=name, changefeed_id="cf")


def test_self_check_ticdcs_rows_are_what_the_raw_log_promises(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    result = run_check(stack, fresh_name("check"))
    assert result.violations == ()
    assert result.ok
    rows = sum(len(partition) for partition in output_partitions()) - PARTITIONS
    assert (result.expected_rows, result.rows, result.watermarks) == (rows, rows, PARTITIONS)
    assert result.raw_rows > rows
    assert any("promises hold" in line for line in result.lines())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda positions: [*positions[:50], *positions[51:]], "1 row changes of the raw log are not in the topics"),
        (lambda positions: [*positions[:50], positions[90], *positions[50:]], "leaves out|out of order"),
        (lambda positions: [*positions[:-2], positions[-1], positions[-2]], "out of order"),
        (
            lambda positions: [*positions[:9], positions[9][:-1] + b"\xff", *positions[10:]],
            "in no batch of the raw log",
        ),
    ],
)
def test_self_check_broken_topics_are_caught(
    stack: Addresses, fresh_name: Callable[[str], str], change: Change, says: str
) -> None:
    result = run_check(stack, fresh_name("check"), change)
    assert not result.ok
    assert any(word in text for text in result.violations for word in says.split("|")), result.violations


def test_self_check_repeated_batch_is_no_breach(stack: Addresses, fresh_name: Callable[[str], str]) -> None:
    result = run_check(stack, fresh_name("check"), lambda positions: [*positions[:400], *positions[300:]])
    assert (result.violations, result.repeats) == ((), 100)


def test_self_check_leaves_out_damaged_raw_records_that_the_changefeed_names_and_says_so(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    strays = [b"hello, wrong topic", b"hello again"]
    named: dict[str, object] = {"filter": {"skip-damaged-records": ["0:0-1"]}}
    result = run_check(stack, fresh_name("check"), sink=named, strays=strays)
    assert result.violations == ()
    assert any("skip-damaged-records" in note and "0:0, 0:1" in note for note in result.notes)
    with pytest.raises(CorruptDataError):
        run_check(stack, fresh_name("check"), sink={"filter": {"skip-damaged-records": ["0:0"]}}, strays=strays)
