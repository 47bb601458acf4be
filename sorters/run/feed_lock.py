"""One sorter a changefeed: an ephemeral node in ZooKeeper, held for as long as the process's session lives.

A second sorter of the changefeed waits for the node and says who holds it; it takes over when the holder goes. Who was
killed is waited for until its session has timed out, SESSION_S at most, also on the same machine where one could see
that the process is gone: its Spark driver may live a moment longer and write still.

What this promises: no cut begins without an answer of ZooKeeper that the node is ours (:meth:`FeedLock.check`), and a
cut that runs is given up before the session can have ended (:meth:`FeedLock.is_lost`). What it does not: Kafka does not
fence a write that is on the wire already, so in the worst case the beginning of a cut stands there twice; it is the
same records in the same order, as after any crash.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooState
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from schemas.errors import Action, BusError

log = logging.getLogger(__name__)

SESSION_S = 6.0
"""How long a killed sorter's node stands. A server's shortest is two of its ticks, 4 s by default; and a driver that is
busy in Python must not lose its session for want of a heartbeat, of which there are three in this time."""
SUSPENDED_MAX_S = SESSION_S / 6
"""kazoo takes a connection for gone after 2/3 of the session's time without an answer; the rest is for stopping."""
ANSWER_S = SESSION_S / 3
RECHECK_S = 0.5
"""Between two looks at whose the node is, while waiting for it."""


class SorterLockLostError(BusError):
    """ZooKeeper does not confirm that this is the changefeed's one sorter any more: it stops and waits for its turn."""

    code, action = "sorter.lock_lost", Action.RETRY


class FeedLock:
    """The lock of one changefeed. ``zookeeper`` is a KazooClient with a timeout of SESSION_S."""

    def __init__(self, zookeeper: Any, path: str) -> None:
        self._zookeeper, self._path = zookeeper, path
        self._session: int | None = None
        self._suspended_at: float | None = None
        zookeeper.add_listener(self._on_state)

    def acquire(self, wanted: Callable[[], bool]) -> bool:
        """Wait until the lock is ours, which it may be already; False: it is not ``wanted`` any more."""
        said = None
        while wanted():
            try:
                if self._try():
                    if said:
                        log.info("sorter takes over the changefeed", extra={"path": self._path})
                    return True
                holder = self.holder()
            except (KazooException, KazooTimeoutError) as error:
                holder = f"unknown, zookeeper does not answer: {error!r}"
            if holder != said:
                said = holder
                log.warning(
                    "changefeed has a sorter; waiting for it to go", extra={"holder": holder, "path": self._path}
                )
            time.sleep(RECHECK_S)
        return False

    def holder(self) -> str | None:
        """Return who holds the lock, as text for people; None: nobody."""
        try:
            node, _ = self._zookeeper.get_async(self._path).get(timeout=ANSWER_S)
        except NoNodeError:
            return None
        return str(node.decode(errors="replace"))

    def is_lost(self) -> bool:
        """Tell, without asking, whether what is being written must be given up."""
        suspended_at = self._suspended_at
        return self._session is None or (suspended_at is not None and time.monotonic() - suspended_at > SUSPENDED_MAX_S)

    def check(self) -> None:
        """Ask ZooKeeper; call before each cut.

        Raises:
            SorterLockLostError: the lock is another's, nobody's, or there is no answer in time.
        """
        try:
            stat = self._zookeeper.exists_async(self._path).get(timeout=ANSWER_S)
        except (KazooException, KazooTimeoutError) as error:
            raise SorterLockLostError(
                "zookeeper does not confirm the lock", path=self._path, reason=repr(error)
            ) from error
        if self._session is None or stat is None or stat.ephemeralOwner != self._session:
            self._session = None
            raise SorterLockLostError("the lock is gone with our zookeeper session", path=self._path)

    def release(self) -> None:
        """Let the next sorter begin without waiting for our session's end."""
        session, self._session = self._session, None
        if session is None:
            return
        try:
            stat = self._zookeeper.exists_async(self._path).get(timeout=ANSWER_S)
            if stat is not None and stat.ephemeralOwner == session:
                self._zookeeper.delete_async(self._path, stat.version).get(timeout=ANSWER_S)
        except (KazooException, KazooTimeoutError):
            pass  # it goes with the session

    def _try(self) -> bool:
        own = json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode()
        try:
            self._zookeeper.create_async(self._path, own, ephemeral=True).get(timeout=ANSWER_S)
        except NodeExistsError:
            pass  # perhaps ours: an answer may have been lost
        except NoNodeError:
            return False  # the changefeed was removed
        stat = self._zookeeper.exists_async(self._path).get(timeout=ANSWER_S)
        session = self._zookeeper.client_id[0] if self._zookeeper.client_id else None
        ours = stat is not None and stat.ephemeralOwner == session
        self._session = session if ours else None
        return ours

    def _on_state(self, state: str) -> None:
        # In kazoo's thread: only notes, and returns at once.
        if state == KazooState.LOST:
            self._session = None
        self._suspended_at = time.monotonic() if state == KazooState.SUSPENDED else None
