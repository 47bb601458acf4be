"""A recorded feed served to a client that does not do what the recorder did: each rule of the replay by itself.

The recording is made here: two stores, one region of keys `k…`, whose leader moves from store 1 to store 2.
"""

import base64
import json
import math
from collections.abc import Iterator

import pytest
from google.protobuf.message import Message

from producers.region_server.core.replay.player import End, FeedReplay, Send
from producers.region_server.core.replay.recording import FeedRecording, Note, read_feed
from producers.region_server.core.replay.served import Stream
from schemas.errors import CorruptDataError
from schemas.ids import StoreId
from schemas.proto import cdcpb_pb2, errorpb_pb2, metapb_pb2, pdpb_pb2
from schemas.tidb.codec import encode_bytes

Event = cdcpb_pb2.Event
Row = cdcpb_pb2.Event.Row
START, MIDDLE, END = encode_bytes(b"k1"), encode_bytes(b"k5"), encode_bytes(b"k9")
REGION, RECORDED_REQUEST, MINE = 2, 1, 40
FIRST, SECOND = StoreId(1), StoreId(2)
NOT_LEADER = cdcpb_pb2.Error(not_leader=errorpb_pb2.NotLeader(region_id=REGION))


def row(kind: int, key: bytes = b"", start_ts: int = 0, commit_ts: int = 0, value: bytes = b"") -> Row:
    return Row(type=kind, key=key, start_ts=start_ts, commit_ts=commit_ts, value=value)  # type: ignore[arg-type]


def rows(*these: Row) -> cdcpb_pb2.ChangeDataEvent:
    event = Event(region_id=REGION, request_id=RECORDED_REQUEST, entries=Event.Entries(entries=these))
    return cdcpb_pb2.ChangeDataEvent(events=[event])


def failed(error: cdcpb_pb2.Error) -> cdcpb_pb2.ChangeDataEvent:
    return cdcpb_pb2.ChangeDataEvent(events=[Event(region_id=REGION, request_id=RECORDED_REQUEST, error=error)])


def resolved(ts: int) -> cdcpb_pb2.ChangeDataEvent:
    return cdcpb_pb2.ChangeDataEvent(
        resolved_ts=cdcpb_pb2.ResolvedTs(regions=[REGION], ts=ts, request_id=RECORDED_REQUEST)
    )  # fmt: skip


def register(
    request_id: int = MINE, checkpoint_ts: int = 5, start: bytes = START, end: bytes = END, version: int = 7
) -> cdcpb_pb2.ChangeDataRequest:
    return cdcpb_pb2.ChangeDataRequest(
        region_id=REGION,
        region_epoch=metapb_pb2.RegionEpoch(version=version),
        request_id=request_id,
        checkpoint_ts=checkpoint_ts,
        start_key=start,
        end_key=end,
    )


def regions(leader: StoreId) -> pdpb_pb2.ScanRegionsResponse:
    meta = metapb_pb2.Region(
        id=REGION, start_key=START, end_key=END, region_epoch=metapb_pb2.RegionEpoch(version=7)
    )  # fmt: skip
    peer = metapb_pb2.Peer(id=20 + leader, store_id=leader)
    return pdpb_pb2.ScanRegionsResponse(regions=[pdpb_pb2.Region(region=meta, leader=peer)])


def line(kind: str, message: Message | None = None, **more: object) -> str:
    data = {} if message is None else {"bytes": base64.b64encode(message.SerializeToString()).decode()}
    return json.dumps({"t_ms": 0.0, "kind": kind, **more, **data})


def recorded_lines() -> Iterator[str]:
    header = pdpb_pb2.ResponseHeader(cluster_id=7)
    yield line("pd_members", pdpb_pb2.GetMembersResponse(header=header))
    stores = [metapb_pb2.Store(id=FIRST), metapb_pb2.Store(id=SECOND)]
    yield line("pd_stores", pdpb_pb2.GetAllStoresResponse(stores=stores))
    yield line("note", what="subscribe", request_id=RECORDED_REQUEST)
    yield line("pd_regions", regions(FIRST))
    yield line("stream_open", store=FIRST)
    yield line("request", register(RECORDED_REQUEST), store=FIRST)
    yield line("response", rows(row(4, b"k2", 6, 7, b"a"), row(4, b"k6", 6, 7, b"b"), row(5)), store=FIRST)
    yield line("response", resolved(10), store=FIRST)
    yield line("response", rows(row(1, b"k2", 12, 0, b"c"), row(2, b"k2", 12, 14)), store=FIRST)
    yield line("response", resolved(15), store=FIRST)
    yield line("response", failed(NOT_LEADER), store=FIRST)
    yield line("request", register(RECORDED_REQUEST, 15), store=FIRST)  # PD had not heard of it yet
    yield line("response", failed(NOT_LEADER), store=FIRST)
    yield line("pd_regions", regions(SECOND))
    yield line("stream_open", store=SECOND)
    yield line("request", register(RECORDED_REQUEST, 15), store=SECOND)
    yield line("response", rows(row(5)), store=SECOND)
    yield line("response", resolved(20), store=SECOND)
    yield line("request", register(RECORDED_REQUEST, 20), store=SECOND)
    twice = cdcpb_pb2.Error(duplicate_request=cdcpb_pb2.DuplicateRequest(region_id=REGION))
    yield line("response", failed(twice), store=SECOND)
    yield line("response", resolved(25), store=SECOND)


@pytest.fixture
def recording() -> FeedRecording:
    return read_feed(recorded_lines())


class Client:
    """Streams to a replay, and what came on them."""

    def __init__(self, recording: FeedRecording, held_notes: frozenset[str] = frozenset()) -> None:
        self.replay = FeedReplay(recording, held_notes)
        self.notes: list[str] = []

    def open(self, store_id: StoreId) -> Stream:
        stream = self.replay.connect(store_id, multiplexed=True)
        assert isinstance(stream, Stream)
        return stream

    def ask(self, stream: Stream, request: cdcpb_pb2.ChangeDataRequest) -> list[str]:
        self.replay.register(stream, request)
        return self.run()

    def run(self) -> list[str]:
        """Let the recording go on; return what was said, in words."""
        self.replay.advance(math.inf)
        said: list[str] = []
        for output in self.replay.take_outputs():
            match output:
                case Send(_, message):
                    said += words(message)
                case End():
                    said.append("end")
                case Note(fields):
                    self.notes.append(fields["what"])
        return said


def words(message: cdcpb_pb2.ChangeDataEvent) -> Iterator[str]:
    for event in message.events:
        for row in event.entries.entries:
            named = row.key.decode() + f" {row.start_ts}" + (f"-{row.commit_ts}" if row.commit_ts else "")
            yield f"{event.request_id}: {Event.LogType.Name(row.type)} {named if row.key else ''}".strip()
        for field, _ in event.error.ListFields():
            yield f"{event.request_id}: {field.name}"
    if message.HasField("resolved_ts"):
        yield f"{message.resolved_ts.request_id}: resolved {message.resolved_ts.ts}"


AT_FIRST_STORE = [
    "40: COMMITTED k2 6-7", "40: COMMITTED k6 6-7", "40: INITIALIZED", "40: resolved 10",
    "40: PREWRITE k2 12", "40: COMMIT k2 12-14", "40: resolved 15", "40: not_leader",
]  # fmt: skip


def test_replay_to_a_client_that_does_as_the_recorder_did_says_all_with_the_clients_request_ids(
    recording: FeedRecording,
) -> None:
    client = Client(recording)
    assert client.run() == []
    assert client.replay.waits_for == "a registration of region 2 at store 1"
    assert client.ask(client.open(FIRST), register()) == AT_FIRST_STORE
    assert client.replay.waits_for == "a registration of region 2 at store 2"
    said = client.ask(client.open(SECOND), register(41, 15))
    # The recorder's own doings are left out: its try at the wrong store, and its second registration.
    assert said == ["41: INITIALIZED", "41: resolved 20", "41: resolved 25"]
    assert client.replay.finished


def test_replay_when_a_client_asks_the_store_that_does_not_lead_then_it_refuses_as_that_store_did(
    recording: FeedRecording,
) -> None:
    client = Client(recording)
    client.run()
    assert client.ask(client.open(SECOND), register()) == ["40: not_leader"]
    assert client.ask(client.open(FIRST), register(version=6)) == ["40: epoch_not_match"]
    assert client.ask(client.open(FIRST), register()) == AT_FIRST_STORE


def test_replay_when_a_client_registers_twice_then_only_the_second_time_is_refused(recording: FeedRecording) -> None:
    client = Client(recording)
    stream = client.open(FIRST)
    client.replay.register(stream, register(end=MIDDLE))
    assert client.ask(stream, register(end=MIDDLE)) == ["40: duplicate_request"]


def test_replay_when_a_client_registers_two_halves_then_each_gets_its_keys_and_the_end(
    recording: FeedRecording,
) -> None:
    client = Client(recording)
    stream = client.open(FIRST)
    assert client.ask(stream, register(40, end=MIDDLE)) == []  # the other half is not there yet
    said = client.ask(stream, register(41, start=MIDDLE))
    assert [word for word in said if word.startswith("41")] == [
        "41: COMMITTED k6 6-7", "41: INITIALIZED", "41: resolved 10", "41: resolved 15", "41: not_leader",
    ]  # fmt: skip
    assert [word for word in said if word.startswith("40")] == [word for word in AT_FIRST_STORE if "k6" not in word]


def test_replay_when_a_client_comes_back_with_a_later_ts_then_it_is_told_what_is_above(
    recording: FeedRecording,
) -> None:
    client = Client(recording)
    client.replay.register(client.open(FIRST), register())
    client.run()
    stream = client.open(SECOND)
    client.replay.register(stream, register(41, 15))
    client.run()
    client.replay.disconnect(stream)
    assert client.ask(client.open(SECOND), register(42, 22)) == [
        "42: INITIALIZED", "42: resolved 20", "42: resolved 25",
    ]  # fmt: skip


def test_replay_when_a_client_missed_the_end_of_a_registration_then_the_next_one_scans_from_its_own_ts(
    recording: FeedRecording,
) -> None:
    client = Client(recording)
    client.replay.register(client.open(FIRST), register())
    client.run()  # all of it was lost on the way
    said = client.ask(client.open(SECOND), register(41, 5))
    assert said[:4] == ["41: COMMITTED k2 12-14", "41: COMMITTED k2 6-7", "41: COMMITTED k6 6-7", "41: INITIALIZED"]


def test_replay_when_a_client_is_cut_off_before_a_registration_ends_then_the_end_waits_for_it(
    recording: FeedRecording,
) -> None:
    lines = list(recorded_lines())
    at = next(number for number, text in enumerate(lines) if '"kind": "response"' in text) + 1
    lines[at:at] = [line("note", what="snapshot")]
    client = Client(read_feed(lines), held_notes=frozenset({"snapshot"}))
    client.run()
    stream = client.open(FIRST)
    assert client.ask(stream, register()) == AT_FIRST_STORE[:3]
    client.replay.disconnect(stream)
    client.replay.go_on()
    assert client.run() == []
    assert client.replay.waits_for == "a registration of region 2 at store 1"
    assert client.notes == ["subscribe", "snapshot"]
    assert client.ask(client.open(FIRST), register(checkpoint_ts=7)) == AT_FIRST_STORE[2:]


def test_replay_pd_knows_the_regions_of_the_cursors_time(recording: FeedRecording) -> None:
    client = Client(recording)
    assert [region.leader.store_id for region in client.replay.scan_regions(b"", b"")] == [FIRST]
    client.replay.register(client.open(FIRST), register())
    client.run()
    assert [region.leader.store_id for region in client.replay.scan_regions(START, MIDDLE)] == [SECOND]
    assert list(client.replay.scan_regions(END, b"")) == []


def test_replay_when_a_store_goes_down_then_it_comes_up_once_the_client_has_tried_it() -> None:
    lines = list(recorded_lines())
    last = next(number for number, text in enumerate(lines) if '"pd_regions"' in text and number > 5)
    lines[last:last] = [
        line("stream_open", store=FIRST),
        line("stream_end", store=FIRST, code="UNAVAILABLE", details="closed"),
        line("stream_open", store=FIRST),
        line("stream_end", store=FIRST, code="UNAVAILABLE", details="refused"),
        line("stream_open", store=FIRST),
    ]
    client = Client(read_feed(lines))
    client.run()
    assert client.ask(client.open(FIRST), register()) == [*AT_FIRST_STORE, "end"]
    assert client.replay.waits_for == "a stream to store 1, which is down"
    assert client.replay.connect(FIRST, multiplexed=True) == "closed"
    client.run()
    assert client.replay.waits_for == "a registration of region 2 at store 2"
    assert isinstance(client.replay.connect(FIRST, multiplexed=True), Stream)


@pytest.mark.parametrize("text", ["{", '{"kind": "request", "bytes": "!"}', '{"t_ms": 0}'])
def test_read_feed_when_a_line_does_not_parse_then_it_is_named(text: str) -> None:
    with pytest.raises(CorruptDataError) as caught:
        read_feed([line("note", what="subscribe"), text])
    assert caught.value.fields["line"] == 2


def of(request_id: int, message: cdcpb_pb2.ChangeDataEvent) -> cdcpb_pb2.ChangeDataEvent:
    """Return a message of another of the recorder's subscriptions."""
    made = cdcpb_pb2.ChangeDataEvent.FromString(message.SerializeToString())
    for event in made.events:
        event.request_id = request_id
    if made.HasField("resolved_ts"):
        made.resolved_ts.request_id = request_id
    return made


def twice_subscribed() -> FeedRecording:
    """Return a recording of two subscriptions of one span; the first one is given up before the end."""

    def lines() -> Iterator[str]:
        yield from list(recorded_lines())[:6]
        yield line("response", rows(row(4, b"k2", 6, 7, b"a"), row(5)), store=FIRST)
        yield line("response", resolved(10), store=FIRST)
        yield line("request", register(2, 9), store=FIRST)
        yield line("response", of(2, rows(row(5))), store=FIRST)
        yield line("response", of(2, resolved(11)), store=FIRST)
        yield line("response", rows(row(1, b"k2", 12, 0, b"c"), row(2, b"k2", 12, 14)), store=FIRST)
        yield line("response", of(2, rows(row(1, b"k2", 12, 0, b"c"), row(2, b"k2", 12, 14))), store=FIRST)
        given_up = cdcpb_pb2.ChangeDataRequest(
            request_id=RECORDED_REQUEST, region_id=REGION, deregister=cdcpb_pb2.ChangeDataRequest.Deregister()
        )
        yield line("request", given_up, store=FIRST)
        yield line("response", of(2, resolved(15)), store=FIRST)
        yield line("response", of(2, rows(row(1, b"k6", 16, 0, b"d"), row(2, b"k6", 16, 18))), store=FIRST)
        yield line("response", of(2, resolved(20)), store=FIRST)

    return read_feed(lines())


REST = ["PREWRITE k2 12", "COMMIT k2 12-14", "resolved 15", "PREWRITE k6 16", "COMMIT k6 16-18", "resolved 20"]


def test_replay_of_two_subscriptions_of_one_span_plays_to_its_end_for_a_client_with_one() -> None:
    client = Client(twice_subscribed())
    said = client.ask(client.open(FIRST), register())
    assert said == [f"40: {word}" for word in ("COMMITTED k2 6-7", "INITIALIZED", "resolved 10", *REST)]
    assert client.replay.finished


def test_replay_of_two_subscriptions_of_one_span_gives_each_of_a_clients_one() -> None:
    client = Client(twice_subscribed())
    stream = client.open(FIRST)
    client.replay.register(stream, register(40))
    client.replay.register(stream, register(41, 9))
    said = client.run()
    assert client.replay.finished
    assert [word for word in said if word.startswith("41")] == [
        f"41: {word}" for word in ("INITIALIZED", "resolved 11", *REST)
    ]
    assert [word for word in said if word.startswith("40")] == [
        f"40: {word}" for word in ("COMMITTED k2 6-7", "INITIALIZED", "resolved 10", *REST)
    ]
