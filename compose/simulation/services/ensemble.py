"""ZooKeeper's nodes as services and owners use them: versions, ephemeral nodes, transactions of all or nothing."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Node:
    """One node. ``session`` is whose it goes with; '': nobody's."""

    value: Any
    version: int
    zxid: int
    session: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """The node is there, in this version; -1: in any."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write the node in place of this version; None: there is none yet."""

    path: str
    value: Any
    version: int | None
    session: str = ""


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete the node."""

    path: str


Operation = Check | Put | Drop


class Ensemble:
    """All nodes by path."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.zxid = 0
        self._paths: list[str] = []
        """All, in order; [] where a node has come or gone since."""

    def value(self, path: str, default: object = None) -> Any:
        """Return what a node holds."""
        node = self.nodes.get(path)
        return default if node is None else node.value

    def version(self, path: str) -> int | None:
        """Return a node's version; None: there is no such node."""
        node = self.nodes.get(path)
        return None if node is None else node.version

    def below(self, folder: str) -> dict[str, Node]:
        """Return the nodes below a folder, by name, in order."""
        self._paths = paths = self._paths or sorted(self.nodes)
        first, end = bisect_left(paths, f"{folder}/"), bisect_left(paths, f"{folder}0")  # 0 comes after the slash
        cut = len(folder) + 1
        return {path[cut:]: self.nodes[path] for path in paths[first:end]}

    def commit(self, operations: Sequence[Operation]) -> bool:
        """Do all, or nothing; tell which."""
        if not all(map(self._may, operations)):
            return False
        self.zxid += 1
        for operation in operations:
            match operation:
                case Put(path, value, version, session):
                    known = self.nodes.get(path)
                    if known is None:
                        self._paths = []
                    zxid = self.zxid if known is None else known.zxid
                    self.nodes[path] = Node(value, 0 if version is None else version + 1, zxid, session)
                case Drop(path):
                    del self.nodes[path]
                    self._paths = []
        return True

    def end(self, session: str) -> None:
        """Delete what went with a session."""
        self.nodes = {path: node for path, node in self.nodes.items() if node.session != session}
        self._paths = []

    def _may(self, operation: Operation) -> bool:
        version = self.version(operation.path)
        match operation:
            case Check(_, wanted):
                return version is not None and wanted in (-1, version)
            case Put():
                return version == operation.version
            case Drop():
                return version is not None
