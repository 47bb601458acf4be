"""Kafka settings in the words of librdkafka and of Java."""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from schemas.config.changefeed import load_changefeed
from schemas.config.client_options import (
    client_id,
    java_options,
    librdkafka_options,
    librdkafka_producer_options,
    spark_producer_options,
)

PLAIN = "kafka://h1:1,h2:2/t?protocol=canal-json"
TLS = "kafka+ssl://h1:1/t?protocol=canal-json&ca=/ca.pem&cert=/c.pem&key=/k.pem"
SASL = "&sasl-mechanism=SCRAM-SHA-256&sasl-user=u&sasl-password=" + "p%22%5Cq"


def pem(path: str) -> str:
    return f"content of {path}"


@pytest.mark.parametrize(
    ("uri", "protocol"),
    [
        (PLAIN, "PLAINTEXT"),
        (PLAIN + SASL, "SASL_PLAINTEXT"),
        (TLS, "SSL"),
        (TLS + SASL, "SASL_SSL"),
        (PLAIN + "&enable-tls=true", "SSL"),
        (TLS.replace("kafka+ssl", "kafka"), "SSL"),
    ],
)
def test_client_options_security_protocol_follows_tls_and_sasl(uri: str, protocol: str) -> None:
    config = load_changefeed(uri)
    assert librdkafka_options(config)["security.protocol"] == protocol
    assert java_options(config, pem)["security.protocol"] == protocol


def test_librdkafka_options_tls_and_sasl_are_all_there() -> None:
    options = librdkafka_options(load_changefeed(TLS + SASL + "&insecure-skip-verify=true&dial-timeout=3s"))
    assert options == {
        "bootstrap.servers": "h1:1",
        "security.protocol": "SASL_SSL",
        "socket.connection.setup.timeout.ms": 3000,
        "socket.timeout.ms": 10000,
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/c.pem",
        "ssl.key.location": "/k.pem",
        "enable.ssl.certificate.verification": False,
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "u",
        "sasl.password": 'p"\\q',
    }


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["-1", "0", "1"])
def test_librdkafka_options_are_taken_by_the_client(compression: str, acks: str) -> None:
    uri = f"{PLAIN}&compression={compression}&required-acks={acks}&dial-timeout=10ms&read-timeout=1ms"
    config = load_changefeed(uri + "&max-message-bytes=2147483647" + SASL)
    Producer(librdkafka_producer_options(config))
    AdminClient(librdkafka_options(config))


def test_spark_producer_options_java_names_and_texts() -> None:
    config = load_changefeed(
        TLS + SASL + "&compression=zstd&max-message-bytes=1000000&read-timeout=3s&write-timeout=20s"
    )
    options = spark_producer_options(config, pem)
    jaas = options.pop("kafka.sasl.jaas.config")
    assert jaas == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p\\"\\\\q";'
    )
    assert options == {
        "kafka.bootstrap.servers": "h1:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.socket.connection.setup.timeout.ms": "10000",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "content of /ca.pem",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "content of /c.pem",
        "kafka.ssl.keystore.key": "content of /k.pem",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        "kafka.max.in.flight.requests.per.connection": "5",
        "kafka.compression.type": "zstd",
        "kafka.max.request.size": str(1_000_000 + 16 * 1024),
        "kafka.buffer.memory": str(32 * 1024 * 1024),
        "kafka.request.timeout.ms": "20000",
        "kafka.delivery.timeout.ms": "120000",
    }


@pytest.mark.parametrize(("acks", "java"), [("-1", "all"), ("0", "0"), ("1", "1")])
def test_spark_producer_options_fewer_acks_keep_order_by_one_request_in_flight(acks: str, java: str) -> None:
    options = spark_producer_options(load_changefeed(f"{PLAIN}&required-acks={acks}"), pem)
    idempotent = acks == "-1"
    assert options["kafka.acks"] == java
    assert options["kafka.enable.idempotence"] == str(idempotent).lower()
    assert options["kafka.max.in.flight.requests.per.connection"] == ("5" if idempotent else "1")


def test_spark_producer_options_large_messages_fit_into_the_buffer() -> None:
    options = spark_producer_options(load_changefeed(PLAIN + "&max-message-bytes=100000000"), pem)
    assert int(options["kafka.buffer.memory"]) > int(options["kafka.max.request.size"]) > 100_000_000


def test_client_id_default_is_ticdcs_with_illegal_characters_replaced() -> None:
    config = load_changefeed(PLAIN)
    named = client_id(config, capture_address="127.0.0.1:8300", namespace="default", changefeed_id="a?b")
    assert named == "TiCDC_producer_127.0.0.1_8300_default_a_b"
    given = load_changefeed(PLAIN + "&kafka-client-id=mine")
    assert client_id(given, capture_address="h:1", namespace="n", changefeed_id="c") == "mine"
    assert librdkafka_options(given)["client.id"] == spark_producer_options(given, pem)["kafka.client.id"] == "mine"
