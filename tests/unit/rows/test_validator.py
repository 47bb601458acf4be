"""The validator itself: good streams pass, and each promise broken once is caught."""

import gc
import json
from collections.abc import Sequence
from typing import Any

import pytest

from schemas.ids import Ts
from schemas.sink.position import Position, PositionClass, RowOp
from tests.support.topics.messages import TopicRecord, decode_canal_json
from tests.support.topics.validator import UpstreamChange, Validator

Stream = list[tuple[int, bytes, bytes]]
"""(partition, message, position header)."""


def row(
    commit_ts: int,
    key: str,
    op: str = "INSERT",
    *,
    start_ts: int | None = None,
    partition: int = 0,
    lie: dict[str, Any] | None = None,
) -> tuple[int, bytes, bytes]:
    """Return a row message with its position; ``lie`` overrides the position's fields."""
    data = [{"id": key}]
    message = {
        "id": 0, "database": "d", "table": "t", "pkNames": ["id"], "isDdl": False, "type": op, "es": 1, "ts": commit_ts,
        "sql": "", "sqlType": {"id": 12}, "mysqlType": {"id": "varchar"}, "data": data,
        "old": data if op == "UPDATE" else None, "_tidb": {"commitTs": commit_ts},
    }  # fmt: skip
    ops = {"INSERT": RowOp.INSERT, "UPDATE": RowOp.UPDATE, "DELETE": RowOp.DELETE}
    start = Ts(commit_ts - 1 if start_ts is None else start_ts)
    fields: dict[str, Any] = {
        "commit_ts": Ts(commit_ts),
        "position_class": PositionClass.ROW,
        "start_ts": start,
        "op": ops[op],
    }
    position = Position(**{**fields, "key": key.encode(), **(lie or {})})
    return partition, json.dumps(message).encode(), position.encode()


def ddl(commit_ts: int, partition: int = 0) -> tuple[int, bytes, bytes]:
    message = {
        "id": 0, "database": "d", "table": "t", "pkNames": None, "isDdl": True, "type": "ALTER", "es": 1, "ts": 5,
        "sql": "ALTER TABLE t", "data": None, "old": None, "_tidb": {"commitTs": commit_ts},
    }  # fmt: skip
    position = Position(Ts(commit_ts), PositionClass.DDL, Ts(commit_ts - 1), key=b"\0\0\0\0")
    return partition, json.dumps(message).encode(), position.encode()


def watermark(ts: int, partition: int = 0) -> tuple[int, bytes, bytes]:
    message = {"id": 0, "isDdl": False, "type": "TIDB_WATERMARK", "ts": 9, "_tidb": {"watermarkTs": ts}}
    return partition, json.dumps(message).encode(), Position(Ts(ts), PositionClass.WATERMARK).encode()


def change(commit_ts: int, key: str, op: str = "insert", name: str = "d.t") -> UpstreamChange:
    return UpstreamChange(commit_ts=commit_ts, start_ts=commit_ts - 1, key=key.encode(), op=op, name=name)


def judge(stream: Sequence[tuple[int, bytes, bytes]], upstream: list[UpstreamChange] | None = None) -> list[str]:
    validator = Validator(decode_canal_json, upstream)
    validator.note_all(
        TopicRecord("t", partition, offset, None, value, position)
        for offset, (partition, value, position) in enumerate(stream)
    )
    return validator.finish()


GOOD = [
    row(10, "a"), row(20, "b", "DELETE", start_ts=15), row(20, "c", start_ts=15), row(20, "d", start_ts=16), ddl(20),
    watermark(20), row(30, "a", "UPDATE"), watermark(30),
]  # fmt: skip
UPSTREAM = [
    change(10, "a"),
    UpstreamChange(20, 15, b"b", "delete", "d.t"),
    UpstreamChange(20, 15, b"c", "insert", "d.t"),
    UpstreamChange(20, 16, b"d", "insert", "d.t"),
    change(30, "a", "update"),
]


def test_validator_good_stream_passes() -> None:
    assert judge(GOOD, UPSTREAM) == []


@pytest.mark.parametrize("broken_off", range(1, len(GOOD) + 1))
@pytest.mark.parametrize("again_from", range(len(GOOD)))
def test_validator_batch_repeated_from_any_place_passes(broken_off: int, again_from: int) -> None:
    assert judge(GOOD[:broken_off] + GOOD[min(again_from, broken_off) :], UPSTREAM) == []


def test_validator_repeat_encoded_at_another_moment_is_the_same_record() -> None:
    later = [(at, value.replace(b'"ts": 10', b'"ts": 77'), position) for at, value, position in GOOD]
    assert later[0] != GOOD[0]
    assert judge(GOOD[:3] + later, UPSTREAM) == []


def test_validator_update_split_in_two_is_the_upstreams_update() -> None:
    split = [row(30, "a", "DELETE"), row(30, "a"), watermark(30)]
    assert judge(split, [change(30, "a", "update")]) == []


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        ([row(20, "b"), row(10, "a")], "out of order"),
        ([row(20, "b", start_ts=16), row(20, "a", start_ts=15)], "out of order"),
        ([row(20, "b", start_ts=15), row(20, "a", "DELETE", start_ts=15)], "out of order"),
        ([ddl(20), row(20, "a")], "out of order"),
        ([watermark(20), ddl(20)], "out of order"),
        ([row(10, "a"), row(20, "b"), row(30, "c"), row(10, "a"), row(30, "c")], "left out 1 records"),
        ([row(10, "a"), row(20, "b"), row(10, "a"), row(15, "new"), row(20, "b")], "out of order and no repeat"),
        ([row(10, "a"), watermark(20), row(15, "b")], "below the watermark"),
        ([row(10, "a"), watermark(20), row(20, "b")], "below the watermark"),
        ([watermark(20), watermark(10)], "below the watermark"),
        ([row(10, "a", lie={"commit_ts": Ts(11)})], "another commit_ts"),
        ([row(10, "a", lie={"op": RowOp.DELETE})], "another op"),
        ([row(10, "a", lie={"position_class": PositionClass.DDL})], "another class"),
        ([row(10, "a", start_ts=10)], "start_ts is not below"),
    ],
)
def test_validator_broken_promise_is_caught(stream: Stream, says: str) -> None:
    assert any(says in failure for failure in judge(stream)), judge(stream)


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        ([row(10, "a"), watermark(20)], "lost UpstreamChange(commit_ts=20"),
        ([row(10, "a"), row(20, "b"), row(20, "x"), watermark(20)], "no such change"),
        ([row(10, "a"), row(20, "b", "DELETE"), watermark(20)], "the upstream's change was insert"),
        ([row(10, "a"), row(10, "a", partition=1), row(20, "b"), watermark(20), watermark(20, 1)], "stood in"),
    ],
)
def test_validator_loss_and_invention_are_caught(stream: Stream, says: str) -> None:
    upstream = [change(10, "a"), change(20, "b")]
    assert judge([row(10, "a"), row(20, "b"), watermark(20)], upstream) == []
    assert any(says in failure for failure in judge(stream, upstream)), judge(stream, upstream)


def test_validator_row_under_another_tables_name_is_caught() -> None:
    assert any("is a change of d.other" in text for text in judge([row(10, "a")], [change(10, "a", name="d.other")]))


def test_validator_half_of_a_split_update_is_a_loss() -> None:
    half = [row(30, "a", "DELETE"), watermark(30)]
    assert any("lost" in failure for failure in judge(half, [change(30, "a", "update")]))


def test_validator_change_above_the_least_watermark_is_not_missed() -> None:
    ahead = [row(10, "a"), watermark(10), watermark(99, 1)]
    assert judge(ahead, [change(10, "a"), change(20, "b")]) == []


def test_validator_watermark_missing_on_a_partition_is_caught() -> None:
    validator = Validator(decode_canal_json)
    for offset, (partition, value, position) in enumerate([watermark(30), watermark(10, 1)]):
        validator.note(TopicRecord("t", partition, offset, None, value, position))
    assert any("watermark 30 is missing on [('t', 1)]" in text for text in validator.finish(need_watermark=Ts(30)))


def test_validator_record_without_header_is_refused() -> None:
    with pytest.raises(AssertionError, match="no position header"):
        Validator(decode_canal_json).note_all([TopicRecord("t", 0, 0, None, GOOD[0][1])])
    assert gc.isenabled(), "it is for as long as records are taken"
