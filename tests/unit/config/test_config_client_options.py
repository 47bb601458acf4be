"""Kafka settings in the words of librdkafka."""

import re

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from edges.kafka.clients import kafka_admin
from edges.kafka.errors import KafkaSettingsError
from schemas.config.changefeed import load_changefeed
from schemas.config.client_options import (
    client_id,
    librdkafka_options,
    librdkafka_producer_options,
)
from schemas.errors import ConfigError

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


KERBEROS = (
    "&sasl-mechanism=GSSAPI&sasl-gssapi-auth-type=KEYTAB&sasl-gssapi-keytab-path=/k&sasl-gssapi-service-name=kafka"
    "&sasl-gssapi-user=u&sasl-gssapi-realm=R"
)


def test_librdkafka_options_of_gssapi_name_principal_and_keytab() -> None:
    """Of sasl-gssapi-auth-type KEYTAB, sasl-gssapi-keytab-path, sasl-gssapi-service-name, sasl-gssapi-user and
    sasl-gssapi-realm.
    """
    options = librdkafka_options(load_changefeed(PLAIN + KERBEROS))
    assert {name: value for name, value in options.items() if name.startswith(("sasl", "security"))} == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": "u@R",
        "sasl.kerberos.keytab": "/k",
    }


def test_a_client_without_gssapi_is_asked_and_names_what_it_is_built_with() -> None:
    options = librdkafka_options(load_changefeed(PLAIN + KERBEROS))
    try:
        kafka_admin(options)
    except KafkaSettingsError as error:
        assert re.search("No provider for SASL mechanism GSSAPI.*Current build options: ", str(error.fields["reason"]))


@pytest.mark.parametrize("name", ["auth-type", "keytab-path", "service-name", "user", "realm"])
def test_gssapi_needs_each_of_its_settings_and_no_word_of_a_shell(name: str) -> None:
    without = re.sub(f"&sasl-gssapi-{name}=[^&]*", "", KERBEROS)
    with pytest.raises(ConfigError, match=f"sasl-mechanism GSSAPI needs sasl-gssapi-{name}"):
        load_changefeed(PLAIN + without)
    if name != "auth-type":
        with pytest.raises(ConfigError, match=f"sasl-gssapi-{name} may hold"):
            load_changefeed(f"{PLAIN}{without}&sasl-gssapi-{name}=$(x)")


def test_gssapi_settings_without_the_mechanism_are_refused() -> None:
    with pytest.raises(ConfigError, match="`sasl-gssapi-realm` is given without `sasl-mechanism` GSSAPI"):
        load_changefeed(PLAIN + "&sasl-gssapi-realm=R")


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["-1", "0", "1"])
def test_librdkafka_options_are_taken_by_the_client(compression: str, acks: str) -> None:
    uri = f"{PLAIN}&compression={compression}&required-acks={acks}&dial-timeout=10ms&read-timeout=1ms"
    config = load_changefeed(uri + "&max-message-bytes=2147483647" + SASL)
    Producer(librdkafka_producer_options(config))
    AdminClient({**librdkafka_options(config)})


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
