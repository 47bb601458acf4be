"""ZooKeeper: the session of one process, which keeps a lease, and errors that say what to do."""

import contextlib
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from kazoo.client import KazooState
from kazoo.exceptions import KazooException, NoAuthError
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError, SequentialThreadingHandler

from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.client import ZooKeeperClient
from edges.zookeeper.lease import Lease, lease_clock
from schemas.errors import Action, BusError

SESSION_TIMEOUT_S = 6.0
"""How long nobody may know that a capture was killed; TiCDC's capture-session-ttl is 10 s. The lease that goes with it,
4 s, must outlast a pause of the process, its machine or ZooKeeper that is no reason to start anew."""
SESSION_TIMEOUT_MIN_S, SESSION_TIMEOUT_MAX_S = 4.0, 60.0
"""Servers with ZooKeeper's default tickTime of 2 s grant 4 to 40 s, whatever is asked for."""
CONNECT_TIMEOUT_S = 15.0
"""A whole ensemble restarts in less; a wrong address must not look like a hang."""


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


def start_with_lease(client: ZooKeeperClient, hosts: str, timeout_s: float, connect_timeout_s: float) -> Lease:
    """Start a client that asks for a session timeout of ``timeout_s``, and return the lease that is kept from then on.

    Raises:
        ZooKeeperUnreachableError: no server answered within ``connect_timeout_s``; the client is closed.
    """
    lease, sent_at = Lease(client, timeout_s, hosts), lease_clock()
    try:
        client.start(timeout=connect_timeout_s)
    except (KazooTimeoutError, KazooException, OSError, ValueError) as error:
        with contextlib.suppress(Exception):
            client.close()
        raise ZooKeeperUnreachableError(
            "ZooKeeper does not answer; check --zookeeper and that a server runs there",
            hosts=hosts,
            waited_s=connect_timeout_s,
            reason=error,
        ) from error
    lease.start(sent_at)
    return lease


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
        self.hosts = access.servers
        self._lost = threading.Event()
        self._closing = threading.Event()
        self.client: ZooKeeperClient = access.client(timeout_s, _BoundedHandler(timeout_s))
        self.client.add_listener(self._on_state)
        self._lease = start_with_lease(self.client, self.hosts, timeout_s, connect_timeout_s)

    @property
    def timeout_s(self) -> float:
        """What the lease is made of: the session timeout asked for, or the less that the server grants."""
        return self._lease.timeout_s

    @property
    def lease(self) -> Lease:
        """What it keeps, for who holds nodes by this session."""
        return self._lease

    def lease_left_s(self) -> float:
        """Return for how long this process may act as the holder of its session; 0 when it may not."""
        return 0.0 if self._lost.is_set() else self._lease.left_s()

    def check_lease(self) -> None:
        """Call before every write that only the holder of the session may do.

        Raises:
            LeaseLostError: the lease is over.
        """
        if self.lease_left_s() <= 0:
            raise LeaseLostError(
                "the ZooKeeper session is lost or cannot be confirmed; writing has stopped",
                hosts=self.hosts,
                unanswered_s=self._lease.unanswered_s,
            )

    @contextlib.contextmanager
    def requests(self, what: str) -> Iterator[ZooKeeperClient]:
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
            is_forbidden = isinstance(error, NoAuthError)
            said = "a ZooKeeper node's ACL forbids it to our user" if is_forbidden else "a ZooKeeper request failed"
            raise ZooKeeperError(said, hosts=self.hosts, doing=what, reason=repr(error)) from error

    def close(self) -> None:
        """End the session now, so that its ephemeral nodes go at once rather than after the timeout."""
        self._closing.set()
        self._lease.stop()
        with contextlib.suppress(Exception):
            self.client.stop()
        with contextlib.suppress(Exception):
            self.client.close()
        self._lease.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _on_state(self, state: str) -> None:
        # Runs on kazoo's own thread, which must never block.
        if state == KazooState.LOST and not self._closing.is_set():
            self._lost.set()
