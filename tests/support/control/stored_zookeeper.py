"""ZooKeeper in memory: as much of kazoo's client as the readers and writers of our nodes call, one call at a time."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError


@dataclass(frozen=True, slots=True)
class Stat:
    """What ZooKeeper says of a node."""

    version: int
    czxid: int
    mzxid: int
    ephemeralOwner: int  # noqa: N815 # kazoo's name


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that is there already."""

    call: Callable[[], Any]

    def get(self, timeout: float | None = None) -> Any:
        return self.call()


class Transaction:
    """Checks and writes that are done together or not at all."""

    def __init__(self, client: "MemoryZooKeeper") -> None:
        self._client = client
        self._writes: list[tuple[str, bytes | None, int | None]] = []
        self._deleted: list[str] = []

    def check(self, path: str, version: int) -> None:
        self._writes.append((path, None, version))

    def set_data(self, path: str, value: bytes, version: int = -1) -> None:
        self._writes.append((path, value, version))

    def create(self, path: str, value: bytes) -> None:
        self._writes.append((path, value, None))

    def delete(self, path: str) -> None:
        self._deleted.append(path)

    def commit_async(self) -> Answer:
        return Answer(self.commit)

    def commit(self) -> list[Any]:
        for path, _, version in self._writes:
            stat = self._client.exists(path)
            if version is None and stat is not None:
                return [NodeExistsError()]
            if version is not None and stat is None:
                return [NoNodeError()]
            if version is not None and version >= 0 and stat is not None and stat.version != version:
                return [BadVersionError()]
        for path, value, _ in self._writes:
            if value is not None:
                self._client.put(path, value)
        for path in self._deleted:
            self._client.nodes.pop(path, None)
        return [True] * (len(self._writes) + len(self._deleted))


class MemoryZooKeeper:
    """Nodes by path. What the test puts is ephemeral where it says so."""

    client_id = (7, b"")

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, Stat]] = {}
        self._zxid = 0

    def put(self, path: str, value: bytes, *, owner: int | None = None) -> None:
        """Write a node, whatever is there."""
        self._zxid += 1
        before = self.nodes.get(path)
        stat = Stat(0, self._zxid, self._zxid, owner or 0)
        if before is not None:
            kept = before[1].ephemeralOwner if owner is None else owner
            stat = Stat(before[1].version + 1, before[1].czxid, self._zxid, kept)
        self.nodes[path] = (value, stat)

    def get(self, path: str, watch: object = None) -> tuple[bytes, Stat]:
        if path not in self.nodes:
            raise NoNodeError
        return self.nodes[path]

    def get_children(self, path: str, watch: object = None) -> list[str]:
        names = {rest.split("/")[0] for node in self.nodes if (rest := node.removeprefix(f"{path}/")) != node}
        if not names and path not in self.nodes:
            raise NoNodeError
        return list(names)

    def exists(self, path: str, watch: object = None) -> Stat | None:
        node = self.nodes.get(path)
        return node and node[1]

    def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequence: bool = False, makepath: bool = False
    ) -> str:
        if sequence:
            self._zxid += 1
            path = f"{path}{self._zxid:010}"
        if path in self.nodes:
            raise NodeExistsError
        self.put(path, value, owner=self.client_id[0] if ephemeral else 0)
        return path

    def set(self, path: str, value: bytes, version: int = -1) -> Stat:
        stat = self.get(path)[1]
        if version not in (-1, stat.version):
            raise BadVersionError
        self.put(path, value)
        return self.nodes[path][1]

    def sync(self, path: str) -> str:
        return path

    def ensure_path(self, path: str) -> None:
        if path not in self.nodes:
            self.put(path, b"")

    def transaction(self) -> Transaction:
        return Transaction(self)

    def add_listener(self, listener: object) -> None:
        """No state ever changes."""

    def remove_listener(self, listener: object) -> None:
        """No state ever changes."""

    @property
    def handler(self) -> Any:
        """No event ever comes: what is asked to be done after all of them is done at once."""
        return SimpleNamespace(dispatch_callback=lambda callback: callback.func(*callback.args), running=True)

    def get_async(self, path: str, watch: object = None) -> Answer:
        return Answer(lambda: self.get(path))

    def get_children_async(self, path: str, watch: object = None) -> Answer:
        return Answer(lambda: self.get_children(path))

    def exists_async(self, path: str, watch: object = None) -> Answer:
        return Answer(lambda: self.exists(path))

    def sync_async(self, path: str) -> Answer:
        return Answer(lambda: path)

    def set_async(self, path: str, value: bytes, version: int = -1) -> Answer:
        return Answer(lambda: self.set(path, value, version))

    def create_async(self, path: str, value: bytes, *, ephemeral: bool = False, makepath: bool = False) -> Answer:
        return Answer(lambda: self.create(path, value, ephemeral=ephemeral))


class MemorySession:
    """A session whose lease never ends. Stands for :class:`edges.zookeeper.session.Session`."""

    def __init__(self) -> None:
        self.client = MemoryZooKeeper()

    def check_lease(self) -> None:
        """It holds."""

    @contextlib.contextmanager
    def requests(self, what: str) -> Iterator[MemoryZooKeeper]:
        yield self.client
