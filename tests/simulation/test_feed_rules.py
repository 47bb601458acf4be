"""Our region server's streams keep the order rules that a real TiKV's keep, and show the same kinds of messages."""

import asyncio
import base64
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.proto import cdcpb_pb2
from schemas.tidb.codec import encode_bytes
from tests.simulation.feed_schedules import make_schedule
from tests.simulation.feed_world import FeedWorld
from tests.support.recorded.feed_rules import FeedRules, RuleBrokenError
from tests.support.recorded.recording import read_jsonl

FEED = Path(__file__).parents[1] / "data" / "tikv-feed" / "feed.jsonl.zst"
SCHEDULES = 60
Event = cdcpb_pb2.Event
Row = cdcpb_pb2.Event.Row
ONLY_PROVOKED = {"error duplicate_request"}
"""The recorder registered a region twice on purpose; the event feed never does."""
ONLY_OURS = {"error congested", "error server_is_busy", "error of no kind"}
"""Legal, and not seen in the 76 s of the recording."""


def recorded_streams() -> Iterator[FeedRules]:
    """Yield the checker of every recorded stream when it has seen all of it."""
    streams: dict[int, FeedRules] = {}
    for record in read_jsonl(FEED):
        store, data = record.get("store", 0), base64.b64decode(record.get("bytes", ""))
        match record["kind"]:
            case "stream_open":
                if store in streams:
                    yield streams[store]
                streams[store] = FeedRules()
            case "request":
                streams[store].request(cdcpb_pb2.ChangeDataRequest.FromString(data))
            case "response":
                streams[store].message(cdcpb_pb2.ChangeDataEvent.FromString(data))
    yield from streams.values()


def recorded_kinds() -> Counter[str]:
    return sum((rules.kinds for rules in recorded_streams()), Counter[str]())


def test_feed_rules_on_the_recording_of_a_real_cluster_hold() -> None:
    kinds = recorded_kinds()
    # The counts of the recording's README: nothing was passed over.
    assert (kinds["PREWRITE"], kinds["COMMIT"], kinds["COMMITTED"], kinds["ROLLBACK"]) == (24429, 20972, 22171, 18)
    assert (kinds["one event"], kinds["several events"], kinds["resolved ts"]) == (1784, 389, 3704)
    assert kinds["INITIALIZED"] == 42


def test_feed_rules_on_our_region_server_hold_and_the_kinds_of_messages_are_a_real_clusters() -> None:
    kinds = Counter[str]()
    for seed in range(SCHEDULES):
        loop = asyncio.new_event_loop()
        world = FeedWorld(loop, seed, multiplexing=True)
        try:
            for step in make_schedule(seed):
                world.do(step)
            world.settle()
            assert not world.cluster.broken
            kinds += world.cluster.kinds
        finally:
            world.cluster.close()
            loop.close()
    assert set(recorded_kinds()) - ONLY_PROVOKED <= set(kinds)
    assert set(kinds) - ONLY_OURS <= set(recorded_kinds())


def row(kind: int, key: bytes = b"", start_ts: int = 0, commit_ts: int = 0, **more: object) -> Row:
    op = Row.PUT if kind in (Event.PREWRITE, Event.COMMIT, Event.COMMITTED) else Row.UNKNOWN
    return Row(type=kind, key=key, start_ts=start_ts, commit_ts=commit_ts, op_type=op, **more)  # type: ignore[arg-type]


INITIALIZED = row(Event.INITIALIZED)


@pytest.mark.parametrize(
    ("rule", "events"),
    [
        ("a scan's keys ascend", [[row(4, b"k2", 5, 6), row(4, b"k1", 7, 8)]]),
        ("newest version of a key first", [[row(4, b"k1", 5, 6), row(4, b"k1", 7, 8)]]),
        ("INITIALIZED is the last row", [[INITIALIZED, row(4, b"k1", 5, 6)]]),
        ("INITIALIZED comes once", [[INITIALIZED], [INITIALIZED]]),
        ("stands behind its PREWRITE", [[INITIALIZED], [row(2, b"k1", 5, 6)]]),
        ("at or below a resolved ts", [[INITIALIZED], 9, [row(4, b"k1", 7, 8)]]),
        ("of initialized registrations", [9]),
        ("at or below the checkpoint_ts", [[row(4, b"k1", 1, 2)]]),
        ("in the registered range", [[row(4, b"z", 5, 6)]]),
        ("a COMMIT has no old value", [[row(1, b"k1", 5), row(2, b"k1", 5, 6, old_value=b"v")]]),
        ("a short value or none", [[row(1, b"k1", 5), row(2, b"k1", 5, 6, value=bytes(256))]]),
    ],
)
def test_feed_rules_when_a_stream_breaks_one_then_it_is_named(rule: str, events: list[list[Row] | int]) -> None:
    rules = FeedRules()
    start, end = encode_bytes(b"k"), encode_bytes(b"l")
    rules.request(
        cdcpb_pb2.ChangeDataRequest(region_id=2, request_id=1, checkpoint_ts=3, start_key=start, end_key=end)
    )  # fmt: skip
    with pytest.raises(RuleBrokenError, match=rule):
        for sent in events:
            if isinstance(sent, int):
                resolved = cdcpb_pb2.ResolvedTs(regions=[2], request_id=1, ts=sent)
                rules.message(cdcpb_pb2.ChangeDataEvent(resolved_ts=resolved))
            else:
                event = Event(region_id=2, request_id=1, entries=Event.Entries(entries=sent))
                rules.message(cdcpb_pb2.ChangeDataEvent(events=[event]))
