"""The stack as one thing: start what was not given by address, hand out the addresses, stop it all."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from compose.ports import LOOPBACK, is_listening, kept_ports
from compose.stack.children import Child, Nursery
from compose.stack.jars import Say
from compose.stack.parts import (
    READY_S,
    KafkaPorts,
    kafka_ready,
    registry_ready,
    registry_url,
    start_kafka,
    start_registry,
    start_registry_proxy,
    start_zookeeper,
    zookeeper_ready,
)
from compose.stack.secure.folder import StackSecrets
from compose.stack.secure.servers import admit_roles
from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.zookeeper.access import ZooKeeperAccess
from schemas.scoped import Scoped

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
    kafka_config: str = ""
    """File that says how one gets in, as ``--kafka-config``; empty: the part asks for nothing. So the next two."""
    zookeeper_config: str = ""
    schema_registry_config: str = ""
    sink_registry_configs: tuple[str, ...] = ()
    """Files of registries that changefeeds may name, as ``--sink-registry-config``."""

    @property
    def kafka_access(self) -> KafkaAccess:
        """How Kafka is reached."""
        return KafkaAccess.read(self.kafka, _file(self.kafka_config))

    @property
    def zookeeper_access(self) -> ZooKeeperAccess:
        """How ZooKeeper is reached."""
        return ZooKeeperAccess.read(self.zookeeper, _file(self.zookeeper_config))

    @property
    def registry_access(self) -> RegistryAccess:
        """How the registry is reached."""
        sinks = [Path(file) for file in self.sink_registry_configs]
        return RegistryAccess.read(self.schema_registry, _file(self.schema_registry_config), sinks)


@dataclass(kw_only=True)
class LocalStack(Scoped):
    """Kafka, ZooKeeper and a schema registry; a context manager. Parts whose address is given are not started."""

    data: Path
    """Folder of the parts' data and logs; starting again on the same folder finds the same topics and schemas, at the
    same addresses unless others have taken those.
    """
    given: Addresses = field(default_factory=Addresses)
    secrets: StackSecrets | None = None
    """Lock down the parts that are started here; None: they are open, on loopback."""
    is_lasting: bool = False
    """Its broker is to be quick after some minutes, not at once."""
    say: Say = print
    nursery: Nursery = field(default_factory=Nursery)
    children: dict[str, Child] = field(default_factory=dict, init=False)
    _ports: dict[str, int] = field(default_factory=dict, init=False)

    @property
    def addresses(self) -> Addresses:
        """Where the parts are now."""
        ports = self._ports
        return replace(
            self.given,
            kafka=self.given.kafka or f"{LOOPBACK}:{ports['kafka']}",
            zookeeper=self.given.zookeeper or f"{LOOPBACK}:{ports['zookeeper']}",
            schema_registry=self.given.schema_registry or self._registry_url(),
        )

    def start(self) -> None:
        """Start all parts at once, then wait for each.

        Raises:
            ChildError: one ended or was not ready in time.
            JarsError: a part could not be fetched.
            MachineError: no Java.
        """
        started_at = time.monotonic()
        names = ("kafka", "controller", "internal", "zookeeper", "registry", "registry proxy")
        data, nursery, secrets = self.data.resolve(), self.nursery, self.secrets
        data.mkdir(parents=True, exist_ok=True)
        self._ports = ports = kept_ports(data / "ports.json", names)
        if not self.given.zookeeper:
            self.children["zookeeper"] = start_zookeeper(nursery, data / "zookeeper", ports["zookeeper"], secrets)
        if not self.given.schema_registry:
            registry = ports["registry"]
            self.children["registry"] = start_registry(nursery, data / "registry", registry, say=self.say)
            if secrets is not None:
                start_registry_proxy(nursery, data / "registry", ports["registry proxy"], registry, secrets)
        if not self.given.kafka:
            self.children["kafka"] = start_kafka(
                nursery,
                data / "kafka",
                self._kafka_ports(),
                heap=KAFKA_HEAP,
                say=self.say,
                secrets=secrets,
                is_lasting=self.is_lasting,
            )
        where = self.addresses
        addresses = {"zookeeper": where.zookeeper, "kafka": where.kafka, "registry": where.schema_registry}
        for part, address in addresses.items():
            if part in self.children:
                self.wait_ready(part)
                took_s = time.monotonic() - started_at
                self.say(f"{self.children[part].name} is ready after {took_s:.1f} s, at {address}")

    def wait_ready(self, part: str) -> None:
        """Wait until a part that was started (again) here answers, and a locked-down broker knows its users."""
        ports, secrets = self._ports, self.secrets
        ready: Mapping[str, Callable[[], bool]] = {
            "zookeeper": lambda: zookeeper_ready(ports["zookeeper"], secrets),
            "kafka": lambda: kafka_ready(self._kafka_ports(), secrets),
            "registry": lambda: registry_ready(ports["registry"]) and self._is_registry_open(),
        }
        self.children[part].wait_ready(ready[part], READY_S)
        if part == "kafka" and secrets is not None:
            admit_roles(secrets, ports["internal"])

    def _kafka_ports(self) -> KafkaPorts:
        ports = self._ports
        return KafkaPorts(client=ports["kafka"], controller=ports["controller"], internal=ports["internal"])

    def _registry_url(self) -> str:
        if self.secrets is None:
            return registry_url(self._ports["registry"])
        return registry_url(self._ports["registry proxy"], secure=True)

    def _is_registry_open(self) -> bool:
        return self.secrets is None or is_listening(self._ports["registry proxy"])

    def stop(self) -> None:
        """Stop what was started here; nothing happens the second time."""
        self.nursery.stop()
        self.children.clear()


def _file(name: str) -> Path | None:
    return Path(name) if name else None
