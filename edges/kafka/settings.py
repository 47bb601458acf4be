"""The settings of librdkafka that ``--kafka-config`` takes: who we are and how we get in.

What is read or written, and with which promise, is never a matter of a file: those settings are refused by name.
The words are librdkafka's (its CONFIGURATION.md); :mod:`edges.kafka.java_properties` has Java's for the same.
"""

from typing import Final

from edges.properties import KnownKeys

SERVERS: Final = "bootstrap.servers"
CHECK_BATCHES: Final = "check.crcs"
"""Of consumers."""
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PEM_FILES: Final = {
    "ssl.ca.location": "ssl.ca.pem",
    "ssl.certificate.location": "ssl.certificate.pem",
    "ssl.key.location": "ssl.key.pem",
    "https.ca.location": "https.ca.pem",
}
"""Settings that name a PEM file, with those that hold its text."""
FLAGS: Final = (
    "enable.ssl.certificate.verification",
    "enable.sasl.oauthbearer.unsecure.jwt",
    "socket.keepalive.enable",
)
NUMBERS: Final = (
    "socket.timeout.ms",
    "socket.connection.setup.timeout.ms",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
)
_SECRET: Final = (
    "sasl.password",
    "sasl.oauthbearer.client.secret",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.keystore.password",
)
_OTHERS: Final = (
    SERVERS,
    "client.id",
    "client.rack",
    "client.dns.lookup",
    "broker.address.family",
    "security.protocol",
    "ssl.keystore.location",
    "ssl.endpoint.identification.algorithm",
    "ssl.cipher.suites",
    "ssl.curves.list",
    "ssl.sigalgs.list",
    "ssl.crl.location",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.config",
)
_PROMISE: Final = "TideBus sets it itself, for its promise hangs on it"
_PACE: Final = "TideBus sets it itself, for each client as its work needs it"
_KERBEROS: Final = "Kerberos is not supported"
_REFUSED: Final = {
    **dict.fromkeys(
        (
            "acks",
            "request.required.acks",
            "enable.idempotence",
            "enable.gapless.guarantee",
            "transactional.id",
            "max.in.flight",
            "max.in.flight.requests.per.connection",
            "retries",
            "message.send.max.retries",
            "message.timeout.ms",
            "delivery.timeout.ms",
            "group.id",
            "group.instance.id",
            "group.protocol",
            "enable.auto.commit",
            "enable.auto.offset.store",
            "auto.commit.enable",
            "auto.offset.reset",
            "enable.partition.eof",
            "isolation.level",
            "partitioner",
            CHECK_BATCHES,
        ),
        _PROMISE,
    ),
    **dict.fromkeys(
        (
            "message.max.bytes",
            "receive.message.max.bytes",
            "fetch.message.max.bytes",
            "max.partition.fetch.bytes",
            "fetch.max.bytes",
            "fetch.wait.max.ms",
            "queued.max.messages.kbytes",
            "queue.buffering.max.messages",
            "queue.buffering.max.kbytes",
            "queue.buffering.max.ms",
            "linger.ms",
            "batch.size",
            "batch.num.messages",
            "compression.codec",
            "compression.type",
            "compression.level",
            "log_level",
            "log.connection.close",
            "debug",
            "statistics.interval.ms",
        ),
        _PACE,
    ),
    **dict.fromkeys(
        (
            "sasl.kerberos.service.name",
            "sasl.kerberos.principal",
            "sasl.kerberos.kinit.cmd",
            "sasl.kerberos.keytab",
            "sasl.kerberos.min.time.before.relogin",
        ),
        _KERBEROS,
    ),
    "plugin.library.paths": "it loads code into every process",
    "ssl.providers": "it loads code into every process",
    "ssl.engine.location": "it loads code into every process",
    "sasl.jaas.config": "it is Java's; sasl.mechanism, sasl.username and sasl.password say the same",
    "ssl.truststore.location": "it is Java's; ssl.ca.location names the CA's PEM file",
}
KAFKA_KEYS: Final = KnownKeys(
    option="--kafka-config",
    allowed=frozenset((*_OTHERS, *_SECRET, *FLAGS, *NUMBERS, *PEM_FILES, *PEM_FILES.values())),
    secret=frozenset(_SECRET),
    paths=frozenset((*PEM_FILES, "ssl.keystore.location", "ssl.crl.location")),
    refused=_REFUSED,
)
