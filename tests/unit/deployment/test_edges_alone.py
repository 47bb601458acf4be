"""Clients of Kafka, ZooKeeper and schema registries are made in ``edges`` and nowhere else."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("schemas", "producers", "sorters", "consumers", "compose", "tidebus")
CLIENTS = {"Consumer", "Producer", "AdminClient", "KazooClient", "SchemaRegistryClient", "AvroProducer", "AvroConsumer",
           "DeserializingConsumer", "SerializingProducer", "AsyncSchemaRegistryClient"}  # fmt: skip
LIBRARIES = ("confluent_kafka", "kazoo")


def made_clients(source: str) -> list[str]:
    """Return the clients that a module takes from their libraries: who does not have them cannot make one."""
    taken = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(LIBRARIES):
            taken += [name.name for name in node.names if name.name in CLIENTS or name.name == "*"]
        elif isinstance(node, ast.Import):
            taken += [name.name for name in node.names if name.name.startswith(LIBRARIES)]
    return taken


@pytest.mark.parametrize("package", PACKAGES)
def test_no_other_package_takes_a_client_from_its_library(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    clients = {str(file.relative_to(ROOT)): made_clients(file.read_text()) for file in files}
    assert {file: names for file, names in clients.items() if names} == {}


def test_no_other_package_tells_spark_where_kafka_is() -> None:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    assert [str(file.relative_to(ROOT)) for file in files if '"kafka.bootstrap.servers"' in file.read_text()] == []


def test_edges_do_make_them() -> None:
    """The check sees what it is to see."""
    taken = [name for file in sorted((ROOT / "edges").rglob("*.py")) for name in made_clients(file.read_text())]
    assert {"Consumer", "Producer", "AdminClient", "KazooClient", "SchemaRegistryClient"} <= set(taken)
