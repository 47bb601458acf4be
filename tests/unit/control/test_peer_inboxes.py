"""What waits to be taken: bounded, newest wins, and nobody hears what was said before it listened."""

from consumers.control.core.replication.messages import Header, Heartbeat, HeartbeatResponse, Message
from consumers.control.peers.inboxes import MESSAGES_MAX
from consumers.control.peers.interface import Peers, Side, upstream_feed
from schemas.ids import CaptureId, Ts, UpstreamId
from schemas.rawlog.frontier import FrontierRecord, LandingReport
from tests.support.control.local_peers import LocalNet

A, B = CaptureId("a"), CaptureId("b")
FEED, OTHER = upstream_feed(UpstreamId("u")), upstream_feed(UpstreamId("v"))
HEADER = Header("1.0.0", 1, "", 1)


def pair() -> tuple[Peers, Peers]:
    net = LocalNet()
    peers = net.join(A), net.join(B)
    for peer in peers:
        peer.resolve({A: "a:1", B: "b:1"})
    return peers


def heartbeat(sequence: int) -> Message:
    return Message(HEADER, A, B, sequence, Heartbeat())


def report(end: int) -> LandingReport:
    return LandingReport(capture=A, landed_ts={}, ends=(end,), chunks=(), floors=(end,), repeat_ends=(0,))


def record(owner_rev: int, resolved_ts: int) -> FrontierRecord:
    return FrontierRecord(
        owner_rev=owner_rev, resolved_ts=Ts(resolved_ts), high=(0,), low=(0,), ddl_high=0, repeat_high=(0,)
    )


def test_inbox_when_nobody_has_listened_forgets() -> None:
    a, b = pair()
    a.send(FEED, [heartbeat(1)])
    assert b.take(FEED, Side.AGENT) == []
    a.send(FEED, [heartbeat(2)])
    assert [message.sequence for message in b.take(FEED, Side.AGENT)] == [2]
    assert b.take(FEED, Side.AGENT) == []


def test_inbox_gives_requests_to_the_agent_and_answers_to_the_scheduler() -> None:
    a, b = pair()
    for side in Side:
        b.take(FEED, side)
    a.send(FEED, [heartbeat(1), Message(HEADER, A, B, 2, HeartbeatResponse(()))])
    assert [message.sequence for message in b.take(FEED, Side.SCHEDULER)] == [2]
    assert [message.sequence for message in b.take(FEED, Side.AGENT)] == [1]
    assert b.take(OTHER, Side.AGENT) == []


def test_inbox_when_nobody_takes_keeps_the_newest() -> None:
    a, b = pair()
    b.take(FEED, Side.AGENT)
    a.send(FEED, map(heartbeat, range(MESSAGES_MAX + 5)))
    assert [message.sequence for message in b.take(FEED, Side.AGENT)] == list(range(5, MESSAGES_MAX + 5))


def test_reports_when_several_came_are_the_newest_of_each_capture_that_lives() -> None:
    a, b = pair()
    b.take(FEED, Side.SCHEDULER)
    for end in (1, 2):
        a.report(FEED, B, report(end))
    assert {capture: newest.ends for capture, newest in b.reports(FEED).items()} == {A: (2,)}
    assert b.reports(OTHER) == {}
    b.resolve({B: "b:1"})
    assert b.reports(FEED) == {}


def test_records_of_an_older_owner_change_nothing() -> None:
    a, b = pair()
    for peer in (a, b):
        peer.take(FEED, Side.AGENT)
    for published in (record(1, 10), record(2, 5), record(1, 20)):
        a.publish(FEED, published)
    assert b.published(FEED) == a.published(FEED) == record(2, 5)
    b.leave(FEED)
    assert b.published(FEED) is None
