"""Kafka settings in the words of librdkafka."""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from schemas.config.changefeed import load_changefeed
from schemas.config.client_options import (
    client_id,
    librdkafka_options,
    librdkafka_producer_options,
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
    assert librdkafka_options(load_changefeed(uri))["security.protocol"] == protocol


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


def test_librdkafka_producer_options_with_pem_texts_name_no_files() -> None:
    options = librdkafka_producer_options(load_changefeed(TLS + SASL), pem)
    assert {name: value for name, value in options.items() if name.startswith("ssl.")} == {
        "ssl.ca.pem": "content of /ca.pem",
        "ssl.certificate.pem": "content of /c.pem",
        "ssl.key.pem": "content of /k.pem",
    }
    assert options["sasl.password"] == 'p"\\q'


@pytest.mark.parametrize(("acks", "idempotent", "in_flight"), [(-1, True, 5), (0, False, 1), (1, False, 1)])
def test_librdkafka_producer_options_keep_the_order_whatever_the_acks(
    acks: int, idempotent: bool, in_flight: int
) -> None:
    options = librdkafka_producer_options(load_changefeed(f"{PLAIN}&required-acks={acks}"))
    assert options["acks"] == acks
    assert options["enable.idempotence"] == idempotent
    assert options["max.in.flight.requests.per.connection"] == in_flight


def test_client_id_default_is_ticdcs_with_illegal_characters_replaced() -> None:
    config = load_changefeed(PLAIN)
    named = client_id(config, capture_address="127.0.0.1:8300", namespace="default", changefeed_id="a?b")
    assert named == "TiCDC_producer_127.0.0.1_8300_default_a_b"
    given = load_changefeed(PLAIN + "&kafka-client-id=mine")
    assert client_id(given, capture_address="h:1", namespace="n", changefeed_id="c") == "mine"
    assert librdkafka_options(given)["client.id"] == "mine"
