"""The sorter as a real process on a raw log written by hand: order, watermarks, repeats, recovery, errors."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from compose.operator.proofs import NoProofsError, read_proofs
from compose.stack.local import Addresses
from edges.kafka.access import KafkaAccess
from schemas.flow.chain import check_chain
from schemas.flow.flow_sum import FlowSum
from schemas.flow.proof import ProofWindow, decode_proof
from schemas.ids import UpstreamId
from schemas.sink.position import PositionClass, decode_position
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import (
    START_TS,
    Change,
    RawLog,
    SinkRecord,
    read_topic,
    recorded,
    row_key,
    sbtest1_changes,
    wait_for_records,
)

TABLE = 114
PARTITIONS = 3
DISPATCH = {"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value"}]}}


@pytest.fixture
def raw_log(stack: Addresses, fresh_name: Callable[[str], str]) -> RawLog:
    log = RawLog(stack.kafka, fresh_name("up"))
    log.snapshot([recorded("sbtest1")[0]])
    return log


@pytest.fixture
def sorter(stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path) -> Iterator[Sorter]:
    sorter = Sorter(stack.kafka, stack.zookeeper, tmp_path, fresh_name("feed"))
    yield sorter
    sorter.close()


def _sink(sorter: Sorter, topic: str, extra: str = "") -> str:
    return f"kafka://{sorter.kafka}/{topic}?protocol=canal-json&enable-tidb-extension=true&partition-num={PARTITIONS}{extra}"


def _rows(records: list[SinkRecord]) -> list[dict]:  # type: ignore[type-arg]
    messages = [json.loads(record.value or b"") for record in records]
    return [row for row in messages if row["type"] in ("INSERT", "UPDATE", "DELETE")]


def _assert_partitions_in_order(records: list[SinkRecord]) -> None:
    for partition in range(PARTITIONS):
        positions = [record.position for record in records if record.partition == partition]
        assert positions == sorted(positions)


def test_sorter_on_unordered_raw_log_writes_every_row_once_in_order_with_watermarks_after(
    raw_log: RawLog, sorter: Sorter, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("sink")
    sorter.create(raw_log.upstream, _sink(sorter, topic), start_ts=START_TS, config=DISPATCH)
    sorter.start()
    for batch in range(3):
        changes = sbtest1_changes(200, START_TS + 1 + 10_000 * batch, 200 * batch)
        raw_log.rows(TABLE, changes[100:], 0)
        raw_log.rows(TABLE, changes[:100], 1)
        raw_log.advance(START_TS + 10_000 * (batch + 1))
    sorter.wait_checkpoint(START_TS + 30_000)
    assert sorter.stop() == 0
    records = read_topic(sorter.kafka, topic)
    _assert_partitions_in_order(records)
    assert sorted(int(row["data"][0]["id"]) for row in _rows(records)) == list(range(600))
    for partition in range(PARTITIONS):
        last = decode_position([r for r in records if r.partition == partition][-1].position)
        assert (last.commit_ts, last.position_class) == (START_TS + 30_000, PositionClass.WATERMARK)


def test_sorter_killed_in_mid_batch_repeats_the_same_records_in_the_same_order(
    raw_log: RawLog, sorter: Sorter, fresh_name: Callable[[str], str]
) -> None:
    topic, rows = fresh_name("sink"), 160_000  # more than the driver does by itself
    sorter.create(raw_log.upstream, _sink(sorter, topic), start_ts=START_TS, config=DISPATCH)
    changes = sbtest1_changes(rows, START_TS + 1)
    for start in range(0, rows, 500):
        raw_log.rows(TABLE, changes[start : start + 500], (start // 500) % 2)
    raw_log.advance(START_TS + 10 * rows)
    sorter.start()
    wait_for_records(sorter.kafka, topic, 1_000)
    sorter.kill()
    status = sorter.status()
    assert status is None or status.checkpoint_ts == START_TS, "the batch was over before the kill: nothing is shown"
    sorter.start()
    sorter.wait_checkpoint(START_TS + 10 * rows)
    assert sorter.stop() == 0
    records = read_topic(sorter.kafka, topic)
    repeated = 0
    for partition in range(PARTITIONS):
        mine = [(r.key, r.value, r.position) for r in records if r.partition == partition]
        # The second try begins where the order starts over; the broker may have taken records of the first until then.
        done = next((at for at in range(1, len(mine)) if mine[at][2] <= mine[at - 1][2]), 0)
        assert mine[:done] == mine[done : 2 * done], "what is repeated is identical, in the same order"
        again = [position for _, _, position in mine[done:]]
        assert again == sorted(set(again))
        repeated += done
    assert repeated > 0
    ids = {int(row["data"][0]["id"]) for row in _rows(records)}
    assert ids == set(range(rows))
    # The first try told of nothing: what is proved is proved of the second, whose cuts Spark's tasks ran in two steps.
    assert [sum(each.count for each in sums) for sums in zip(*_sums(_proved(raw_log, sorter)), strict=True)] == [
        rows,
        0,
        rows,
    ]


def test_sorter_on_a_blackhole_makes_no_topic_and_tells_no_value_where_logs_are_redacted(
    raw_log: RawLog, sorter: Sorter, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("nowhere")
    sorter.trouble = "from compose.logs import start_logging; start_logging(level='debug', redact='on')"
    uri = f"blackhole:///{topic}?enable-tidb-extension=true&partition-num={PARTITIONS}"
    sorter.create(raw_log.upstream, uri, start_ts=START_TS, config=DISPATCH)
    raw_log.rows(TABLE, sbtest1_changes(200, START_TS + 1))
    raw_log.advance(START_TS + 5_000)
    sorter.start()
    assert sorter.wait_checkpoint(START_TS + 5_000).rows_total == 200
    secret, key = b"Alice-4711", row_key(TABLE, 0x0A11CE)
    raw_log.rows(TABLE, [Change(START_TS + 6_000, key, b"\x80\x00\x05\x00" + secret)], 1)
    raw_log.advance(START_TS + 9_000)
    status = sorter.wait(lambda status: status.state == "failed")
    assert sorter.stop() == 0
    assert status.error is not None and "row does not decode" in status.error.message
    said = f"{status.error.message}\n{sorter.log()}"
    assert all(text not in said.lower() for text in ("alice", secret.hex(), key.hex(), "0a11ce"))
    assert topic not in AdminClient({"bootstrap.servers": sorter.kafka}).list_topics(timeout=20).topics


def test_sorter_on_repeated_landings_drops_equal_neighbours(
    raw_log: RawLog, sorter: Sorter, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("sink")
    sorter.create(raw_log.upstream, _sink(sorter, topic), start_ts=START_TS, config=DISPATCH)
    changes = sbtest1_changes(300, START_TS + 1)
    raw_log.rows(TABLE, changes[:200], 0)
    raw_log.rows(TABLE, changes[100:], 1, may_repeat=True)
    raw_log.rows(TABLE, changes[50:150], 0, may_repeat=True)
    raw_log.advance(START_TS + 5_000, repeats=True)
    with pytest.raises(NoProofsError, match=raw_log.upstream):
        _proved(raw_log, sorter)
    sorter.start()
    sorter.wait_checkpoint(START_TS + 5_000)
    records = read_topic(sorter.kafka, topic)
    _assert_partitions_in_order(records)
    assert sorted(int(row["data"][0]["id"]) for row in _rows(records)) == list(range(300))
    assert sorter.stop() == 0
    windows = _proved(raw_log, sorter)
    assert [sum(each.count for each in sums) for sums in zip(*_sums(windows), strict=True)] == [500, 200, 300]
    assert (windows[0].after_ts, windows[-1].upto_ts) == (START_TS, START_TS + 5_000)


def _proved(raw_log: RawLog, sorter: Sorter) -> list[ProofWindow]:
    """Return the windows of a changefeed's proofs, whose chain has no fault."""
    contents = list(
        read_proofs(KafkaAccess(sorter.kafka), UpstreamId(raw_log.upstream), ("default", sorter.changefeed_id))
    )
    assert check_chain(contents).findings == []
    return [decode_proof(content).window for content in contents]


def _sums(windows: list[ProofWindow]) -> list[tuple[FlowSum, FlowSum, FlowSum]]:
    return [(window.landed, window.repeats, window.written) for window in windows]


def test_sorter_on_corrupt_row_fails_naming_it_and_resumes_when_the_table_is_filtered_out(
    raw_log: RawLog, sorter: Sorter, fresh_name: Callable[[str], str]
) -> None:
    topic, bad_ts = fresh_name("sink"), START_TS + 5_000
    sorter.create(raw_log.upstream, _sink(sorter, topic), start_ts=START_TS, config=DISPATCH)
    raw_log.rows(TABLE, sbtest1_changes(100, START_TS + 1))
    raw_log.advance(START_TS + 2_000)
    sorter.start()
    sorter.wait_checkpoint(START_TS + 2_000)
    raw_log.rows(TABLE, [Change(bad_ts, row_key(TABLE, 7), b"\x80\x00\x05\x00")], 1)
    raw_log.advance(START_TS + 9_000)
    status = sorter.wait(lambda status: status.state == "failed")
    assert status.checkpoint_ts == START_TS + 2_000
    assert status.error is not None
    for part in ("sb.sbtest1", row_key(TABLE, 7).hex(), str(bad_ts)):
        assert part in status.error.message
    before = read_topic(sorter.kafka, topic)
    assert all(decode_position(r.position).commit_ts <= START_TS + 2_000 for r in before), "nothing beyond is written"
    sorter.create(raw_log.upstream, _sink(sorter, topic), start_ts=START_TS, config={"filter": {"rules": ["other.*"]}})
    sorter.wait_checkpoint(START_TS + 9_000)
    assert sorter.process is not None
    assert sorter.process.poll() is None, "one process all along"


def test_sorter_on_row_of_unknown_table_fails_with_its_code(
    raw_log: RawLog, sorter: Sorter, fresh_name: Callable[[str], str]
) -> None:
    sorter.create(raw_log.upstream, _sink(sorter, fresh_name("sink")), start_ts=START_TS, config=DISPATCH)
    raw_log.rows(999, [Change(START_TS + 7, row_key(999, 1), b"\x80")])
    raw_log.advance(START_TS + 9)
    sorter.start()
    status = sorter.wait(lambda status: status.state == "failed")
    assert status.error is not None
    assert status.error.code == "schema.unknown_table"
    assert "999" in status.error.message
    assert str(START_TS + 7) in status.error.message
