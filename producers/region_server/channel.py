"""The way from an endpoint to one gRPC stream: a queue of serialised events and resolved ts, bounded in bytes.

Live events never wait (the store cannot), scans do (:meth:`Channel.room`), and a client that reads so slowly that the
quota is used up loses its stream, as TiKV ends connections that read too slowly.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from schemas.ids import RegionId, Ts
from schemas.proto import cdcpb_pb2

MESSAGE_MAX_BYTES = 6 * 1024 * 1024
"""TiKV caps a message at about 6 MiB. Source: tikv ``components/cdc/src/channel.rs``."""
MESSAGE_MAX_EVENTS = 64
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
        self.overflowed = False
        self._quota_bytes = quota_bytes
        self._queue: deque[tuple[bool, bytes]] = deque()
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._closed = False

    def push(self, event: cdcpb_pb2.Event) -> None:
        """Queue one event."""
        self._put(True, _field(_EVENTS_TAG, event.SerializeToString()))

    def push_resolved(self, ts: Ts, regions: Sequence[RegionId], request_id: int) -> None:
        """Queue one batched resolved ts; it stays behind every event that was queued before."""
        resolved = cdcpb_pb2.ResolvedTs(regions=regions, ts=ts, request_id=request_id)
        self._put(False, _field(_RESOLVED_TS_TAG, resolved.SerializeToString()))

    def close(self) -> None:
        """End the stream once everything queued is sent."""
        self._closed = True
        self._wake.set()
        self._drained.set()

    async def room(self) -> None:
        """Wait until a scan may queue more."""
        while self.queued_bytes > SCAN_ROOM_BYTES and not self._closed:
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
            self.queued_bytes -= len(message)
            if self.queued_bytes <= SCAN_ROOM_BYTES:
                self._drained.set()

    def _put(self, is_event: bool, field: bytes) -> None:
        if self._closed:
            return
        if self.queued_bytes + len(field) > self._quota_bytes:
            self.overflowed = True
            self._queue.clear()
            self.close()
            return
        self._queue.append((is_event, field))
        self.queued_bytes += len(field)
        self._wake.set()

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
