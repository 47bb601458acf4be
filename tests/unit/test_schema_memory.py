"""What is remembered of a registry's answer, and for whom."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from kazoo.exceptions import NodeExistsError, NoNodeError

from consumers.control.cluster.schema_memory import SchemaMemoryNode
from edges.zookeeper.session import Session
from schemas.ids import UpstreamId
from schemas.nodes.changefeed import ZkPaths

PATHS, UPSTREAM = ZkPaths("c"), UpstreamId("u")
PATH = PATHS.raw_schema(UPSTREAM)


class ZooKeeper:
    """A session over a mapping."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}

    @contextmanager
    def requests(self, _what: str) -> Iterator[Any]:
        yield self

    def get(self, path: str) -> tuple[bytes, None]:
        if path not in self.nodes:
            raise NoNodeError
        return self.nodes[path], None

    def create(self, path: str, value: bytes, *, makepath: bool) -> None:
        assert makepath
        if path in self.nodes:
            raise NodeExistsError
        self.nodes[path] = value

    def set(self, path: str, value: bytes) -> None:
        self.nodes[path] = value


def memory(zookeeper: ZooKeeper, registry: str = "http://h:1") -> SchemaMemoryNode:
    """Return the memory of an upstream's schema."""
    return SchemaMemoryNode(cast(Session, zookeeper), PATHS, UPSTREAM, registry)


def test_id_is_remembered_and_written_over() -> None:
    zookeeper = ZooKeeper()
    assert memory(zookeeper).read() is None
    memory(zookeeper).write(7)
    assert memory(zookeeper).read() == 7
    memory(zookeeper).write(8)
    assert memory(zookeeper).read() == 8


def test_id_of_another_registry_or_schema_is_not_ours() -> None:
    zookeeper = ZooKeeper()
    memory(zookeeper).write(7)
    assert memory(zookeeper, "http://other:1").read() is None
    node = json.loads(zookeeper.nodes[PATH])
    zookeeper.nodes[PATH] = json.dumps({**node, "schema_sha256": "of another version"}).encode()
    assert memory(zookeeper).read() is None


@pytest.mark.parametrize("schema_id", [0, -1, 1 << 31, "7", None, True, 7.0])
def test_node_that_holds_no_id_is_as_none(schema_id: object) -> None:
    zookeeper = ZooKeeper()
    memory(zookeeper).write(7)
    node = json.loads(zookeeper.nodes[PATH])
    zookeeper.nodes[PATH] = json.dumps({**node, "id": schema_id}).encode()
    assert memory(zookeeper).read() is None


@pytest.mark.parametrize("node", [b"", b"{", b"[]", b"7", b"\xff"])
def test_node_of_other_bytes_is_as_none(node: bytes) -> None:
    zookeeper = ZooKeeper()
    zookeeper.nodes[PATH] = node
    assert memory(zookeeper).read() is None
