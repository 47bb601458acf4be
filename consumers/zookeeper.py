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
from typing import Any, Self

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from schemas.errors import Action, BusError

log = logging.getLogger(__name__)

SESSION_TIMEOUT_S = 10.0
"""TiCDC's capture-session-ttl. Servers clip it to 2 to 20 times their tickTime (default 2 s: 4 to 40 s), and
kazoo's callers never hear of it: a larger value than the servers allow would make the lease a lie."""
CONNECT_TIMEOUT_S = 15.0
"""A whole ensemble restarts in less; a wrong address must not look like a hang."""


class ZooKeeperUnreachableError(BusError):
    """No server answered."""

    code, action = "zookeeper.unreachable", Action.RETRY


class ZooKeeperError(BusError):
    """A request failed for another reason than a lost session."""

    code, action = "zookeeper.request_failed", Action.RETRY


class LeaseLostError(BusError):
    """The session has ended, or cannot be shown to live: this process must stop writing, and may start anew."""

    code, action = "zookeeper.lease_lost", Action.RETRY


class Session:
    """A connected client. Use as a context manager, or call :meth:`close`; safe to use from several threads.

    A session that was lost is never revived: its ephemeral nodes are gone, so everything that leaned on them must start
    again with a new one.
    """

    def __init__(
        self, hosts: str, *, timeout_s: float = SESSION_TIMEOUT_S, connect_timeout_s: float = CONNECT_TIMEOUT_S
    ) -> None:
        """Connect.

        Raises:
            ZooKeeperUnreachableError: no server answered within ``connect_timeout_s``.
        """
        self.hosts, self.timeout_s = hosts, timeout_s
        self._lost = threading.Event()
        self._closing = threading.Event()
        self._answered_at = time.monotonic()
        self.client: Any = KazooClient(hosts=hosts, timeout=timeout_s)
        self.client.add_listener(self._on_state)
        sent_at = time.monotonic()
        try:
            self.client.start(timeout=connect_timeout_s)
        except (KazooTimeoutError, KazooException, OSError, ValueError) as error:
            with contextlib.suppress(Exception):
                self.client.close()
            raise ZooKeeperUnreachableError(
                "ZooKeeper does not answer; check --zookeeper and that a server runs there",
                hosts=hosts,
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
        return max(0.0, self._answered_at + self.timeout_s * 2 / 3 - time.monotonic())

    def check_lease(self) -> None:
        """Call before every write that only the holder of the session may do.

        Raises:
            LeaseLostError: the lease is over.
        """
        if self.lease_left_s() <= 0:
            raise LeaseLostError(
                "the ZooKeeper session is lost or cannot be confirmed; writing has stopped",
                hosts=self.hosts,
                unanswered_s=round(time.monotonic() - self._answered_at, 1),
            )

    @contextlib.contextmanager
    def requests(self, what: str) -> Iterator[Any]:
        """Yield the client; its errors come out as ours, with ``what`` was being done.

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

    def _on_state(self, state: Any) -> None:
        # Runs on kazoo's own thread, which must never block.
        if state == KazooState.LOST and not self._closing.is_set():
            self._lost.set()

    def _keep(self) -> None:
        while not self._closing.wait(self.timeout_s / 4) and not self._lost.is_set():
            sent_at = time.monotonic()
            try:
                self.client.exists_async("/").get(timeout=self.timeout_s / 4)
                self._answered_at = sent_at
            except Exception as error:  # any failure only means that the lease was not renewed
                log.warning("zookeeper lease not renewed", extra={"hosts": self.hosts, "reason": repr(error)})
