"""Messages that no TiKV would send, through feed, matcher and landing: a trouble with a name, and all goes on.

A store that lies within the protocol cannot be found out. What is tried here is all else: the feed's thread may
end for a reason of the table in :mod:`producers.pull.core.regions.region_errors`, and by nothing else.
"""

import logging
import pickle
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producers.pull.core.landing.book import LandingBook
from producers.pull.core.match.matcher_quota import MatcherQuota
from producers.pull.landing.landing import Landing, LandingSettings
from schemas.errors import BusError, CorruptDataError
from schemas.ids import CaptureId, TableId
from schemas.proto import cdcpb_pb2, errorpb_pb2, metapb_pb2
from schemas.rawlog.region_batch import decode_region_batch
from schemas.rawlog.row_parts import PartJoiner
from schemas.tidb.keys import row_key
from tests.support.rawlog.memory_spill import MemorySpill
from tests.support.sources.hostile import bent
from tests.support.upstream.scripted_stores import (
    SPAN,
    START_TS,
    TABLE,
    FeedRig,
    Row,
    ScriptedStream,
    committed,
    event,
    initialized,
    region_error,
    resolved,
)

Event = cdcpb_pb2.Event
Request = cdcpb_pb2.ChangeDataRequest
LIES_TO_TS = 1_000
"""Up to here hostile messages may resolve a region: that is within the protocol, and the honest ones come above it."""
WAIT_S = 700.0
"""Longer than any wait of the feed, also one that a store has asked for."""
REOPENED_S = 5.0
"""A stream that was silent for so long is opened anew; this is more than that takes."""
FINAL = {
    "producer.duplicate_request",
    "producer.version_incompatible",
    "producer.cluster_id_mismatch",
    "bus.invariant_broken",
}
"""What ends the feed at once, by the table of region_errors."""
TEXT_CHARS_MAX = 10_000


class Acknowledged:
    """What ``Message`` says of a delivered record."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset


class MemoryProducer:
    """Takes every record and acknowledges it at the next poll."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self._due: list[Callable[[], None]] = []

    def produce(
        self,
        topic: str,
        *,
        value: bytes,
        partition: int,
        headers: Sequence[tuple[str, bytes]] = (),
        on_delivery: Callable[[Any, Any], None],
    ) -> None:
        offset = len(self.values)
        self.values.append(value)
        self._due.append(lambda: on_delivery(None, Acknowledged(offset)))

    def poll(self, timeout: float) -> int:
        due, self._due = self._due, []
        for deliver in due:
            deliver()
        return len(due)

    def flush(self, timeout: float) -> int:
        return self.poll(timeout) * 0

    def commit_ts(self) -> set[int]:
        """Return the commit_ts of all rows that have landed."""
        joiner, seen = PartJoiner(), set[int]()
        for offset, value in enumerate(self.values):
            whole = joiner.take(offset, value)
            if whole is not None:
                seen.update(decode_region_batch(getattr(whole, "value", whole)).rows.commit_ts.tolist())
        return seen


class Pulled:
    """A feed whose rows are landed as in production, over one region that is initialized and resolved to 110."""

    def __init__(self, *, multiplexed: bool = True, quota: MatcherQuota | None = None) -> None:
        self.producer = MemoryProducer()
        book = LandingBook(CaptureId("c"), 1)
        book.assign(SPAN, START_TS)
        self.landing = Landing(
            book, self.producer, topic="raw", partitions=1, schema_id=1, settings=LandingSettings(linger_s=0.0)
        )
        self.rig = FeedRig(sink=self.landing, quota=quota, multiplexing=multiplexed)
        self.multiplexed = multiplexed
        (self.first,) = self.rig.stream.registers
        stream = self.rig.stream
        stream.say(event(self.first, committed(101, 102)))
        stream.say(initialized(self.first))
        stream.say(resolved(110, self.first, multiplexed=multiplexed))
        self.rig.run()

    def landed_ts(self) -> int:
        return self.landing.book.report().landed_ts[SPAN]

    def newest(self) -> Request:
        """Return the registration that stands; there is one again after WAIT_S at most."""
        return self._newest_stream().registers[-1]

    def _newest_stream(self) -> ScriptedStream:
        return next(stream for stream in reversed(self.rig.streams) if stream.registers and not stream.closed)

    def hear(self, message: bytes) -> None:
        """Take a message as the newest stream's."""
        self._newest_stream().say(message)
        self.rig.run()

    def wait(self) -> None:
        """Let every wait pass."""
        self.rig.now_s += WAIT_S
        self.rig.run(REOPENED_S)

    def go_on(self) -> None:
        """Let an honest store speak; its row lands, and the span is resolved behind it."""
        self.wait()
        stream, request = self._newest_stream(), self.newest()
        stream.say(event(request, committed(2_000, 2_001, 5)))
        stream.say(initialized(request))
        stream.say(resolved(2_002, request, multiplexed=self.multiplexed))
        self.rig.run(1.5)
        assert 2_001 in self.producer.commit_ts()
        assert self.landed_ts() >= 2_002


KEY = row_key(TABLE, 1)
WHOLE = Row(type=Event.COMMITTED, op_type=Row.PUT, start_ts=400, commit_ts=500, key=KEY)
HALF = Row(type=Event.PREWRITE, op_type=Row.PUT, start_ts=400, key=KEY, value=b"v")
END = Row(type=Event.COMMIT, op_type=Row.PUT, start_ts=400, commit_ts=500, key=KEY)
BACK = Row(type=Event.ROLLBACK, start_ts=400, key=KEY)
SCANNED = Row(type=Event.INITIALIZED)


def but(row: Row, **changed: Any) -> Row:
    """Return a row with other fields."""
    other = Row()
    other.CopyFrom(row)
    for name, value in changed.items():
        setattr(other, name, value)
    return other


UINT64 = st.sampled_from([0, 1, 110, 450, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
ENUM = st.sampled_from([-1, *range(7), 128, 2**31 - 1])
KEYS = st.sampled_from(
    [b"", b"\xff", b"m", KEY, KEY + bytes(40), row_key(TABLE, -1), row_key(TableId(46), 1), b"t" * 70_000]
)
BYTES = st.sampled_from([b"", b"v", bytes(300)]) | st.binary(max_size=20)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "start_ts": UINT64,
    "commit_ts": UINT64,
    "type": ENUM,
    "op_type": ENUM,
    "key": KEYS,
    "value": BYTES,
    "old_value": BYTES,
    "txn_source": UINT64,
    "generation": UINT64,
    "expire_ts_unix_secs": UINT64,
}


@st.composite
def a_row(draw: st.DrawFn) -> Row:
    """Return a right row in which one to three fields are another's."""
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=3, unique=True))
    return but(draw(st.sampled_from([WHOLE, HALF, END, BACK, SCANNED])), **{name: draw(FIELDS[name]) for name in names})


ROW = a_row()
ROWS = st.lists(ROW, max_size=4) | st.builds(lambda row, count: [row] * count, ROW, st.sampled_from([8, 20, 30]))
TEXT = st.sampled_from(["", "busy\nFATAL forged line", "x" * 100_000, "\x00\x1b[2J", "${env:HOME}"])
PEER = st.builds(metapb_pb2.Peer, id=UINT64, store_id=UINT64)
LEADER = st.builds(errorpb_pb2.NotLeader, region_id=UINT64, leader=PEER)
EPOCH = st.builds(
    errorpb_pb2.EpochNotMatch,
    current_regions=st.lists(
        st.builds(metapb_pb2.Region, id=UINT64, start_key=KEYS, end_key=KEYS, peers=st.lists(PEER)), max_size=3
    ),
)
ERROR = st.builds(
    cdcpb_pb2.Error,
    not_leader=st.none() | LEADER,
    epoch_not_match=st.none() | EPOCH,
    region_not_found=st.none() | st.builds(errorpb_pb2.RegionNotFound, region_id=UINT64),
    server_is_busy=st.none() | st.builds(errorpb_pb2.ServerIsBusy, reason=TEXT, backoff_ms=UINT64),
    congested=st.none() | st.builds(cdcpb_pb2.Congested, region_id=UINT64),
    duplicate_request=st.none() | st.builds(cdcpb_pb2.DuplicateRequest, region_id=UINT64),
    compatibility=st.none() | st.builds(cdcpb_pb2.Compatibility, required_version=TEXT),
    cluster_id_mismatch=st.none() | st.builds(cdcpb_pb2.ClusterIDMismatch, current=UINT64, request=UINT64),
)
RESOLVED = st.sampled_from([0, 1, 100, 111, LIES_TO_TS, 2**63 - 1, 2**63, 2**64 - 1])


@st.composite
def messages(draw: st.DrawFn, request: Request) -> bytes:
    """Return a message for a registration, or nearly for it, or the bytes of one that were bent."""
    regions = st.sampled_from([request.region_id] * 8 + [0, 3, 2**64 - 1])
    ids = st.sampled_from([request.request_id] * 8 + [0, 7, 1 << 32, 2**64 - 1])
    events = []
    for _ in range(draw(st.integers(0, 3))):
        made = Event(region_id=draw(regions), request_id=draw(ids), index=draw(UINT64))
        match draw(st.sampled_from(["entries", "entries", "entries", "error", "resolved", "admin", "txns", "nothing"])):
            case "entries":
                made.entries.entries.extend(draw(ROWS))
            case "error":
                made.error.CopyFrom(draw(ERROR))
            case "resolved":
                made.resolved_ts = draw(RESOLVED)
            case "admin":
                made.admin.admin_request = draw(BYTES)
            case "txns":
                made.long_txn.txn_info.add(start_ts=draw(UINT64), primary=draw(KEYS))
        events.append(made)
    message = cdcpb_pb2.ChangeDataEvent(events=events)
    if draw(st.booleans()):
        message.resolved_ts.ts = draw(RESOLVED)
        message.resolved_ts.request_id = draw(ids)
        message.resolved_ts.regions.extend(draw(st.lists(regions, max_size=30)))
    encoded = message.SerializeToString()
    return draw(bent(encoded)) if len(encoded) < 2_000 and draw(st.integers(0, 3)) == 3 else encoded


def is_final(error: BusError) -> bool:
    """Tell whether the feed may end by it; and hold it to one line of a readable length."""
    assert error.code in FINAL, error
    assert len(str(error)) < TEXT_CHARS_MAX
    return True


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of warnings, all of them due, would hide what a failing example says."""
    logging.getLogger("producers").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("producers").setLevel(logging.NOTSET)


@pytest.mark.parametrize("multiplexed", [True, False])
@settings(max_examples=200)
@given(data=st.data())
def test_feed_that_hears_anything_ends_by_name_or_goes_on(multiplexed: bool, data: st.DataObject) -> None:
    pulled = Pulled(multiplexed=multiplexed)
    for _ in range(data.draw(st.integers(1, 3))):
        request = data.draw(st.sampled_from([pulled.first, pulled.newest()]))
        try:
            pulled.hear(data.draw(messages(request)))
            assert len(pulled.rig.reason) < TEXT_CHARS_MAX
            pulled.wait()
        except BusError as error:
            assert is_final(error)
            assert pulled.landed_ts() <= LIES_TO_TS
            return
    assert pulled.landed_ts() <= LIES_TO_TS
    try:
        pulled.go_on()
    except BusError as error:
        assert is_final(error)


FORGED = {
    "commit_ts of 64 bits": [but(WHOLE, commit_ts=2**63)],
    "start_ts of 64 bits": [but(WHOLE, start_ts=2**64 - 1)],
    "txn_source of 64 bits": [but(WHOLE, txn_source=2**64 - 1)],
    "commit of 64 bits": [HALF, but(END, commit_ts=2**63)],
    "commit of an unknown op": [HALF, but(END, op_type=128)],
    "txn_source of a commit of 64 bits": [HALF, but(END, txn_source=2**63)],
    "prewrite of 64 bits, and its commit": [but(HALF, start_ts=2**63), but(END, start_ts=2**63)],
}


@pytest.mark.parametrize("rows", FORGED.values(), ids=FORGED)
@pytest.mark.parametrize("count", [1, 9, 25], ids=["a row", "a few rows", "columns"])
@pytest.mark.parametrize("scanned", [False, True], ids=["live", "while the region is scanned"])
@pytest.mark.parametrize("spilled", [False, True], ids=["in memory", "on disk"])
def test_row_of_numbers_that_no_tikv_gives_is_refused_and_the_region_registered_anew(
    rows: list[Row], count: int, scanned: bool, spilled: bool
) -> None:
    pulled = Pulled(quota=MatcherQuota(64, MemorySpill()) if spilled else None)
    if scanned:
        pulled.hear(region_error(pulled.first, cdcpb_pb2.Error()).SerializeToString())
        pulled.rig.run(1.0)
    keys = [row_key(TABLE, handle) for handle in range(count)]
    for row in rows:  # an event each, of one kind: the larger ones go by column
        pulled.hear(event(pulled.newest(), *(but(row, key=key) for key in keys)).SerializeToString())
    if scanned:
        pulled.hear(initialized(pulled.newest()).SerializeToString())
    assert pulled.rig.feed.troubles["bad_row"] == 1
    pulled.go_on()
    assert max(pulled.producer.commit_ts()) < 2**62


def test_gigantic_key_and_text_are_named_by_their_beginnings_and_held_once() -> None:
    pulled = Pulled()
    rig, size = pulled.rig, 16 << 20
    refused = event(pulled.first, but(WHOLE, op_type=128, key=KEY + bytes(size))).SerializeToString()
    busy = cdcpb_pb2.Error(server_is_busy=errorpb_pb2.ServerIsBusy(reason="x" * size, backoff_ms=1))
    tracemalloc.start()
    try:
        pulled.hear(refused)
        assert 0 < len(rig.reason) < TEXT_CHARS_MAX
        rig.run(5.0)
        pulled.hear(region_error(pulled.newest(), busy).SerializeToString())
        assert 0 < len(rig.reason) < TEXT_CHARS_MAX
        rig.run(5.0)
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 1 << 20
    pulled.go_on()


def test_error_of_a_gigantic_text_is_one_line_also_when_another_process_hands_it_on() -> None:
    error = CorruptDataError("m" * 10**6, key="k" * 10**6, items=["i" * 10**6])
    again = pickle.loads(pickle.dumps(error))
    assert str(error) == str(again) and len(str(error)) < 3 * 4_100
    assert str(error).startswith("[bus.corrupt_data] mmm")
    secret = CorruptDataError("x", uri=f"kafka://user:{'p' * 5_000}@broker/t")
    assert str(secret) == "[bus.corrupt_data] x (uri=kafka://***@broker/t)"
