"""``--kafka-config``: what it takes, what it refuses by name, and that no secret of it is seen."""

import gc
import pickle
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from edges.kafka import clients
from edges.kafka.access import KafkaAccess, check_settings
from edges.kafka.clients import kafka_admin, kafka_consumer, kafka_producer, shared_admin
from edges.kafka.errors import KafkaSettingsError
from edges.kafka.producer import rest_of_head_start
from edges.kafka.settings import KAFKA_KEYS
from schemas.errors import ConfigError

SCRAM = """
# how the bus gets in
security.protocol=SASL_SSL
ssl.ca.location=ca.pem
sasl.mechanisms = scram-sha-256
sasl.username=bus
sasl.password=p=w d#1
"""


def config_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    """Write a file of settings."""
    file = folder / "kafka.properties"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_without_a_file_the_cluster_asks_for_nothing() -> None:
    access = KafkaAccess.read("h1:9092,h2:9092")
    assert access.config() == {"bootstrap.servers": "h1:9092,h2:9092"}
    assert access.arguments() == ["--kafka", "h1:9092,h2:9092"]


def test_file_gives_what_librdkafka_takes(tmp_path: Path) -> None:
    access = KafkaAccess.read("h:9092", config_file(tmp_path, SCRAM))
    assert access.config() == {
        "bootstrap.servers": "h:9092",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "bus",
        "sasl.password": "p=w d#1",
    }


def test_servers_of_the_file_go_before_the_options(tmp_path: Path) -> None:
    file = config_file(tmp_path, "bootstrap.servers=in-file:1\n")
    assert KafkaAccess.read("h:9092", file).servers == "in-file:1"
    assert KafkaAccess.read("", file).config() == {"bootstrap.servers": "in-file:1"}
    with pytest.raises(ConfigError, match="no Kafka broker is named"):
        KafkaAccess.read("", config_file(tmp_path, "client.id=me\n"))


def test_neither_repr_nor_arguments_show_a_secret(tmp_path: Path) -> None:
    access = KafkaAccess.read("h:9092", config_file(tmp_path, SCRAM))
    seen = f"{access} {access!r} {access.arguments()}"
    assert "p=w" not in seen
    assert access.arguments() == ["--kafka", "h:9092", "--kafka-config", str(tmp_path / "kafka.properties")]


def test_access_is_plain_data_that_tasks_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----")
    access = KafkaAccess.read("h:9092", config_file(tmp_path, SCRAM)).with_texts()
    assert pickle.loads(pickle.dumps(access)) == access
    assert access.config()["ssl.ca.pem"] == "-----BEGIN CERTIFICATE-----"
    assert "ssl.ca.location" not in access.config()


def test_missing_pem_file_is_named(tmp_path: Path) -> None:
    access = KafkaAccess.read("h:9092", config_file(tmp_path, SCRAM))
    with pytest.raises(ConfigError) as refused:
        access.with_texts()
    assert refused.value.fields["key"] == "ssl.ca.location"
    assert refused.value.fields["file"] == str(tmp_path / "ca.pem")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o660])
def test_file_with_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="chmod 600"):
        KafkaAccess.read("h:9092", config_file(tmp_path, SCRAM, mode))


def test_file_without_a_secret_may_be_seen(tmp_path: Path) -> None:
    file = config_file(tmp_path, "security.protocol=SSL\nssl.ca.location=/ca.pem\n", 0o644)
    assert KafkaAccess.read("h:9092", file).config()["ssl.ca.location"] == "/ca.pem"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("acks=1", "its promise hangs on it"),
        ("enable.idempotence=false", "its promise hangs on it"),
        ("auto.offset.reset=latest", "its promise hangs on it"),
        ("isolation.level=read_uncommitted", "its promise hangs on it"),
        ("message.timeout.ms=1", "its promise hangs on it"),
        ("linger.ms=9", "as its work needs it"),
        ("plugin.library.paths=/tmp/x.so", "loads code"),
        ("sasl.kerberos.keytab=/k", "Kerberos"),
        ("sasl.jaas.config=x", "it is Java's"),
        ("sasl.pasword=x", "did you mean sasl.password"),
        ("socket.timeout.ms=soon", "not a number"),
        ("client.id=", "no value"),
        ("security.protocol=TLS", "no such value"),
    ],
)
def test_setting_that_is_not_for_a_file_is_refused_by_name(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        KafkaAccess.read("h:9092", config_file(tmp_path, f"client.rack=r\n{line}\n"))
    assert refused.value.fields["key"] == line.partition("=")[0]


@pytest.mark.parametrize("text", ["hunter2", "hunter2=", "=hunter2", "hunter2=a", "sasl.pasword=hunter2"])
def test_refused_line_is_named_by_number_and_its_value_is_not_shown(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        KafkaAccess.read("h:9092", config_file(tmp_path, f"client.id=me\n\n{text}\n"))
    assert refused.value.fields["line"] == 3
    assert "hunter2" not in f"{refused.value} {refused.value!r}"


def test_setting_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="twice"):
        KafkaAccess.read("h:9092", config_file(tmp_path, "client.id=a\nclient.id=b\n"))


def test_file_that_is_no_text_or_not_there_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "binary"
    file.write_bytes(b"sasl.password=\xff\xfe")
    for missing in (file, tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="not readable"):
            KafkaAccess.read("h:9092", missing)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"ssl.ca.location": "/ca"}, "ssl.ca.location"),
        ({"security.protocol": "SASL_PLAINTEXT", "ssl.ca.location": "/ca"}, "ssl.ca.location"),
        ({"security.protocol": "SSL", "sasl.username": "u"}, "sasl.username"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u"}, "sasl.password"),
        ({"security.protocol": "SSL", "ssl.certificate.location": "/c"}, "ssl.key.location"),
        ({"security.protocol": "SSL", "ssl.key.pem": "k"}, "ssl.certificate.location"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/c", "ssl.ca.pem": "c"}, "ssl.ca.location"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "sasl.oauthbearer.method"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc"},
            "sasl.oauthbearer.client.id",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.mechanisms": "OAUTHBEARER"},
            "sasl.mechanisms",
        ),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(settings: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_settings(settings)
    assert refused.value.fields["key"] == key


EXAMPLES = {
    "client.dns.lookup": "use_all_dns_ips",
    "broker.address.family": "v4",
    "security.protocol": "PLAINTEXT",
    "ssl.endpoint.identification.algorithm": "none",
    "ssl.cipher.suites": "ECDHE-RSA-AES128-GCM-SHA256",
    "ssl.curves.list": "P-256",
    "ssl.sigalgs.list": "ECDSA+SHA256",
    "sasl.mechanism": "PLAIN",
    "sasl.oauthbearer.method": "default",
    "sasl.oauthbearer.config": "principal=me",
    "sasl.oauthbearer.extensions": "a=b",
    "sasl.oauthbearer.token.endpoint.url": "http://h/",
}


@pytest.mark.parametrize("key", sorted(KAFKA_KEYS.allowed - {"sasl.mechanisms"}))
def test_librdkafka_knows_each_key(key: str) -> None:
    """A key that librdkafka does not know would only be refused when the first client is made."""
    number_or_flag = "true" if key.startswith("enable.") or key.endswith(".enable") else "1000"
    config = {"log_level": 0, key: EXAMPLES.get(key, number_or_flag)}
    try:
        kafka_admin(config)
    except KafkaSettingsError as error:
        assert "No such configuration property" not in str(error), key


@pytest.mark.parametrize("make", [kafka_admin, kafka_producer, kafka_consumer])
def test_client_that_cannot_read_its_ca_says_so_by_a_code(make: Callable[[dict[str, str]], object]) -> None:
    settings = {"security.protocol": "SSL", "ssl.ca.location": "/none.pem", "group.id": "g"}
    with pytest.raises(KafkaSettingsError, match=r"ssl\.ca\.location failed"):
        make(KafkaAccess("k:1", settings).config())


def test_clients_take_a_checked_access() -> None:
    config = {**KafkaAccess("127.0.0.1:1", {"client.id": "me"}).config(), "log_level": 0}
    kafka_consumer({**config, "group.id": "g"}).close()
    kafka_producer(config)
    kafka_admin(config)


def test_clients_try_a_broker_again_soon_unless_an_operator_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, object]] = []
    monkeypatch.setattr(clients, "Producer", made.append)
    kafka_producer({"bootstrap.servers": "k:1"})
    kafka_producer(KafkaAccess("k:1", {"reconnect.backoff.ms": "300"}).config())
    assert [config["reconnect.backoff.ms"] for config in made] == [20, "300"]


def test_producer_is_left_alone_until_it_is_old_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    monkeypatch.setattr(time, "sleep", slept.append)
    rest_of_head_start(49.97)
    rest_of_head_start(40.0)
    assert slept == pytest.approx([0.07, 0.0])


def test_admin_client_is_shared_by_those_with_the_same_settings_while_any_of_them_has_it() -> None:
    config = {**KafkaAccess("127.0.0.1:1", {"client.id": "me"}).config(), "log_level": 0}
    first = shared_admin(config)
    assert shared_admin(dict(reversed(config.items()))) is first
    assert shared_admin({**config, "client.id": "other"}) is not first
    last_seen = weakref.ref(first)
    del first
    gc.collect()
    assert last_seen() is None
    assert shared_admin(config) is not None
