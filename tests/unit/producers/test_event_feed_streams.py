"""Streams to the stores: how many, how many scans at once, when they are closed, and when they are not believed."""

import grpc
import pytest

from producers.pull.core.regions.request_ids import SHARED_REGIONS_MAX, is_shared
from producers.pull.feed.store_streams import patience_s
from schemas.ids import TableId, Ts
from schemas.proto import cdcpb_pb2, errorpb_pb2
from schemas.tidb.codec import encode_bytes
from schemas.tidb.keys import row_key
from schemas.tidb.spans import TableSpan
from tests.support.upstream.scripted_stores import (
    SPAN,
    TABLE,
    FeedRig,
    ScriptedStream,
    committed,
    event,
    initialized,
    region_error,
    resolved,
)

Status = grpc.StatusCode
OTHER = TableSpan.of_table(TableId(46))


def cut(parts: int, store: int = 1, table: TableId = TABLE) -> list[tuple[int, bytes, bytes, int, int]]:
    """Return the regions of a table in equal parts; the first and the last reach to the ends of all keys."""
    borders = [b"", *(encode_bytes(row_key(table, at * 10)) for at in range(1, parts)), b""]
    return [(at * 2 + 2, borders[at], borders[at + 1], 5, store or at % 2 + 1) for at in range(parts)]


def asked(stream: ScriptedStream) -> list[int]:
    return [request.region_id for request in stream.registers]


def test_feed_when_a_store_has_many_regions_then_only_so_many_are_scanned_at_once() -> None:
    rig = FeedRig(*cut(6), scans_per_store_max=2)
    stream = rig.stream
    assert asked(stream) == [2, 4]
    assert rig.feed.scans() == (2, 4)
    stream.say(initialized(stream.registers[1]))
    rig.run()
    assert asked(stream) == [2, 4, 6]
    assert "waits for its turn" not in rig.reason, "the first region holds the span: its scan is under way"
    busy = cdcpb_pb2.Error(server_is_busy=errorpb_pb2.ServerIsBusy(backoff_ms=5_000))
    stream.say(region_error(stream.registers[0], busy))
    rig.run()
    assert asked(stream) == [2, 4, 6, 8]
    for _ in range(2):
        for request in list(stream.registers):
            stream.say(initialized(request))
        rig.run()
    assert asked(stream) == [2, 4, 6, 8, 10, 12]
    rig.run(6.0)
    assert asked(stream)[6:] == [2]


def test_feed_when_a_large_span_waits_then_a_small_one_has_its_turn_first() -> None:
    rig = FeedRig(*cut(20), scans_per_store_max=2)
    rig.feed.subscribe(OTHER, Ts(100))
    rig.run()
    stream = rig.stream
    stream.say(initialized(stream.registers[0]))
    rig.run()
    stream.say(initialized(stream.registers[1]))
    rig.run()
    assert encode_bytes(OTHER.start) in [request.start_key for request in stream.registers[:4]]


def test_feed_when_a_span_ends_then_the_store_is_told_and_what_waited_is_never_sent() -> None:
    rig = FeedRig(*cut(4), scans_per_store_max=2)
    rig.feed.subscribe(OTHER, Ts(100))
    rig.run()
    stream = rig.stream
    rig.feed.unsubscribe(SPAN)
    rig.run(5.0)
    deregistered = [(request.request_id, request.region_id) for request in stream.deregisters]
    assert deregistered == [(request.request_id, request.region_id) for request in stream.registers[:2]], (
        "no other region of these ids"
    )
    assert {request.header.cluster_id for request in stream.deregisters} == {7}
    assert {request.start_key for request in stream.registers[2:]} == {encode_bytes(OTHER.start)}
    stream.say(event(stream.registers[0], committed(101, 102)))
    rig.run()
    assert rig.sink.changes == []
    assert rig.feed.counters.stale_events == 1


def test_feed_when_a_stream_has_no_registrations_for_a_minute_then_it_is_closed_and_opened_when_needed() -> None:
    rig = FeedRig()
    stream = rig.stream
    rig.feed.unsubscribe(TABLE)
    rig.run(58.0)
    before = stream.closed
    rig.run(5.0)
    assert (before, stream.closed) == (False, True)
    rig.feed.subscribe(SPAN, Ts(100))
    rig.run()
    assert asked(rig.stream) == [2]


def test_feed_every_request_names_cluster_version_old_values_and_the_loop_filter() -> None:
    for filter_loop in (False, True):
        (request,) = FeedRig(filter_loop=filter_loop).stream.registers
        assert (request.header.cluster_id, request.header.ticdc_version) == (7, "8.5.0")
        assert (request.extra_op, request.kv_api, request.filter_loop) == (1, 0, filter_loop)


def test_feed_when_a_store_stays_silent_then_patience_doubles_each_time_and_is_reset_by_a_resolved_ts() -> None:
    rig, waits = FeedRig(silence_s=4.0), []
    for number in range(6):
        stream, opened_at_s = rig.stream, rig.now_s
        stream.say(initialized(stream.registers[0]))
        if number == 4:
            stream.say(resolved(200, stream.registers[0]))
        while not stream.closed:
            rig.run(0.05)
        waits.append(rig.now_s - opened_at_s)
        rig.run(0.2)
    assert [round(wait_s / 4) for wait_s in waits] == [1, 2, 4, 8, 1, 2]
    assert rig.feed.troubles["stream_silent"] == 6


def test_feed_when_only_scans_are_under_way_then_silence_is_believed_for_ten_minutes() -> None:
    rig = FeedRig()
    stream = rig.stream
    stream.say(event(stream.registers[0], committed(101, 102)))
    rig.run(590.0)
    assert not stream.closed
    assert "incremental scan not finished for 590 s" in rig.reason
    rig.run(20.0)
    assert stream.closed


def closing_s(rig: FeedRig, stream: ScriptedStream, most_s: float = 700.0) -> float:
    """Run until a stream is closed; return how long that took."""
    began_s = rig.now_s
    while not stream.closed:
        assert rig.now_s - began_s < most_s, "never closed"
        rig.run(0.05)
    return rig.now_s - began_s


def test_feed_when_nothing_ever_comes_of_a_stream_then_it_is_opened_anew_each_time_twice_as_late() -> None:
    rig, waits = FeedRig(unanswered_s=4.0), []
    for number in range(6):
        while all(stream.closed for stream in rig.streams):
            rig.run(0.05)
        stream = rig.stream
        assert [request.checkpoint_ts for request in stream.registers] == [100]
        if number == 4:  # an answer: the next silence is the first again
            stream.say(initialized(stream.registers[0]))
            rig.run()
            stream.end(Status.UNAVAILABLE)
            rig.run()
        else:
            waits.append(closing_s(rig, stream))
    assert [round(wait_s / 4) for wait_s in waits] == [1, 2, 4, 8, 1]
    assert rig.feed.troubles["stream_silent"] == 5
    assert "opened anew" in rig.reason


def test_feed_when_nothing_ever_comes_of_a_stream_then_by_default_it_is_believed_for_some_seconds() -> None:
    rig = FeedRig()
    assert 14.0 < closing_s(rig, rig.stream) < 17.0


@pytest.mark.parametrize("answer", ["row", "error", "resolved ts"])
def test_feed_when_anything_has_come_of_a_stream_then_its_scans_are_waited_for_as_long_as_ever(answer: str) -> None:
    rig = FeedRig(*cut(2), unanswered_s=4.0)
    stream = rig.stream
    request = stream.registers[0]
    busy = cdcpb_pb2.Error(server_is_busy=errorpb_pb2.ServerIsBusy(backoff_ms=100))
    answers = {
        "row": event(request, committed(101, 102)),
        "error": region_error(request, busy),
        "resolved ts": resolved(0, request),
    }
    stream.say(answers[answer])
    assert 595.0 < closing_s(rig, stream) < 605.0


def test_feed_when_a_stream_stood_open_unasked_then_its_patience_begins_with_the_request() -> None:
    rig = FeedRig()
    stream = rig.stream
    rig.feed.unsubscribe(SPAN)
    rig.run(40.0)
    rig.feed.subscribe(SPAN, Ts(100))
    rig.run()
    assert rig.stream is stream
    assert 14.0 < closing_s(rig, stream) < 17.0


@pytest.mark.parametrize(("silences", "patience"), [(0, 15.0), (1, 30.0), (5, 480.0), (6, 600.0), (10_000, 600.0)])
def test_patience_doubles_with_each_silence_up_to_ten_minutes(silences: int, patience: float) -> None:
    assert patience_s(15.0, silences) == patience


def test_feed_when_it_does_not_listen_itself_then_nobody_is_called_silent() -> None:
    rig = FeedRig()
    stream = rig.stream
    stream.say(initialized(stream.registers[0]))
    rig.run()
    rig.sink.full = True
    rig.run(100.0)
    rig.sink.full = False
    rig.run(20.0)
    assert not stream.closed
    rig.run(15.0)
    assert stream.closed


def test_feed_when_a_store_moves_to_another_address_then_its_stream_follows() -> None:
    rig = FeedRig()
    old = rig.stream
    rig.pd.addresses[1] = "store-1-elsewhere"
    old.end(Status.UNAVAILABLE, "connection refused")
    rig.run(2.0)
    assert rig.stream.address == "store-1-elsewhere"


def test_feed_when_an_open_store_is_found_elsewhere_then_all_its_regions_follow() -> None:
    rig = FeedRig(*cut(4, store=0))
    old, other = rig.streams
    assert asked(old) == [2, 6]
    for request in old.registers:
        old.say(initialized(request))
    old.say(resolved(203, *old.registers))
    rig.pd.addresses[1] = "store-1-elsewhere"
    other.end(Status.UNAVAILABLE)  # whereupon all addresses are asked for again
    old.say(region_error(old.registers[0], cdcpb_pb2.Error(region_not_found=errorpb_pb2.RegionNotFound())))
    rig.run(0.5)
    assert old.closed
    (moved,) = [stream for stream in rig.streams if stream.address == "store-1-elsewhere"]
    assert sorted(asked(moved)) == [2, 6]
    assert {request.checkpoint_ts for request in moved.registers} == {203}
    assert rig.feed.troubles["store_moved"] == 1


@pytest.mark.parametrize("gone", ["store", "leader", "region"])
def test_feed_when_pd_does_not_know_store_leader_or_region_then_it_says_so_and_goes_on_when_it_does(gone: str) -> None:
    rig = FeedRig()
    regions, addresses = rig.pd.regions, dict(rig.pd.addresses)
    if gone == "store":
        del rig.pd.addresses[1]
    elif gone == "leader":
        rig.pd.set((2, b"", b"", 5, 0))
    else:
        rig.pd.regions = []
    rig.stream.end(Status.UNAVAILABLE)
    rig.run(20.0)
    kind = "store_unavailable" if gone == "store" else "regions_unknown"
    assert kind in rig.reason
    assert 8 <= rig.feed.troubles[kind] <= 30
    rig.pd.regions, rig.pd.addresses = regions, addresses
    rig.run(3.0)
    assert rig.stream.registers[0].checkpoint_ts == 100


def test_feed_when_a_store_with_every_other_region_fails_then_pd_is_asked_by_pages_not_by_regions() -> None:
    rig = FeedRig(*cut(500, store=0))
    first, second = rig.streams
    for stream in (first, second):
        while True:
            for request in stream.registers:
                stream.say(initialized(request))
            count = len(stream.registers)
            rig.run()
            if len(stream.registers) == count:
                break
    assert (len(first.registers), len(second.registers)) == (250, 250)
    scans = rig.pd.scans
    first.end(Status.UNAVAILABLE)
    rig.run(1.5)
    assert rig.pd.scans - scans <= 2
    again = next(stream for stream in rig.streams if stream not in (first, second))
    assert len(again.registers) == 128


def test_feed_when_a_large_span_ends_then_the_store_forgets_its_own_request_id_at_once() -> None:
    rig = FeedRig(*cut(100), scans_per_store_max=1_000)
    rig.feed.unsubscribe(SPAN)
    rig.run(5.0)
    deregistered = [(request.request_id, request.region_id) for request in rig.stream.deregisters]
    alone = [request.request_id for request in rig.stream.registers if not is_shared(request.request_id)]
    assert len(alone) == 100 - SHARED_REGIONS_MAX
    assert deregistered.count((alone[0], 0)) == 1
    assert sorted(region for _, region in deregistered if region) == sorted(asked(rig.stream)[:SHARED_REGIONS_MAX])


def test_feed_with_many_small_tables_then_one_message_of_the_store_moves_all() -> None:
    tables = [TableId(number) for number in range(46, 246)]
    borders = [b"", *(encode_bytes(TableSpan.of_table(table).start) for table in tables[1:]), b""]
    regions = [(at + 2, borders[at], borders[at + 1], 5, 1) for at in range(len(tables))]
    rig = FeedRig(*regions, subscribe=False, scans_per_store_max=1_000)
    for table in tables:
        rig.feed.subscribe(TableSpan.of_table(table), Ts(100))
    rig.run()
    stream, landed = rig.stream, dict[TableSpan, Ts]()
    rig.sink.resolved = lambda span, ts: landed.update({span: ts})  # type: ignore[method-assign]
    assert len(stream.registers) == len(tables)
    assert len({request.request_id for request in stream.registers}) == 1
    for request in stream.registers:
        stream.say(initialized(request))
    stream.say(resolved(200, *stream.registers))
    rig.run()
    assert landed == {TableSpan.of_table(table): 200 for table in tables}

    # One that ends, or begins anew, takes no other with it.
    gone, again = TableSpan.of_table(tables[3]), TableSpan.of_table(tables[5])
    rig.feed.unsubscribe(gone)
    rig.feed.subscribe(again, Ts(150))
    rig.run()
    first, *_, last = stream.registers
    assert last.request_id != first.request_id
    stream.say(resolved(300, *stream.registers[:-1]))
    rig.run()
    assert {span for span, ts in landed.items() if ts == 200} == {gone, again}
    stream.say(initialized(last))
    stream.say(resolved(300, last))
    rig.run()
    assert {span for span, ts in landed.items() if ts == 200} == {gone}


def test_feed_over_a_range_of_many_pages_registers_all_of_it() -> None:
    rig = FeedRig(*cut(2_500), scans_per_store_max=10_000)
    assert len(set(asked(rig.stream))) == 2_500
    assert rig.pd.scans == 3
    for request in rig.stream.registers:
        rig.stream.say(initialized(request))
    ids = {request.request_id for request in rig.stream.registers}
    assert len(ids) == 2, "a few regions under an id that tables share, all others under one of this table"
    for region_id in ids:
        assert rig.sink.resolved_ts == 0
        rig.stream.say(resolved(200, *(request for request in rig.stream.registers if request.request_id == region_id)))
        rig.run()
    assert rig.sink.resolved_ts == 200
    assert rig.feed.status()[0].initialized == 2_500
