"""Stores before EventFeedV2: a stream for each span, how many of them, and when the newer protocol is tried again."""

from collections import Counter

import grpc

from schemas.ids import TableId, Ts
from schemas.tidb.codec import encode_bytes
from schemas.tidb.spans import TableSpan
from tests.support.upstream.scripted_stores import SPAN, FeedRig, ScriptedStream, initialized, resolved

Status = grpc.StatusCode
OTHER = TableSpan.of_table(TableId(46))


def test_feed_when_a_store_is_older_than_v2_then_each_span_has_a_stream_up_to_a_bound() -> None:
    rig = FeedRig(streams_per_store_max=1)
    rig.stream.end(Status.UNIMPLEMENTED, "unknown method EventFeedV2")
    rig.run(0.5)
    first = rig.stream
    assert not first.multiplexed
    rig.feed.subscribe(OTHER, Ts(100))
    rig.run(1.0)
    assert rig.stream is first
    waiting = rig.feed.status()[1]
    assert "1 streams are open to it" in waiting.reason and "--streams-per-store-max" in waiting.reason
    assert waiting.kind == "no_stream"
    rig.feed.unsubscribe(SPAN)
    rig.run(6.0)
    assert first.closed
    assert rig.stream.registers[0].start_key == encode_bytes(OTHER.start)


def test_feed_when_a_span_that_has_waited_for_a_stream_meets_other_trouble_then_its_kind_is_of_that() -> None:
    rig = FeedRig(streams_per_store_max=1, multiplexing=False)
    rig.feed.subscribe(OTHER, Ts(100))
    rig.run(1.0)
    assert rig.feed.status()[1].kind == "no_stream"
    rig.pd.regions = []
    rig.stream.end(Status.UNAVAILABLE, "away")
    rig.run(6.0)
    assert {span.kind for span in rig.feed.status()} == {"unregistered"}


def test_feed_when_an_old_store_restarts_then_v2_is_tried_again() -> None:
    rig = FeedRig()
    rig.stream.end(Status.UNIMPLEMENTED)
    rig.run(0.5)
    assert not rig.stream.multiplexed
    rig.stream.end(Status.UNAVAILABLE, "restarts, with a new TiKV perhaps")
    rig.run(3.0)
    assert rig.stream.multiplexed


def test_feed_when_a_store_has_no_feed_at_all_then_it_asks_again_at_leisure_and_says_why() -> None:
    rig = FeedRig()
    rig.stream.end(Status.UNIMPLEMENTED)
    rig.run(0.5)
    rig.stream.end(Status.UNIMPLEMENTED, "unknown service cdcpb.ChangeData")
    rig.run(25.0)
    assert len(rig.streams) == 2
    assert "unknown service" in rig.reason
    rig.run(10.0)
    assert len(rig.streams) == 3


def test_feed_when_an_old_store_answers_one_span_then_another_spans_patience_still_doubles() -> None:
    rig, seconds_open = FeedRig(unanswered_s=4.0), Counter[ScriptedStream]()
    rig.stream.end(Status.UNIMPLEMENTED, "unknown method EventFeedV2")
    rig.run(0.5)
    first = rig.stream
    first.say(initialized(first.registers[0]))
    rig.feed.subscribe(OTHER, Ts(100))
    rig.run(0.5)
    for ts in range(200, 245):
        seconds_open.update(stream for stream in rig.streams if not stream.closed)
        first.say(resolved(ts, first.registers[0], multiplexed=False))
        rig.run(1.0)
    assert seconds_open.pop(first) == 45
    assert [round(seconds / 4) for stream, seconds in seconds_open.items() if stream.closed] == [1, 2, 4]
