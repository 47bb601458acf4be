"""A changefeed's Kafka settings in the words of the client that all parts of a sorter use: librdkafka.

The maps hold secrets in clear: hand them to a client, never to a log.
"""

import re
from base64 import b64decode
from collections.abc import Callable

from schemas.config.settings import ChangefeedConfig

POSITION_HEADER_ROOM_BYTES = 16 * 1024
"""Added to ``max-message-bytes`` for the producer's own limit: it also counts our header, which holds the row's key."""
_CLIENT_ID_BAD = re.compile(r'[?:,"]')


def client_id(config: ChangefeedConfig, *, capture_address: str, namespace: str, changefeed_id: str) -> str:
    """Return ``kafka-client-id``, or TiCDC's default with ``?:,"`` replaced by ``_``."""
    if config.kafka.kafka_client_id is not None:
        return config.kafka.kafka_client_id
    return _CLIENT_ID_BAD.sub("_", f"TiCDC_producer_{capture_address}_{namespace}_{changefeed_id}")


def librdkafka_options(config: ChangefeedConfig) -> dict[str, str | int | bool]:
    """Return what every librdkafka client of this sink (admin, consumer, producer) needs to connect."""
    kafka = config.kafka
    options: dict[str, str | int | bool] = {
        "bootstrap.servers": config.uri.bootstrap_servers,
        "security.protocol": security_protocol(config),
        "socket.connection.setup.timeout.ms": max(_ms(kafka.dial_timeout_s), 1000),  # librdkafka's least is 1 s
        "socket.timeout.ms": max(_ms(kafka.read_timeout_s), 10),
    }
    if kafka.kafka_client_id is not None:
        options["client.id"] = kafka.kafka_client_id
    if config.tls:
        files = {"ca": kafka.ca, "certificate": kafka.cert, "key": kafka.key}
        options |= {f"ssl.{name}.location": file for name, file in files.items() if file is not None}
        if kafka.insecure_skip_verify:
            options["enable.ssl.certificate.verification"] = False
    if kafka.sasl_mechanism == "OAUTHBEARER":
        options |= _oauth_options(config)
    elif kafka.sasl_mechanism == "GSSAPI":
        options |= _kerberos_options(config)
    elif kafka.sasl_mechanism is not None:
        assert kafka.sasl_user is not None and kafka.sasl_password is not None
        options["sasl.mechanism"] = kafka.sasl_mechanism
        options["sasl.username"] = kafka.sasl_user
        options["sasl.password"] = kafka.sasl_password.reveal()
    return options


def librdkafka_producer_options(
    config: ChangefeedConfig, read_pem: Callable[[str], str] | None = None
) -> dict[str, str | int | bool]:
    """Return :func:`librdkafka_options` with a producer's own: acks, idempotence, compression, sizes.

    Args:
        read_pem: reads a PEM file. With it the options hold texts instead of file names, and can be used by processes
            of other machines.
    """
    kafka = config.kafka
    all_acks = kafka.required_acks == -1
    options = librdkafka_options(config)
    if read_pem is not None:
        for name in ("ca", "certificate", "key"):
            file = options.pop(f"ssl.{name}.location", None)
            if file is not None:
                options[f"ssl.{name}.pem"] = read_pem(str(file))
    return options | {
        "acks": kafka.required_acks,
        "enable.idempotence": all_acks,  # Kafka allows it with all acks only
        # Without idempotence only one request in flight keeps the order over retries.
        "max.in.flight.requests.per.connection": 5 if all_acks else 1,
        "compression.type": kafka.compression,
        "message.max.bytes": min(kafka.max_message_bytes + POSITION_HEADER_ROOM_BYTES, 1_000_000_000),
    }


def security_protocol(config: ChangefeedConfig) -> str:
    """Return Kafka's name of the pair (TLS, SASL)."""
    if config.kafka.sasl_mechanism is None:
        return "SSL" if config.tls else "PLAINTEXT"
    return "SASL_SSL" if config.tls else "SASL_PLAINTEXT"


def _oauth_options(config: ChangefeedConfig) -> dict[str, str | int | bool]:
    """Return what makes librdkafka fetch tokens by client credentials, and fetch the next one in time."""
    kafka = config.kafka
    assert kafka.sasl_oauth_client_id is not None
    assert kafka.sasl_oauth_client_secret is not None
    assert kafka.sasl_oauth_token_url is not None
    options: dict[str, str | int | bool] = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": kafka.sasl_oauth_client_id,
        "sasl.oauthbearer.client.secret": b64decode(kafka.sasl_oauth_client_secret.reveal()).decode(),
        "sasl.oauthbearer.token.endpoint.url": kafka.sasl_oauth_token_url,
    }
    if kafka.sasl_oauth_scopes:
        options["sasl.oauthbearer.scope"] = " ".join(kafka.sasl_oauth_scopes)
    return options


def _kerberos_options(config: ChangefeedConfig) -> dict[str, str | int | bool]:
    """Return what lets librdkafka get tickets with ``kinit`` and a keytab; one that is built without GSSAPI refuses."""
    kafka = config.kafka
    assert kafka.sasl_gssapi_auth_type == "KEYTAB"
    assert kafka.sasl_gssapi_service_name is not None and kafka.sasl_gssapi_keytab_path is not None
    return {
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": kafka.sasl_gssapi_service_name,
        "sasl.kerberos.principal": f"{kafka.sasl_gssapi_user}@{kafka.sasl_gssapi_realm}",
        "sasl.kerberos.keytab": kafka.sasl_gssapi_keytab_path,
    }


def _ms(seconds: float) -> int:
    return max(round(seconds * 1000), 1)
