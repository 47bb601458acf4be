"""Each row of the table in producers.pull.core.regions.region_errors: what the store does, and what the feed does then.

Every case begins with one initialized region, one change landed and a transaction half way; and every case that goes on
must end with the span registered from its resolved ts, the rest of its changes landed once, and its resolved ts moving.
"""

from collections.abc import Callable
from dataclasses import dataclass

import grpc
import pytest

from producers.pull.core.match.matcher import BadRowError, PrewriteNotMatchError
from producers.pull.core.regions.region_errors import (
    FAULTS_MAX,
    ClusterMismatchError,
    DuplicateRequestError,
    VersionIncompatibleError,
)
from producers.pull.core.regions.stream_errors import (
    MalformedMessageError,
    StoreMessageTooLargeError,
    StreamRefusedError,
)
from schemas.errors import Action, BusError, InvariantBrokenError
from schemas.proto import cdcpb_pb2, errorpb_pb2, metapb_pb2
from schemas.tidb.keys import row_key
from tests.support.upstream.scripted_stores import (
    TABLE,
    FeedRig,
    Row,
    ScriptedStream,
    commit,
    committed,
    event,
    initialized,
    region_error,
    resolved,
)

Event = cdcpb_pb2.Event
Status = grpc.StatusCode
Does = Callable[[ScriptedStream, cdcpb_pb2.ChangeDataRequest], None]
LEADER_2 = errorpb_pb2.NotLeader(region_id=2, leader=metapb_pb2.Peer(id=20, store_id=2))
BUSY = errorpb_pb2.ServerIsBusy(reason="too many scans", backoff_ms=7_000)


def error(**fields: object) -> Does:
    return lambda stream, request: stream.say(region_error(request, cdcpb_pb2.Error(**fields)))  # type: ignore[arg-type]


def unknown_error(stream: ScriptedStream, request: cdcpb_pb2.ChangeDataRequest) -> None:
    later_field = cdcpb_pb2.Error.FromString(b"\xa2\x06\x02\x08\x01")  # field 100: of a kvproto to come
    stream.say(region_error(request, later_field))


def end(code: grpc.StatusCode, details: str = "") -> Does:
    return lambda stream, request: stream.end(code, details)


def say(*rows: Row) -> Does:
    return lambda stream, request: stream.say(event(request, *rows))


def garbage(stream: ScriptedStream, request: cdcpb_pb2.ChangeDataRequest) -> None:
    stream.say(initialized(request).SerializeToString()[:-3] + b"\xff\xff\xff")


def endless_ts(stream: ScriptedStream, request: cdcpb_pb2.ChangeDataRequest) -> None:
    stream.say(resolved(2**64 - 1, request))


def silence(stream: ScriptedStream, request: cdcpb_pb2.ChangeDataRequest) -> None:
    """Say nothing."""


STRANGE_TYPE = Row.FromString(b"\x08\x65\x10\x66\x18\x09")
STRANGE_OP = Row(type=Event.COMMITTED, op_type=Row.UNKNOWN, start_ts=112, commit_ts=113, key=row_key(TABLE, 1))


@dataclass(frozen=True)
class Case:
    kind: str
    does: Does
    wait_s: tuple[float, float] = (0.0, 0.2)
    """Between these, the next registration is sent."""
    same_stream: bool = False
    asks_pd: bool = True
    store: int = 1
    multiplexed: bool = True
    deregisters: bool = False


REOPENED = (1.0, 1.2)
HEALING = {
    "not_leader, leader named": Case("not_leader", error(not_leader=LEADER_2), store=2, asks_pd=False),
    "not_leader, no leader": Case("not_leader", error(not_leader=errorpb_pb2.NotLeader(region_id=2)), same_stream=True),
    "not_leader, leader zero": Case(
        "not_leader", error(not_leader=errorpb_pb2.NotLeader(leader=metapb_pb2.Peer())), same_stream=True
    ),
    "epoch_not_match": Case("epoch_not_match", error(epoch_not_match=errorpb_pb2.EpochNotMatch()), same_stream=True),
    "epoch_not_match with regions": Case(
        "epoch_not_match",
        error(epoch_not_match=errorpb_pb2.EpochNotMatch(current_regions=[metapb_pb2.Region(id=9)])),
        same_stream=True,
    ),
    "region_not_found": Case(
        "region_not_found", error(region_not_found=errorpb_pb2.RegionNotFound(region_id=2)), same_stream=True
    ),
    "congested": Case("congested", error(congested=cdcpb_pb2.Congested(region_id=2)), same_stream=True, asks_pd=False),
    "server_is_busy": Case(
        "server_is_busy", error(server_is_busy=BUSY), wait_s=(7.0, 7.2), same_stream=True, asks_pd=False
    ),
    "no field": Case("unknown_error", error(), same_stream=True, asks_pd=False),
    "field that is unknown": Case("unknown_error", unknown_error, same_stream=True, asks_pd=False),
    "OK": Case("stream_ok", end(Status.OK), wait_s=REOPENED),
    "CANCELLED": Case("stream_cancelled", end(Status.CANCELLED), wait_s=REOPENED),
    "INTERNAL": Case("stream_internal", end(Status.INTERNAL, "RST_STREAM"), wait_s=REOPENED),
    "UNAVAILABLE": Case("stream_unavailable", end(Status.UNAVAILABLE, "connection refused"), wait_s=REOPENED),
    "UNKNOWN": Case("stream_unknown", end(Status.UNKNOWN, "watchdog"), wait_s=REOPENED),
    "RESOURCE_EXHAUSTED": Case("stream_resource_exhausted", end(Status.RESOURCE_EXHAUSTED), wait_s=(5.0, 5.2)),
    "message too large": Case(
        "stream_resource_exhausted", end(Status.RESOURCE_EXHAUSTED, "Received message larger than max"), REOPENED
    ),
    "UNIMPLEMENTED": Case("stream_unimplemented", end(Status.UNIMPLEMENTED), multiplexed=False),
    "UNAUTHENTICATED": Case("stream_unauthenticated", end(Status.UNAUTHENTICATED, "expired"), wait_s=(30.0, 30.2)),
    "PERMISSION_DENIED": Case("stream_permission_denied", end(Status.PERMISSION_DENIED, "CN"), wait_s=(30.0, 30.2)),
    "INVALID_ARGUMENT": Case("stream_invalid_argument", end(Status.INVALID_ARGUMENT), wait_s=REOPENED),
    "silent": Case("stream_silent", silence, wait_s=(29.0, 32.0)),
    "no ChangeDataEvent": Case("malformed_message", garbage, wait_s=REOPENED),
    "ts that no clock gives": Case("malformed_message", endless_ts, wait_s=REOPENED),
    "commit without prewrite": Case(
        "prewrite_not_match", say(commit(113, 114, 9)), same_stream=True, asks_pd=False, deregisters=True
    ),
    "unknown row type": Case("bad_row", say(STRANGE_TYPE), same_stream=True, asks_pd=False, deregisters=True),
    "unknown op": Case("bad_row", say(STRANGE_OP), same_stream=True, asks_pd=False, deregisters=True),
}


def begun(**settings: object) -> tuple[FeedRig, cdcpb_pb2.ChangeDataRequest]:
    rig = FeedRig(**settings)  # type: ignore[arg-type]
    (request,) = rig.stream.registers
    rig.stream.say(event(request, committed(101, 102)))
    rig.stream.say(initialized(request))
    rig.stream.say(resolved(110, request))
    prewrite = Row(type=Event.PREWRITE, op_type=Row.PUT, start_ts=111, key=row_key(TABLE, 2), value=b"half")
    rig.stream.say(event(request, prewrite, committed(112, 113, 3)))
    rig.run()
    assert rig.sink.resolved_ts == 110
    return rig, request


@pytest.mark.parametrize("case", HEALING.values(), ids=HEALING)
def test_event_feed_when_trouble_heals_then_the_range_goes_on_from_its_resolved_ts(case: Case) -> None:
    rig, before = begun()
    old, scans, since_s = rig.stream, rig.pd.scans, rig.now_s
    case.does(old, before)
    rig.run()
    while sum(len(stream.registers) for stream in rig.streams) == 1:
        assert rig.now_s - since_s < 60, "no new registration"
        rig.run(0.05)
    low_s, high_s = case.wait_s
    assert low_s <= rig.now_s - since_s <= high_s + 0.11
    assert rig.feed.troubles[case.kind] == 1
    assert (rig.pd.scans > scans) == case.asks_pd
    now = next(stream for stream in reversed(rig.streams) if stream.registers)
    assert (now is old) == case.same_stream
    assert (now.store_id, now.multiplexed) == (case.store, case.multiplexed)
    assert bool(old.deregisters) == case.deregisters
    again = now.registers[-1]
    assert (again.checkpoint_ts, again.start_key, again.end_key) == (110, before.start_key, before.end_key)
    assert again.request_id != before.request_id

    if now is old:  # what is under way for the old registration counts no more
        old.say(event(before, committed(118, 119, 8)))
        old.say(initialized(before))
        old.say(resolved(150, before))
    now.say(event(again, committed(112, 113, 3), committed(111, 115, 2)))
    now.say(initialized(again))
    now.say(resolved(120, again, multiplexed=case.multiplexed))
    rig.run(1.5)
    assert [change[:2] for change in rig.sink.changes] == [(102, 101), (113, 112), (115, 111)]
    assert (rig.sink.resolved_ts, rig.sink.repeats, rig.reason) == (120, 1, "")


FATAL = {
    "duplicate_request": (
        error(duplicate_request=cdcpb_pb2.DuplicateRequest(region_id=2)), DuplicateRequestError, Action.CRASH
    ),
    "compatibility": (
        error(compatibility=cdcpb_pb2.Compatibility(required_version="9.0.0")),
        VersionIncompatibleError,
        Action.STOP_CHANGEFEED,
    ),
    "cluster_id_mismatch": (
        error(cluster_id_mismatch=cdcpb_pb2.ClusterIDMismatch(current=1, request=7)),
        ClusterMismatchError,
        Action.STOP_CHANGEFEED,
    ),
    "FAILED_PRECONDITION": (
        end(Status.FAILED_PRECONDITION, "mismatch cluster id"), ClusterMismatchError, Action.STOP_CHANGEFEED
    ),
    "row at its resolved ts": (say(committed(108, 110)), InvariantBrokenError, Action.CRASH),
}  # fmt: skip


@pytest.mark.parametrize(("does", "kind", "action"), FATAL.values(), ids=FATAL)
def test_event_feed_when_nothing_heals_it_then_it_ends_with_that_error(
    does: Does, kind: type[BusError], action: Action
) -> None:
    rig, request = begun()
    does(rig.stream, request)
    with pytest.raises(kind) as caught:
        rig.run()
    assert caught.value.action is action
    assert rig.sink.resolved_ts == 110


BOUNDED = {
    "message too large": (HEALING["message too large"].does, StoreMessageTooLargeError),
    "INVALID_ARGUMENT": (HEALING["INVALID_ARGUMENT"].does, StreamRefusedError),
    "no ChangeDataEvent": (garbage, MalformedMessageError),
    "commit without prewrite": (say(commit(113, 114, 9)), PrewriteNotMatchError),
    "unknown op": (say(STRANGE_OP), BadRowError),
}


def repeat(rig: FeedRig, does: Does, *, moving: bool) -> tuple[int, BusError | None]:
    """Meet each new registration with the same trouble; return after how many the feed gave up, if it did, and why."""
    for times in range(1, 41):
        stream = next(stream for stream in reversed(rig.streams) if stream.registers)
        request = stream.registers[-1]
        stream.say(initialized(request))
        if moving:
            stream.say(resolved(110 + times, request))
        does(stream, request)
        count = sum(len(stream.registers) for stream in rig.streams)
        try:
            rig.run()
            while sum(len(stream.registers) for stream in rig.streams) == count:
                rig.run(0.05)
        except BusError as error:
            return times, error
    return 40, None


@pytest.mark.parametrize(("does", "kind"), BOUNDED.values(), ids=BOUNDED)
def test_event_feed_when_bad_data_comes_again_and_again_then_it_ends_after_a_bound(
    does: Does, kind: type[BusError]
) -> None:
    rig, _ = begun()
    times, error = repeat(rig, does, moving=False)
    assert (times, type(error)) == (FAULTS_MAX + 1, kind)
    assert rig.sink.resolved_ts == 110


def test_event_feed_when_bad_data_comes_again_but_the_span_moves_between_then_it_goes_on() -> None:
    rig, _ = begun()
    assert repeat(rig, say(commit(200, 201, 9)), moving=True) == (40, None)
    assert rig.feed.troubles["prewrite_not_match"] == 40


def test_event_feed_when_events_come_for_a_region_never_registered_then_they_are_passed_over_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig, request = begun()
    for region_id, request_id in ((2, 99), (4, 1), (4, 0)):
        other = cdcpb_pb2.ChangeDataRequest(region_id=region_id, request_id=request_id)
        rig.stream.say(event(other, committed(114, 116, 4)))
        rig.stream.say(resolved(130, other))
    rig.stream.say(event(request, committed(117, 118, 5)))
    rig.stream.say(resolved(120, request))
    rig.run()
    assert [change[:2] for change in rig.sink.changes] == [(102, 101), (113, 112), (118, 117)]
    assert (rig.sink.resolved_ts, rig.feed.counters.stranger_events) == (120, 3)
    assert [record.message for record in caplog.records].count(
        "store sends events of a region that was never registered"
    ) == 1
