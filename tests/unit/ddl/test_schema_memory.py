"""What is remembered of a registry's answer, and for whom."""

import json
from typing import cast

import pytest

from consumers.control.cluster.schema_memory import SchemaMemoryNode
from edges.zookeeper.session import Session
from schemas.ids import UpstreamId
from schemas.nodes.changefeed import ZkPaths
from tests.support.control.stored_zookeeper import MemorySession

PATHS, UPSTREAM = ZkPaths("c"), UpstreamId("u")
PATH = PATHS.raw_schema(UPSTREAM)


def memory(zookeeper: MemorySession, registry: str = "http://h:1") -> SchemaMemoryNode:
    """Return the memory of an upstream's schema."""
    return SchemaMemoryNode(cast(Session, zookeeper), PATHS, UPSTREAM, registry)


def test_id_is_remembered_and_written_over() -> None:
    zookeeper = MemorySession()
    assert memory(zookeeper).read() is None
    memory(zookeeper).write(7)
    assert memory(zookeeper).read() == 7
    memory(zookeeper).write(8)
    assert memory(zookeeper).read() == 8


def test_id_of_another_registry_or_schema_is_not_ours() -> None:
    zookeeper = MemorySession()
    memory(zookeeper).write(7)
    assert memory(zookeeper, "http://other:1").read() is None
    node = json.loads(zookeeper.client.nodes[PATH][0])
    zookeeper.client.put(PATH, json.dumps({**node, "schema_sha256": "of another version"}).encode())
    assert memory(zookeeper).read() is None


@pytest.mark.parametrize("schema_id", [0, -1, 1 << 31, "7", None, True, 7.0])
def test_node_that_holds_no_id_is_as_none(schema_id: object) -> None:
    zookeeper = MemorySession()
    memory(zookeeper).write(7)
    node = json.loads(zookeeper.client.nodes[PATH][0])
    zookeeper.client.put(PATH, json.dumps({**node, "id": schema_id}).encode())
    assert memory(zookeeper).read() is None


@pytest.mark.parametrize("node", [b"", b"{", b"[]", b"7", b"\xff"])
def test_node_of_other_bytes_is_as_none(node: bytes) -> None:
    zookeeper = MemorySession()
    zookeeper.client.put(PATH, node)
    assert memory(zookeeper).read() is None
