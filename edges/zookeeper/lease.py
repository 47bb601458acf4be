"""The lease: for how long a process may act as the holder of its ZooKeeper session without having heard from a server.

A server keeps a session for at least the session timeout after the last request that it answered. So a process that has
had an answer to a request sent at time s holds its session until s + timeout for certain, whatever happened since.
:class:`Lease` sends such a request every quarter of the timeout, and calls the lease over a third of the timeout before
the session can end: who stops writing when :meth:`Lease.left_s` reaches 0 has stopped before anybody else can have what
the session held, up to what is on the wire already.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from kazoo.client import KazooState

from edges.zookeeper.client import Promise, ZooKeeperClient

log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")

LEASE_SHARE = 2 / 3
"""Of the session's timeout; the rest is for stopping."""


def lease_clock() -> float:
    """Return seconds of a clock that goes on while the machine is suspended, as a virtual one may be for hours: the
    ensemble's goes on, too, and ends the session. (``time.monotonic`` stands still meanwhile.)
    """
    return time.clock_gettime(_LEASE_CLOCK)


_LEASE_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has it; where there is none a suspended machine's lease looks longer than it is."""


class Lease:
    """Of the session that a client has now; a client that gets another has no lease until a server has answered it.

    What hung on the session before (ephemeral nodes) is not there in the next: whoever leans on such a node asks for it
    again.
    """

    timeout_s: float
    """What the lease is made of: the session timeout asked for, or the less that the server grants."""

    def __init__(self, client: ZooKeeperClient, timeout_s: float, hosts: str) -> None:
        """``client`` is a KazooClient that is not started; ``timeout_s`` is what it asks for, ``hosts`` is for logs."""
        self.timeout_s, self._hosts, self._client = timeout_s, hosts, client
        self._changing = threading.Lock()
        self._losses = 0
        self._answered_at: float | None = None
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="zookeeper-lease", daemon=True)
        client.add_listener(self._on_state)
        self._hear_what_is_granted(timeout_s)

    def start(self, sent_at: float) -> None:
        """Begin with a connection that was asked for at ``sent_at`` and stands; the lease is kept from here on."""
        self._renew(sent_at, 0)
        self._keeper.start()

    def left_s(self) -> float:
        """Return for how long this process may act as the holder of its session; 0 when it may not."""
        answered_at = self._answered_at
        if answered_at is None or self._closing.is_set():
            return 0.0
        return max(0.0, answered_at + self.timeout_s * LEASE_SHARE - lease_clock())

    @property
    def losses(self) -> int:
        """How many sessions of the client have ended: while it is the same, what hung on the session is there."""
        return self._losses

    @property
    def unanswered_s(self) -> float | None:
        """How long ago the last request was sent that a server has answered; None: none was, or the session is lost."""
        answered_at = self._answered_at
        return None if answered_at is None else round(lease_clock() - answered_at, 1)

    def ask(self, request: Callable[[], Promise[_Answer]], timeout_s: float) -> _Answer:
        """Return the answer to a request that renews the lease; ``request`` returns kazoo's promise of it.

        Raises:
            KazooException, KazooTimeoutError: whatever the request ends with; such an end renews nothing.
        """
        sent_at, losses = lease_clock(), self._losses
        answer = request().get(timeout=timeout_s)
        self._renew(sent_at, losses)
        return answer

    def stop(self) -> None:
        """End the lease now; :meth:`join` waits for its thread."""
        self._closing.set()

    def join(self) -> None:
        """Wait until the lease's thread has ended."""
        if self._keeper.ident is not None:
            self._keeper.join(timeout=self.timeout_s)

    def _renew(self, sent_at: float, losses: int) -> None:
        with self._changing:
            # An answer to a session that was lost meanwhile says nothing of the one that follows.
            if losses == self._losses and (self._answered_at is None or sent_at > self._answered_at):
                self._answered_at = sent_at

    def _on_state(self, state: str) -> None:
        # Runs on kazoo's own thread, which must never block.
        if state == KazooState.LOST and not self._closing.is_set():
            with self._changing:
                self._losses, self._answered_at = self._losses + 1, None

    def _keep(self) -> None:
        failures = 0
        while not self._closing.wait(self.timeout_s / 4):
            try:
                self.ask(lambda: self._client.exists_async("/"), self.timeout_s / 4)
            except Exception as error:  # any failure only means that the lease was not renewed
                failures += 1
                if failures == 1 and not self._closing.is_set():
                    log.warning("zookeeper lease not renewed", extra={"hosts": self._hosts, "reason": repr(error)})
            else:
                if failures:
                    log.info("zookeeper lease renewed again", extra={"hosts": self._hosts, "failures": failures})
                failures = 0

    def _hear_what_is_granted(self, asked_s: float) -> None:
        """Make :attr:`timeout_s` the timeout that the server grants, where that is less than ``asked_s``.

        kazoo tells only its own loop: a lease of the time asked for would be a lie. (A server that grants more than was
        asked for is no danger: the lease ends earlier than it could.) Called for each connection of the session.
        """
        connection = self._client._connection
        connect = connection._connect

        def connected(*args: object) -> tuple[float, float]:
            read_timeout_ms, connect_timeout_ms = connect(*args)
            granted_s = read_timeout_ms * 3 / 2 / 1000  # how kazoo makes the one of the other
            if abs(granted_s - asked_s) > 0.01 and granted_s != self.timeout_s:
                log.warning(
                    "zookeeper grants another session timeout than asked for",
                    extra={"hosts": self._hosts, "asked_s": asked_s, "granted_s": round(granted_s, 3)},
                )
            self.timeout_s = min(asked_s, granted_s)
            return read_timeout_ms, connect_timeout_ms

        connection._connect = connected
