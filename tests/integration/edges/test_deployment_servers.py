"""A Kafka broker and a ZooKeeper started from the deployment's own files: who is let in, and to what."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from compose.deployment.kafka_user import bindings, read_settings
from compose.deployment.secrets import make_secrets
from compose.ports import LOOPBACK, free_ports, is_listening
from compose.stack.children import Child, Nursery
from compose.stack.jars import kafka_jars, pyspark_jars
from compose.stack.java import find_java
from compose.stack.secure.acls import admit
from edges.kafka.clients import kafka_admin
from edges.kafka.settings import KAFKA_KEYS
from edges.properties import read_properties
from edges.zookeeper.access import ZOOKEEPER_KEYS
from tests.support.sources.deployment import FOLDER

pytestmark = pytest.mark.integration
READY_S = 180.0
ANSWER_S = 60.0


def rewritten(file: Path, changes: dict[str, str], left_out: str = r"(?!)") -> str:
    """Return a file of settings with some changed, as one machine needs it, and those left out whose names match."""
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    named = dict(line.split("=", 1) for line in lines)
    kept = {key: value for key, value in named.items() if not re.match(left_out, key)} | changes
    return "".join(f"{key}={value}\n" for key, value in kept.items())


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("servers") / "secrets"
    make_secrets(folder)
    return folder


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture(scope="module")
def kafka(secrets: Path, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return addresses of the broker's listeners."""
    folder = tmp_path_factory.mktemp("kafka")
    client, internal, controller = (f"localhost:{port}" for port in free_ports(3))
    config = folder / "server.properties"
    changes = {
        "controller.quorum.voters": f"1@{controller}",
        "listeners": f"CLIENT://{client},INTERNAL://{internal},CONTROLLER://{controller}",
        "advertised.listeners": f"CLIENT://{client},INTERNAL://{internal}",
        "ssl.keystore.location": str(secrets / "kafka-1" / "server.pem"),
        "ssl.truststore.location": str(secrets / "kafka-1" / "ca.pem"),
        "log.dirs": str(folder / "data"),
    }
    config.write_text(rewritten(FOLDER / "deployment" / "kafka" / "kafka-1.properties", changes))
    java = [str(find_java()), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]
    java.append(":".join(str(jar) for jar in kafka_jars()))
    tool = ["kafka.tools.StorageTool", "format", "-t", "dGlkZWJ1cy1zZWN1cmVkMQ", "-c", str(config)]
    ran = subprocess.run([*java, *tool], capture_output=True, text=True, timeout=READY_S, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    broker = nursery.start("kafka", [*java, "kafka.Kafka", str(config)], log=folder / "log")
    _wait(broker, client)
    return {"client": client, "internal": internal}


@pytest.fixture(scope="module")
def zookeeper(secrets: Path, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("zookeeper")
    (port,) = free_ports(1)
    home = secrets / "zookeeper-1"
    stores = {"keyStore": str(home / "server.pem"), "trustStore": str(home / "ca.pem")}
    changes = {f"ssl.{store}.location": path for store, path in stores.items()}
    changes |= {"dataDir": str(folder / "data"), "dataLogDir": str(folder / "log"), "secureClientPort": str(port)}
    config = folder / "zoo.cfg"
    config.write_text(rewritten(FOLDER / "deployment" / "zoo.cfg", changes, r"server\.|sslQuorum|ssl\.quorum"))
    java = [str(find_java()), "-Xmx128m", "-XX:+UseSerialGC", "-cp", f"{pyspark_jars()}/*"]
    command = [*java, "org.apache.zookeeper.server.ZooKeeperServerMain", str(config)]
    _wait(nursery.start("zookeeper", command, log=folder / "out"), f"{LOOPBACK}:{port}")
    return f"localhost:{port}"


def _wait(child: Child, address: str) -> None:
    port = int(address.rpartition(":")[2])
    child.wait_ready(lambda: is_listening(port), READY_S)


def create(admin: AdminClient, topic: str) -> None:
    (answer,) = admin.create_topics([NewTopic(topic, 1, 1)], operation_timeout=ANSWER_S).values()
    answer.result(ANSWER_S)


def test_broker_of_the_deployment_lets_in_the_captures_user_to_the_buss_own_topics_alone(
    secrets: Path, kafka: dict[str, str]
) -> None:
    home = secrets / "kafka-admin"
    settings = read_settings(home / "admin.properties", "--admin")
    located = {key: str(home / Path(value).name) for key, value in settings.items() if key.endswith(".location")}
    admin = AdminClient({**settings, **located, "bootstrap.servers": kafka["internal"]})
    user = read_settings(home / "user.properties", "--user")
    passwords, rights = {user["sasl.username"]: user["sasl.password"]}, bindings(user["sasl.username"])
    admit(admin, passwords, rights)
    admit(admin, passwords, rights)  # again, as after a restart

    capture = read_properties(secrets / "capture-1" / "kafka.properties", KAFKA_KEYS)
    capture |= {"bootstrap.servers": kafka["client"], "ssl.ca.location": str(secrets / "capture-1" / "ca.pem")}
    create(kafka_admin(capture), "tidebus.default.region-events")
    with pytest.raises(KafkaException) as refused:
        create(kafka_admin(capture), "orders")
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    for wrong in ({"sasl.password": "guessed"}, {"security.protocol": "PLAINTEXT"}, {"security.protocol": "SSL"}):
        with pytest.raises(KafkaException):
            AdminClient({**capture, **wrong, "log_level": 0}).list_topics(timeout=3.0)


def test_zookeeper_of_the_deployment_serves_nobody_without_certificate_and_user(secrets: Path, zookeeper: str) -> None:
    home = secrets / "capture-1"
    tls = {
        "use_ssl": True,
        "ca": str(home / "ca.pem"),
        "certfile": str(home / "cert.pem"),
        "keyfile": str(home / "key.pem"),
    }
    settings = read_properties(home / "zookeeper.properties", ZOOKEEPER_KEYS)
    digest = ("digest", f"{settings['digest.username']}:{settings['digest.password']}")
    known = KazooClient(zookeeper, auth_data=[digest], timeout=10.0, **tls)
    known.start(timeout=ANSWER_S)
    try:
        known.create("/tidebus", b"1")
        assert known.get("/tidebus")[0] == b"1"
    finally:
        known.stop()
        known.close()
    unnamed = KazooClient(zookeeper, timeout=10.0, **tls)
    with pytest.raises((KazooException, KazooTimeoutError)):
        try:
            unnamed.start(timeout=10.0)
            unnamed.get("/tidebus")
        finally:
            unnamed.stop()
            unnamed.close()
    without_certificate = KazooClient(zookeeper, auth_data=[digest], use_ssl=True, ca=tls["ca"])
    with pytest.raises(KazooTimeoutError):
        try:
            without_certificate.start(timeout=5.0)
        finally:
            without_certificate.stop()
            without_certificate.close()
