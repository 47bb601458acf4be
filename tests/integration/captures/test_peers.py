"""Captures over real sockets: order, loss, dead and stopped peers, other captures at an address, TLS."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from compose.peers import open_peers
from compose.ports import LOOPBACK, free_ports
from compose.stack.secure.certificates import Authority
from consumers.control.core.peers.message_codec import encode_message
from consumers.control.core.replication.messages import Header, Heartbeat, HeartbeatResponse, Message
from consumers.control.peers import outbox
from consumers.control.peers.errors import PeerAddressError, PeerPortError
from consumers.control.peers.grpc_peers import GrpcPeers
from consumers.control.peers.interface import FeedKey, Side, upstream_feed
from producers.tls import TlsSettings
from schemas.ids import CaptureId, TableId, Ts, UpstreamId
from schemas.proto import p2p_pb2
from schemas.proto.p2p_pb2_grpc import CDCPeerToPeerStub
from schemas.rawlog.frontier import Chunk, FrontierRecord, LandingReport
from schemas.tidb.spans import TableSpan
from tests.support.upstream.cutting_proxy import CuttingProxy
from tests.support.upstream.feed_sink import wait_until

pytestmark = pytest.mark.integration

A, B, C = (CaptureId(name) for name in "abc")
FEED = upstream_feed(UpstreamId("u"))
HEADER = Header("1.0.0", 1, "", 1)
SPANS = tuple(TableSpan.of_table(TableId(number)) for number in range(1, 1001))

Open = Callable[..., GrpcPeers]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Open captures that listen for both sides, and close them in the end."""
    with contextlib.ExitStack() as stack:

        def make(capture: CaptureId, listen: str = "127.0.0.1:0", tls: TlsSettings | None = None) -> GrpcPeers:
            peers = stack.enter_context(contextlib.closing(open_peers(capture, "1.0.0", listen=listen, tls=tls)))
            for side in Side:
                peers.take(FEED, side)
            return peers

        yield make


def lasting_address() -> str:
    """Return an address that can be bound again: no connection is given its port as its own in between."""
    (port,) = free_ports(1)
    return f"{LOOPBACK}:{port}"


def pair(opened: Open) -> tuple[GrpcPeers, GrpcPeers]:
    a, b = opened(A), opened(B)
    for peers in (a, b):
        peers.resolve({A: a.address, B: b.address})
    return a, b


def heartbeat(sequence: int, *, sender: CaptureId = A, receiver: CaptureId = B, spans: int = 0) -> Message:
    return Message(HEADER, sender, receiver, sequence, Heartbeat(SPANS[:spans]))


def report(turn: int, *, capture: CaptureId = A) -> LandingReport:
    landed = {span: Ts(1000 * turn + number % 7) for number, span in enumerate(SPANS[: 100 + turn])}
    return LandingReport(
        capture=capture,
        landed_ts=landed,
        ends=(turn, 5),
        chunks=(Chunk(1, 2, Ts(3)),),
        floors=(1, 1),
        repeat_ends=(0, 0),
    )


def record(owner_rev: int, resolved_ts: int) -> FrontierRecord:
    return FrontierRecord(
        owner_rev=owner_rev, resolved_ts=Ts(resolved_ts), high=(9, 9), low=(0, 0), ddl_high=0, repeat_high=(0, 0)
    )


def taken(peers: GrpcPeers, count: int, side: Side = Side.AGENT, feed: FeedKey = FEED) -> list[int]:
    """Wait for so many messages and return their sequence numbers."""
    sequences: list[int] = []

    def is_there() -> bool:
        sequences.extend(message.sequence for message in peers.take(feed, side))
        return len(sequences) >= count

    wait_until(is_there, lambda: (sequences, peers.stats()))
    return sequences


def test_messages_come_in_order_and_answers_go_back(opened: Open) -> None:
    a, b = pair(opened)
    a.send(FEED, [heartbeat(number, spans=number) for number in range(500)])
    assert taken(b, 500) == list(range(500))
    b.send(FEED, [Message(HEADER, B, A, number, HeartbeatResponse(())) for number in range(10)])
    assert taken(a, 10, Side.SCHEDULER) == list(range(10))
    a.send(FEED, [heartbeat(1, receiver=A)])
    assert taken(a, 1) == [1]


def test_reports_and_records_are_the_newest(opened: Open) -> None:
    a, b = pair(opened)
    for turn in range(20):
        a.report(FEED, B, report(turn))
        b.publish(FEED, record(1, turn))
    b.report(FEED, B, report(3, capture=B))
    wait_until(lambda: b.reports(FEED) == {A: report(19), B: report(3, capture=B)}, lambda: b.reports(FEED).keys())
    assert b.reports(FEED)[A] is b.reports(FEED)[A]
    wait_until(lambda: a.published(FEED) == record(1, 19) == b.published(FEED), lambda: a.published(FEED))
    b.resolve({B: b.address})
    assert set(b.reports(FEED)) == {B}


def test_report_comes_no_later_than_the_answer_after_it(opened: Open) -> None:
    a, b = pair(opened)
    for turn in range(100):
        a.report(FEED, B, report(turn))
        a.send(FEED, [Message(HEADER, A, B, turn, HeartbeatResponse(()))])
        answers = taken(b, 1, Side.SCHEDULER)
        assert b.reports(FEED)[A].ends[0] >= answers[-1]


@contextlib.contextmanager
def process(capture: CaptureId) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run an answering capture in a process of its own; give it with its address."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.processes.peer_process", capture],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as child:
        try:
            assert child.stdout is not None
            yield child, child.stdout.readline().strip()
        finally:
            child.send_signal(signal.SIGCONT)
            child.kill()


def tell(child: subprocess.Popen[str], capture: CaptureId, address: str) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{capture} {address}\n")
    child.stdin.flush()


def test_peer_that_is_stopped_costs_a_bounded_queue_and_hears_the_newest_when_it_goes_on(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "WEIGHT_MAX", 50_000)
    a = opened(A)
    with process(B) as (child, address):
        tell(child, A, a.address)
        a.resolve({B: address})

        def answered() -> bool:
            a.send(FEED, [heartbeat(0)])  # it may hear this before it knows whom to answer
            return bool(a.take(FEED, Side.SCHEDULER))

        wait_until(answered, a.stats)
        os.kill(child.pid, signal.SIGSTOP)
        spent_s, last = time.thread_time(), 300
        began_at = time.monotonic()
        for number in range(1, last + 1):
            a.send(FEED, [heartbeat(number, spans=len(SPANS))])
            a.report(FEED, B, report(number % 100))
            a.publish(FEED, record(1, number))
        assert time.thread_time() - spent_s < 5, "queueing is all that it costs"
        assert time.monotonic() - began_at < 60, "nobody waits for a stopped peer"
        assert a.stats().dropped > 0
        os.kill(child.pid, signal.SIGCONT)
        sequences: list[int] = []

        def newest() -> bool:
            sequences.extend(message.sequence for message in a.take(FEED, Side.SCHEDULER))
            return bool(sequences) and sequences[-1] == last

        wait_until(newest, lambda: (sequences[-5:], a.stats()))
        assert sequences == sorted(sequences)
        assert len(set(sequences)) < last


def test_peer_that_accepts_and_says_nothing_disturbs_nobody(opened: Open) -> None:
    a, b = pair(opened)
    with socket.create_server(("127.0.0.1", 0)) as hole:
        a.resolve({A: a.address, B: b.address, C: f"127.0.0.1:{hole.getsockname()[1]}"})
        for number in range(200):
            a.send(FEED, [heartbeat(number, receiver=C), heartbeat(number)])
        assert taken(b, 200) == list(range(200))
        assert a.stats().peers == 2
        a.resolve({B: b.address})
        assert a.stats().peers == 1
        began_at = time.monotonic()
        a.close()
        assert time.monotonic() - began_at < 30


def test_peer_that_was_killed_and_came_back_under_another_id_hears_nothing_meant_for_the_first(opened: Open) -> None:
    a, b = opened(A), opened(B, lasting_address())
    for peers in (a, b):
        peers.resolve({A: a.address, B: b.address})
    a.send(FEED, [heartbeat(1)])
    assert taken(b, 1) == [1]
    address = b.address
    b.close()
    c = opened(C, address)
    assert c.address == address
    # A still knows B at this address: its messages must reach nobody.
    for number in range(2, 10):
        a.send(FEED, [heartbeat(number)])
    a.resolve({A: a.address, B: address, C: c.address})
    a.send(FEED, [heartbeat(100, receiver=C)])
    assert taken(c, 1) == [100]
    c.resolve({A: a.address, C: c.address})
    c.send(FEED, [heartbeat(1, sender=C, receiver=A)])
    assert taken(a, 1) == [1]


def test_connection_that_breaks_again_and_again_is_made_anew_and_reports_are_whole(opened: Open) -> None:
    a, b = opened(A), opened(B)
    with CuttingProxy(b.address, seed=3, bytes_min=400, bytes_max=20_000) as proxy:
        a.resolve({B: proxy.address})
        b.resolve({A: a.address})
        heard: list[int] = []
        turn = 0

        def cut_often() -> bool:
            nonlocal turn
            turn += 1
            a.report(FEED, B, report(turn % 50))
            a.send(FEED, [heartbeat(turn)])
            heard.extend(message.sequence for message in b.take(FEED, Side.AGENT))
            for newest in b.reports(FEED).values():
                assert newest == report(newest.ends[0])
            return proxy.cuts >= 5 and len(heard) > 20

        wait_until(cut_often, lambda: (proxy.cuts, heard))
        assert heard == sorted(set(heard)), "in order, each once"
        proxy.calm()

        def is_reported() -> bool:
            a.report(FEED, B, report(77))
            return b.reports(FEED).get(A) == report(77)

        wait_until(is_reported, a.stats)


def test_port_that_is_taken_is_refused_and_free_again_when_its_capture_has_gone(opened: Open) -> None:
    a = opened(A, lasting_address())
    with pytest.raises(PeerPortError):
        open_peers(B, "1.0.0", listen=a.address)
    a.close()
    opened(B, a.address)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a file with a cluster's secret."""
    path = tmp_path / "secret"
    path.write_text("known to all captures")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "nowhere", "127.0.0.1:x", "127.0.0.1:70000"])
def test_address_that_nobody_could_use_is_refused(listen: str, secret: Path) -> None:
    with pytest.raises(PeerAddressError):
        open_peers(A, "1.0.0", listen=listen, cluster_secret_file=secret)


def test_address_advertised_without_a_port_gets_the_one_that_is_listened_on(secret: Path) -> None:
    opened = open_peers(A, "1.0.0", listen="0.0.0.0:0", advertised="localhost:0", cluster_secret_file=secret)
    with contextlib.closing(opened) as a:
        assert a.address.startswith("localhost:")
        assert int(a.address.rpartition(":")[2]) > 0


def exchange(address: str, *packets: p2p_pb2.MessagePacket) -> list[p2p_pb2.SendMessageResponse]:
    """Send packets by hand and return what the server says to them."""
    with grpc.insecure_channel(address) as channel:
        return list(CDCPeerToPeerStub(channel).SendMessage(iter(packets), timeout=180))


def packet(receiver: str, *entries: p2p_pb2.MessageEntry, epoch: int = 1) -> p2p_pb2.MessagePacket:
    return p2p_pb2.MessagePacket(
        meta=p2p_pb2.StreamMeta(sender_id=A, receiver_id=receiver, epoch=epoch), entries=entries
    )


def entry(message: Message | bytes, sequence: int, topic: str = f"{FEED}/agent") -> p2p_pb2.MessageEntry:
    content = message if isinstance(message, bytes) else encode_message(message)
    return p2p_pb2.MessageEntry(topic=topic, content=content, sequence=sequence)


def test_messages_that_do_not_belong_to_their_stream_are_dropped(opened: Open) -> None:
    b = opened(B)
    strange: list[Message | bytes] = [heartbeat(2, sender=C), heartbeat(3, receiver=C), b"\xff\xff", heartbeat(5)]
    entries = [entry(message, number) for number, message in enumerate(strange)]
    exchange(b.address, packet(B, *entries, entry(b"", 0, "no/such/kind")))
    assert taken(b, 1) == [5]
    assert b.stats().refused == 4


def test_stream_that_has_a_gap_or_broken_columns_is_ended(opened: Open) -> None:
    b = opened(B)
    gap = exchange(b.address, packet(B, entry(heartbeat(1), 1), entry(heartbeat(3), 3)))
    assert gap[-1].error_message
    broken = exchange(b.address, packet(B, entry(b"\xff", 1, f"{FEED}/landing"), epoch=2))
    assert broken[-1].error_message


def test_stream_for_another_capture_or_older_than_the_last_is_refused(opened: Open) -> None:
    b = opened(B)
    assert exchange(b.address, packet(C))[0].exit_reason == p2p_pb2.CAPTURE_ID_MISMATCH
    with grpc.insecure_channel(b.address) as channel:
        over = threading.Event()
        hold = iter(CDCPeerToPeerStub(channel).SendMessage(_held(packet(B, epoch=7), over), timeout=180))
        assert next(hold).exit_reason == p2p_pb2.UNKNOWN
        assert exchange(b.address, packet(B, epoch=6))[0].exit_reason == p2p_pb2.STALE_CONNECTION
        assert exchange(b.address, packet(B, epoch=8))[0].exit_reason == p2p_pb2.UNKNOWN
        with pytest.raises(grpc.RpcError):  # a newer connection of the same sender ends it
            next(hold)
        over.set()


def _held(first: p2p_pb2.MessagePacket, over: threading.Event) -> Iterator[p2p_pb2.MessagePacket]:
    yield first
    over.wait()


def test_peers_with_tls_talk_and_refuse_whoever_shows_no_certificate_or_another_name(
    opened: Open, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    good, bad = authority.issue("capture"), authority.issue("stranger")
    tls = TlsSettings(ca_path=authority.path, cert_path=good.cert, key_path=good.key, allowed_cn=("capture",))
    a, b = opened(A, tls=tls), opened(B, tls=tls)
    stranger = opened(C, tls=replace(tls, cert_path=bad.cert, key_path=bad.key))
    plain = opened(CaptureId("d"))
    for peers in (a, stranger, plain):
        peers.resolve({B: b.address})
    stranger.send(FEED, [heartbeat(7, sender=C)])
    plain.send(FEED, [heartbeat(8, sender=CaptureId("d"))])
    a.send(FEED, [heartbeat(1)])
    assert taken(b, 1) == [1]
    assert (stranger.stats().connected, plain.stats().connected) == (0, 0)
