"""Nodes with the partitions in use: a sorter that was replaced does not write over its successor's."""

from collections.abc import Callable
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from edges.zookeeper.session import ZooKeeperUnreachableError
from schemas.nodes.changefeed import ZkPaths
from sorters.run.nodes.count_nodes import CountNodes

PATHS = ZkPaths("c")
FOLDER = PATHS.changefeed_partitions("default", "orders")
CHANGEFEED = FOLDER.rsplit("/", 1)[0]


class Answer:
    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask

    def get(self, timeout: float) -> Any:
        return self._ask()


class Stat:
    def __init__(self, version: int) -> None:
        self.version = version


class Tree:
    """As much of kazoo's client as is needed."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {CHANGEFEED: (b"", 0)}

    def get_children_async(self, path: str) -> Answer:
        return Answer(
            lambda: [node.rsplit("/", 1)[1] for node in self._there(path) and self.nodes if path + "/" in node]
        )

    def get_async(self, path: str) -> Answer:
        return Answer(lambda: (self._there(path)[0], Stat(self.nodes[path][1])))

    def create_async(self, path: str, value: bytes) -> Answer:
        def ask() -> None:
            self._there(path.rsplit("/", 1)[0])
            if path in self.nodes:
                raise NodeExistsError
            self.nodes[path] = (value, 0)

        return Answer(ask)

    def set_async(self, path: str, value: bytes, version: int) -> Answer:
        def ask() -> Stat:
            if self._there(path)[1] != version:
                raise BadVersionError
            self.nodes[path] = (value, version + 1)
            return Stat(version + 1)

        return Answer(ask)

    def _there(self, path: str) -> tuple[bytes, int]:
        if path not in self.nodes:
            raise NoNodeError
        return self.nodes[path]


def counts(tree: Tree) -> CountNodes:
    client: Any = tree
    return CountNodes(client, PATHS, "default", "orders")


def test_counts_that_are_written_are_what_the_next_sorter_reads_and_may_write_over() -> None:
    tree = Tree()
    first = counts(tree)
    assert first.read() == []
    first.write(7, b"a")
    first.write(7, b"b")
    second = counts(tree)
    assert second.read() == [b"b"]
    second.write(7, b"c")
    assert tree.nodes[f"{FOLDER}/7"][0] == b"c"


@pytest.mark.parametrize("shards", [{7}, set()], ids=["written before", "new"])
def test_counts_of_a_sorter_that_was_replaced_are_refused(shards: set[int]) -> None:
    tree = Tree()
    for shard in shards:
        counts(tree).write(shard, b"a")
    replaced, successor = counts(tree), counts(tree)
    replaced.read(), successor.read()
    successor.write(7, b"new")
    with pytest.raises(ZooKeeperUnreachableError, match="not writable"):
        replaced.write(7, b"old")
    assert tree.nodes[f"{FOLDER}/7"][0] == b"new"


def test_counts_of_a_changefeed_that_was_removed_are_not_made_anew() -> None:
    tree = Tree()
    del tree.nodes[CHANGEFEED]
    counts(tree).write(7, b"a")
    assert tree.nodes == {}
