"""The part of kazoo's client that we use: kazoo ships no types, and these are what its calls are checked against."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from kazoo.security import ACL

Answer = TypeVar("Answer", covariant=True)


class Promise(Protocol[Answer]):
    """The answer to a request that is under way."""

    def get(self, block: bool = True, timeout: float | None = None) -> Answer:
        """Wait for it.

        Raises:
            KazooException, KazooTimeoutError: what the request ended with; it did not end in time.
        """
        ...


class NodeStat(Protocol):
    """What ZooKeeper says of a node."""

    version: int
    czxid: int
    mzxid: int
    ephemeralOwner: int  # noqa: N815 # kazoo's name


class NodeEvent(Protocol):
    """What a watch tells."""

    path: str | None


Watch = Callable[[NodeEvent], None]
"""Called once in kazoo's thread, which it must not hold up."""


class Transaction(Protocol):
    """Requests that are done all or none."""

    def create(self, path: str, value: bytes = b"", acl: Sequence[ACL] | None = None, ephemeral: bool = False) -> None:
        """Create a node."""
        ...

    def delete(self, path: str, version: int = -1) -> None:
        """Delete a node of this version; -1: of any."""
        ...

    def set_data(self, path: str, value: bytes, version: int = -1) -> None:
        """Write a node of this version; -1: of any."""
        ...

    def check(self, path: str, version: int) -> None:
        """Refuse all of it where the node is of another version."""
        ...

    def commit(self) -> list[object]:
        """Do it; return each request's answer, or the error that it was refused with."""
        ...

    def commit_async(self) -> Promise[list[object]]:
        """Do it, and wait for nothing."""
        ...


class ZooKeeperClient(Protocol):
    """``KazooClient``, with :class:`edges.zookeeper.access.ZooKeeperAccess`'s own transactions."""

    client_id: tuple[int, bytes] | None
    """Id and password of its session."""
    handler: Any
    """What runs its callbacks."""
    _connection: Any
    """Where it hears which session timeout a server grants."""

    def start(self, timeout: float = 15) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def add_listener(self, listener: Callable[[str], object]) -> None: ...

    def remove_listener(self, listener: Callable[[str], object]) -> None: ...

    def transaction(self) -> Transaction: ...

    def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]: ...

    def get_async(self, path: str, watch: Watch | None = None) -> Promise[tuple[bytes, NodeStat]]: ...

    def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None: ...

    def exists_async(self, path: str, watch: Watch | None = None) -> Promise[NodeStat | None]: ...

    def get_children(self, path: str, watch: Watch | None = None) -> list[str]: ...

    def get_children_async(self, path: str, watch: Watch | None = None) -> Promise[list[str]]: ...

    def create(
        self,
        path: str,
        value: bytes = b"",
        acl: Sequence[ACL] | None = None,
        ephemeral: bool = False,
        sequence: bool = False,
        makepath: bool = False,
    ) -> str: ...

    def create_async(
        self,
        path: str,
        value: bytes = b"",
        acl: Sequence[ACL] | None = None,
        ephemeral: bool = False,
        sequence: bool = False,
        makepath: bool = False,
    ) -> Promise[str]: ...

    def set(self, path: str, value: bytes, version: int = -1) -> NodeStat: ...

    def set_async(self, path: str, value: bytes, version: int = -1) -> Promise[NodeStat]: ...

    def delete(self, path: str, version: int = -1, recursive: bool = False) -> object: ...

    def delete_async(self, path: str, version: int = -1) -> Promise[object]: ...

    def ensure_path(self, path: str) -> object: ...

    def ensure_path_async(self, path: str) -> Promise[object]: ...

    def sync(self, path: str) -> object: ...

    def sync_async(self, path: str) -> Promise[object]: ...

    def get_acls_async(self, path: str) -> Promise[tuple[list[ACL], NodeStat]]: ...

    def set_acls(self, path: str, acls: Sequence[ACL], version: int = -1) -> object: ...
