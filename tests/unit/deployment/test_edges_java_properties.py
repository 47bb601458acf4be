"""The table from librdkafka's settings to those of Java's client, for Spark's own source."""

from pathlib import Path

import pytest

from edges.kafka.access import KafkaAccess, check_settings
from edges.kafka.java_properties import NoJavaWordError, java_properties, spark_options
from edges.kafka.settings import KAFKA_KEYS
from schemas.errors import ConfigError

OAUTH_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
KEY = "-----BEGIN PRIVATE KEY-----\nMC4=\n-----END PRIVATE KEY-----\n"
CHAIN = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
PLAIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}


def java(settings: dict[str, str]) -> dict[str, str]:
    """Translate settings that ``--kafka-config`` would take, without the servers and what says the same in both."""
    out = java_properties(KafkaAccess("h:1", check_settings(settings)))
    assert out.pop("bootstrap.servers") == "h:1"
    return {key: value for key, value in out.items() if key not in ("security.protocol", "sasl.mechanism")}


def test_without_settings_only_the_servers_are_named() -> None:
    assert spark_options(KafkaAccess("h:1,h:2")) == {"kafka.bootstrap.servers": "h:1,h:2"}


def test_settings_of_one_name_are_handed_on() -> None:
    settings = {
        "client.id": "bus",
        "connections.max.idle.ms": "5",
        "socket.timeout.ms": "7",
        "reconnect.backoff.ms": "9",
    }
    assert java(settings) == {
        "client.id": "bus",
        "connections.max.idle.ms": "5",
        "request.timeout.ms": "7",
        "reconnect.backoff.ms": "9",
    }


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "org.apache.kafka.common.security.plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "org.apache.kafka.common.security.scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "org.apache.kafka.common.security.scram.ScramLoginModule"),
    ],
)
def test_users_become_a_line_of_jaas(mechanism: str, module: str) -> None:
    assert spark_options(KafkaAccess("h:1", {**PLAIN, "sasl.mechanism": mechanism})) == {
        "kafka.bootstrap.servers": "h:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f'{module} required username="u" password="p";',
    }


def test_password_cannot_add_to_the_line_of_jaas() -> None:
    line = java({**PLAIN, "sasl.password": 'a\\"; evil.Module required x="1'})["sasl.jaas.config"]
    assert line.endswith(r'password="a\\\"; evil.Module required x=\"1";')
    with pytest.raises(NoJavaWordError) as refused:
        java({**PLAIN, "sasl.username": "a\x1fb"})
    assert refused.value.fields["key"] == "sasl.username"


def test_pem_files_become_texts(tmp_path: Path) -> None:
    for name, text in (("ca", "CA"), ("cert", CHAIN), ("key", KEY)):
        (tmp_path / name).write_text(text)
    expected = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "CA",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": CHAIN,
        "ssl.keystore.key": KEY,
        "ssl.key.password": "pw",
    }
    files = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(tmp_path / "ca"),
        "ssl.certificate.location": str(tmp_path / "cert"),
        "ssl.key.location": str(tmp_path / "key"),
        "ssl.key.password": "pw",
    }
    assert java(files) == expected
    access = KafkaAccess("h:1", files).with_texts()
    assert java(dict(access.settings)) == expected


def test_key_store_of_pkcs12_is_named() -> None:
    settings = {"security.protocol": "SSL", "ssl.keystore.location": "/k.p12", "ssl.keystore.password": "pw"}
    assert java(settings) == {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": "/k.p12",
        "ssl.keystore.password": "pw",
    }


def test_unchecked_host_names_and_tls_13_suites_have_words() -> None:
    settings = {"ssl.endpoint.identification.algorithm": "none", "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}
    assert java({"security.protocol": "SSL", **settings}) == {
        "ssl.endpoint.identification.algorithm": "",
        "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384",
    }


def test_client_credentials_become_a_login_of_java() -> None:
    settings = {
        **OAUTH,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "bus",
        "sasl.oauthbearer.client.secret": "s",
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=p",
        "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
        "https.ca.location": "/idp.pem",
    }
    assert java(settings) == {
        "sasl.jaas.config": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'clientId="bus" clientSecret="s" scope="kafka" extension_logicalCluster="lkc-1" '
            'extension_identityPoolId="p" ssl.truststore.type="PEM" ssl.truststore.location="/idp.pem";'
        ),
        "sasl.login.callback.handler.class": f"{OAUTH_PACKAGE}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
    }


def test_unsecured_tokens_become_claims() -> None:
    settings = {
        **OAUTH,
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": "principal=bus scope=a,b lifeSeconds=60 extension_t=x",
    }
    assert java(settings) == {
        "sasl.jaas.config": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="bus" unsecuredLoginLifetimeSeconds="60" '
            'unsecuredLoginListClaim_scope=",a,b" unsecuredLoginExtension_t="x";'
        )
    }


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"enable.ssl.certificate.verification": "false"}, "enable.ssl.certificate.verification"),
        ({"ssl.curves.list": "P-256"}, "ssl.curves.list"),
        ({"ssl.sigalgs.list": "ECDSA+SHA256"}, "ssl.sigalgs.list"),
        ({"ssl.crl.location": "/crl"}, "ssl.crl.location"),
        ({"ssl.cipher.suites": "ECDHE-RSA-AES128-GCM-SHA256"}, "ssl.cipher.suites"),
        ({"broker.address.family": "v6"}, "broker.address.family"),
        ({"socket.keepalive.enable": "false"}, "socket.keepalive.enable"),
        ({"ssl.certificate.pem": CHAIN, "ssl.key.pem": "-----BEGIN RSA PRIVATE KEY-----"}, "ssl.key.pem"),
        ({"ssl.ca.location": "/"}, "ssl.ca.location"),
    ],
)
def test_setting_that_java_has_no_word_for_is_refused_by_name(settings: dict[str, str], key: str) -> None:
    with pytest.raises(NoJavaWordError, match="Spark cannot read Kafka with this setting: ") as refused:
        java({"security.protocol": "SSL", **settings})
    assert refused.value.fields["key"] == key


def test_values_that_say_what_java_does_anyway_are_taken() -> None:
    settings = {
        "security.protocol": "SSL",
        "enable.ssl.certificate.verification": "true",
        "broker.address.family": "any",
        "socket.keepalive.enable": "true",
    }
    assert java(settings) == {}


def test_unknown_part_of_an_unsecured_token_is_refused() -> None:
    settings = {**OAUTH, "enable.sasl.oauthbearer.unsecure.jwt": "true", "sasl.oauthbearer.config": "principal=a b=c"}
    with pytest.raises(NoJavaWordError) as refused:
        java(settings)
    assert refused.value.fields["part"] == "b"


def around(key: str) -> dict[str, str]:
    """Return settings among which ``key`` means something, without it."""
    oidc = {"method": "oidc", "client.id": "i", "client.secret": "s", "token.endpoint.url": "https://h"}
    if key == "sasl.oauthbearer.config":
        return OAUTH
    if key == "https.ca.location" or "oauthbearer" in key:
        settings = {**OAUTH, **{f"sasl.oauthbearer.{name}": value for name, value in oidc.items()}}
    else:
        settings = {} if key in PLAIN else dict(PLAIN)
    settings.pop(key, None)
    return settings


WORDLESS = {"enable.sasl.oauthbearer.unsecure.jwt"}
"""librdkafka makes unsecured tokens where this allows it, Java where it is told no other way."""
VALUES = {**PLAIN, "sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.config": "principal=a", "ssl.key.pem": KEY}


@pytest.mark.parametrize("key", sorted(KAFKA_KEYS.allowed - WORDLESS - {"bootstrap.servers", "sasl.mechanisms"}))
def test_each_key_is_translated_or_refused_by_its_name(key: str) -> None:
    """No setting is dropped without a word: each changes what Java is told, or is refused."""
    others = around(key)
    value = VALUES.get(key, "/none" if key.endswith("location") else "a=b" if "extensions" in key else "false")
    given = {**PLAIN, key: value} if key in PLAIN else {**others, key: value}
    try:
        after = java_properties(KafkaAccess("h:1", given))
    except ConfigError as error:
        assert error.fields["key"] == key
    else:
        assert after != java_properties(KafkaAccess("h:1", others))


def test_batches_are_checked_by_javas_client_under_the_same_name() -> None:
    assert spark_options(KafkaAccess("h:1").checking_batches()) == {
        "kafka.bootstrap.servers": "h:1",
        "kafka.check.crcs": "true",
    }
