"""A capture's connections over gRPC: a server for what others send, and one stream to each of them."""

import itertools
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import grpc

from consumers.control.core.replication.messages import Message
from consumers.control.peers.errors import PeerAddressError
from consumers.control.peers.gate import Gate
from consumers.control.peers.inboxes import Inboxes
from consumers.control.peers.interface import FeedKey, Side, side_of
from consumers.control.peers.server import PeerServer
from consumers.control.peers.stream import OpenChannel, PeerStream
from consumers.control.peers.topics import EntryKind, topic_of
from schemas.ids import CaptureId
from schemas.proto import p2p_pb2
from schemas.rawlog.frontier import FrontierRecord, LandingReport, encode_frontier

LISTEN_ANYWHERE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  compared with, not listened on
CLOSE_S = 2.0
"""How long closing waits for streams to end; they are daemons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersStats:
    """Counted since the start. Bytes are contents of messages, reports and records, to and from others."""

    peers: int = 0
    connected: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    message_bytes: int = 0
    """The part of both that is requests and answers of scheduling."""
    dropped: int = 0
    """Messages that a full queue forgot, or that nobody listened to."""
    refused: int = 0


class GrpcPeers:
    """The :class:`consumers.control.peers.interface.Peers` of one life of a capture."""

    def __init__(
        self,
        me: CaptureId,
        version: str,
        listen: str,
        open_channel: OpenChannel,
        *,
        advertised: str = "",
        credentials: grpc.ServerCredentials | None = None,
        allowed_cn: Collection[str] = (),
        cluster_secrets: Sequence[bytes] = (),
    ) -> None:
        """Listen at ``listen`` (``host:port``, port 0: any free one) and tell others ``advertised``, or where it is.

        With ``credentials`` others must show a certificate, and with ``cluster_secrets`` prove that they know one of
        them, as this capture does with the first: see :class:`consumers.control.peers.gate.Gate`.

        Raises:
            PeerAddressError: no other capture could reach it there.
            PeerPortError: the port cannot be listened on.
        """
        self._me, self._version, self._open_channel = me, version, open_channel
        self._lock = threading.Lock()
        self._inboxes = Inboxes()
        self._inboxes.keep({me})
        self._streams: dict[CaptureId, PeerStream] = {}
        self._resolved: Mapping[CaptureId, str] = {}
        self._ended_bytes = self._ended_message_bytes = self._ended_dropped = 0
        self._epochs = itertools.count(1)
        self._closed = False
        own_host, own_port = _split(advertised or listen)
        if own_host in LISTEN_ANYWHERE:
            raise PeerAddressError("an address of every interface is none that others can use", address=listen)
        _split(listen)
        self._cluster_secrets = tuple(cluster_secrets)
        gate = Gate(
            me,
            cluster_secrets=cluster_secrets,
            is_tls=credentials is not None,
            allowed_cn=allowed_cn,
            address_of=lambda capture: self._resolved.get(capture, ""),
        )
        self._server = PeerServer(me, self._inboxes, listen, credentials=credentials, gate=gate)
        self._address = f"{own_host}:{own_port or self._server.port}"

    @property
    def address(self) -> str:
        """Where others reach this capture."""
        return self._address

    def resolve(self, captures: Mapping[CaptureId, str]) -> None:
        """Connect to new captures and forget those that are gone."""
        with self._lock:
            if self._closed or captures == self._resolved:
                return
            self._resolved = dict(captures)
            others = {capture: address for capture, address in captures.items() if capture != self._me and address}
            for capture in [who for who, stream in self._streams.items() if others.get(who) != stream.address]:
                self._end(self._streams.pop(capture))
            for capture, address in others.items():
                if capture not in self._streams:
                    self._streams[capture] = self._open(capture, address)
        self._inboxes.keep({*captures, self._me})

    def send(self, feed: FeedKey, messages: Iterable[Message]) -> None:
        """Queue each message for its receiver."""
        by_receiver: dict[CaptureId, list[Message]] = {}
        for message in messages:
            by_receiver.setdefault(message.receiver, []).append(message)
        topics = {side: topic_of(feed, EntryKind(side.value)) for side in Side}
        for receiver, own_messages in by_receiver.items():
            if receiver == self._me:
                for side in Side:
                    mine = [message for message in own_messages if side_of(message) is side]
                    if mine:
                        self._inboxes.put(feed, side, mine)
            elif (stream := self._stream(receiver)) is not None:
                stream.outbox.put([(topics[side_of(message)], message) for message in own_messages])

    def take(self, feed: FeedKey, side: Side) -> list[Message]:
        """Return what has come since the last call."""
        return self._inboxes.take(feed, side)

    def report(self, feed: FeedKey, owner: CaptureId, report: LandingReport) -> None:
        """Tell the owner how far this capture has landed."""
        if owner == self._me:
            self._inboxes.put_report(feed, self._me, report)
        elif (stream := self._stream(owner)) is not None:
            stream.outbox.put_report(topic_of(feed, EntryKind.LANDING), report)

    def reports(self, feed: FeedKey) -> Mapping[CaptureId, LandingReport]:
        """Return the newest report of each capture."""
        return self._inboxes.reports(feed)

    def publish(self, feed: FeedKey, record: FrontierRecord) -> None:
        """Tell everybody of a frontier record that counts."""
        self._inboxes.put_record(feed, record)
        topic, content = topic_of(feed, EntryKind.FRONTIER), encode_frontier(record)
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.outbox.put_record(topic, content)

    def published(self, feed: FeedKey) -> FrontierRecord | None:
        """Return the newest record heard of."""
        return self._inboxes.record(feed)

    def leave(self, feed: FeedKey) -> None:
        """Forget what has come for a feed, and listen no more."""
        self._inboxes.leave(feed)

    def stats(self) -> PeersStats:
        """Return the counts; from any thread."""
        with self._lock:
            streams = list(self._streams.values())
            sent_bytes, dropped = self._ended_bytes, self._ended_dropped
        return PeersStats(
            peers=len(streams),
            connected=sum(stream.is_connected for stream in streams),
            sent_bytes=sent_bytes + sum(stream.sent_bytes for stream in streams),
            received_bytes=self._server.received_bytes,
            message_bytes=self._ended_message_bytes
            + self._server.message_bytes
            + sum(stream.message_bytes for stream in streams),
            dropped=dropped + self._inboxes.dropped + sum(stream.outbox.dropped for stream in streams),
            refused=self._server.refused,
        )

    def close(self) -> None:
        """Stop talking and listening; safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            streams = list(self._streams.values())
            self._streams.clear()
            for stream in streams:
                self._end(stream)
        self._server.stop()
        for stream in streams:
            stream.join(CLOSE_S)

    def _open(self, capture: CaptureId, address: str) -> PeerStream:
        meta = p2p_pb2.StreamMeta(
            sender_id=self._me,
            receiver_id=capture,
            client_version=self._version,
            sender_advertised_addr=self._address,
        )
        return PeerStream(meta, address, self._open_channel, self._epochs.__next__, self._cluster_secrets)

    def _end(self, stream: PeerStream) -> None:
        stream.close()
        self._ended_bytes += stream.sent_bytes
        self._ended_message_bytes += stream.message_bytes
        self._ended_dropped += stream.outbox.dropped

    def _stream(self, capture: CaptureId) -> PeerStream | None:
        with self._lock:
            return self._streams.get(capture)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise PeerAddressError("a peer's address is host:port", address=address, allowed="port 0 to 65535")
    return host, int(port)
