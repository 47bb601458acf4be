"""The receiving half of the connections between captures: one stream from each of the others."""

import itertools
import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator
from concurrent import futures
from typing import Any, Final

import grpc

from consumers.control.core.peers.landing_codec import ReportDecoder
from consumers.control.core.peers.message_codec import decode_message
from consumers.control.core.replication.messages import Message
from consumers.control.peers.errors import PeerNotAuthenticatedError, PeerPortError
from consumers.control.peers.gate import Gate
from consumers.control.peers.inboxes import Inboxes
from consumers.control.peers.interface import FeedKey, Side
from consumers.control.peers.stream import MESSAGE_BYTES_MAX
from consumers.control.peers.topics import EntryKind, parse_topic
from schemas.errors import CorruptDataError
from schemas.ids import CaptureId
from schemas.proto import p2p_pb2
from schemas.proto.p2p_pb2_grpc import CDCPeerToPeerServicer, add_CDCPeerToPeerServicer_to_server
from schemas.rawlog.frontier import decode_frontier

log = logging.getLogger(__name__)

STREAMS_MAX: Final = 256
"""At once: a thread each, one for each other capture, and some that have died without a word."""
CONNECTIONS_MAX: Final = 512
"""Before anything is said on them, which no thread waits for: of streams there are fewer."""
TOPICS_MAX: Final = 10_000
"""Of one stream."""
FIRST_PACKET_S: Final = 10.0
"""Who opens a stream says at once what it is; one that says nothing gives its thread back."""
SERVER_OPTIONS: Final = (
    # Else a second capture with the same port would take half of this one's connections.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # A stranger who only connects has a connection for a while; captures have a stream on theirs.
    ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 30_000),
    # A peer whose machine is gone says nothing more: without this its stream would stay for ever.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
)


class PeerServer(CDCPeerToPeerServicer):
    """Listens from its making to :meth:`stop`."""

    def __init__(
        self,
        me: CaptureId,
        inboxes: Inboxes,
        listen: str,
        *,
        credentials: grpc.ServerCredentials | None = None,
        gate: Gate | None = None,
    ) -> None:
        """Listen at ``listen`` (``host:port``; port 0: any free one). ``gate`` says who is let in; None: everybody.

        Raises:
            PeerPortError: the port is taken, or the host is not ours.
        """
        self._me, self._inboxes, self._gate = me, inboxes, gate or Gate(me)
        self._lock = threading.Lock()
        self._streams: dict[str, tuple[int, Any]] = {}
        """By sender: the epoch of its newest connection, and its context."""
        self.received_bytes = 0
        self.message_bytes = 0
        """The part of it that is messages of scheduling."""
        self.refused = 0
        """Streams that were not let in, and messages that do not decode or are not of the stream's capture."""
        threads = futures.ThreadPoolExecutor(STREAMS_MAX, thread_name_prefix="peer-server")
        # Beyond the threads a call is refused at once; it would wait for one, and be held in memory.
        self._server = grpc.server(threads, options=SERVER_OPTIONS, maximum_concurrent_rpcs=STREAMS_MAX)
        add_CDCPeerToPeerServicer_to_server(self, self._server)
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(listen)
            else:
                self.port = self._server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            raise PeerPortError("cannot listen for other captures", address=listen, reason=str(error)) from error
        if not self.port:
            raise PeerPortError("cannot listen for other captures", address=listen)
        self._server.start()

    def stop(self) -> None:
        """End all streams and free the port."""
        self._server.stop(None).wait(5)

    def SendMessage(  # noqa: N802  gRPC's name
        self, request_iterator: Iterator[p2p_pb2.MessagePacket], context: grpc.ServicerContext
    ) -> Iterator[p2p_pb2.SendMessageResponse]:
        """Take one connection of another capture."""
        first = None
        try:
            if self._gate.answer(context):
                return
            if reason := self._gate.refusal(context):
                yield self._refused(context.peer(), _exit(p2p_pb2.OK, f"[{PeerNotAuthenticatedError.code}] {reason}"))
                return
            first = _first_packet(request_iterator, context)
            if first is None:
                return
            refusal = self._refusal(first.meta, context)
            if refusal is not None:
                yield self._refused(first.meta.sender_id, refusal)
                return
            yield p2p_pb2.SendMessageResponse()
            stream = _Stream(self._me, CaptureId(first.meta.sender_id), self._inboxes)
            for packet in itertools.chain((first,), request_iterator):
                self.received_bytes += stream.take(packet.entries)
                self.message_bytes += stream.take_message_bytes()
                self.refused += stream.take_refused()
        except CorruptDataError as error:
            log.error(
                "stream of a peer does not decode", extra={"peer": first and first.meta.sender_id, **_fields(error)}
            )
            yield _exit(p2p_pb2.OK, str(error))
        except grpc.RpcError:
            return  # the connection is gone, which its sender sees, too
        except Exception as error:
            # The request iterator of a cancelled stream raises a bare Exception.
            if context.is_active():
                raise
            log.debug("stream of a peer ended", extra={"reason": repr(error)})

    def _refused(self, peer: str, answer: p2p_pb2.SendMessageResponse) -> p2p_pb2.SendMessageResponse:
        self.refused += 1
        log.info("peer refused", extra={"peer": peer[:100], "reason": answer.error_message})
        return answer

    def _refusal(self, meta: p2p_pb2.StreamMeta, context: grpc.ServicerContext) -> p2p_pb2.SendMessageResponse | None:
        if meta.receiver_id != self._me:
            # The capture that was at this address is gone, or never was here.
            return _exit(p2p_pb2.CAPTURE_ID_MISMATCH, f"this is capture {self._me}")
        if not self._gate.belongs(context, meta.sender_id, meta.epoch):
            reason = "the stream was opened in another capture's name"
            return _exit(p2p_pb2.OK, f"[{PeerNotAuthenticatedError.code}] {reason}")
        with self._lock:
            epoch, older = self._streams.get(meta.sender_id, (-1, None))
            if meta.epoch <= epoch:
                return _exit(p2p_pb2.STALE_CONNECTION, f"connection {epoch} is newer")
            self._streams[meta.sender_id] = meta.epoch, context
        context.add_callback(lambda: self._forget(meta.sender_id, context))
        if older is not None:
            older.cancel()
        return None

    def _forget(self, sender: str, context: grpc.ServicerContext) -> None:
        with self._lock:
            if self._streams.get(sender, (0, None))[1] is context:
                del self._streams[sender]


class _Stream:
    """One connection's memory."""

    def __init__(self, me: CaptureId, sender: CaptureId, inboxes: Inboxes) -> None:
        self._me, self._sender, self._inboxes = me, sender, inboxes
        self._sequences: dict[str, int] = {}
        self._decoders: dict[FeedKey, ReportDecoder] = {}
        self._refused = 0
        self._message_bytes = 0

    def take(self, entries: Collection[p2p_pb2.MessageEntry]) -> int:
        """Deliver a packet's entries; return their bytes.

        Raises:
            CorruptDataError: something is missing, or a report does not go on from the one before.
        """
        messages: defaultdict[tuple[FeedKey, Side], list[Message]] = defaultdict(list)
        for entry in entries:
            self._check_sequence(entry)
            parsed = parse_topic(entry.topic)
            match parsed:
                case None:
                    self._refused += 1
                case feed, EntryKind.FRONTIER:
                    self._inboxes.put_record(feed, decode_frontier(entry.content))
                case feed, EntryKind.LANDING:
                    decoder = self._decoders.setdefault(feed, ReportDecoder(self._sender))
                    self._inboxes.put_report(feed, self._sender, decoder.decode(entry.content))
                case feed, kind:
                    self._message_bytes += len(entry.content)
                    self._take_message(messages[feed, Side(kind.value)], entry.content)
        for (feed, side), own_messages in messages.items():
            self._inboxes.put(feed, side, own_messages)
        return sum(len(entry.content) for entry in entries)

    def take_refused(self) -> int:
        """Return how many messages were refused since the last call."""
        refused, self._refused = self._refused, 0
        return refused

    def take_message_bytes(self) -> int:
        """Return how many bytes of messages came since the last call."""
        taken, self._message_bytes = self._message_bytes, 0
        return taken

    def _take_message(self, messages: list[Message], content: bytes) -> None:
        try:
            message = decode_message(content)
        except CorruptDataError as error:
            # A newer version may say what we do not know; the rest of the stream is as good as before.
            if not self._refused:
                log.warning("message of a peer not understood", extra={"peer": self._sender, **_fields(error)})
            self._refused += 1
            return
        if (message.sender, message.receiver) == (self._sender, self._me):
            messages.append(message)
        else:
            self._refused += 1

    def _check_sequence(self, entry: p2p_pb2.MessageEntry) -> None:
        last = self._sequences.get(entry.topic)
        if last is not None and entry.sequence != last + 1:
            raise CorruptDataError("gap in a topic of a stream", topic=entry.topic, seen=entry.sequence, last=last)
        if last is None and len(self._sequences) >= TOPICS_MAX:
            raise CorruptDataError("too many topics in a stream", allowed=TOPICS_MAX)
        self._sequences[entry.topic] = entry.sequence


def _first_packet(
    packets: Iterator[p2p_pb2.MessagePacket], context: grpc.ServicerContext
) -> p2p_pb2.MessagePacket | None:
    """Return the first packet; None: there is none. One that does not come in time ends the stream."""
    timer = threading.Timer(FIRST_PACKET_S, context.cancel)
    timer.daemon = True
    timer.start()
    try:
        return next(packets, None)
    finally:
        timer.cancel()


def _exit(reason: p2p_pb2.ExitReason.ValueType, message: str) -> p2p_pb2.SendMessageResponse:
    return p2p_pb2.SendMessageResponse(exit_reason=reason, error_message=message)


def _fields(error: CorruptDataError) -> dict[str, object]:
    return {"code": error.code, "error": str(error)}
