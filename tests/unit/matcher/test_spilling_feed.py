"""A feed whose transactions go to disk: what if they do not come back, and how it gives much without a flood."""

import threading
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import patch

import pytest

from producers.pull.core.match import matcher
from producers.pull.core.match.matcher_quota import MatcherQuota
from producers.pull.core.match.spill import SpillRefusedError, write_run
from schemas.ids import Ts
from schemas.proto import cdcpb_pb2
from schemas.tidb.codec import encode_bytes
from schemas.tidb.keys import row_key
from tests.support.rawlog.memory_spill import MemorySpill
from tests.support.upstream.scripted_stores import (
    SPAN,
    START_TS,
    TABLE,
    Collected,
    FeedRig,
    Row,
    event,
    initialized,
    resolved,
)

ROWS = 60
KEYS = [row_key(TABLE, handle) for handle in range(ROWS)]
LARGE = b"v" * 300


def prewrites(start_ts: int) -> list[Row]:
    return [
        Row(type=cdcpb_pb2.Event.PREWRITE, op_type=Row.PUT, start_ts=start_ts, key=key, value=LARGE) for key in KEYS
    ]


def commits(start_ts: int) -> list[Row]:
    commit_ts = start_ts + 1
    return [
        Row(type=cdcpb_pb2.Event.COMMIT, op_type=Row.PUT, start_ts=start_ts, commit_ts=commit_ts, key=key)
        for key in KEYS
    ]


def committed_rows(start_ts: int) -> list[Row]:
    return [
        Row(
            type=cdcpb_pb2.Event.COMMITTED,
            op_type=Row.PUT,
            start_ts=start_ts,
            commit_ts=start_ts + 1,
            key=key,
            value=LARGE,
        )
        for key in KEYS
    ]


def spilling_rig(store: MemorySpill) -> FeedRig:
    """A rig whose one region is initialized and holds the prewrites of transaction 110, on disk."""
    rig = FeedRig(quota=MatcherQuota(8 << 10, store))
    (request,) = rig.stream.registers
    rig.stream.say(initialized(request))
    rig.stream.say(event(request, *prewrites(110)))
    rig.run()
    assert store.puts > 0
    assert rig.feed.held_bytes() < 8 << 10
    return rig


def test_feed_when_a_spilled_block_is_damaged_then_the_region_is_registered_anew_and_nothing_is_lost() -> None:
    store = MemorySpill()
    rig = spilling_rig(store)
    (request,) = rig.stream.registers
    rig.stream.say(resolved(105, request))
    store.damaged = set(store.blobs)
    rig.stream.say(event(request, *commits(110)))
    rig.run(1.0)
    assert not rig.fatal
    assert len(rig.stream.deregisters) == 1
    again = rig.stream.registers[-1]
    assert (again.checkpoint_ts, again.region_id) == (105, request.region_id)
    assert again.request_id != request.request_id
    assert (store.blobs, rig.feed.held_bytes()) == ({}, 0), "what the old registration held is gone"
    # TiKV's incremental scan brings the transaction again, committed by now.
    rig.stream.say(event(again, *committed_rows(110)))
    rig.stream.say(initialized(again))
    rig.stream.say(resolved(120, again))
    rig.run(0.1)
    assert sorted(change[3] for change in rig.sink.changes) == KEYS
    assert {change[4] for change in rig.sink.changes} == {LARGE}
    assert rig.sink.resolved_ts == 120


SPLIT = encode_bytes(row_key(TABLE, ROWS))
"""The large transaction's rows are below it."""


def small(start_ts: int) -> list[Row]:
    """Return a row of the region behind :data:`SPLIT`, and its commit."""
    key = row_key(TABLE, ROWS + start_ts)
    return [
        Row(type=cdcpb_pb2.Event.PREWRITE, op_type=Row.PUT, start_ts=start_ts, key=key, value=b"v"),
        Row(type=cdcpb_pb2.Event.COMMIT, op_type=Row.PUT, start_ts=start_ts, commit_ts=start_ts + 1, key=key),
    ]


def refused_rig(store: MemorySpill) -> tuple[FeedRig, cdcpb_pb2.ChangeDataRequest]:
    """A rig of two regions, the first of which holds prewrites for which there is no room on disk."""
    rig = FeedRig((2, b"", SPLIT, 5, 1), (3, SPLIT, b"", 5, 1), quota=MatcherQuota(8 << 10, store))
    large, other = sorted(rig.stream.registers, key=lambda request: request.region_id)
    for request in (large, other):
        rig.stream.say(initialized(request))
    rig.stream.say(event(large, *prewrites(110)))
    rig.run()
    assert [request.region_id for request in rig.stream.deregisters] == [large.region_id]
    return rig, other


def wait(rig: FeedRig, seconds: int, other: cdcpb_pb2.ChangeDataRequest) -> None:
    """Let time pass at a store that goes on telling resolved ts."""
    for _ in range(seconds):
        rig.stream.say(resolved(115, other))
        rig.run(1.0)


def test_feed_when_nothing_more_fits_on_disk_then_only_that_region_waits_and_is_read_again_once_a_while() -> None:
    store = MemorySpill(bytes_max=1_000)
    rig, other = refused_rig(store)
    assert rig.feed.held_bytes() == 0
    rig.stream.say(event(other, *small(112)))
    wait(rig, 25, other)
    assert [change[0] for change in rig.sink.changes] == [113], "the neighbour's row does not wait"
    assert len(rig.stream.registers) == 2
    assert "producer.spill_refused" in rig.reason
    wait(rig, 8, other)
    again = rig.stream.registers[-1]
    assert (again.region_id, again.checkpoint_ts) == (2, START_TS)
    assert rig.feed.troubles["spill_refused"] == 1
    # It has been committed meanwhile, so its rows come whole.
    rig.stream.say(event(again, *committed_rows(110)))
    rig.stream.say(initialized(again))
    for request in (again, other):
        rig.stream.say(resolved(120, request))
    rig.run(0.1)
    assert len(rig.sink.changes) == ROWS + 1
    assert rig.sink.resolved_ts == 120
    assert not rig.fatal


def test_feed_when_there_is_no_room_for_as_long_as_a_transaction_is_open_then_it_is_asked_without_end() -> None:
    rig, other = refused_rig(MemorySpill(bytes_max=1_000))
    for times in range(2, 16):
        wait(rig, 32, other)
        again = rig.stream.registers[-1]
        rig.stream.say(initialized(again))
        rig.stream.say(event(again, *prewrites(110)))
        rig.run()
        assert rig.feed.troubles["spill_refused"] == times


def test_feed_when_a_small_row_finds_the_memory_full_then_the_region_with_most_of_it_waits_not_its_own() -> None:
    rig = FeedRig(
        (2, b"", SPLIT, 5, 1), (3, SPLIT, b"", 5, 1), quota=MatcherQuota(64 << 10, MemorySpill(bytes_max=1_000))
    )
    large, other = sorted(rig.stream.registers, key=lambda request: request.region_id)
    rig.stream.say(initialized(large))
    rig.stream.say(event(large, *prewrites(110)))
    rig.run()
    assert not rig.stream.deregisters
    wide, key = b"v" * (25 << 10), row_key(TABLE, ROWS)
    row = Row(type=cdcpb_pb2.Event.PREWRITE, op_type=Row.PUT, start_ts=120, key=key, value=wide)
    rig.stream.say(event(other, row, Row(type=cdcpb_pb2.Event.INITIALIZED)))
    rig.run()
    assert [request.region_id for request in rig.stream.deregisters] == [large.region_id]
    (status,) = rig.feed.status()
    assert status.initialized == 1, "the rest of its event counts, too"
    rig.stream.say(
        event(other, Row(type=cdcpb_pb2.Event.COMMIT, op_type=Row.PUT, start_ts=120, commit_ts=121, key=key))
    )
    rig.run()
    assert [change[4] for change in rig.sink.changes] == [wide]


def test_feed_without_multiplexing_when_memory_is_full_then_both_regions_of_the_stream_are_read_again() -> None:
    quota = MatcherQuota(64 << 10, MemorySpill(bytes_max=1_000))
    rig = FeedRig((2, b"", SPLIT, 5, 1), (3, SPLIT, b"", 5, 1), quota=quota, multiplexing=False)
    first = rig.stream
    large, other = sorted(first.registers, key=lambda request: request.region_id)
    first.say(initialized(large))
    first.say(event(large, *prewrites(110)))
    rig.run()
    # A store sends the last rows of a scan and its end as one event.
    wide, key = b"v" * (25 << 10), row_key(TABLE, ROWS)
    row = Row(type=cdcpb_pb2.Event.PREWRITE, op_type=Row.PUT, start_ts=120, key=key, value=wide)
    first.say(event(other, row, Row(type=cdcpb_pb2.Event.INITIALIZED)))
    rig.run(40.0)
    assert first.closed and not rig.fatal
    assert rig.feed.troubles["spill_refused"] == 1
    assert [request.region_id for request in rig.stream.registers] == [large.region_id, other.region_id]
    (status,) = rig.feed.status()
    assert (status.regions, status.initialized) == (2, 0)
    for request in rig.stream.registers:
        rig.stream.say(initialized(request))
        rig.stream.say(resolved(130, request, multiplexed=False))
    rig.run()
    assert rig.sink.resolved_ts == 130


def test_feed_when_the_end_of_a_scan_finds_no_room_again_and_again_then_only_complete_scans_are_counted() -> None:
    rig = FeedRig(quota=MatcherQuota(8 << 10, MemorySpill(bytes_max=1_000)))
    for times in range(1, 4):
        (*_, request) = rig.stream.registers
        rig.stream.say(event(request, *prewrites(110), Row(type=cdcpb_pb2.Event.INITIALIZED)))
        rig.run(33.0)
        assert rig.feed.troubles["spill_refused"] == times
        assert rig.feed.status()[0].initialized == 0
    rig.stream.say(initialized(rig.stream.registers[-1]))
    rig.run()
    assert rig.feed.status()[0].initialized == 1


def test_feed_when_rows_find_no_room_again_and_again_then_the_log_says_so_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig, other = refused_rig(MemorySpill(bytes_max=1_000))
    for _ in range(6):
        wait(rig, 32, other)
        again = rig.stream.registers[-1]
        rig.stream.say(initialized(again))
        rig.stream.say(event(again, *prewrites(110)))
        rig.run()
    lines = [line for line in caplog.records if getattr(line, "code", "") == "producer.spill_refused"]
    assert [getattr(line, "times", 0) for line in lines] == [1, 2, 2, 2]


def test_spill_when_a_run_finds_room_for_its_first_blocks_only_then_they_leave_the_disk_again() -> None:
    store = MemorySpill(bytes_max=100 << 10)
    rows = {row_key(TABLE, handle): (LARGE, b"", 0) for handle in range(1_000)}
    with pytest.raises(SpillRefusedError):
        write_run(rows, store)
    assert store.puts == 1
    assert store.blobs == {}


def test_feed_when_a_span_with_spilled_rows_is_fed_no_more_then_its_place_on_disk_is_free() -> None:
    store = MemorySpill()
    rig = spilling_rig(store)
    rig.feed.unsubscribe(SPAN)
    assert (store.blobs, rig.feed.held_bytes()) == ({}, 0)


class SlowSink(Collected):
    """Full after every part; takes the next one only some turns later."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = 0
        self.turns_left = 0
        self.drains = True

    def rows(self, *args, **kwargs) -> None:  # type: ignore[no-untyped-def]
        assert not self.full, "a part came while the sink was full"
        super().rows(*args, **kwargs)
        self.parts += 1
        self.full, self.turns_left = True, 2

    def turn(self, now_s: float) -> float:
        self.turns_left -= 1
        if self.drains and self.turns_left <= 0:
            self.full = False
        return super().turn(now_s)


def rig_over(sink: SlowSink, *, with_resolved_ts: Ts | None = None) -> FeedRig:
    """A rig whose one region has prewrites and their commits to say; ``with_resolved_ts``: in the message of these."""
    rig = FeedRig(subscribe=False)
    rig.sink = rig.feed._sink = sink
    rig.feed.subscribe(SPAN, START_TS)
    rig.run()
    (request,) = rig.stream.registers
    ended = event(request, *commits(110))
    if with_resolved_ts is not None:
        ended.events.add(region_id=request.region_id, request_id=request.request_id, resolved_ts=with_resolved_ts)
    for message in (initialized(request), event(request, *prewrites(110)), ended):
        rig.stream.say(message)
    return rig


def test_feed_when_one_event_brings_more_than_the_sink_takes_then_it_waits_between_parts() -> None:
    rig = rig_over(SlowSink())
    with patch.object(matcher, "PART_ROWS_MAX", 10):
        rig.run()
    assert isinstance(rig.sink, SlowSink)
    assert rig.sink.parts == ROWS // 10
    assert sorted(change[3] for change in rig.sink.changes) == KEYS


def step_while(rig: FeedRig, end: Callable[[], None]) -> None:
    """Let the feed take parts of ten rows while another thread ends something."""
    ender = threading.Thread(target=end)
    ender.start()
    with patch.object(matcher, "PART_ROWS_MAX", 10):
        rig.feed.step()
    ender.join(60)
    assert not ender.is_alive()


def test_feed_when_a_span_ends_between_two_parts_then_no_more_of_them_reach_the_sink() -> None:
    sink = SlowSink()
    sink.drains = False
    rig = rig_over(sink)

    # The feed's lock must be free while it waits, or nobody could end the span or take a report.
    def end() -> None:
        _until(lambda: sink.parts == 1)
        rig.feed.unsubscribe(SPAN)

    step_while(rig, end)
    assert sink.parts == 1
    assert rig.feed.status() == []
    assert sink.resolved_ts < Ts(111)


def test_feed_when_it_stops_between_two_parts_then_no_resolved_ts_behind_them_reaches_the_sink() -> None:
    sink = SlowSink()
    sink.drains = False
    rig = rig_over(sink, with_resolved_ts=Ts(130))

    def end() -> None:
        _until(lambda: sink.parts == 1)
        rig.feed.stop()

    step_while(rig, end)
    assert (sink.parts, sink.resolved_ts) == (1, 0)


class ScopedLock:
    """A lock that can only be taken by a ``with``: nobody else gives it back."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.depth = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        self._lock.release()


class WatchedSink(SlowSink):
    """Notes how deep the feed's lock is held whenever the feed asks whether it may go on."""

    def __init__(self, lock: ScopedLock) -> None:
        super().__init__()
        self.lock = lock
        self.depths: set[int] = set()

    def saturated(self) -> bool:
        if self.full:
            self.depths.add(self.lock.depth)
        return super().saturated()


def test_feed_when_the_sink_is_full_then_it_waits_without_the_lock_and_only_who_took_it_gives_it_back() -> None:
    lock = ScopedLock()
    sink = WatchedSink(lock)
    rig = rig_over(sink)
    rig.feed.lock = cast("Any", lock)
    with patch.object(matcher, "PART_ROWS_MAX", 10):
        rig.run()
    assert sink.parts == ROWS // 10
    assert sink.depths == {0, 1}  # asked once after each part, then only while others may have the lock


def _until(holds: Callable[[], bool]) -> None:
    waited = threading.Event()
    while not holds():
        waited.wait(0.001)
