"""The way from an endpoint to one gRPC stream: a queue of serialised events and resolved ts, bounded in bytes.

Live events never wait (the store cannot), scans do (:meth:`Channel.room`). What does not fit the quota is not queued,
and whoever sent it makes a ``congested`` error of it; errors always fit. A stream that stays full for long is ended:
see the watchdog in :mod:`service`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

import grpc

from schemas.ids import RegionId, Ts
from schemas.proto import cdcpb_pb2

MESSAGE_MAX_BYTES = 6 * 1024 * 1024
"""TiKV caps a message at about 6 MiB. Source: tikv ``components/cdc/src/channel.rs``."""
MESSAGE_MAX_EVENTS = 128
"""Source: tikv ``components/cdc/src/channel.rs``, ``CDC_MSG_MAX_BATCH_SIZE``."""
SCAN_ROOM_BYTES = 4 * 1024 * 1024
"""A scan waits while more than this is queued, so that a large region cannot fill memory with its history."""

_EVENTS_TAG = b"\x0a"
_RESOLVED_TS_TAG = b"\x12"


def _field(tag: bytes, payload: bytes) -> bytes:
    """One length-delimited protobuf field. Events are serialised once, on their own, and only joined here."""
    size, length = len(payload), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return b"".join((tag, length, payload))


class Channel:
    """Queue of one stream. ``queued_bytes`` counts what the transport has not taken yet."""

    def __init__(self, quota_bytes: int) -> None:
        self.queued_bytes = 0
        self.messages_taken = 0
        """How many messages the transport took: what stands still does not drain."""
        self.full = False
        """Whether something did not fit since the transport last took a message."""
        self.end: tuple[grpc.StatusCode, str] | None = None
        """How the stream ends, if not well."""
        self._quota_bytes = quota_bytes
        self._room_bytes = min(SCAN_ROOM_BYTES, quota_bytes // 2)
        self._queue: deque[tuple[bool, bytes]] = deque()
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._closed = False

    def push(self, event: cdcpb_pb2.Event, *, force: bool = False) -> int:
        """Queue one event and return its bytes; 0: it did not fit the quota. ``force`` is for errors."""
        return self._put(True, _field(_EVENTS_TAG, event.SerializeToString()), force=force)

    def push_resolved(self, ts: Ts, regions: Sequence[RegionId], request_id: int) -> int:
        """Queue one batched resolved ts, behind every event that was queued before; 0: it did not fit, and is lost.

        That is no harm: the next round promises more.
        """
        resolved = cdcpb_pb2.ResolvedTs(regions=regions, ts=ts, request_id=request_id)
        return self._put(False, _field(_RESOLVED_TS_TAG, resolved.SerializeToString()))

    def close(self) -> None:
        """End the stream once everything queued is sent."""
        self._closed = True
        self._wake.set()
        self._drained.set()

    def abort(self, status: grpc.StatusCode, details: str) -> None:
        """End the stream now; what is queued is lost."""
        if self.end is None:
            self.end = (status, details)
        self._queue.clear()
        self.queued_bytes = 0
        self.close()

    async def room(self) -> None:
        """Wait until a scan may queue more."""
        while self.queued_bytes > self._room_bytes and not self._closed:
            self._drained.clear()
            await self._drained.wait()

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield serialised ``ChangeDataEvent`` messages until the channel is closed and empty."""
        while True:
            while not self._queue:
                if self._closed:
                    return
                self._wake.clear()
                await self._wake.wait()
            message = self._next_message()
            yield message
            # Only now: what the transport has not taken is still ours to account for.
            self.messages_taken += 1
            self.full = False
            self.queued_bytes = max(0, self.queued_bytes - len(message))
            if self.queued_bytes <= self._room_bytes:
                self._drained.set()

    def _put(self, is_event: bool, field: bytes, *, force: bool = False) -> int:
        # A single event larger than the whole quota must still get through an empty queue.
        if not force and self.queued_bytes and self.queued_bytes + len(field) > self._quota_bytes:
            self.full = True
            return 0
        if not self._closed:
            self._queue.append((is_event, field))
            self.queued_bytes += len(field)
            self._wake.set()
        return len(field)

    def _next_message(self) -> bytes:
        is_event, field = self._queue.popleft()
        if not is_event:
            return field
        fields, size = [field], len(field)
        while self._queue and self._queue[0][0] and len(fields) < MESSAGE_MAX_EVENTS:
            if size + len(self._queue[0][1]) > MESSAGE_MAX_BYTES:
                break
            fields.append(self._queue.popleft()[1])
            size += len(fields[-1])
        return b"".join(fields)
