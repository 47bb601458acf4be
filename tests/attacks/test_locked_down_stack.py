"""A locked-down local stack: each role may do what it needs and nothing else, and who brings nothing gets nowhere."""

import contextlib
import json
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.exceptions import NoAuthError
from kazoo.handlers.threading import KazooTimeoutError

from compose.stack.local import Addresses, LocalStack
from compose.stack.secure.folder import StackSecrets
from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.zookeeper.access import ZooKeeperAccess
from schemas.config.changefeed import load_changefeed
from sorters.registry.named import registry_of
from sorters.registry.registry import RegistryUnreachableError

pytestmark = pytest.mark.integration
ANSWER_S = 30.0


@dataclass(frozen=True)
class LockedDown:
    """A running stack and its secrets."""

    secrets: StackSecrets
    addresses: Addresses

    def may_create(self, role: str, topic: str) -> bool:
        """Try to create a topic as a role."""
        access = KafkaAccess.read(self.addresses.kafka, self.secrets.kafka_config(role))
        admin = AdminClient({**access.config(), "log_level": 0})
        try:
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(ANSWER_S)
        except KafkaException as error:
            assert error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, error
            return False
        return True


@pytest.fixture(scope="module")
def locked_down(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LockedDown]:
    folder = tmp_path_factory.mktemp("locked")
    secrets = StackSecrets.make(folder / "secrets")
    with LocalStack(data=folder / "stack", secrets=secrets) as stack:
        yield LockedDown(secrets, stack.addresses)


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("capture", {"tidebus.u", "tidebus.proofs"}),
        ("sorter", {"tidebus.sink", "tidebus.proofs"}),
        ("processor", set()),
        ("sink", {"orders"}),
        ("operator", set()),
    ],
)
def test_role_creates_its_own_topics_alone(locked_down: LockedDown, role: str, allowed: set[str]) -> None:
    stems = ("tidebus.u", "tidebus.sink", "tidebus.proofs", "orders")
    assert {stem for stem in stems if locked_down.may_create(role, f"{stem}.{role}")} == allowed


def test_client_that_brings_nothing_gets_no_metadata(locked_down: LockedDown) -> None:
    admin = AdminClient({"bootstrap.servers": locked_down.addresses.kafka, "log_level": 0})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=5.0)


def test_zookeeper_keeps_nodes_from_who_has_another_user(locked_down: LockedDown) -> None:
    secrets, servers = locked_down.secrets, locked_down.addresses.zookeeper
    ours = ZooKeeperAccess.read(servers, secrets.zookeeper_config()).client(10.0)
    pair = secrets.operator
    stranger = ZooKeeperAccess(
        servers, user="mallory", password="guess", tls=True, ca_path=secrets.ca_path,
        cert_path=pair.cert, key_path=pair.key,
    ).client(10.0)  # fmt: skip
    ours.start(ANSWER_S)
    stranger.start(ANSWER_S)
    with contextlib.ExitStack() as stack:
        for client in (ours, stranger):
            stack.callback(client.close)
            stack.callback(client.stop)
        ours.create("/tidebus-locked", b"sealed")
        with pytest.raises(NoAuthError):
            stranger.get("/tidebus-locked")
        with pytest.raises(NoAuthError):
            stranger.set("/tidebus-locked", b"mine")


def test_zookeeper_does_not_speak_to_who_has_no_certificate(locked_down: LockedDown) -> None:
    client = ZooKeeperAccess(locked_down.addresses.zookeeper).client(4.0)
    with contextlib.suppress(KazooTimeoutError):
        client.start(5.0)
        pytest.fail("a client without TLS was let in")
    client.close()


def test_registry_wants_its_user(locked_down: LockedDown) -> None:
    url, secrets = locked_down.addresses.schema_registry, locked_down.secrets
    access = RegistryAccess.read(url, secrets.registry_config())
    with access.client() as client:
        assert client.get_subjects() == []
    config = secrets.folder / "other.properties"
    config.write_text(f"basic.auth.user.info=tidebus:guess\nssl.ca.location={secrets.ca_path}\n")
    config.chmod(0o600)
    with pytest.raises(Exception, match=r"401|wrong"):
        RegistryAccess.read(url, config).client().get_subjects()


def test_changefeeds_own_registry_is_reached_by_a_file_of_its_own(locked_down: LockedDown, tmp_path: Path) -> None:
    url, secrets = locked_down.addresses.schema_registry, locked_down.secrets
    sink = tmp_path / "sink.properties"
    sink.touch(mode=0o600)
    sink.write_text(f"url={url}\n{secrets.registry_config().read_text()}")
    config = load_changefeed(f"kafka://k:1/t?protocol=avro&schema-registry={urllib.parse.quote(url, safe='')}")
    schema = json.dumps({"type": "record", "name": "orders", "fields": []})

    for ours in (RegistryAccess(), RegistryAccess.at("https://elsewhere:1")):
        without = registry_of(config, ours)
        assert without is not None
        with pytest.raises(RegistryUnreachableError, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify"):
            without.register("orders-value", schema, table="shop.orders")

    access = RegistryAccess.read("https://elsewhere:1", None, [sink])
    registry = registry_of(config, access)
    assert registry is not None
    schema_id = registry.register("orders-value", schema, table="shop.orders")
    owned = RegistryAccess.read(url, secrets.registry_config()).client()
    assert owned.get_latest_version("orders-value").schema_id == schema_id


def test_secrets_are_their_owners_alone(locked_down: LockedDown) -> None:
    folder = locked_down.secrets.folder
    assert folder.stat().st_mode & 0o077 == 0
    private = [path for path in folder.iterdir() if path.suffix in (".properties", "") or "key" in path.name]
    assert len(private) > 8
    assert [path.name for path in private if path.stat().st_mode & 0o077] == []
    assert repr(locked_down.secrets) == f"StackSecrets({folder})"
