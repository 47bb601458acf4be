"""Timestamps from PD in batches: many callers, one request (docs/formats/pd.md §3).

While one request is under way, further callers gather; when its answer is there, the first of them asks for all of them
with one `count`. So there is no thread and no timer, a lone caller waits for nobody, and a thousand callers cost PD two
requests a round trip.
"""

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any, Final

import grpc

from schemas.ids import PHYSICAL_SHIFT_BITS, Ts
from schemas.proto import pdpb_pb2, pdpb_pb2_grpc

BATCH_MAX: Final = 10_000
"""Timestamps of one request, as the Go client; PD can give 262,144 in a millisecond."""


class TsoStream:
    """The bidirectional Tso stream to one leader; broken once, it stays so."""

    def __init__(self, stub: pdpb_pb2_grpc.PDStub, header: pdpb_pb2.RequestHeader, timeout_s: float) -> None:
        """Open the stream; ``timeout_s`` bounds the wait for one answer."""
        self._header = header
        self._timeout_s = timeout_s
        self._sent: queue.SimpleQueue[pdpb_pb2.TsoRequest | None] = queue.SimpleQueue()
        self._turn = threading.Condition()
        self._asking = False
        self._waiting: list[_Caller] = []
        self.broken = False
        self.requests = 0
        """Asked so far; with the number of callers it says how well batching works."""
        self._call: Any = stub.Tso(self._iterate())

    def ask(self) -> Ts:
        """Return a timestamp that no other caller gets.

        Raises:
            grpc.RpcError: the stream is broken, or no answer came in time; the caller opens another.
        """
        caller = _Caller()
        with self._turn:
            self._waiting.append(caller)
        while True:
            with self._turn:
                while self._asking and caller.outcome is None:
                    self._turn.wait()
                if caller.outcome is not None:
                    break
                self._asking = True
                batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            self._ask_for(batch)
        if isinstance(caller.outcome, grpc.RpcError):
            raise caller.outcome
        return caller.outcome

    def close(self) -> None:
        """End the stream and whoever waits on it."""
        self.broken = True
        self._sent.put(None)
        with contextlib.suppress(grpc.RpcError):
            self._call.cancel()

    def _ask_for(self, batch: "list[_Caller]") -> None:
        failure: grpc.RpcError | None = None
        last = 0
        try:
            last = self._last_of(len(batch))
        except grpc.RpcError as error:
            self.close()
            failure = error
        with self._turn:
            for number, caller in enumerate(batch, last - len(batch) + 1):
                caller.outcome = failure or Ts(number)
            self._asking = False
            self._turn.notify_all()

    def _last_of(self, count: int) -> int:
        if self.broken:
            raise StreamEndedError("stream ended")
        # A bidirectional stream has no deadline of one reply: a timer ends the stream if the reply stays away.
        timer = threading.Timer(self._timeout_s, self._call.cancel)
        timer.daemon = True
        timer.start()
        try:
            self.requests += 1
            self._sent.put(pdpb_pb2.TsoRequest(header=self._header, count=count))
            reply: pdpb_pb2.TsoResponse = next(self._call)
        except (StopIteration, ValueError) as error:  # ended well, or the channel was closed under the call
            raise StreamEndedError(str(error) or "stream ended") from None
        finally:
            timer.cancel()
        if reply.header.error.type != pdpb_pb2.OK or reply.count != count:
            raise StreamEndedError(reply.header.error.message or f"asked for {count} timestamps, got {reply.count}")
        return (reply.timestamp.physical << PHYSICAL_SHIFT_BITS) + reply.timestamp.logical

    def _iterate(self) -> Iterator[pdpb_pb2.TsoRequest]:
        while (request := self._sent.get()) is not None:
            yield request


class StreamEndedError(grpc.RpcError):
    """PD ended the Tso stream without a status, or answered something else than was asked."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self._said = said

    def code(self) -> grpc.StatusCode:
        """Answer as if the member had gone."""
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        """What was seen."""
        return self._said


class _Caller:
    """One who waits for a timestamp."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome: Ts | grpc.RpcError | None = None
