"""One EventFeed stream to one TiKV store: a thread that reads raw messages into the feed's inbox, and a way to send.

Messages stay bytes here: their length is the exact measure for back-pressure, and the feed's one thread parses them.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc

from producers.channels import OpenChannel, open_plain
from schemas.ids import StoreId
from schemas.proto import cdcpb_pb2

MESSAGE_BYTES_MAX: Final = 1 << 28
"""Client receive limit of TiCDC; the server caps a message near 6 MiB, but one large row makes a larger one."""
MULTIPLEXING: Final = "stream-multiplexing"
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Two streams to one store are two connections: a busy one does not slow the other down.
    ("grpc.use_local_subchannel_pool", 1),
]


class ByteBudget:
    """Bounds the bytes between readers and the feed's thread; a reader that waits makes gRPC slow the store down."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._closed = False
        self._changed = threading.Condition()

    def take(self, size: int) -> bool:
        """Wait until there is room (an empty budget takes any size); False when closed."""
        with self._changed:
            while self._used and self._used + size > self._limit and not self._closed:
                self._changed.wait()
            self._used += size
            return not self._closed

    def give(self, size: int) -> None:
        """Give bytes back."""
        with self._changed:
            self._used -= size
            self._changed.notify_all()

    def close(self) -> None:
        """Let everybody through: the feed stops."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class StoreStream:
    """The transport; who is registered on it is the feed's to know (:mod:`producers.pull.feed.store_streams`)."""

    def __init__(
        self,
        store_id: StoreId,
        address: str,
        *,
        multiplexed: bool,
        budget: ByteBudget,
        on_message: Callable[["StoreStream", bytes], None],
        on_end: Callable[["StoreStream", grpc.StatusCode, str], None],
        open_channel: OpenChannel = open_plain,
    ) -> None:
        """Open the stream; connecting goes on in the background, and a failure comes by ``on_end``.

        Args:
            store_id: for logs and errors.
            address: ``host:port`` of the store.
            multiplexed: EventFeedV2 with stream multiplexing, or the old EventFeed.
            budget: shared by all streams of the feed.
            on_message: takes each message as bytes; called by the reader thread.
            on_end: called once by the reader thread, last.
            open_channel: with TLS or without.
        """
        self.store_id = store_id
        self.address = address
        self.multiplexed = multiplexed
        self._budget = budget
        self._on_message = on_message
        self._on_end = on_end
        self._requests: queue.SimpleQueue[cdcpb_pb2.ChangeDataRequest | None] = queue.SimpleQueue()
        self._channel = open_channel(address, _OPTIONS)
        method = self._channel.stream_stream(
            "/cdcpb.ChangeData/EventFeedV2" if multiplexed else "/cdcpb.ChangeData/EventFeed",
            request_serializer=cdcpb_pb2.ChangeDataRequest.SerializeToString,
            response_deserializer=None,
        )
        metadata = (("features", MULTIPLEXING),) if multiplexed else ()
        self._call: Any = method(self._iterate(), metadata=metadata)
        self._thread = threading.Thread(target=self._read, name=f"event-feed-{store_id}", daemon=True)

    def start(self) -> None:
        """Start to read."""
        self._thread.start()

    def send(self, request: cdcpb_pb2.ChangeDataRequest) -> None:
        """Queue a request."""
        self._requests.put(request)

    def close(self) -> None:
        """End the stream; does not wait for the reader."""
        self._requests.put(None)
        with contextlib.suppress(grpc.RpcError):
            self._call.cancel()
        self._channel.close()

    def alive(self) -> bool:
        """Say whether the reader thread runs still."""
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        """Wait for the reader thread."""
        self._thread.join(timeout_s)

    def _iterate(self) -> Iterator[cdcpb_pb2.ChangeDataRequest]:
        while (request := self._requests.get()) is not None:
            yield request

    def _read(self) -> None:
        code, details = grpc.StatusCode.OK, "the store ended the stream"
        try:
            for message in self._call:
                if not self._budget.take(len(message)):
                    break
                self._on_message(self, message)
        except grpc.RpcError as error:
            code, details = error.code(), error.details() or ""
        except ValueError as error:  # the channel was closed under the call
            code, details = grpc.StatusCode.CANCELLED, str(error)
        self._on_end(self, code, details)
