"""Whoever reaches a capture's peer port tries to talk as another capture, over real sockets."""

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from compose.peers import open_peers
from compose.stack.secure.certificates import Authority
from consumers.control.core.peers.admission import Ends, ProofSide, proof
from consumers.control.core.peers.message_codec import encode_message
from consumers.control.core.replication.messages import Header, Heartbeat, Message
from consumers.control.peers import server
from consumers.control.peers.errors import PeerNotAuthenticatedError
from consumers.control.peers.gate import CHALLENGE, EPOCH, GREETING, PROOF, SENDER
from consumers.control.peers.grpc_peers import GrpcPeers
from consumers.control.peers.interface import Side, upstream_feed
from producers.tls import TlsSettings
from schemas.errors import ConfigError
from schemas.ids import CaptureId, UpstreamId
from schemas.proto import p2p_pb2
from schemas.proto.p2p_pb2_grpc import CDCPeerToPeerStub
from tests.support.upstream.feed_sink import wait_until

OWNER, VICTIM, STRANGER = CaptureId("owner"), CaptureId("victim"), CaptureId("stranger")
FEED = upstream_feed(UpstreamId("u"))
SECRET, OTHER = "a secret of this cluster", "a secret of another one"
Metadata = Sequence[tuple[str, str]]


def secret_file(folder: Path, *lines: str, mode: int = 0o600) -> Path:
    path = folder / f"secret-{len(list(folder.iterdir()))}"
    path.write_text("\n".join(lines))
    path.chmod(mode)
    return path


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[GrpcPeers]:
    with contextlib.closing(peers_of(OWNER, secret_file(tmp_path, SECRET))) as opened:
        yield opened


def peers_of(capture: CaptureId, secret: Path | None = None, tls: TlsSettings | None = None) -> GrpcPeers:
    opened = open_peers(capture, "1.0.0", tls=tls, cluster_secret_file=secret)
    for side in Side:
        opened.take(FEED, side)
    return opened


def message(sender: CaptureId = VICTIM, sequence: int = 1) -> Message:
    return Message(Header("1.0.0", 1, "", 1), sender, OWNER, sequence, Heartbeat(()))


def packet(sender: CaptureId = VICTIM, epoch: int = 1) -> p2p_pb2.MessagePacket:
    meta = p2p_pb2.StreamMeta(sender_id=sender, receiver_id=OWNER, epoch=epoch)
    entry = p2p_pb2.MessageEntry(topic=f"{FEED}/agent", content=encode_message(message(sender)), sequence=1)
    return p2p_pb2.MessagePacket(meta=meta, entries=[entry])


def send(
    address: str, metadata: Metadata = (), *packets: p2p_pb2.MessagePacket
) -> tuple[list[p2p_pb2.SendMessageResponse], dict[str, str]]:
    with grpc.insecure_channel(address) as channel:
        call = CDCPeerToPeerStub(channel).SendMessage(iter(packets), metadata=tuple(metadata), timeout=30)
        shown: Any = call.initial_metadata()
        return list(call), {str(key): str(value) for key, value in shown}


def greet(address: str, sender: CaptureId = VICTIM) -> bytes:
    return bytes.fromhex(send(address, ((SENDER, sender), (GREETING, "00")))[1][CHALLENGE])


def headers(challenge: bytes, sender: CaptureId = VICTIM, epoch: int = 1, *, secret: str = SECRET) -> Metadata:
    ends = Ends(sender=sender, receiver=OWNER)
    shown = proof(secret.encode(), ProofSide.CLIENT, ends, challenge, str(epoch).encode())
    return ((SENDER, sender), (EPOCH, str(epoch)), (CHALLENGE, challenge.hex()), (PROOF, shown))


def test_captures_with_one_secret_talk_also_while_it_is_rotated(tmp_path: Path) -> None:
    before, after = secret_file(tmp_path, SECRET, OTHER), secret_file(tmp_path, "# next", OTHER, SECRET)
    with contextlib.closing(peers_of(VICTIM, before)) as a, contextlib.closing(peers_of(OWNER, after)) as b:
        for peers in (a, b):
            peers.resolve({VICTIM: a.address, OWNER: b.address})
        a.send(FEED, [message()])
        wait_until(lambda: bool(b.take(FEED, Side.AGENT)), lambda: (a.stats(), b.stats()))


def test_who_does_not_know_the_secret_is_not_heard(owner: GrpcPeers) -> None:
    challenge = greet(owner.address)
    for tried in (
        (),
        ((SENDER, VICTIM), (EPOCH, "1")),
        headers(challenge, secret=OTHER),
        headers(b"\x00" * len(challenge)),
        ((SENDER, VICTIM), (EPOCH, "1"), (CHALLENGE, "no hex"), (PROOF, "x")),
    ):
        answers, _ = send(owner.address, tried, packet())
        assert answers[0].error_message.startswith("[peers.not_authenticated] ")
        assert "\n" not in answers[0].error_message
    assert owner.take(FEED, Side.AGENT) == []
    assert owner.stats().refused == 5


def test_proof_is_good_for_one_stream_of_one_sender_and_epoch(owner: GrpcPeers) -> None:
    shown = headers(greet(owner.address))
    for sender, epoch in ((STRANGER, 1), (VICTIM, 2)):
        right = headers(greet(owner.address))
        answers, _ = send(owner.address, right, packet(sender, epoch))
        assert "another capture's name" in answers[0].error_message
    forged = tuple((key, STRANGER if key == SENDER else value) for key, value in shown)
    assert "not of this cluster's secret" in send(owner.address, forged, packet(STRANGER))[0][0].error_message
    assert send(owner.address, shown, packet())[0][0].exit_reason == p2p_pb2.UNKNOWN
    assert "no challenge" in send(owner.address, shown, packet())[0][0].error_message
    assert len(owner.take(FEED, Side.AGENT)) == 1


def test_server_that_does_not_know_the_secret_is_told_nothing(tmp_path: Path) -> None:
    with (
        contextlib.closing(peers_of(VICTIM, secret_file(tmp_path, SECRET))) as victim,
        contextlib.closing(peers_of(OWNER)) as unproven,
        contextlib.closing(peers_of(STRANGER, secret_file(tmp_path, OTHER))) as other,
    ):
        victim.resolve({OWNER: unproven.address, STRANGER: other.address})
        victim.send(FEED, [message()])
        wait_until(lambda: victim.stats().peers == 2, victim.stats)
        assert threading.Event().wait(1.0) is False  # nothing may come of many attempts
        assert (victim.stats().connected, victim.stats().sent_bytes) == (0, 0)
        assert unproven.take(FEED, Side.AGENT) == []


def test_nothing_of_a_stream_is_read_before_it_is_let_in(owner: GrpcPeers) -> None:
    taken: list[int] = []

    def huge() -> Iterator[p2p_pb2.MessagePacket]:
        for number in range(100):
            taken.append(number)
            yield p2p_pb2.MessagePacket(entries=[p2p_pb2.MessageEntry(content=bytes(1 << 20))])

    with grpc.insecure_channel(owner.address) as channel:
        answers = list(CDCPeerToPeerStub(channel).SendMessage(huge(), timeout=30))
    assert answers[0].error_message.startswith("[peers.not_authenticated] ")
    assert owner.stats().received_bytes == 0
    assert len(taken) < 30, "the rest waits at the sender, as far as HTTP/2's window"


def test_streams_that_say_nothing_give_their_threads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STREAMS_MAX", 4)
    monkeypatch.setattr(server, "FIRST_PACKET_S", 0.5)
    over = threading.Event()

    def silence() -> Iterator[p2p_pb2.MessagePacket]:
        over.wait()
        yield from ()

    with contextlib.closing(peers_of(OWNER)) as owner, grpc.insecure_channel(owner.address) as channel:
        silent: list[Any] = [CDCPeerToPeerStub(channel).SendMessage(silence(), timeout=60) for _ in range(8)]

        def heard() -> bool:
            with contextlib.suppress(grpc.RpcError):  # refused while all threads are held
                send(owner.address, (), packet())
            return bool(owner.take(FEED, Side.AGENT))

        wait_until(heard, owner.stats)
        over.set()
        for call in silent:
            call.cancel()


@pytest.mark.parametrize(
    ("bounds", "left"),
    [
        ({"grpc.max_allowed_incoming_connections": 5}, 5),
        ({"grpc.server_handshake_timeout_ms": 300}, 0),
        ({"grpc.max_connection_idle_ms": 300}, 0),
    ],
    ids=["count", "time to begin", "time without a stream"],
)
def test_connections_on_which_nobody_asks_are_bounded(
    monkeypatch: pytest.MonkeyPatch, bounds: dict[str, int], left: int
) -> None:
    assert bounds.keys() <= dict(server.SERVER_OPTIONS).keys()
    monkeypatch.setattr(server, "SERVER_OPTIONS", tuple({**dict(server.SERVER_OPTIONS), **bounds}.items()))
    with contextlib.closing(peers_of(OWNER)) as owner, contextlib.ExitStack() as stack:
        host, port = owner.address.split(":")
        held = [stack.enter_context(socket.create_connection((host, int(port)), 10)) for _ in range(8)]
        if "grpc.max_connection_idle_ms" in bounds:
            for connection in held:  # HTTP/2's preface, and empty settings
                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
        wait_until(lambda: sum(map(is_open, held)) == left, lambda: [is_open(connection) for connection in held])


def is_open(connection: socket.socket) -> bool:
    """Tell whether the server has not hung up; what it has said is read."""
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            continue
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return False


def test_port_beyond_loopback_wants_certificates_or_a_secret(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for tls in (None, TlsSettings(ca_path=authority.path)):
        for listen in ("0.0.0.0:0", "192.0.2.1:0", "[::]:0", "somewhere:0"):
            with pytest.raises(PeerNotAuthenticatedError, match=r"\[peers.not_authenticated\].*--cluster-secret-file"):
                open_peers(OWNER, "1.0.0", listen=listen, advertised="here:1", tls=tls)
    secret = secret_file(tmp_path, SECRET)
    open_peers(OWNER, "1.0.0", listen="0.0.0.0:0", advertised="localhost:0", cluster_secret_file=secret).close()


def test_ca_alone_leaves_peers_in_the_clear_only_with_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_peers(OWNER, "1.0.0", tls=TlsSettings(ca_path=Authority(tmp_path).path)).close()
    assert "without TLS" in caplog.text


@pytest.mark.parametrize(
    ("lines", "mode"), [(("1234567",), 0o600), ((), 0o600), ((SECRET,), 0o644), ((SECRET,), 0o660)]
)
def test_secret_file_that_is_weak_or_open_is_refused(tmp_path: Path, lines: Sequence[str], mode: int) -> None:
    path = secret_file(tmp_path, *lines, mode=mode)
    with pytest.raises(ConfigError, match="cluster-secret-file") as refused:
        open_peers(OWNER, "1.0.0", cluster_secret_file=path)
    assert not any(line in str(refused.value) for line in lines)


def test_certificate_of_the_ca_is_good_for_the_capture_at_its_host_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def tls_of(name: str, host: str) -> TlsSettings:
        pair = authority.issue(name, hosts=(host,))
        return TlsSettings(ca_path=authority.path, cert_path=pair.cert, key_path=pair.key)

    here, elsewhere = tls_of("capture", "127.0.0.1"), tls_of("tikv", "192.0.2.7")
    with (
        contextlib.closing(peers_of(OWNER, tls=here)) as owner,
        contextlib.closing(peers_of(VICTIM, tls=elsewhere)) as thief,
        contextlib.closing(peers_of(STRANGER, tls=here)) as unknown,
    ):
        owner.resolve({VICTIM: "127.0.0.1:1"})
        for peers in (thief, unknown):
            peers.resolve({OWNER: owner.address})
        thief.send(FEED, [message()])
        unknown.send(FEED, [message(STRANGER)])
        wait_until(lambda: owner.stats().refused >= 2, owner.stats)
        assert owner.take(FEED, Side.AGENT) == []
        owner.resolve({VICTIM: "127.0.0.1:1", STRANGER: unknown.address})

        senders: set[CaptureId] = set()

        def heard() -> bool:
            unknown.send(FEED, [message(STRANGER)])
            thief.send(FEED, [message()])
            senders.update(received.sender for received in owner.take(FEED, Side.AGENT))
            return bool(senders)

        wait_until(heard, owner.stats)
        assert senders == {STRANGER}
