"""The sorter as a real process on a raw log written by hand: order, watermarks, repeats, recovery, errors."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compose.stack.local import Addresses
from schemas.position import PositionClass, decode_position
from tests.support.raw_log import START_TS, Change, RawLog, SinkRecord, read_topic, recorded, row_key
from tests.support.sorter_process import Sorter

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


def _changes(count: int, first_ts: int, first_row: int = 0) -> list[Change]:
    _, rows = recorded("sbtest1")
    return [
        Change(first_ts + 10 * number, row_key(TABLE, first_row + number), rows[(first_row + number) % len(rows)].value)
        for number in range(count)
    ]


def _sink(sorter: Sorter, topic: str, extra: str = "") -> str:
    return f"kafka://{sorter.kafka}/{topic}?protocol=canal-json&enable-tidb-extension=true&partition-num={PARTITIONS}{extra}"


def _rows(records: list[SinkRecord]) -> list[dict]:  # type: ignore[type-arg]
    found = [json.loads(record.value or b"") for record in records]
    return [row for row in found if row["type"] in ("INSERT", "UPDATE", "DELETE")]


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
        changes = _changes(200, START_TS + 1 + 10_000 * batch, 200 * batch)
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
