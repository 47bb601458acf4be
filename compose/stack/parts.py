"""The three parts of the local stack: how each is configured, started, and asked whether it is ready."""

import http.client
import socket
import subprocess
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException

from compose.ports import LOOPBACK, is_listening
from compose.stack.children import PYTHON, Child, Nursery
from compose.stack.class_archives import Kind, archive_flags
from compose.stack.errors import ChildError
from compose.stack.jars import Say, kafka_jars, pyspark_jars, registry_home
from compose.stack.java import find_java
from compose.stack.java_text import write_properties
from compose.stack.secure.folder import REGISTRY_USER, StackSecrets
from compose.stack.secure.registry_proxy import PASSWORD_ENV
from compose.stack.secure.servers import admin_config, kafka_settings, zookeeper_says_ok, zookeeper_settings
from edges.kafka.clients import kafka_admin
from schemas.rawlog.topics import RAW_MESSAGE_BYTES_MAX

READY_S = 120.0
"""A loaded two-core machine starts the registry in 25 s; four times that, and something is wrong."""
_LASTING_JVM = ("-XX:+UseSerialGC",)
"""Of a broker that lives long enough for the optimising compiler to pay, as one in production does."""
_QUICK_JVM = (*_LASTING_JVM, "-XX:TieredStopAtLevel=1")
"""Of every other part: a local stack lives for minutes (docs/decisions/2026-11-22-local-stack.md)."""
_CLUSTER_UUID = "dGlkZWJ1cy1sb2NhbC0wMQ"
"""16 bytes in unpadded URL base64, as StorageTool wants; every local broker has data folders of its own anyway."""
_ZOOKEEPER_JARS = (
    "zookeeper-", "slf4j-api-", "log4j-api-", "log4j-core-", "log4j-slf4j2-impl-", "netty-", "metrics-core-",
    "snappy-java-", "commons-cli-", "commons-io-", "jackson-core-2", "jackson-databind-2", "jackson-annotations-2",
)  # fmt: skip


def _jvm(
    kind: Kind, class_path: Sequence[Path], archive_options: Sequence[str], *, is_lasting: bool = False
) -> list[str]:
    """Return how a command begins that starts a JVM of this kind. ``archive_options``: in place of the archive's."""
    options = _LASTING_JVM if is_lasting else _QUICK_JVM
    return [str(find_java()), *options, *(archive_options or archive_flags(kind, class_path))]


def zookeeper_class_path() -> list[Path]:
    """Return ZooKeeper's jars, which pyspark has."""
    return [jar for prefix in _ZOOKEEPER_JARS for jar in sorted(pyspark_jars().glob(f"{prefix}*.jar"))]


def start_zookeeper(
    nursery: Nursery, data: Path, port: int, secrets: StackSecrets | None = None, *, archive_options: Sequence[str] = ()
) -> Child:
    """Start a standalone ZooKeeper from the jars inside pyspark; with ``secrets`` it is locked down."""
    data.mkdir(parents=True, exist_ok=True)
    config = data / "zoo.cfg"
    write_properties(
        config,
        f"dataDir={data}/data\nadmin.enableServer=false\n"
        # Sessions from 1 s on: a killed capture's ephemeral node must go within the tests' patience.
        "tickTime=500\nmaxSessionTimeout=60000\nmaxClientCnxns=0\n4lw.commands.whitelist=ruok,srvr\n"
        + (zookeeper_settings(secrets, port) if secrets else f"clientPort={port}\nclientPortAddress={LOOPBACK}\n"),
    )
    jars = zookeeper_class_path()
    command = [
        *_jvm("zookeeper", jars, archive_options),
        "-Xms32m",
        "-Xmx384m",
        "-Dorg.apache.logging.log4j.level=WARN",
    ]
    command += ["-cp", ":".join(map(str, jars)), "org.apache.zookeeper.server.ZooKeeperServerMain", str(config)]
    return nursery.start("zookeeper", command, log=data.parent / "logs" / "zookeeper.log")


def zookeeper_ready(port: int, secrets: StackSecrets | None = None) -> bool:
    """Ask ZooKeeper by its own word for it."""
    if secrets is not None:
        return zookeeper_says_ok(secrets, port)
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0) as wire:
            wire.sendall(b"ruok")
            return wire.recv(16) == b"imok"
    except OSError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPorts:
    """Where a broker listens: for clients, for its controller, and, where it is locked down, for itself and us."""

    client: int
    controller: int
    internal: int


def start_kafka(
    nursery: Nursery,
    data: Path,
    ports: KafkaPorts,
    *,
    heap: str,
    say: Say,
    secrets: StackSecrets | None = None,
    is_lasting: bool = False,
    archive_options: Sequence[str] = (),
) -> Child:
    """Format a KRaft log folder where needed and start one broker that is its own controller.

    With ``secrets`` it is locked down; :func:`compose.stack.secure.servers.admit_roles` then lets the roles in. A
    broker that ``is_lasting`` takes more at its start, and less from some minutes on.
    """
    data.mkdir(parents=True, exist_ok=True)
    config = data / "server.properties"
    if secrets is None:
        listeners = [
            f"listeners=PLAINTEXT://{LOOPBACK}:{ports.client},CONTROLLER://{LOOPBACK}:{ports.controller}",
            f"advertised.listeners=PLAINTEXT://{LOOPBACK}:{ports.client}",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        ]
    else:
        listeners = kafka_settings(secrets, ports.client, ports.controller, ports.internal)
    write_properties(
        config,
        "\n".join(
            [
                "process.roles=broker,controller",
                "node.id=1",
                f"controller.quorum.voters=1@{LOOPBACK}:{ports.controller}",
                "controller.listener.names=CONTROLLER",
                *listeners,
                f"log.dirs={data}/log",
                "offsets.topic.replication.factor=1",
                "offsets.topic.num.partitions=5",
                "transaction.state.log.replication.factor=1",
                "transaction.state.log.min.isr=1",
                "share.coordinator.state.topic.replication.factor=1",
                "share.coordinator.state.topic.min.isr=1",
                "group.initial.rebalance.delay.ms=0",
                "auto.create.topics.enable=false",  # a topic that nobody created on purpose is a bug to be seen
                f"message.max.bytes={RAW_MESSAGE_BYTES_MAX}",
                f"replica.fetch.max.bytes={RAW_MESSAGE_BYTES_MAX}",
                "log.segment.bytes=134217728",
                "log.cleaner.dedupe.buffer.size=16777216",
                "num.network.threads=2",
                "num.io.threads=4",
            ]
        )
        + "\n",
    )
    jars = kafka_jars(say)
    class_path = ":".join(map(str, jars))
    log = data.parent / "logs" / "kafka.log"
    if not (data / "log" / "meta.properties").exists():
        tool = [*_jvm("kafka", jars, ()), "-Xmx256m", "-cp", class_path]
        tool += ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_UUID, "-c", str(config)]
        ran = subprocess.run(tool, capture_output=True, text=True, timeout=READY_S, check=False)
        if ran.returncode != 0:
            raise ChildError("kafka's log folder could not be formatted", said=(ran.stdout + ran.stderr)[-2000:])
    command = [*_jvm("kafka", jars, archive_options, is_lasting=is_lasting), f"-Xmx{heap}", "-Xms256m"]
    command += ["-XX:+ExitOnOutOfMemoryError"]
    command += ["-cp", class_path]
    command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
    return nursery.start("kafka", [*command, "kafka.Kafka", str(config)], log=log)


def kafka_ready(ports: KafkaPorts, secrets: StackSecrets | None = None) -> bool:
    """Ask the broker for its metadata; one that is still fencing itself lists no broker."""
    if not is_listening(ports.client):
        return False
    config: dict[str, str | int] = {"bootstrap.servers": f"{LOOPBACK}:{ports.client}", "log_level": 0}
    try:
        admin = kafka_admin(admin_config(secrets, ports.internal) if secrets else config)
        return bool(admin.list_topics(timeout=2.0).brokers)
    except KafkaException:
        return False


def start_registry(nursery: Nursery, data: Path, port: int, *, say: Say, archive_options: Sequence[str] = ()) -> Child:
    """Start Apicurio with its schemas in a file, so that ids stay the same when it is started again."""
    data.mkdir(parents=True, exist_ok=True)
    home = registry_home(say)
    runner = next(home.glob("*-runner.jar"))
    command = [*_jvm("registry", [runner], archive_options), "-Xmx384m"]
    command += [f"-Dquarkus.http.host={LOOPBACK}", f"-Dquarkus.http.port={port}", "-Dquarkus.log.level=WARN"]
    command += [f"-Dquarkus.datasource.jdbc.url=jdbc:h2:file:{data}/registry"]
    command += ["-Dquarkus.datasource.jdbc.min-size=1", "-Dquarkus.datasource.jdbc.initial-size=1"]
    command += ["-jar", str(runner)]
    return nursery.start("schema registry", command, log=data.parent / "logs" / "registry.log", cwd=data)


def start_registry_proxy(nursery: Nursery, data: Path, port: int, registry_port: int, secrets: StackSecrets) -> Child:
    """Start what gives the registry TLS and a user."""
    pair = secrets.servers["registry"]
    command = [*PYTHON, "-m", "compose.stack.secure.registry_proxy", "--port", str(port)]
    command += ["--registry-port", str(registry_port), "--user", REGISTRY_USER, "--cert", pair.cert, "--key", pair.key]
    env = {PASSWORD_ENV: secrets.password("registry")}
    return nursery.start("registry proxy", command, log=data.parent / "logs" / "registry-proxy.log", env=env)


def registry_url(port: int, *, secure: bool = False) -> str:
    """Return the base address of the Confluent-compatible API."""
    return f"http{'s' if secure else ''}://{LOOPBACK}:{port}/apis/ccompat/v7"


def registry_ready(port: int) -> bool:
    """Ask for the subjects, past the proxy where there is one."""
    if not is_listening(port):
        return False
    try:
        wire = http.client.HTTPConnection(LOOPBACK, port, timeout=5.0)
        with closing(wire):
            wire.request("GET", "/apis/ccompat/v7/subjects")
            return wire.getresponse().status == 200
    except (http.client.HTTPException, OSError):
        return False
