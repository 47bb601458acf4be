"""One sorter a changefeed: an ephemeral node in ZooKeeper, held for as long as the process's session lives.

A second sorter of the changefeed waits for the node and says who holds it; it takes over when the holder goes. Who was
killed is waited for until its session has timed out, SESSION_S at most, also on the same machine where one could see
that the process is gone: its Spark driver may live a moment longer and write still.

What this promises: no cut begins without an answer of ZooKeeper that the node is ours (:meth:`FeedLock.check`), and a
cut that runs is given up before the session can have ended (:meth:`FeedLock.is_lost`, by the rule of
:mod:`edges.zookeeper.lease`). What it does not: Kafka does not fence a write that is on the wire already, or that a
stopped process sends when it goes on. So what stands between sorters and processors says which holder of the lock has
written it (:meth:`FeedLock.fences`), and processors pass over what comes late. Other readers go by positions: in the
worst case the beginning of a cut stands there twice, the same records in the same order, as after any crash.
"""

import itertools
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Final

from kazoo.exceptions import ConnectionLoss, KazooException, OperationTimeoutError
from kazoo.handlers.threading import KazooTimeoutError

from edges.zookeeper.client import NodeStat
from edges.zookeeper.connection import LeasedClient
from edges.zookeeper.nodes import free_node, is_own, read_node, take_node
from schemas.errors import Action, BusError, shortened
from schemas.sink.fence import NO_FENCE, Fence

log = logging.getLogger(__name__)

SESSION_S = 6.0
"""How long a killed sorter's node stands. A server's shortest is two of its ticks, 4 s by default; and a driver that is
busy in Python must not lose its session for want of a heartbeat, of which there are three in this time."""
ANSWER_S = SESSION_S / 3
HOLDER_CHARS_MAX = 200
RECHECK_S = 0.5
"""Between two looks at whose the node is, while waiting for it, and between two tries to free it."""
_ATTEMPTS: Final = itertools.count(1)
"""Of all locks of this process: a node that could not be freed is the next lock's of the same session, and what is
written under that must be newer."""


class SorterLockLostError(BusError):
    """ZooKeeper does not confirm that this is the changefeed's one sorter any more: it stops and waits for its turn."""

    code, action = "sorter.lock_lost", Action.RETRY


class FeedLock:
    """The lock of one changefeed. ``zookeeper`` is a connection with a session timeout of SESSION_S."""

    def __init__(self, zookeeper: LeasedClient, path: str) -> None:
        self._client, self._lease, self._path = zookeeper.client, zookeeper.lease, path
        self._held_since: int | None = None
        """How many sessions had ended when it became ours: with the next one it is lost. None: it is not ours."""
        self._may_stand_since: int | None = None
        """Likewise, of a node that may be ours, answered or not, and was not freed; None: there is none."""
        self._czxid = 0
        """Of the node as it was ours last; 0: it never was."""

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
        if self._held_since is None:
            self.release()  # a try whose answer was lost may have taken it
        return False

    def holder(self) -> str | None:
        """Return who holds the lock, as text for people; None: nobody."""
        node = read_node(self._client, self._path, ANSWER_S)
        return node and shortened(node[0].decode(errors="replace"), HOLDER_CHARS_MAX)

    def is_lost(self) -> bool:
        """Tell, without asking, whether what is being written must be given up."""
        return self._held_since != self._lease.losses or self._lease.left_s() <= 0

    def check(self) -> None:
        """Ask ZooKeeper; call before each cut.

        Raises:
            SorterLockLostError: the lock is another's, nobody's, or there is no answer in time.
        """
        try:
            stat = self._ask()
        except (KazooException, KazooTimeoutError) as error:
            raise SorterLockLostError(
                "zookeeper does not confirm the lock", path=self._path, reason=repr(error)
            ) from error
        if self._held_since is None or not is_own(self._client, stat):
            self._held_since = None
            raise SorterLockLostError("the lock is gone with our zookeeper session", path=self._path)

    def fences(self) -> Callable[[], bytes]:
        """Return what gives each attempt to write something its fence, under the lock as it is held now."""
        czxid = self._czxid
        return lambda: Fence(czxid, next(_ATTEMPTS)).encode() if czxid else NO_FENCE

    def release(self) -> None:
        """Let the next sorter begin without waiting for our session's end.

        What has no answer is asked again for as long as the session may live: a service's does for days, and nobody
        else would have the changefeed meanwhile.
        """
        self._held_since = None
        while self._may_stand_since is not None:
            try:
                free_node(self._client, self._path, ANSWER_S)
                self._may_stand_since = None
            except (ConnectionLoss, OperationTimeoutError, KazooTimeoutError):
                if self._is_session_over():
                    return
                time.sleep(RECHECK_S)
            except KazooException:
                return  # it goes with the session

    def _try(self) -> bool:
        own = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "knows_images": True}).encode()
        losses = self._may_stand_since = self._lease.losses
        taken = take_node(self._client, self._path, own, ANSWER_S)
        if taken is None or not is_own(self._client, self._ask()):
            self._held_since = self._may_stand_since = None
            return False
        self._held_since, self._czxid = losses, int(taken.czxid)
        return True

    def _is_session_over(self) -> bool:
        unanswered_s = self._lease.unanswered_s
        is_unheard = unanswered_s is None or unanswered_s > self._lease.timeout_s
        return is_unheard or self._may_stand_since != self._lease.losses

    def _ask(self) -> NodeStat | None:
        return self._lease.ask(lambda: self._client.exists_async(self._path), ANSWER_S)
