"""The streaming checks of `tidebus run`: good streams pass, each broken promise is caught."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compose.local.promises import PartitionCheck, compare_rows, row_hashes
from schemas.ids import Ts
from schemas.sink.position import Position, PositionClass, RowOp

Positions = list[bytes]


def row(commit_ts: int, key: str, op: RowOp = RowOp.INSERT, start_ts: int | None = None) -> bytes:
    start = commit_ts - 1 if start_ts is None else start_ts
    return Position(Ts(commit_ts), PositionClass.ROW, Ts(start), op, key.encode()).encode()


def ddl(ts: int) -> bytes:
    return Position(Ts(ts), PositionClass.DDL, Ts(ts - 1), key=b"\0\0\0\1").encode()


def watermark(ts: int) -> bytes:
    return Position(Ts(ts), PositionClass.WATERMARK).encode()


def check(positions: list[bytes]) -> PartitionCheck:
    partition_check = PartitionCheck("t[0]")
    for offset, position in enumerate(positions):
        partition_check.note(offset, position)
    return partition_check


GOOD = [
    row(10, "b"), row(10, "a", start_ts=9), row(20, "b", RowOp.DELETE, 15), row(20, "a", RowOp.UPDATE, 15),
    row(20, "c", start_ts=16), ddl(20), watermark(20), watermark(25), row(30, "a"), watermark(30),
]  # fmt: skip


def test_promises_good_stream_holds_and_is_counted() -> None:
    checked = check(GOOD)
    assert (checked.violations, checked.rows, checked.ddls, checked.watermarks, checked.repeats) == ([], 6, 1, 3, 0)
    assert len(np.unique(checked.row_hashes())) == 6


@given(st.lists(st.tuples(st.integers(1, len(GOOD)), st.integers(0, len(GOOD))), max_size=4))
def test_promises_broken_off_and_repeated_batches_hold(crashes: list[tuple[int, int]]) -> None:
    stream, at = Positions(), 0
    for stop, again in crashes:
        start = min(again, at)
        at = max(start, stop)
        stream += GOOD[start:at]
    stream += GOOD[min(at, 3) :]
    checked = check(stream)
    assert (checked.violations, checked.rows, checked.repeats) == ([], 6, len(stream) - len(GOOD))
    assert len(checked.row_hashes()) == 6


def test_promises_first_row_of_a_transaction_repeated_in_its_middle_is_a_repeat() -> None:
    checked = check([GOOD[0], GOOD[1], GOOD[0], GOOD[1], GOOD[2]])
    assert (checked.violations, checked.rows, checked.repeats) == ([], 3, 2)
    assert any("leaves out 1" in text for text in check([*GOOD[:3], GOOD[0], GOOD[2]]).violations)


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        ([row(20, "b"), row(10, "a")], "out of order"),
        ([row(20, "b", start_ts=16), row(20, "a", start_ts=15)], "out of order"),
        ([row(20, "b", start_ts=15), row(20, "a", RowOp.DELETE, 15)], "out of order"),
        ([ddl(20), row(20, "a")], "out of order"),
        ([watermark(20), ddl(20)], "watermark"),
        ([watermark(20), row(20, "a")], "out of order"),
        ([row(10, "a"), row(20, "b"), row(30, "c"), row(10, "a"), row(30, "c")], "leaves out 1 records"),
        ([row(10, "a"), row(20, "b"), row(10, "a"), row(15, "x"), row(20, "b")], "no repeat"),
        ([row(10, "a"), b"short"], "no position header"),
    ],
)
def test_promises_broken_promise_is_caught(stream: Positions, says: str) -> None:
    assert any(says in text for text in check(stream).violations), check(stream).violations


def hashes(*rows: tuple[int, str, bool]) -> npt.NDArray[np.uint64]:
    ts = np.array([row[0] for row in rows], np.int64)
    return row_hashes(ts, ts - 1, [row[1].encode() for row in rows], np.array([row[2] for row in rows], bool))


def test_promises_rows_compare_as_sets() -> None:
    expected = hashes((10, "a", False), (20, "b", True), (30, "c", False), (10, "a", False))
    whole = compare_rows(expected, expected, hashes((10, "a", False), (20, "b", True), (30, "c", False)))
    assert (whole.missing.size, whole.invented.size) == (0, 0)
    torn = compare_rows(expected, expected[:2], hashes((10, "a", False), (30, "c", False), (31, "c", False)))
    assert torn.missing.tolist() == hashes((20, "b", True)).tolist()
    assert torn.invented.tolist() == hashes((31, "c", False)).tolist()


def test_promises_split_update_is_no_invention_but_a_lone_delete_is() -> None:
    expected = hashes((10, "a", False))
    assert compare_rows(expected, expected, hashes((10, "a", False), (10, "a", True))).invented.size == 0
    assert compare_rows(expected, expected, hashes((10, "a", True))).missing.size == 1
    assert compare_rows(expected, expected, hashes((10, "a", False), (11, "a", True))).invented.size == 1


@given(st.lists(st.tuples(st.integers(1, 1 << 62), st.binary(max_size=30)), unique=True, max_size=200))
def test_promises_different_rows_have_different_hashes(rows: list[tuple[int, bytes]]) -> None:
    ts = np.array([ts for ts, _ in rows], np.int64)
    puts = row_hashes(ts, ts - 1, [key for _, key in rows], np.zeros(len(rows), bool))
    deletes = row_hashes(ts, ts - 1, [key for _, key in rows], np.ones(len(rows), bool))
    assert len(np.unique(np.concatenate([puts, deletes]))) == 2 * len(rows)
