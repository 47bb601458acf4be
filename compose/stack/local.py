"""The stack as one thing: start what was not given by address, hand out the addresses, stop it all."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from compose.stack.children import Child, Nursery
from compose.stack.jars import Say
from compose.stack.parts import (
    READY_S,
    kafka_ready,
    registry_ready,
    registry_url,
    start_kafka,
    start_registry,
    start_zookeeper,
    zookeeper_ready,
)
from compose.stack.ports import LOOPBACK, free_ports
from compose.stack.scoped import Scoped

KAFKA_HEAP = "768m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the parts are; an empty string means: start one here."""

    kafka: str = ""
    """``host:port``, several by comma."""
    zookeeper: str = ""
    """``host:port``, several by comma."""
    schema_registry: str = ""
    """Base address of a registry that speaks Confluent's API."""


@dataclass(kw_only=True)
class LocalStack(Scoped):
    """Kafka, ZooKeeper and a schema registry; a context manager. Parts whose address is given are not started."""

    data: Path
    """Folder of the parts' data and logs; starting again on the same folder finds the same topics and schemas."""
    given: Addresses = field(default_factory=Addresses)
    say: Say = print
    nursery: Nursery = field(default_factory=Nursery)
    children: dict[str, Child] = field(default_factory=dict, init=False)
    _ports: dict[str, int] = field(default_factory=dict, init=False)

    @property
    def addresses(self) -> Addresses:
        """Where the parts are now."""
        ports = self._ports
        return Addresses(
            kafka=self.given.kafka or f"{LOOPBACK}:{ports['kafka']}",
            zookeeper=self.given.zookeeper or f"{LOOPBACK}:{ports['zookeeper']}",
            schema_registry=self.given.schema_registry or registry_url(ports["registry"]),
        )

    def start(self) -> None:
        """Start all parts at once, then wait for each.

        Raises:
            ChildError: one ended or was not ready in time.
            JarsError: a part could not be fetched.
            MachineError: no Java.
        """
        started_at = time.monotonic()
        kafka, controller, zookeeper, registry = free_ports(4)
        self._ports = {"kafka": kafka, "controller": controller, "zookeeper": zookeeper, "registry": registry}
        data, nursery = self.data.resolve(), self.nursery
        if not self.given.zookeeper:
            self.children["zookeeper"] = start_zookeeper(nursery, data / "zookeeper", zookeeper)
        if not self.given.schema_registry:
            self.children["registry"] = start_registry(nursery, data / "registry", registry, say=self.say)
        if not self.given.kafka:
            self.children["kafka"] = start_kafka(
                nursery, data / "kafka", kafka, controller, heap=KAFKA_HEAP, say=self.say
            )
        where = self.addresses
        places = {"zookeeper": where.zookeeper, "kafka": where.kafka, "registry": where.schema_registry}
        for part, address in places.items():
            if part in self.children:
                self.wait_ready(part)
                took_s = time.monotonic() - started_at
                self.say(f"{self.children[part].name} is ready after {took_s:.1f} s, at {address}")

    def wait_ready(self, part: str) -> None:
        """Wait until a part that was started (again) here answers."""
        port = self._ports[part]
        ready = {"zookeeper": zookeeper_ready, "kafka": kafka_ready, "registry": registry_ready}[part]
        self.children[part].wait_ready(lambda: ready(port), READY_S)

    def stop(self) -> None:
        """Stop what was started here; nothing happens the second time."""
        self.nursery.stop()
        self.children.clear()
