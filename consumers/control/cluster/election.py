"""Who is the owner: the capture with the lowest ephemeral-sequential node under ``election/``.

The owner revision is a number in ``owner-rev`` that grows by one at every election, by compare-and-set in one ZooKeeper
transaction with a check that the winner's own election node still stands: a capture whose session has ended cannot take
a revision, and two owners can never have the same one.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterable

from kazoo.exceptions import BadVersionError, ConnectionLoss, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from edges.zookeeper.client import ZooKeeperClient
from edges.zookeeper.session import LeaseLostError, Session
from schemas.errors import CorruptDataError
from schemas.ids import CaptureId
from schemas.json_text import read_int
from schemas.nodes.changefeed import ZkPaths

_PREFIX = "candidate-"
_UNANSWERED = (ConnectionLoss, KazooTimeoutError)
"""What goes with its connection tells nothing, not even whether it was done."""
_CANDIDATE = re.compile(_PREFIX + r"-?\d{1,10}")
RECHECK_S = 1.0
"""A watch tells of a change at once; this is for one that was lost, and bounds how late a stop is noticed."""


class Election:
    """One capture's candidacy."""

    def __init__(self, session: Session, paths: ZkPaths, capture: CaptureId) -> None:
        self._session, self._paths, self._capture = session, paths, capture
        self._node: str | None = None

    def campaign(self, stopping: Callable[[], bool] = lambda: False) -> int | None:
        """Wait until this capture is the owner and return its revision; None when ``stopping`` came first.

        A request that goes with its connection tells nothing: it is asked again, for as long as the lease lasts.

        Raises:
            LeaseLostError: the session ended while waiting.
            BusError: ZooKeeper failed.
        """
        while not stopping():
            self._session.check_lease()
            changed = threading.Event()
            if self._stand() and self._is_first(changed) and not stopping():
                revision = self._next_revision()
                if revision is not None:
                    return revision
            changed.wait(RECHECK_S)
        return None

    def revision(self) -> int:
        """Return the newest owner revision, past what a server of ZooKeeper may not have heard yet; 0: no owner ever.

        Raises:
            BusError: ZooKeeper failed, or the number does not decode.
        """
        path = self._paths.owner_rev
        with self._session.requests("reading the owner revision") as client:
            client.sync(self._paths.root)
            try:
                return decode_revision(client.get(path)[0], path)
            except NoNodeError:
                return 0

    def resign(self) -> None:
        """Give up the candidacy, so that the next capture need not wait for the session's end; safe to call twice."""
        node, self._node = self._node, None
        if node is not None:
            with contextlib.suppress(Exception), self._session.requests("resigning") as client:
                client.delete(node)

    def owner(self) -> CaptureId | None:
        """Return the capture that is first in line now.

        Raises:
            BusError: ZooKeeper failed.
        """
        with self._session.requests("reading the election") as client:
            try:
                for name in _candidates(client.get_children(self._paths.election)):
                    with contextlib.suppress(NoNodeError):
                        value, stat = client.get(f"{self._paths.election}/{name}")
                        if stat.ephemeralOwner:
                            return CaptureId(value.decode(errors="replace"))
            except NoNodeError:
                return None
        return None

    def _stand(self) -> bool:
        """Tell whether our node stands; create it where none does."""
        if self._node is None:
            with self._session.requests("standing for election") as client, contextlib.suppress(*_UNANSWERED):
                self._node = self._standing(client) or client.create(
                    f"{self._paths.election}/{_PREFIX}",
                    self._capture.encode(),
                    ephemeral=True,
                    sequence=True,
                    makepath=True,
                )
        return self._node is not None

    def _standing(self, client: ZooKeeperClient) -> str | None:
        """Return the node of ours whose creation had no answer, if there is one: a second would wait for the first."""
        ours = client.client_id
        if ours is None:
            return None
        with contextlib.suppress(NoNodeError):
            for name in _candidates(client.get_children(self._paths.election)):
                node = f"{self._paths.election}/{name}"
                with contextlib.suppress(NoNodeError):
                    value, stat = client.get(node)
                    if (value, stat.ephemeralOwner) == (self._capture.encode(), ours[0]):
                        return node
        return None

    def _is_first(self, changed: threading.Event) -> bool:
        """Tell whether no candidate stands before us; the one just ahead is watched, and ``changed`` set when it goes.

        False too where that has no answer.
        """
        assert self._node is not None
        own = self._node.rsplit("/", 1)[1]
        with self._session.requests("watching the election") as client, contextlib.suppress(*_UNANSWERED):
            names = _candidates(client.get_children(self._paths.election))
            if own not in names:
                raise LeaseLostError("our election node is gone", capture=self._capture, node=self._node)
            for ahead in reversed(names[: names.index(own)]):
                stat = client.exists(f"{self._paths.election}/{ahead}", watch=lambda _: changed.set())
                if stat is None:
                    changed.set()
                if stat is None or stat.ephemeralOwner:
                    return False
            return True  # what no session holds is no candidate
        return False

    def _next_revision(self) -> int | None:
        """Return the next revision, which is ours; None where that has no answer: one may be lost."""
        assert self._node is not None
        path = self._paths.owner_rev
        with self._session.requests("taking an owner revision") as client, contextlib.suppress(*_UNANSWERED):
            with contextlib.suppress(NodeExistsError):
                client.create(path, b"0", makepath=True)
            while True:
                value, stat = client.get(path)
                revision = decode_revision(value, path) + 1
                transaction = client.transaction()
                transaction.check(self._node, 0)
                transaction.set_data(path, str(revision).encode(), stat.version)
                mine, written = transaction.commit()
                if isinstance(mine, NoNodeError):
                    raise LeaseLostError("our election node is gone", capture=self._capture, node=self._node)
                if not isinstance(written, KazooException):
                    return revision
                # Another capture wrote a revision in between: read it and try again.
        return None


def raise_revision(session: Session, paths: ZkPaths, least: int) -> bool:
    """Let the next owner's revision be above ``least``; tell whether it would not have been. A node that holds no
    revision is written anew.

    Raises:
        BusError: ZooKeeper failed.
    """
    path = paths.owner_rev
    with session.requests("raising the owner revision") as client:
        with contextlib.suppress(NodeExistsError):
            client.create(path, b"0", makepath=True)
        while True:
            value, stat = client.get(path)
            with contextlib.suppress(CorruptDataError):
                if decode_revision(value, path) >= least:
                    return False
            with contextlib.suppress(BadVersionError):  # an owner came in between: look again
                client.set(path, str(least).encode(), stat.version)
                return True


def _candidates(names: Iterable[str]) -> list[str]:
    """Return the names that ZooKeeper has numbered, the first in line first."""
    return sorted(name for name in names if _CANDIDATE.fullmatch(name))


def decode_revision(value: bytes, path: str) -> int:
    """Read the node of owner revisions; ``path`` is for errors.

    Raises:
        CorruptDataError: it holds none.
    """
    try:
        return read_int(int(value), bits=63)
    except ValueError as error:
        raise CorruptDataError("owner revision is not a number", node=path, value=value[:50]) from error
