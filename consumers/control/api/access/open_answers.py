"""Bounds on what answers cost that anybody may ask for, without a login.

One is made at a time, for all who have asked until then, and then rests: however many ask, it takes a fifth of a
thread, and as little of ZooKeeper; where that is slow one thread, less a second between two. It is sent part by part,
so that who reads slowly holds a part, and not an answer of its own.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final, Generic, TypeVar

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

REST_TIMES: Final = 4.0
"""So many times as long as an answer took to make, the next one is not begun."""
REST_MAX_S: Final = 1.0
"""At most: where ZooKeeper is slow, whoever asks whether this capture lives must not wait several times as long."""
PART_BYTES: Final = 64 << 10


class Shared(Generic[T]):
    """Makes one thing at a time. For one event loop."""

    def __init__(self) -> None:
        self._making, self._rests_until = asyncio.Lock(), 0.0
        self._next: asyncio.Task[T] | None = None

    async def of(self, make: Callable[[], T]) -> T:
        """Return what ``make``, or that of another who asks, returns in a thread, begun after this was asked for."""
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._made(make))
        return await asyncio.shield(self._next)

    async def _made(self, make: Callable[[], T]) -> T:
        async with self._making:
            await asyncio.sleep(max(0.0, self._rests_until - monotonic()))
            self._next = None
            began_at = monotonic()
            try:
                return await asyncio.to_thread(make)
            finally:
                ended_at = monotonic()
                self._rests_until = ended_at + rest_s(ended_at - began_at)


def rest_s(made_s: float) -> float:
    """Return how long the next one waits after one that took so long."""
    return min(REST_TIMES * made_s, REST_MAX_S)


class LongResponse(Response):
    """One that may be long, and of which all who read it have the same bytes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; each part waits until the client has read most of what was sent before."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for at in range(0, len(self.body), PART_BYTES):
            part = bytes(self.body[at : at + PART_BYTES])
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
