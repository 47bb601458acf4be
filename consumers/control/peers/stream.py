"""The sending half of a connection between two captures: one stream, again and again until it is closed."""

import contextlib
import logging
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import grpc

from consumers.control.core.peers.admission import Ends
from consumers.control.core.peers.landing_codec import ReportEncoder
from consumers.control.core.peers.message_codec import encode_message
from consumers.control.peers.gate import GREETING_TIMEOUT_S, stream_headers
from consumers.control.peers.outbox import Outbox, Outgoing
from schemas.errors import BusError
from schemas.ids import CaptureId
from schemas.proto import p2p_pb2
from schemas.proto.p2p_pb2_grpc import CDCPeerToPeerStub

log = logging.getLogger(__name__)

OpenChannel = Callable[[str, Sequence[tuple[str, Any]]], grpc.Channel]
"""Opens a channel to an address with grpc options; whether by TLS is its business."""

MESSAGE_BYTES_MAX: Final = 64 << 20
"""An entry goes through whole: a full outbox (``WEIGHT_MAX``) is some 50 MB."""
PACKET_ENTRIES_MAX: Final = 1024
PACKET_BYTES_MAX: Final = 4 << 20
"""TiCDC's are 256 MiB, 1024 entries and 64 MiB; smaller packets let a receiver begin sooner."""
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 2.0
"""Between two attempts; as many peers wait for one that restarts, each a little differently."""
CLIENT_OPTIONS: Final = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # Else another channel to the same address would share its connection, and its back-off.
    ("grpc.use_local_subchannel_pool", 1),
)


class PeerStream:
    """One peer's. Only its own thread and grpc's use the network; nothing here makes a caller wait."""

    def __init__(
        self,
        meta: p2p_pb2.StreamMeta,
        address: str,
        open_channel: OpenChannel,
        next_epoch: Callable[[], int],
        cluster_secrets: Sequence[bytes] = (),
    ) -> None:
        self.outbox = Outbox()
        self.address = address
        self.sent_bytes = 0
        self.message_bytes = 0
        """The part of it that is messages of scheduling."""
        self.is_connected = False
        self._meta, self._open_channel, self._next_epoch = meta, open_channel, next_epoch
        self._ends = Ends(sender=CaptureId(meta.sender_id), receiver=CaptureId(meta.receiver_id))
        self._cluster_secrets = tuple(cluster_secrets)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, name=f"peer-{meta.receiver_id[:8]}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let the thread end; does not wait for it."""
        self._closed.set()
        self.outbox.wake()
        with self._lock:
            if self._call is not None:
                self._call.cancel()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        pause_s, is_logged = RETRY_FIRST_S, False
        while not self._closed.is_set():
            was_connected, reason = self._connect()
            if was_connected:
                pause_s, is_logged = RETRY_FIRST_S, False
            if not is_logged and not self._closed.is_set():
                log.warning("peer not connected; trying again", extra={**self._ids(), "reason": reason})
                is_logged = True
            self._closed.wait(pause_s * random.uniform(0.75, 1.25))  # noqa: S311  chance is no secret here
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    def _connect(self) -> tuple[bool, str]:
        """Hold a connection until it ends; return whether there was one, and why it ended."""
        try:
            # A new channel each time: the files of TLS may have been renewed.
            channel = self._open_channel(self.address, CLIENT_OPTIONS)
        except BusError as error:
            return False, str(error)
        with contextlib.closing(channel):
            over, epoch = threading.Event(), self._next_epoch()
            send = CDCPeerToPeerStub(channel).SendMessage
            try:
                headers = stream_headers(
                    lambda greeting: send(iter(()), metadata=greeting, timeout=GREETING_TIMEOUT_S),
                    self._ends,
                    epoch,
                    self._cluster_secrets,
                )
            except BusError as error:
                return False, str(error)
            except grpc.RpcError as error:
                return False, _details(error)
            call: Any = send(self._packets(epoch, over.is_set), metadata=headers)
            with self._lock:
                self._call = call
                if self._closed.is_set():
                    call.cancel()
            try:
                reason = self._hear(call)
            except grpc.RpcError as error:
                reason = _details(error)
            was_connected, self.is_connected = self.is_connected, False
            with self._lock:
                self._call = None
            over.set()
            self.outbox.wake()
            call.cancel()
        return was_connected, reason

    def _hear(self, call: Iterable[p2p_pb2.SendMessageResponse]) -> str:
        """Return why the peer has ended the stream; what it says before only shows that it has taken it."""
        for response in call:
            if response.exit_reason != p2p_pb2.UNKNOWN:
                return response.error_message or p2p_pb2.ExitReason.Name(response.exit_reason)
            if not self.is_connected:
                self.is_connected = True
                log.info("peer connected", extra=self._ids())
        return "the peer ended the stream"

    def _ids(self) -> dict[str, str]:
        return {"capture": self._meta.sender_id, "peer": self._meta.receiver_id, "address": self.address}

    def _packets(self, epoch: int, is_over: Callable[[], bool]) -> Iterator[p2p_pb2.MessagePacket]:
        meta = p2p_pb2.StreamMeta()
        meta.CopyFrom(self._meta)
        meta.epoch = epoch
        yield p2p_pb2.MessagePacket(meta=meta)
        sequences: defaultdict[str, int] = defaultdict(int)
        encoders: defaultdict[str, ReportEncoder] = defaultdict(ReportEncoder)
        while (batch := self.outbox.take(is_over)) is not None:
            packet, size = p2p_pb2.MessagePacket(), 0
            for topic, content in self._entries(batch, encoders):
                sequences[topic] += 1
                packet.entries.add(topic=topic, content=content, sequence=sequences[topic])
                size += len(content)
                self.sent_bytes += len(content)
                if len(packet.entries) >= PACKET_ENTRIES_MAX or size >= PACKET_BYTES_MAX:
                    yield packet
                    packet, size = p2p_pb2.MessagePacket(), 0
            if packet.entries:
                yield packet

    def _entries(self, batch: Outgoing, encoders: defaultdict[str, ReportEncoder]) -> Iterator[tuple[str, bytes]]:
        """Yield reports before messages: an answer that leans on a report must not come before it."""
        yield from batch.records.items()
        for topic, report in batch.reports.items():
            yield topic, encoders[topic].encode(report)
        for topic, message in batch.messages:
            content = encode_message(message)
            self.message_bytes += len(content)
            yield topic, content


def _details(error: Any) -> str:
    return error.details() or repr(error)
