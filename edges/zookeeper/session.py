"""ZooKeeper: the session of one process, its lease, and errors that say what to do.

**The lease.** A server keeps a session for at least the session timeout after the last request that it answered. So a
process that has had an answer to a request sent at time s holds its session until s + timeout for certain, whatever
happened since. :class:`Session` sends such a request every quarter of the timeout, and calls the lease over a third of
the timeout before the session can end: who stops writing when :meth:`Session.lease_left_s` reaches 0 has stopped before
anybody else can be elected, up to what is on the wire already (owner revisions refuse that: ``follow_frontier``).
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Self

from kazoo.client import KazooState
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError, SequentialThreadingHandler

from edges.zookeeper.access import ZooKeeperAccess
from schemas.errors import Action, BusError

log = logging.getLogger(__name__)

SESSION_TIMEOUT_S = 6.0
"""How long nobody may know that a capture was killed; TiCDC's capture-session-ttl is 10 s. The lease that goes with it,
4 s, must outlast a pause of the process, its machine or ZooKeeper that is no reason to start anew."""
SESSION_TIMEOUT_MIN_S, SESSION_TIMEOUT_MAX_S = 4.0, 60.0
"""Servers with ZooKeeper's default tickTime of 2 s grant 4 to 40 s, whatever is asked for."""
CONNECT_TIMEOUT_S = 15.0
"""A whole ensemble restarts in less; a wrong address must not look like a hang."""


def lease_clock() -> float:
    """Return seconds of a clock that goes on while the machine is suspended, as a virtual one may be for hours: the
    ensemble's goes on, too, and ends the session. (``time.monotonic`` stands still meanwhile.)
    """
    return time.clock_gettime(_LEASE_CLOCK)


_LEASE_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has it; where there is none a suspended machine's lease looks longer than it is."""


class ZooKeeperUnreachableError(BusError):
    """No server answered."""

    code, action = "zookeeper.unreachable", Action.RETRY


class SessionTimeoutError(BusError):
    """No lease can be kept with such a session timeout, or nobody would notice for too long that a capture is dead."""

    code, action = "zookeeper.illegal_session_timeout", Action.STOP_CHANGEFEED


class ZooKeeperError(BusError):
    """A request failed for another reason than a lost session."""

    code, action = "zookeeper.request_failed", Action.RETRY


class LeaseLostError(BusError):
    """The session has ended, or cannot be shown to live: this process must stop writing, and may start anew."""

    code, action = "zookeeper.lease_lost", Action.RETRY


def check_session_timeout(timeout_s: float) -> None:
    """Check what is asked for, before anything is connected.

    Raises:
        SessionTimeoutError: out of bounds.
    """
    if not SESSION_TIMEOUT_MIN_S <= timeout_s <= SESSION_TIMEOUT_MAX_S:
        raise SessionTimeoutError(
            "session timeout is out of bounds",
            session_timeout_s=timeout_s,
            allowed=f"{SESSION_TIMEOUT_MIN_S:g} to {SESSION_TIMEOUT_MAX_S:g} s",
        )


class _BoundedResult(AsyncResult):  # type: ignore[misc] # kazoo has no types
    """An answer that is waited for no longer than the session can last."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return super().get(block, self._handler.patience_s if timeout is None else timeout)


class _BoundedHandler(SequentialThreadingHandler):  # type: ignore[misc] # kazoo has no types
    """kazoo's own, for calls that end: while no server can be reached it would let them wait for ever."""

    def __init__(self, patience_s: float) -> None:
        super().__init__()
        self.patience_s = patience_s

    def async_result(self) -> _BoundedResult:
        return _BoundedResult(self)


class Session:
    """A connected client. Use as a context manager, or call :meth:`close`; safe to use from several threads.

    A session that was lost is never revived: its ephemeral nodes are gone, so everything that leaned on them must start
    again with a new one.
    """

    timeout_s: float
    """What the lease is made of: the session timeout asked for, or the less that the server grants."""

    def __init__(
        self,
        access: ZooKeeperAccess,
        *,
        timeout_s: float = SESSION_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        """Connect.

        Raises:
            SessionTimeoutError: ``timeout_s`` is out of bounds.
            ZooKeeperUnreachableError: no server answered within ``connect_timeout_s``.
        """
        check_session_timeout(timeout_s)
        self.hosts, self.timeout_s = access.servers, timeout_s
        self._lost = threading.Event()
        self._closing = threading.Event()
        self._answered_at = lease_clock()
        self.client: Any = access.client(timeout_s, _BoundedHandler(timeout_s))
        self.client.add_listener(self._on_state)
        self._hear_what_is_granted(timeout_s)
        sent_at = lease_clock()
        try:
            self.client.start(timeout=connect_timeout_s)
        except (KazooTimeoutError, KazooException, OSError, ValueError) as error:
            with contextlib.suppress(Exception):
                self.client.close()
            raise ZooKeeperUnreachableError(
                "ZooKeeper does not answer; check --zookeeper and that a server runs there",
                hosts=self.hosts,
                waited_s=connect_timeout_s,
                reason=error,
            ) from error
        self._answered_at = sent_at
        self._keeper = threading.Thread(target=self._keep, name="zookeeper-lease", daemon=True)
        self._keeper.start()

    def lease_left_s(self) -> float:
        """Return for how long this process may act as the holder of its session; 0 when it may not."""
        if self._lost.is_set() or self._closing.is_set():
            return 0.0
        return max(0.0, self._answered_at + self.timeout_s * 2 / 3 - lease_clock())

    def check_lease(self) -> None:
        """Call before every write that only the holder of the session may do.

        Raises:
            LeaseLostError: the lease is over.
        """
        if self.lease_left_s() <= 0:
            raise LeaseLostError(
                "the ZooKeeper session is lost or cannot be confirmed; writing has stopped",
                hosts=self.hosts,
                unanswered_s=round(lease_clock() - self._answered_at, 1),
            )

    @contextlib.contextmanager
    def requests(self, what: str) -> Iterator[Any]:
        """Yield the client; its errors come out as ours, with ``what`` was being done.

        A request that is not answered within the session timeout fails; it may be done later all the same, as one may
        be whose connection was lost.

        Raises:
            LeaseLostError: the session is gone.
            ZooKeeperError: anything else that kazoo reports.
        """
        try:
            yield self.client
        except (KazooException, KazooTimeoutError) as error:
            if self._lost.is_set():
                raise LeaseLostError("the ZooKeeper session is lost", hosts=self.hosts, doing=what) from error
            raise ZooKeeperError(
                "a ZooKeeper request failed", hosts=self.hosts, doing=what, reason=repr(error)
            ) from error

    def close(self) -> None:
        """End the session now, so that its ephemeral nodes go at once rather than after the timeout."""
        self._closing.set()
        with contextlib.suppress(Exception):
            self.client.stop()
        with contextlib.suppress(Exception):
            self.client.close()
        self._keeper.join(timeout=self.timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _hear_what_is_granted(self, asked_s: float) -> None:
        """Make :attr:`timeout_s` the timeout that the server grants, where that is less than ``asked_s``.

        kazoo tells only its own loop: a lease of the time asked for would be a lie. (A server that grants more than was
        asked for is no danger: the lease ends earlier than it could.) Called for each connection of the session.
        """
        connection = self.client._connection
        connect = connection._connect

        def connected(*args: Any) -> tuple[float, float]:
            read_timeout_ms, connect_timeout_ms = connect(*args)
            granted_s = read_timeout_ms * 3 / 2 / 1000  # how kazoo makes the one of the other
            if abs(granted_s - asked_s) > 0.01 and granted_s != self.timeout_s:
                log.warning(
                    "zookeeper grants another session timeout than asked for",
                    extra={"hosts": self.hosts, "asked_s": asked_s, "granted_s": round(granted_s, 3)},
                )
            self.timeout_s = min(asked_s, granted_s)
            return read_timeout_ms, connect_timeout_ms

        connection._connect = connected

    def _on_state(self, state: Any) -> None:
        # Runs on kazoo's own thread, which must never block.
        if state == KazooState.LOST and not self._closing.is_set():
            self._lost.set()

    def _keep(self) -> None:
        while not self._closing.wait(self.timeout_s / 4) and not self._lost.is_set():
            sent_at = lease_clock()
            try:
                self.client.exists_async("/").get(timeout=self.timeout_s / 4)
                self._answered_at = sent_at
            except Exception as error:  # any failure only means that the lease was not renewed
                log.warning("zookeeper lease not renewed", extra={"hosts": self.hosts, "reason": repr(error)})
