"""Nodes of ZooKeeper as they were last said to be: read again only where a watch has told of a change.

Which nodes, patterns say: ``/a/*/info`` is the node ``info`` of every child of ``/a``. Lists of children and values are
read with ZooKeeper's one-shot watches; who reads asks for :meth:`NodeCache.refresh` at a pace of his own, and pays one
request for each node that has changed since, none while nothing has. A node that changes a hundred times between two
refreshes is read once.

kazoo's threads only note which paths are stale. kazoo forgets all watches when its connection is suspended: then
everything is stale, and read anew once a server answers.

**What is published fits together.** A refresh reads until no watch has told of anything up to its last answer, so all
values are as they were at that moment: of two nodes that one transaction writes, no reader sees one without the other.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

from kazoo.exceptions import ConnectionClosedError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import Callback, KazooState

from edges.zookeeper.client import NodeEvent, Promise, ZooKeeperClient
from edges.zookeeper.session import Session

ANSWER_S: Final = 5.0
"""For one request: kazoo keeps it until the connection is back, and who is asked to stop must not wait for that."""
ROUNDS_MAX: Final = 8
"""Of one refresh, against nodes that are written while they are read; what is stale then is left to the next one."""
_QUEUE_LOOK_S: Final = 0.2
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Node:
    """One node as it was read; the same object until it is written again."""

    value: bytes
    created_zxid: int
    """A node that was deleted and created again has another."""
    modified_zxid: int
    version: int
    session_id: int = 0
    """Of an ephemeral node whose it is; 0: the node is no session's, and stays."""


class NodeCache:
    """Safe to use from any thread; close it."""

    def __init__(self, session: Session, patterns: Collection[str], *, interval_s: float = 0.0) -> None:
        """Know what to read; nothing is read before the first :meth:`refresh`.

        Args:
            session: whose client is asked, and whose errors are raised.
            patterns: absolute paths; a part ``*`` stands for all children.
            interval_s: :meth:`refresh` reads no oftener than this, so that many readers cost what one does.
        """
        self._session, self._interval_s = session, interval_s
        self._patterns = [_segments(pattern) for pattern in patterns]
        self._reading = threading.Lock()
        self._read_at_s = -interval_s
        self._names: dict[str, tuple[str, ...]] = {}
        """Children of each node whose children are asked for."""
        self._nodes: dict[str, Node | None] = {}
        """None: there is no such node, and a watch tells when there is."""
        self._published: Mapping[str, Node] = MappingProxyType({})
        self._version = 0
        self._noting = threading.Lock()
        self._stale: set[str] = set()
        self._is_all_stale = True
        self._told = threading.Event()
        self._requests_total = 0
        session.client.add_listener(self._on_state)

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes by path, as of the last refresh; the same object until one of them has changed."""
        return self._published

    @property
    def version(self) -> int:
        """Grows when :attr:`nodes` changes."""
        return self._version

    @property
    def requests_total(self) -> int:
        """Requests sent to ZooKeeper so far."""
        return self._requests_total

    def wait(self, timeout_s: float) -> bool:
        """Wait until something is told that no refresh has read yet, or the cache is closed; tell whether it was."""
        return self._told.wait(timeout_s)

    def refresh(self, *, is_exact: bool = False) -> int:
        """Read what has changed, and return :attr:`version`.

        What this session has written before the call is seen.

        Args:
            is_exact: what others have written before the call is seen, too, past what a server may not have heard yet;
                at the price of a request, and however short ago the last refresh was.

        Raises:
            LeaseLostError: the session is over.
            ZooKeeperError: another reason; :attr:`nodes` are as they were, and the next call begins where this ended.
        """
        with self._reading:
            now_s = time.monotonic()
            if not is_exact and now_s - self._read_at_s < self._interval_s:
                return self._version
            self._read_at_s = now_s
            with self._session.requests("reading what has changed") as client:
                if is_exact:
                    self._requests_total += 1
                    client.sync_async("/").get(timeout=ANSWER_S)
                self._catch_up(client)
            return self._version

    def close(self) -> None:
        """Hear of the connection no more, and let go who waits. Watches that stand tell nobody."""
        self._session.client.remove_listener(self._on_state)
        self._told.set()

    # -- on kazoo's threads, which must never wait ---------------------------------------------------------------------

    def _on_state(self, state: str) -> None:
        if state != KazooState.CONNECTED:
            self._note(None)

    def _on_event(self, event: NodeEvent) -> None:
        self._note(event.path)

    def _note(self, path: str | None) -> None:
        with self._noting:
            if path is None:  # the connection: no watch stands any more
                self._is_all_stale = True
            else:
                self._stale.add(path)
        self._told.set()

    # -- in a refresh --------------------------------------------------------------------------------------------------

    def _catch_up(self, client: ZooKeeperClient) -> None:
        for _ in range(ROUNDS_MAX):
            _drain(client)
            stale = self._take_stale()
            if not stale:
                break
            try:
                self._read(client, stale)
            except BaseException:
                self._put_back(stale)
                raise
        nodes = {path: node for path, node in self._nodes.items() if node is not None}
        if nodes != self._published or not self._version:
            self._published, self._version = MappingProxyType(nodes), self._version + 1

    def _take_stale(self) -> "_Stale":
        """Return what must be read; what is told from here on is read in the next round."""
        with self._noting:
            self._told.clear()
            stale = _Stale(self._stale, self._is_all_stale)
            self._stale, self._is_all_stale = set(), False
        return stale

    def _put_back(self, stale: "_Stale") -> None:
        with self._noting:
            self._stale |= stale.paths
            self._is_all_stale |= stale.is_all
        self._told.set()

    def _read(self, client: ZooKeeperClient, stale: "_Stale") -> None:
        """Read lists from the top down, for they say which nodes there are, then values."""
        values = self._paths(
            lambda folders: self._list(client, [path for path in folders if path in stale or path not in self._names])
        )
        for path in self._nodes.keys() - values:
            del self._nodes[path]
        wanted = [path for path in sorted(values) if path not in self._nodes or path in stale]
        answers = self._asked(client.get_async, wanted)
        missing = []
        for path, answer in zip(wanted, answers, strict=True):
            try:
                value, stat = answer.get(timeout=ANSWER_S)
            except NoNodeError:
                missing.append(path)
                self._nodes[path] = None
                continue
            node = Node(bytes(value), int(stat.czxid), int(stat.mzxid), int(stat.version), int(stat.ephemeralOwner))
            if node != self._nodes.get(path):
                self._nodes[path] = node
        self._await_creation(client, missing)

    def _paths(self, read_lists: Callable[[list[str]], None]) -> set[str]:
        """Return the paths of all values that the patterns name; ``read_lists`` is told of each level of folders."""
        levels = [([first], rest) for first, *rest in self._patterns]
        values: set[str] = set()
        folders: set[str] = set()
        while levels:
            values.update(path for paths, rest in levels if not rest for path in paths)
            levels = [(paths, rest) for paths, rest in levels if rest]
            level = sorted({path for paths, _ in levels for path in paths})
            read_lists(level)
            folders.update(level)
            levels = [
                ([f"{path}/{name}{tail}" for path in paths for name in self._names[path]], rest)
                for paths, (tail, *rest) in levels
            ]
        for path in self._names.keys() - folders:
            del self._names[path]
        return values

    def _list(self, client: ZooKeeperClient, paths: Collection[str]) -> None:
        missing = []
        for path, answer in zip(paths, self._asked(client.get_children_async, paths), strict=True):
            try:
                self._names[path] = tuple(sorted(answer.get(timeout=ANSWER_S)))
            except NoNodeError:
                missing.append(path)
                self._names[path] = ()
        self._await_creation(client, missing)

    def _asked(self, ask: Callable[..., Promise[_Answer]], paths: Collection[str]) -> list[Promise[_Answer]]:
        """Send a request for each path, all before the first is answered."""
        self._requests_total += len(paths)
        return [ask(path, watch=self._on_event) for path in paths]

    def _await_creation(self, client: ZooKeeperClient, paths: Collection[str]) -> None:
        """Let a watch tell when nodes appear that are not there; one that has come meanwhile is stale."""
        for path, answer in zip(paths, self._asked(client.exists_async, paths), strict=True):
            if answer.get(timeout=ANSWER_S) is not None:
                self._note(path)


@dataclass(frozen=True, slots=True)
class _Stale:
    """What must be read again."""

    paths: set[str]
    is_all: bool

    def __contains__(self, path: str) -> bool:
        return self.is_all or path in self.paths

    def __bool__(self) -> bool:
        return self.is_all or bool(self.paths)


def _segments(pattern: str) -> list[str]:
    """Return what stands between the stars.

    >>> _segments("/a/*/*/info")
    ['/a', '', '/info']
    """
    return pattern.split("/*")


def _drain(client: ZooKeeperClient) -> None:
    """Wait until all that came over the wire so far is noted: kazoo's queue of events is worked off in order."""
    handler, done = client.handler, threading.Event()
    handler.dispatch_callback(Callback("watch", done.set, ()))
    deadline_s = time.monotonic() + ANSWER_S
    while not done.wait(_QUEUE_LOOK_S):
        if not handler.running:
            raise ConnectionClosedError("the client was closed")
        if time.monotonic() > deadline_s:
            raise KazooTimeoutError("events are not worked off")
