"""ZooKeeper's nodes in a dict, with its one-shot watches: what happens between two answers, and when events arrive, is
the test's to say."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, RolledBackError
from kazoo.protocol.states import EventType, KazooState, WatchedEvent

from edges.zookeeper.session import ZooKeeperError

Watch = Callable[[Any], None]


@dataclass
class _Stored:
    value: bytes
    created_zxid: int
    modified_zxid: int
    version: int = 0


class _Answer:
    def __init__(self, ask: Callable[[], Any]) -> None:
        try:
            self._value, self._error = ask(), None
        except (BadVersionError, NoNodeError, NodeExistsError) as error:
            self._value, self._error = None, error

    def get(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nobody waits for ever"
        if self._error is not None:
            raise self._error
        return self._value


@dataclass
class MemoryZooKeeper:
    """Session, client and server in one. Parents of a node are there while one below them is."""

    nodes: dict[str, _Stored] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    """Whose ephemeral nodes are, by path; the others stay."""
    away: bool = False
    """Every request fails."""
    events_late: bool = False
    """What a server has not heard yet: events arrive with the answer to the next sync, not before."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Requests: what, and of which path."""
    on_request: Callable[[str, str], None] = lambda what, path: None
    """Called when a request has arrived, before it is answered."""
    on_answer: Callable[[str, str], None] = lambda what, path: None
    """Called when a request has been answered, before the next one is."""
    _zxid: int = 0
    _value_watches: dict[str, set[Watch]] = field(default_factory=lambda: defaultdict(set))
    _child_watches: dict[str, set[Watch]] = field(default_factory=lambda: defaultdict(set))
    _on_the_wire: list[tuple[Watch, Any]] = field(default_factory=list)
    listeners: set[Callable[[Any], None]] = field(default_factory=set)
    unheard: dict[str, bytes | None] = field(default_factory=dict)
    """Written by others, on another server; this one hears of it at a sync."""

    # -- what anybody writes -------------------------------------------------------------------------------------------

    def write(self, nodes: Mapping[str, bytes | None]) -> None:
        """Set, create or (None) delete nodes in one transaction."""
        self._zxid += 1
        for path, value in nodes.items():
            before = {parent: self.names(parent) for parent in _parents(path)}
            known = self.nodes.get(path)
            if value is None:
                del self.nodes[path]
                self._tell(self._value_watches, path, EventType.DELETED)
            elif known is None:
                self.nodes[path] = _Stored(value, self._zxid, self._zxid)
                self._tell(self._value_watches, path, EventType.CREATED)
            else:
                self.nodes[path] = _Stored(value, known.created_zxid, self._zxid, known.version + 1)
                self._tell(self._value_watches, path, EventType.CHANGED)
            for parent, names in before.items():
                after = self.names(parent)
                if not names and after:
                    self._tell(self._value_watches, parent, EventType.CREATED)
                if names != after:
                    self._tell(self._child_watches, parent, EventType.CHILD)

    def suspend(self) -> None:
        """Lose the connection: kazoo forgets all watches."""
        for listener in self.listeners:
            listener(KazooState.SUSPENDED)
        self._value_watches.clear()
        self._child_watches.clear()

    # -- the session ---------------------------------------------------------------------------------------------------

    @property
    def client(self) -> "MemoryZooKeeper":
        return self

    @contextmanager
    def requests(self, what: str) -> Iterator["MemoryZooKeeper"]:
        if self.away:
            raise ZooKeeperError("a ZooKeeper request failed", doing=what)
        yield self

    # -- the client ----------------------------------------------------------------------------------------------------

    @property
    def handler(self) -> Any:
        return SimpleNamespace(dispatch_callback=self._dispatch, running=True)

    def check_lease(self) -> None:
        """The lease always holds."""

    def add_listener(self, listener: Callable[[Any], None]) -> None:
        self.listeners.add(listener)

    def remove_listener(self, listener: Callable[[Any], None]) -> None:
        self.listeners.discard(listener)

    def sync_async(self, path: str) -> _Answer:
        if self.unheard:
            self.write(self.unheard)
            self.unheard = {}
        self._arrive()
        return self._answered("sync", path, lambda: path)

    def get_async(self, path: str, watch: Watch | None = None) -> _Answer:
        def ask() -> tuple[bytes, Any]:
            if path not in self.nodes:
                raise NoNodeError
            if watch is not None:
                self._value_watches[path].add(watch)
            return self.nodes[path].value, self._stat(path)

        return self._answered("get", path, ask)

    def exists_async(self, path: str, watch: Watch | None = None) -> _Answer:
        def ask() -> Any:
            if watch is not None:
                self._value_watches[path].add(watch)
            return self._stat(path) if path in self.nodes else SimpleNamespace() if self.names(path) else None

        return self._answered("exists", path, ask)

    def get_children_async(self, path: str, watch: Watch | None = None) -> _Answer:
        def ask() -> list[str]:
            names = self.names(path)
            if not names and path not in self.nodes:
                raise NoNodeError
            if watch is not None:
                self._child_watches[path].add(watch)
            return names

        return self._answered("children", path, ask)

    def ensure_path_async(self, path: str) -> _Answer:
        def ask() -> None:
            if path not in self.nodes and not self.names(path):
                self.write({path: b""})

        return self._answered("ensure", path, ask)

    def get_children(self, path: str) -> list[str]:
        names: list[str] = self.get_children_async(path).get(1.0)
        return names

    def create_async(self, path: str, value: bytes) -> _Answer:
        def ask() -> None:
            if path in self.nodes:
                raise NodeExistsError
            self.write({path: value})

        return self._answered("create", path, ask)

    def set_async(self, path: str, value: bytes, version: int = -1) -> _Answer:
        def ask() -> Any:
            if path not in self.nodes:
                raise NoNodeError
            if version not in (-1, self.nodes[path].version):
                raise BadVersionError
            self.write({path: value})
            return self._stat(path)

        return self._answered("set", path, ask)

    def delete_async(self, path: str, version: int) -> _Answer:
        def ask() -> None:
            if path not in self.nodes:
                raise NoNodeError
            if version != self.nodes[path].version:
                raise BadVersionError
            self.write({path: None})

        return self._answered("delete", path, ask)

    def transaction(self) -> "_Transaction":
        return _Transaction(self)

    def names(self, path: str) -> list[str]:
        """Return the children of a node."""
        return sorted({node[len(path) + 1 :].split("/")[0] for node in self.nodes if node.startswith(f"{path}/")})

    def _stat(self, path: str) -> Any:
        node = self.nodes[path]
        return SimpleNamespace(
            czxid=node.created_zxid,
            mzxid=node.modified_zxid,
            version=node.version,
            ephemeralOwner=self.sessions.get(path, 0),
        )

    def _answered(self, what: str, path: str, ask: Callable[[], Any]) -> _Answer:
        self.asked.append((what, path))
        self.on_request(what, path)
        answer = _Answer(ask)
        self.on_answer(what, path)
        return answer

    def _tell(self, watches: dict[str, set[Watch]], path: str, kind: str) -> None:
        event = WatchedEvent(kind, KazooState.CONNECTED, path)
        self._on_the_wire += [(watch, event) for watch in watches.pop(path, ())]

    def _dispatch(self, callback: Any) -> None:
        if not self.events_late:
            self._arrive()
        callback.func(*callback.args)

    def _arrive(self) -> None:
        events, self._on_the_wire = self._on_the_wire, []
        for watch, event in events:
            watch(event)


@dataclass
class _Transaction:
    """What is written together; each operation is its path, the version asked for (None: it must not be there) and the
    new value (None: only checked)."""

    server: MemoryZooKeeper
    operations: list[tuple[str, int | None, bytes | None]] = field(default_factory=list)

    def check(self, path: str, version: int) -> None:
        self.operations.append((path, version, None))

    def set_data(self, path: str, value: bytes, version: int = -1) -> None:
        self.operations.append((path, version, value))

    def create(self, path: str, value: bytes) -> None:
        self.operations.append((path, None, value))

    def commit_async(self) -> _Answer:
        return self.server._answered("transaction", "", self._commit)

    def commit(self) -> Any:
        return self.commit_async().get(timeout=1.0)

    def _commit(self) -> list[Any]:
        refused = [self._refusal(path, version) for path, version, _ in self.operations]
        if any(refused):
            return [reason or RolledBackError() for reason in refused]
        self.server.write({path: value for path, _, value in self.operations if value is not None})
        return [True] * len(self.operations)

    def _refusal(self, path: str, version: int | None) -> Exception | None:
        node = self.server.nodes.get(path)
        refusal: Exception | None = None
        if version is None:
            refusal = None if node is None else NodeExistsError()
        elif node is None:
            refusal = NoNodeError()
        elif version not in (-1, node.version):
            refusal = BadVersionError()
        return refusal


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(2, len(parts))]
