"""The raw logs that a service reads, each by one set of clients: whoever asks first opens it, others wait for that.

    a changefeed asks --> it is there: with it | it is being opened: waits, and fails if that fails
                          it is not, or is broken: opens it, in the changefeed's own thread
    the service's loop, once a tick --> what is idle, or broken and left by all: a thread of its own closes it

The one lock is over the map, and nobody asks Kafka under it: the loop that keeps the lease takes it, too.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from copy import copy

from schemas.ids import Ts, UpstreamId
from sorters.log.failures import bus_error
from sorters.service.shared_log import SharedLog, SharedSources

log = logging.getLogger(__name__)

LOG_IDLE_S = 60.0
"""After which an upstream's readers are closed, if no changefeed of it is here."""
CLOSE_LATEST_S = 25.0
"""How long the service's end waits for readers to be closed; what writes proofs takes up to 20 s where Kafka is away
(:meth:`sorters.run.proofs.proof_log.ProofLog.close`)."""


class SharedLogs:
    """:meth:`sources` from any thread, the rest from the service's own. :meth:`close` must be called."""

    def __init__(self, open_log: Callable[[UpstreamId], SharedLog]) -> None:
        """``open_log`` may take as long as Kafka lets it wait, and is called for one upstream once at a time."""
        self._open_log = open_log
        self._lock = threading.Lock()
        self._logs: dict[UpstreamId, SharedLog] = {}
        self._openings: dict[UpstreamId, Future[None]] = {}
        self._old_logs: list[SharedLog] = []
        """Broken, and still read by somebody who has not noticed."""
        self._closers: list[threading.Thread] = []

    def sources(self, upstream: UpstreamId, checkpoint_ts: Ts, protocol: str) -> SharedSources:
        """Return what a changefeed reads by; see :meth:`SharedLog.sources`.

        Raises:
            BusError: the raw log cannot be opened, by this thread or by the one that was at it already.
        """
        shared = self._entered(upstream)
        try:
            return shared.sources(checkpoint_ts, protocol)
        finally:
            shared.leave()

    def close_idle(self) -> None:
        """Let what nobody has read by for a while be closed, and what is broken and not read by any more; returns at
        once.
        """
        with self._lock:
            idle = [upstream for upstream, shared in self._logs.items() if shared.idle_s() > LOG_IDLE_S]
            closing = [self._logs.pop(upstream) for upstream in idle]
            closing += [shared for shared in self._old_logs if shared.idle_s() > 0]
            self._old_logs = [shared for shared in self._old_logs if shared not in closing]
        self._begin_to_close(closing)

    def close(self) -> None:
        """Close all, after the changefeeds have ended; what takes longer than ``CLOSE_LATEST_S`` is left."""
        with self._lock:
            closing = [*self._logs.values(), *self._old_logs]
            self._logs, self._old_logs = {}, []
        self._begin_to_close(closing)
        deadline = time.monotonic() + CLOSE_LATEST_S
        for closer in self._closers:
            closer.join(max(deadline - time.monotonic(), 0.0))
        left = sum(closer.is_alive() for closer in self._closers)
        if left:
            log.warning("readers of raw logs do not close; the process ends without them", extra={"logs": left})

    def _entered(self, upstream: UpstreamId) -> SharedLog:
        """Return an upstream's log with the caller among its users, so that nobody closes it meanwhile."""
        while True:
            with self._lock:
                shared = self._logs.get(upstream)
                if shared is not None and not shared.is_broken:
                    shared.enter()
                    return shared
                if shared is not None:
                    self._old_logs.append(self._logs.pop(upstream))
                others = self._openings.get(upstream)
                own = Future[None]()
                if others is None:
                    self._openings[upstream] = own
            if others is None:
                return self._opened(upstream, own)
            failure = others.exception()
            if failure is not None:
                raise copy(bus_error(failure)) from failure  # each thread logs one of its own

    def _opened(self, upstream: UpstreamId, opening: Future[None]) -> SharedLog:
        """Open an upstream's log and enter it; tell all who wait for ``opening`` how that went."""
        try:
            shared = self._open_log(upstream)
        except BaseException as error:
            with self._lock:
                del self._openings[upstream]
            opening.set_exception(error)
            raise
        with self._lock:
            del self._openings[upstream]
            self._logs[upstream] = shared
            shared.enter()
        opening.set_result(None)
        return shared

    def _begin_to_close(self, closing: Iterable[SharedLog]) -> None:
        self._closers = [closer for closer in self._closers if closer.is_alive()]
        for shared in closing:
            closer = threading.Thread(target=_close, args=(shared,), name="log-closer", daemon=True)
            closer.start()
            self._closers.append(closer)


def _close(shared: SharedLog) -> None:
    try:
        shared.close()
    except Exception as error:
        log.warning("readers of a raw log are not closed", extra={"reason": repr(error)})
