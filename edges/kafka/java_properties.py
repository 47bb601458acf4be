"""An access in the words of Kafka's Java client, for Spark's own source of Kafka.

The table of librdkafka's settings (CONFIGURATION.md) and Java's (kafka-clients 3.9, ``SslConfigs``, ``SaslConfigs``,
``CommonClientConfigs``): where both have the setting under one name it is handed on; passwords go into a line of JAAS
(``sasl.jaas.config``); PEM files become a trust store and a key store of type PEM (KIP-651) by their texts: Java wants
certificate and key in one file, and executors of other machines have none of them. What Java has no words for is
refused: a connection that is checked less, or otherwise, than the user has asked for is worse than none.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from edges.kafka.access import KafkaAccess, read_pem
from edges.kafka.settings import CHECK_BATCHES, SERVERS
from schemas.errors import Action, ConfigError

_LOGIN: Final = "org.apache.kafka.common.security"
_OAUTH: Final = f"{_LOGIN}.oauthbearer"
_SAME: Final = (
    "client.id",
    "client.rack",
    "client.dns.lookup",
    "security.protocol",
    "sasl.mechanism",
    "socket.connection.setup.timeout.ms",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    CHECK_BATCHES,
)
_UNTRANSLATABLE: Final = {
    "enable.ssl.certificate.verification": "Java cannot leave a server's certificate unchecked",
    "ssl.curves.list": "Java takes it from jdk.tls.namedGroups, for a whole process",
    "ssl.sigalgs.list": "Java takes it from jdk.tls.client.SignatureSchemes, for a whole process",
    "ssl.crl.location": "Java's Kafka client looks into no list of revoked certificates",
    "broker.address.family": "Java takes it from java.net.preferIPv4Stack, for a whole process",
    "socket.keepalive.enable": "Java's Kafka client always keeps connections alive",
    "https.ca.pem": "Java takes the CA of the token endpoint from a file; name it by https.ca.location",
}
_HARMLESS: Final = {
    "enable.ssl.certificate.verification": "true",
    "broker.address.family": "any",
    "socket.keepalive.enable": "true",
}
"""Values of the above that say what Java does anyway."""
_JAAS_KEYS: Final = frozenset(
    {
        "sasl.username",
        "sasl.password",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.extensions",
        "sasl.oauthbearer.config",
        "enable.sasl.oauthbearer.unsecure.jwt",
        "https.ca.location",
    }
)


class NoJavaWordError(ConfigError):
    """Spark's own Kafka source has no words for a setting of `--kafka-config`; `fields` name it and say why."""

    code, action = "kafka.no_java_word", Action.STOP_CHANGEFEED


def spark_options(access: KafkaAccess) -> dict[str, str]:
    """Return the options of Spark's Kafka source; they hold secrets in clear.

    Raises:
        NoJavaWordError, ConfigError: see :func:`java_properties`.
    """
    return {f"kafka.{key}": value for key, value in java_properties(access).items()}


def java_properties(access: KafkaAccess) -> dict[str, str]:
    """Return the Java client's properties, secrets in clear.

    Raises:
        NoJavaWordError: Java's client has no words for a setting, or not for its value.
        ConfigError: a PEM file is not readable.
    """
    settings = access.settings
    out = {SERVERS: access.servers}
    for key, value in settings.items():
        if key in _SAME:
            out[key] = value
        elif key in _TRANSLATED:
            out |= _TRANSLATED[key](key, value)
        elif key in _UNTRANSLATABLE:
            if _HARMLESS.get(key) != value:
                raise NoJavaWordError(f"Spark cannot read Kafka with this setting: {_UNTRANSLATABLE[key]}", key=key)
        elif key not in _JAAS_KEYS:
            raise NoJavaWordError("Spark cannot read Kafka with this setting: it has no word for it", key=key)
    if "sasl.mechanism" in settings:
        out |= _login(settings)
    return out


def _renamed(name: str) -> Callable[[str, str], dict[str, str]]:
    return lambda _, value: {name: value}


def _endpoint_check(_: str, value: str) -> dict[str, str]:
    return {"ssl.endpoint.identification.algorithm": "" if value == "none" else value}


def _cipher_suites(key: str, value: str) -> dict[str, str]:
    names = [name.strip() for name in value.replace(":", ",").split(",")]
    if not all(name.startswith("TLS_") for name in names):
        raise NoJavaWordError(
            "Spark cannot read Kafka with this setting: only TLS 1.3's suites have one name in OpenSSL and Java",
            key=key,
        )
    return {key: ",".join(names)}


def _trusted_file(key: str, value: str) -> dict[str, str]:
    if Path(value).is_dir():
        raise NoJavaWordError("Spark cannot read Kafka with this setting: Java wants one PEM file, no folder", key=key)
    return _trusted_text(key, read_pem(value, key))


def _trusted_text(_: str, value: str) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": value}


def _chain_file(key: str, value: str) -> dict[str, str]:
    return _chain_text(key, read_pem(value, key))


def _chain_text(_: str, value: str) -> dict[str, str]:
    return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": value}


def _key_file(key: str, value: str) -> dict[str, str]:
    return _key_text(key, read_pem(value, key))


def _key_text(key: str, value: str) -> dict[str, str]:
    if "-----BEGIN PRIVATE KEY-----" not in value and "-----BEGIN ENCRYPTED PRIVATE KEY-----" not in value:
        raise NoJavaWordError(
            "Spark cannot read Kafka with this setting: Java reads keys in PKCS#8 only; openssl pkcs8 -topk8 makes one",
            key=key,
        )
    return {"ssl.keystore.type": "PEM", "ssl.keystore.key": value}


def _key_store(_: str, value: str) -> dict[str, str]:
    return {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": value}


_TRANSLATED: Final[Mapping[str, Callable[[str, str], dict[str, str]]]] = {
    "socket.timeout.ms": _renamed("request.timeout.ms"),
    "ssl.endpoint.identification.algorithm": _endpoint_check,
    "ssl.cipher.suites": _cipher_suites,
    "ssl.ca.location": _trusted_file,
    "ssl.ca.pem": _trusted_text,
    "ssl.certificate.location": _chain_file,
    "ssl.certificate.pem": _chain_text,
    "ssl.key.location": _key_file,
    "ssl.key.pem": _key_text,
    "ssl.key.password": _renamed("ssl.key.password"),
    "ssl.keystore.location": _key_store,
    "ssl.keystore.password": _renamed("ssl.keystore.password"),
    "sasl.oauthbearer.token.endpoint.url": _renamed("sasl.oauthbearer.token.endpoint.url"),
}


def _login(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the line of JAAS, and whose calls it answers."""
    mechanism = settings["sasl.mechanism"]
    if mechanism == "OAUTHBEARER":
        if settings.get("sasl.oauthbearer.method") == "oidc":
            return {
                "sasl.jaas.config": _jaas(f"{_OAUTH}.OAuthBearerLoginModule", _oidc_options(settings)),
                "sasl.login.callback.handler.class": f"{_OAUTH}.OAuthBearerLoginCallbackHandler",
            }
        return {"sasl.jaas.config": _jaas(f"{_OAUTH}.OAuthBearerLoginModule", _unsecured_options(settings))}
    module = f"{_LOGIN}.plain.PlainLoginModule" if mechanism == "PLAIN" else f"{_LOGIN}.scram.ScramLoginModule"
    user = {"username": ("sasl.username", settings["sasl.username"])}
    return {"sasl.jaas.config": _jaas(module, {**user, "password": ("sasl.password", settings["sasl.password"])})}


_JaasOptions = dict[str, tuple[str, str]]
"""A JAAS option's name: the setting that it is from, and its value."""


def _oidc_options(settings: Mapping[str, str]) -> _JaasOptions:
    names = {"clientId": "client.id", "clientSecret": "client.secret", "scope": "scope"}
    keys = {name: f"sasl.oauthbearer.{key}" for name, key in names.items()}
    options = {name: (key, settings[key]) for name, key in keys.items() if key in settings}
    extensions = "sasl.oauthbearer.extensions"
    for name, value in _pairs(settings.get(extensions, ""), extensions, ","):
        options[f"extension_{name}"] = (extensions, value)
    if "https.ca.location" in settings:
        options["ssl.truststore.type"] = ("https.ca.location", "PEM")
        options["ssl.truststore.location"] = ("https.ca.location", settings["https.ca.location"])
    return options


def _unsecured_options(settings: Mapping[str, str]) -> _JaasOptions:
    """Return librdkafka's ``principalClaimName=sub principal=admin scope=a,b lifeSeconds=3600`` in Java's words.

    Source: librdkafka rdkafka_sasl_oauthbearer.c, ``rd_kafka_oauthbearer_unsecured_token0``, and Java's
    ``OAuthBearerUnsecuredLoginCallbackHandler``.
    """
    key = "sasl.oauthbearer.config"
    given = dict(_pairs(settings.get(key, ""), key, None))
    claim = given.pop("principalClaimName", "sub")
    options = {f"unsecuredLoginStringClaim_{claim}": (key, given.pop("principal", ""))}
    if claim != "sub":
        options["unsecuredLoginPrincipalClaimName"] = (key, claim)
    if "lifeSeconds" in given:
        options["unsecuredLoginLifetimeSeconds"] = (key, given.pop("lifeSeconds"))
    if "scope" in given:
        scope_claim = given.pop("scopeClaimName", "scope")
        # The first character of a list's text is what divides it.
        options[f"unsecuredLoginListClaim_{scope_claim}"] = (key, "," + given.pop("scope"))
        if scope_claim != "scope":
            options["unsecuredLoginScopeClaimName"] = (key, scope_claim)
    for name in [name for name in given if name.startswith("extension_")]:
        options[f"unsecuredLoginExtension_{name.removeprefix('extension_')}"] = (key, given.pop(name))
    if given:
        raise NoJavaWordError(
            "Spark cannot read Kafka with this setting: Java knows no such part", key=key, part=sorted(given)[0]
        )
    return options


def _pairs(text: str, key: str, separator: str | None) -> list[tuple[str, str]]:
    pairs = []
    for part in filter(None, (part.strip() for part in text.split(separator))):
        name, equals, value = part.partition("=")
        if not equals or not name.replace("_", "").isalnum():
            raise NoJavaWordError("Spark cannot read Kafka with this setting: it is no list of name=value", key=key)
        pairs.append((name, value))
    return pairs


def _jaas(module: str, options: _JaasOptions) -> str:
    """Return one line of JAAS; values are quoted, so that none of them can add an option or a module.

    Java reads it by a ``StreamTokenizer`` (``JaasConfig``): in quotes only the quote, the backslash and ends of lines
    mean something.
    """
    quoted = []
    for name, (key, value) in options.items():
        if any(ord(character) < 32 or ord(character) == 127 for character in value):
            raise NoJavaWordError("Spark cannot read Kafka with this setting: it has a control character", key=key)
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        quoted.append(f'{name}="{escaped}"')
    return f"{module} required {' '.join(quoted)};"


def spark_address(options: Mapping[str, str]) -> str | None:
    """Return the brokers that :func:`spark_options` name, for an error to say."""
    return options.get("kafka.bootstrap.servers")
