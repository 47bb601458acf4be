"""The scan of a table image, message by message; how fast it may go; which scans there are."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.pull.core.images.orders import OrderKey, changes
from producers.pull.core.images.pace import BURST_S, PAGE_BYTES, PAGE_ROWS_MAX, Bucket, StorePace, spend, take
from producers.pull.core.images.scan import (
    KNOWN_TXNS_MAX,
    LocksResolved,
    NotRead,
    PageRead,
    Phase,
    ReadPage,
    Request,
    ResolveLocks,
    Scan,
    TimeUp,
    WaitFor,
    Woken,
    read,
    step,
)
from producers.pull.core.locks.messages import SeenLock
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.images import ImageBarrier, ImageScan, ImageState, KeyRange

LOCK = SeenLock(key=b"c", primary=b"p", start_ts=Ts(7), ttl_ms=3_000)


def begun(**more: object) -> tuple[Scan, Request | None]:
    """Return a scan of [a, z) at ts 100 and its first request."""
    return read(replace(Scan(cursor=b"a", end=b"z", version=Ts(100), bytes_left=10_000), **more))  # type: ignore[arg-type]


def page(next_key: bytes, *, rows: int = 1, size: int = 100, locks: tuple[SeenLock, ...] = ()) -> PageRead:
    """Return an answer."""
    return PageRead(rows=rows, bytes=size, next_key=next_key, locks=locks)


def test_scan_pages_follow_each_other_to_the_end_of_the_range() -> None:
    state, request = begun()
    starts = []
    for next_key in (b"g", b"m", b"z"):
        assert isinstance(request, ReadPage)
        starts.append((request.start, request.end))
        state, request = step(state, page(next_key))
    assert starts == [(b"a", b"z"), (b"g", b"z"), (b"m", b"z")]
    assert (request, state.phase, state.cursor) == (None, Phase.DONE, b"z")


def test_scan_bytes_used_up_then_it_ends_where_it_is() -> None:
    state, _ = begun(bytes_left=100)
    state, request = step(state, page(b"g", size=100, locks=(LOCK,)))
    assert (request, state.phase, state.cursor) == (None, Phase.DONE, b"g")


def test_scan_meets_a_living_transaction_then_all_later_requests_pass_it_by() -> None:
    state, _ = begun()
    state, request = step(state, page(b"c", locks=(LOCK,)))
    assert request == ResolveLocks((LOCK,))
    state, request = step(state, LocksResolved((Ts(7),), (Ts(5),)))
    assert isinstance(request, ReadPage)
    assert (request.start, request.passable, request.readable) == (b"c", (7,), (5,))
    _, request = step(state, page(b"m"))
    assert isinstance(request, ReadPage)
    assert (request.passable, request.readable) == ((7,), (5,))


def test_scan_lock_cannot_be_passed_then_it_waits_longer_each_time_and_asks_again() -> None:
    state, _ = begun()
    waits = []
    for _ in range(3):
        state, request = step(state, page(b"c", rows=0, size=0, locks=(LOCK,)))
        state, request = step(state, LocksResolved((), (), "alive"))
        assert isinstance(request, WaitFor)
        waits.append(request.attempt)
        assert state.trouble == "alive"
        state, request = step(state, Woken())
        assert isinstance(request, ReadPage)
    assert waits == [0, 1, 2]
    state, _ = step(state, page(b"m"))
    assert (state.attempt, state.trouble) == (0, "")


def test_scan_lock_stands_though_it_was_resolved_then_it_waits_before_it_asks_again() -> None:
    state, _ = begun(passable=(Ts(7),))
    state, _ = step(state, page(b"a", rows=0, size=0, locks=(LOCK,)))
    _, request = step(state, LocksResolved((Ts(7),), ()))
    assert isinstance(request, WaitFor)


def test_scan_store_is_busy_then_it_waits_as_long_as_the_store_wants() -> None:
    state, _ = begun()
    state, request = step(state, NotRead("busy", 700))
    assert request == WaitFor(0, 700)
    assert state.trouble == "busy"


def test_scan_page_is_too_much_for_the_store_then_one_row_is_asked_for_and_the_page_after_it_by_its_size() -> None:
    state, request = begun(bytes_left=1 << 40)
    assert isinstance(request, ReadPage)
    assert request.limit > 1
    state, _ = step(state, NotRead("DEADLINE_EXCEEDED", is_too_much=True))
    state, request = step(state, Woken())
    assert isinstance(request, ReadPage)
    assert request.limit == 1
    state, request = step(state, page(b"b", rows=1, size=PAGE_BYTES // 20))
    assert isinstance(request, ReadPage)
    assert request.limit == 16
    state, request = step(state, page(b"c", rows=16, size=16 * PAGE_BYTES // 20))
    assert isinstance(request, ReadPage)
    assert request.limit == 20
    state, _ = step(state, NotRead("region has moved"))
    _, request = step(state, Woken())
    assert isinstance(request, ReadPage)
    assert request.limit == 20


def test_scan_first_row_is_a_small_one_then_the_pages_after_it_grow_by_steps() -> None:
    state, limits = replace(begun(bytes_left=1 << 40)[0], limit=1), list[int]()
    for key in (b"b", b"c", b"d", b"e"):
        state, request = step(state, page(key, rows=state.limit, size=100 * state.limit))
        assert isinstance(request, ReadPage)
        limits.append(request.limit)
    assert limits == [16, 256, PAGE_ROWS_MAX, PAGE_ROWS_MAX]


def test_scan_follower_does_not_serve_then_the_leader_is_asked_for_this_page_only() -> None:
    state, _ = begun()
    state, _ = step(state, NotRead("data is not ready"))
    state, request = step(state, Woken())
    assert isinstance(request, ReadPage)
    assert request.at_leader
    _, request = step(state, page(b"m"))
    assert isinstance(request, ReadPage)
    assert not request.at_leader


def test_scan_time_is_up_in_any_phase_then_it_ends_and_says_what_held_it() -> None:
    state, _ = begun()
    state, _ = step(state, NotRead("no leader"))
    state, request = step(state, TimeUp())
    assert (request, state.phase, state.cursor, state.trouble) == (None, Phase.DONE, b"a", "no leader")


def test_scan_answer_of_another_phase_then_nothing_changes() -> None:
    state, _ = begun()
    state, _ = step(state, page(b"c", locks=(LOCK,)))
    for message in (page(b"z"), NotRead("late"), Woken()):
        assert step(state, message) == (state, None)


def test_scan_very_many_transactions_then_requests_name_the_latest_of_them() -> None:
    state, _ = begun()
    state, _ = step(state, page(b"c", locks=(LOCK,)))
    state, _ = step(state, LocksResolved(tuple(map(Ts, range(KNOWN_TXNS_MAX + 10))), ()))
    assert (len(state.passable), state.passable[-1]) == (KNOWN_TXNS_MAX, KNOWN_TXNS_MAX + 9)


@pytest.mark.parametrize(("rows", "size"), [(256, 256 * 100), (256, 256 * 8_192), (16, 16 << 20)])
def test_scan_rows_of_any_size_then_pages_come_near_to_the_wanted_bytes(rows: int, size: int) -> None:
    state, _ = begun(bytes_left=1 << 40)
    _, request = step(state, page(b"m", rows=rows, size=size))
    assert isinstance(request, ReadPage)
    expected_bytes = request.limit * size // rows
    assert expected_bytes <= PAGE_BYTES or request.limit == 16
    assert expected_bytes > PAGE_BYTES // 2 or request.limit == 2_048


@given(st.lists(st.tuples(st.floats(0, 5_000), st.floats(0, 3)), min_size=1), st.floats(1, 1e6))
def test_bucket_waits_obeyed_then_no_more_than_rate_and_burst_goes_through(
    asks: list[tuple[float, float]], rate: float
) -> None:
    bucket, now_s, spent = Bucket(rate), 0.0, 0.0
    for amount, idle_s in asks:
        # What was taken before this page never exceeds what time and the burst allow.
        assert spent <= rate * (now_s + BURST_S) * (1 + 1e-9) + 1e-6
        bucket, wait_s = take(bucket, amount, now_s)
        spent += amount
        now_s += wait_s + idle_s


def test_bucket_without_a_rate_never_waits() -> None:
    assert take(Bucket(0), 1e9, 0.0) == (Bucket(0), 0.0)


def test_store_pace_waits_for_the_quota_that_is_used_up_more() -> None:
    pace = StorePace(Bucket(1_000), Bucket(1_000_000))
    _, by_rows_s = spend(pace, 2_000, 0, 0.0)
    _, by_bytes_s = spend(pace, 0, 4_000_000, 0.0)
    _, both_s = spend(pace, 2_000, 4_000_000, 0.0)
    assert (by_rows_s, by_bytes_s, both_s) == (1.0, 3.0, 3.0)


# -- orders -----------------------------------------------------------------------------------------------------------

ME, OTHER = CaptureId("me"), CaptureId("other")


def barrier(ts: int, *scans: tuple[int, CaptureId]) -> ImageBarrier:
    """Return an open barrier with scans (number, capture)."""
    keys = KeyRange.of_table(TableId(5))
    return ImageBarrier(
        ts=Ts(ts),
        feeds=("f",),
        low=(0,),
        scans=tuple(
            ImageScan(number=number, capture=capture, table_id=TableId(5), feeds=("f",), keys=keys, bytes_max=1)
            for number, capture in scans
        ),
    )


def test_orders_only_a_capture_s_own_scans_are_begun_each_once() -> None:
    images = ImageState(version=(1, 1), barriers=(barrier(10, (0, ME), (1, OTHER), (2, ME)),))
    begin, drop = changes((), images, ME)
    assert [order.key for order in begin] == [(10, 0), (10, 2)]
    assert drop == []
    assert changes([order.key for order in begin], images, ME) == ([], [])


def test_orders_a_barrier_is_gone_then_its_scans_are_dropped_and_those_of_a_new_one_begun() -> None:
    known = [OrderKey(Ts(10), 0)]
    begin, drop = changes(known, ImageState(version=(1, 2), barriers=(barrier(20, (0, ME)),)), ME)
    assert ([order.key for order in begin], drop) == ([OrderKey(Ts(20), 0)], known)
