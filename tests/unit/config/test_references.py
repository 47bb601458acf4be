"""Where a reference may stand in place of a secret, and what comes in its place."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.config.changefeed import load_changefeed
from schemas.config.parse.origin import Path
from schemas.config.parse.references import SECRET_URIS, with_secrets, with_stand_ins
from schemas.config.sink.iceberg import ICEBERG_URI_PARAMS
from schemas.config.sink.kafka import URI_PARAMS
from schemas.config.sink.mysql import MYSQL_URI_PARAMS
from schemas.config.sink.storage import STORAGE_URI_PARAMS
from schemas.errors import ConfigError
from schemas.masking import is_secret_name
from tests.support.control.secret_settings import secret_settings

WORD = "p@ss/w:rd?&%#+ é"
REFERENCE = "${env:TIDEBUS_SECRET_X}"
KAFKA = "kafka://h:9092/t?protocol=canal-json"
OAUTH = {
    "sasl-mechanism": "OAUTHBEARER",
    "sasl-oauth-client-id": "c",
    "sasl-oauth-token-url": "https://tokens/t",
    "sasl-oauth-client-secret": REFERENCE,
}


def word(kind: str, name: str) -> str:
    return WORD


def test_settings_that_take_references_are_those_whose_values_nobody_is_shown() -> None:
    secret = set(secret_settings())
    assert {path for path in secret if not is_secret_name(str(path[-1]))} == {
        ("sink", "schema-registry"),
        ("sink", "kafka-config", "large-message-handle", "claim-check-storage-uri"),
        ("consistent", "storage"),
    }
    assert {str(path[-1]) for path in secret if not is_secret_name(str(path[-1]))} == SECRET_URIS
    for params in (URI_PARAMS, MYSQL_URI_PARAMS, STORAGE_URI_PARAMS, ICEBERG_URI_PARAMS):
        takes = {path for name, path in params.items() if is_secret_name(name) or name in SECRET_URIS}
        assert takes <= secret


@pytest.mark.parametrize(
    ("uri", "part"),
    [
        ("kafka://h:9092/%s?protocol=canal-json", "the path"),
        ("kafka://h:9092/a%s?protocol=canal-json", "the path"),
        ("kafka://%s:9092/t?protocol=canal-json", "a host"),
        ("kafka://h:9092,%s/t?protocol=canal-json", "a host"),
        ("%s://h:9092/t?protocol=canal-json", "the scheme"),
        ("%s", "the scheme"),
        (KAFKA + "&kafka-client-id=%s", "the parameter `kafka-client-id`"),
        (KAFKA + "&sasl-user=%s", "the parameter `sasl-user`"),
        (KAFKA + "&ca=%s", "the parameter `ca`"),
        (KAFKA + "&max-message-bytes=%s", "the parameter `max-message-bytes`"),
        (KAFKA + "&unknown=%s", "the parameter `unknown`"),
        (KAFKA + "&%s=x", "a parameter's name"),
        (KAFKA + "&%s", "a parameter's name"),
        (KAFKA + "#sasl-password=%s", "the fragment"),
        (KAFKA + "&sasl-password=%%4%s", "an escape"),
        (KAFKA + "&sasl-password=tidebusreference0end%s", "a text that holds our own mark"),
        (KAFKA + "&schema-registry=http://%s/", "a host of the parameter `schema-registry`"),
        (KAFKA + "&schema-registry=http%%3A%%2F%%2Fu:p@%s%%2F", "a host of the parameter `schema-registry`"),
        (KAFKA + "&schema-registry=http%%3A%%2F%%2Fr%%2F%s%%40x", "the path of the parameter `schema-registry`"),
        ("mysql://root:p@%s:3306/", "a host"),
        ("mysql://%s/", "a host"),
        ("mysql://root:p@h/%s", "the path"),
        ("mysql://root:p@h/?ssl-key=%s", "the parameter `ssl-key`"),
        ("s3://%s/prefix?protocol=csv", "a host"),
        ("s3://bucket/prefix?protocol=csv&endpoint=https://%s", "the parameter `endpoint`"),
        ("iceberg://?warehouse=file:///%s", "the parameter `warehouse`"),
    ],
)
def test_reference_in_a_sink_uri_where_no_secret_belongs_is_refused(uri: str, part: str) -> None:
    with pytest.raises(ConfigError) as refused:
        with_secrets(uri % REFERENCE, {}, word)
    assert refused.value.message.endswith(f"not in {part}")
    assert WORD not in repr(refused.value.fields) and refused.value.fields["key"] == "sink-uri"
    with pytest.raises(ConfigError):
        load_changefeed(uri % REFERENCE)


@pytest.mark.parametrize(
    ("path", "key"),
    [
        (("sink", "dispatchers", 0, "topic"), "sink.dispatchers[0].topic"),
        (("filter", "rules", 1), "filter.rules[1]"),
        (("sink", "kafka-config", "sasl-user"), "sink.kafka-config.sasl-user"),
        (("sink", "kafka-config", "key"), "sink.kafka-config.key"),
        (("sink", "kafka-config", "sasl-oauth-token-url"), "sink.kafka-config.sasl-oauth-token-url"),
        (("sink", "kafka-config", "sasl-password", "inner"), "sink.kafka-config.sasl-password.inner"),
        (("sink", "iceberg-config", "catalog-uri"), "sink.iceberg-config.catalog-uri"),
        (("sink", "schema-registry"), "sink.schema-registry"),
        (("consistent", "storage"), "consistent.storage"),
    ],
)
def test_reference_in_a_setting_where_no_secret_belongs_is_refused_by_its_key(path: Path, key: str) -> None:
    table: Any = f"https://{REFERENCE}/x"
    for part in reversed(path):
        table = {part: table} if isinstance(part, str) else [*["a"] * part, table]
    with pytest.raises(ConfigError) as refused:
        with_secrets(KAFKA, table, word)
    assert refused.value.fields == {"key": key}
    with pytest.raises(ConfigError):
        load_changefeed(KAFKA, table)


def test_refused_reference_of_a_file_names_the_line() -> None:
    text = f'[sink]\ndispatchers = [\n  {{matcher = ["a.*"], topic = "{REFERENCE}"}},\n]\n'
    with pytest.raises(ConfigError) as refused:
        load_changefeed(KAFKA, text, file="cf.toml")
    assert refused.value.fields == {"key": "sink.dispatchers[0].topic", "file": "cf.toml", "line": 3}


@given(secret=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_any_secret_comes_whole_where_its_reference_stands(secret: str) -> None:
    def resolve(kind: str, name: str) -> str:
        return secret

    server = load_changefeed("mysql://${file:a/b?c#d@e}:x${env:A}@h:3306/", resolve=resolve).uri.server
    assert server is not None and (server.user, server.password.reveal()) == (secret, f"x{secret}")
    assert (server.host, server.port) == ("h", 3306)
    storage = load_changefeed("s3://b/p?protocol=csv&secret-access-key=${env:A}", resolve=resolve).uri.storage
    assert storage is not None and (storage.root, storage.options["secret"]) == ("b/p", secret)
    kafka = KAFKA + "&sasl-mechanism=PLAIN&sasl-user=u&sasl-password=${env:A}"
    for uri, table in (
        (kafka, {}),
        (kafka.partition("&sasl-password")[0], {"sink": {"kafka-config": {"sasl-password": REFERENCE}}}),
    ):
        password = load_changefeed(uri, table, resolve=resolve).kafka.sasl_password
        assert password is not None and password.reveal() == secret


@pytest.mark.parametrize("escape", [str, lambda uri: uri.replace(":", "%3A").replace("/", "%2F").replace("@", "%40")])
def test_secret_in_a_uri_that_is_a_parameter_stays_in_its_place(escape: Any) -> None:
    registry = escape("http://u:@@@r:8081/x").replace("%40%40", "@@").replace("@@", REFERENCE, 1)
    config = load_changefeed(f"kafka://h/t?protocol=avro&schema-registry={registry}", resolve=word)
    shown = "http://u:p%40ss%2Fw%3Ard%3F%26%25%23%2B%20%C3%A9@r:8081/x"
    assert config.sink.schema_registry is not None and config.sink.schema_registry.reveal() == shown
    in_file = with_secrets(KAFKA, {"sink": {"schema-registry": f"http://u:{REFERENCE}@r:8081/x"}}, word)[1]
    assert in_file == {"sink": {"schema-registry": shown}}


def test_stand_in_passes_wherever_a_secret_may_stand() -> None:
    load_changefeed(KAFKA, {"sink": {"kafka-config": OAUTH}})
    load_changefeed(f"azure://c/p?protocol=csv&account-name=a&account-key={REFERENCE}&encryption-key={REFERENCE}")
    assert with_stand_ins("kafka://h/t?a=$%7Benv:X%7D", {"a": "${vault:X}"}) == (
        "kafka://h/t?a=$%7Benv:X%7D",
        {"a": "${vault:X}"},
    )


@pytest.mark.parametrize(
    ("uri", "config"),
    [
        (KAFKA, OAUTH),
        (f"azure://c/p?protocol=csv&account-name=a&account-key={REFERENCE}&encryption-key={REFERENCE}", {}),
    ],
)
def test_secret_that_its_place_does_not_take_is_in_no_error(uri: str, config: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        load_changefeed(uri, {"sink": {"kafka-config": config}}, resolve=word)
    error = refused.value
    assert error.message == "a secret that a reference stands for is not allowed in its place"
    assert set(error.fields) <= {"key", "where"} and WORD not in str(error)
    assert error.__cause__ is None and error.__context__ is None, "the error that was made of it goes nowhere"


def test_user_by_reference_is_hidden_and_another_is_not() -> None:
    by_reference = load_changefeed(f"mysql://{REFERENCE}:p@h/", resolve=lambda kind, name: "prod-user")
    by_name = load_changefeed(f"mysql://prod-user:{REFERENCE}@h/", resolve=word)
    assert by_reference.uri.server is not None and by_name.uri.server is not None
    assert (by_reference.uri.server.hides_user, by_name.uri.server.hides_user) == (True, False)
    assert "prod-user" not in repr(by_reference)
