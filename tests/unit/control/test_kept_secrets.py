"""Which changes would send stored secrets elsewhere, and which leave them where they go."""

from typing import Any

import pytest

from consumers.control.core.changefeeds.kept_secrets import (
    SECRET_GROUPS,
    FeedSettings,
    misdirected,
    secret_paths,
    value_at,
)
from schemas.config.changefeed import load_changefeed
from schemas.errors import ConfigError
from schemas.masking import is_secret_name
from tests.support.control.secret_settings import secret_settings

KAFKA = "kafka://a:9092,b:9092/t?protocol=canal-json"
SASL = {"sasl-user": "u", "sasl-password": "hidden", "sasl-mechanism": "PLAIN"}
OAUTH = {
    "sasl-mechanism": "OAUTHBEARER",
    "sasl-oauth-client-id": "c",
    "sasl-oauth-client-secret": "aGlkZGVu",
    "sasl-oauth-token-url": "https://tokens/t",
}
LAKE = "iceberg://?mode=upsert"
REST = {
    "catalog": "rest",
    "catalog-uri": "https://catalog/",
    "catalog-user": "c",
    "catalog-password": "hidden",
    "catalog-oauth2-server-uri": "https://tokens/t",
}
BUCKET = {
    "catalog": "jdbc",
    "catalog-uri": "jdbc:postgresql://db/lake",
    "catalog-password": "hidden",
    "warehouse": "s3://bucket/prefix",
    "s3-endpoint": "https://store",
    "s3-region": "r",
    "s3-access-key": "hidden",
    "s3-secret-access-key": "hidden",
}


def settings(uri: str, table: dict[str, Any]) -> FeedSettings:
    try:
        return FeedSettings(sink_uri=uri, table=table, config=load_changefeed(uri, table))
    except ConfigError:
        return FeedSettings(sink_uri=uri, table=table, config=None)


def kafka(**more: Any) -> dict[str, Any]:
    return {"sink": {"kafka-config": {**SASL, **{key.replace("_", "-"): value for key, value in more.items()}}}}


def oauth(**more: Any) -> dict[str, Any]:
    return {"sink": {"kafka-config": {**OAUTH, **{key.replace("_", "-"): value for key, value in more.items()}}}}


def lake(base: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"sink": {"iceberg-config": {**base, **{key.replace("_", "-"): value for key, value in more.items()}}}}


def judged(before: FeedSettings, after: FeedSettings, *, keeps_uri: bool) -> tuple[Any, Any] | None:
    wrong = misdirected(before, after, list(secret_paths(after.table)), keeps_uri=keeps_uri)
    return None if wrong is None else (wrong.secrets, wrong.by)


def test_each_setting_that_holds_a_secret_is_of_a_group_or_says_itself_where_it_goes() -> None:
    named = {path for path in secret_settings() if is_secret_name(str(path[-1]))}
    assert named == {path for group in SECRET_GROUPS for path in group.secrets}


@pytest.mark.parametrize(
    ("uri", "by"),
    [
        ("kafka://evil:9092/t?protocol=canal-json", "sink-uri"),
        (KAFKA.replace("b:9092", "evil:9092"), "sink-uri"),
        (KAFKA.replace("b:9092", "b:9093"), "sink-uri"),
        (KAFKA.replace("kafka://", "kafka+ssl://"), "sink-uri, sink.kafka-config.enable-tls"),
        (KAFKA + "&enable-tls=true", "sink.kafka-config.enable-tls"),
        (KAFKA + "&sasl-mechanism=SCRAM-SHA-256", "sink.kafka-config.sasl-mechanism"),
        # A password of its own makes the stored one useless for now; the next change would use it.
        ("kafka://evil:9092/t?protocol=canal-json&sasl-password=mine", "sink-uri"),
        ("blackhole://", "sink-uri"),
        ("s3://b/p?protocol=csv", "sink-uri"),
    ],
)
def test_another_sink_uri_does_not_take_the_files_secrets_with_it(uri: str, by: str) -> None:
    before, after = settings(KAFKA, kafka()), settings(uri, kafka())
    assert after.config is not None or "s3://" in uri
    wrong = judged(before, after, keeps_uri=False)
    assert wrong == (("sink.kafka-config.sasl-password",), tuple(by.split(", ")))
    assert misdirected(before, after, (), keeps_uri=False) is None, "given again"


@pytest.mark.parametrize(
    ("before", "after", "by"),
    [
        (kafka(ca="/a", cert="/c", key="/k"), kafka(ca="/evil", cert="/c", key="/k"), "ca"),
        (kafka(enable_tls=True), kafka(enable_tls=True, insecure_skip_verify=True), "insecure-skip-verify"),
        (kafka(enable_tls=True), kafka(), "enable-tls"),
        (kafka(), kafka(sasl_mechanism="SCRAM-SHA-512"), "sasl-mechanism"),
        (oauth(), oauth(sasl_oauth_token_url="https://evil/t"), "sasl-oauth-token-url"),
    ],
)
def test_other_settings_of_kafka_do_not_take_secrets_with_them(before: Any, after: Any, by: str) -> None:
    in_file = judged(settings(KAFKA, before), settings(KAFKA, after), keeps_uri=True)
    assert in_file is not None and in_file[1] == (f"sink.kafka-config.{by}",)
    # The same with the password in the sink URI, which nobody sends.
    uri = KAFKA + "&sasl-user=u&sasl-password=hidden"
    assert misdirected(settings(uri, before), settings(uri, after), (), keeps_uri=False) is None
    wrong = misdirected(settings(uri, before), settings(uri, after), (), keeps_uri=True)
    assert wrong is not None and wrong.secrets == ("sink-uri",)


@pytest.mark.parametrize(
    ("before", "after", "secrets", "by"),
    [
        (REST, {"catalog-uri": "https://evil/"}, "catalog-password", "catalog-uri"),
        (REST, {"catalog-oauth2-server-uri": "https://evil/"}, "catalog-password", "catalog-oauth2-server-uri"),
        (BUCKET, {"s3-endpoint": "https://evil"}, "s3-access-key s3-secret-access-key", "s3-endpoint"),
        (BUCKET, {"s3-region": "x"}, "s3-access-key s3-secret-access-key", "s3-region"),
        (BUCKET, {"warehouse": "s3://evil/prefix"}, "s3-access-key s3-secret-access-key", "warehouse"),
        (
            BUCKET,
            {"catalog": "rest", "catalog-uri": "https://evil/"},
            "catalog-password s3-access-key s3-secret-access-key",
            "catalog catalog-uri",
        ),
    ],
)
def test_another_catalog_or_store_does_not_take_secrets_of_a_lake_with_it(
    before: dict[str, str], after: dict[str, str], secrets: str, by: str
) -> None:
    path = "sink.iceberg-config."
    new = settings(LAKE, lake({**before, **after}))
    assert new.config is not None
    assert judged(settings(LAKE, lake(before)), new, keeps_uri=True) == (
        tuple(path + name for name in secrets.split()),
        tuple(path + name for name in by.split()),
    )
    given = LAKE + "".join(f"&{name}={value}" for name, value in before.items())
    wrong = misdirected(settings(given, {}), settings(given, lake(after)), (), keeps_uri=True)
    assert wrong is None, "the URI's own parameters count"


def test_database_password_stays_with_the_authority_that_proves_its_server() -> None:
    uri = "mysql+ssl://root:hidden@h:3306/"
    before = {"sink": {"mysql-config": {"ssl-ca": "/ca"}}}
    for after in ({}, {"sink": {"mysql-config": {"ssl-ca": "/evil"}}}):
        wrong = misdirected(settings(uri, before), settings(uri, after), (), keeps_uri=True)
        assert wrong is not None and wrong.by == ("sink.mysql-config.ssl-ca",)
    leave = {"sink": {"mysql-config": {"ssl-ca": "/ca", "allow-public-key-retrieval": True}}}
    wrong = misdirected(settings(uri, before), settings(uri, leave), (), keeps_uri=True)
    assert wrong is not None and wrong.by == ("sink.mysql-config.allow-public-key-retrieval",)
    more = {"sink": {"mysql-config": {"ssl-ca": "/ca", "worker-count": 3}}, "filter": {"rules": ["a.*"]}}
    assert misdirected(settings(uri, before), settings(uri, more), (), keeps_uri=True) is None


@pytest.mark.parametrize(
    ("uri", "table"),
    [
        (KAFKA, {**kafka(), "filter": {"rules": ["b.*"]}, "case-sensitive": True}),
        (KAFKA + "&max-message-bytes=1000&compression=zstd", kafka()),
        ("kafka://b:9092,a:9092/other?protocol=simple", kafka()),
        (KAFKA + "&sasl-mechanism=plain&enable-tls=false", kafka(insecure_skip_verify=False)),
        (KAFKA, kafka(sasl_user="other", sasl_password="given")),
    ],
)
def test_change_that_leaves_where_secrets_go_keeps_them(uri: str, table: dict[str, Any]) -> None:
    before, after = settings(KAFKA, kafka()), settings(uri, table)
    assert after.config is not None
    assert judged(before, after, keeps_uri=False) is None
    assert judged(before, after, keeps_uri=True) is None


def test_uri_of_a_setting_says_itself_where_its_secrets_go() -> None:
    registry = {"sink": {"schema-registry": "http://u:hidden@r"}, "consistent": {"storage": "s3://b?secret=hidden"}}
    before, after = settings("kafka://a/t?protocol=avro", registry), settings("kafka://b/t?protocol=avro", registry)
    assert list(secret_paths(registry)) == [("sink", "schema-registry"), ("consistent", "storage")]
    assert before.config is not None and judged(before, after, keeps_uri=False) is None


def test_secret_of_an_unknown_setting_stays_with_the_sink() -> None:
    before, after = settings(KAFKA, kafka()), settings(KAFKA.replace("a:", "evil:"), kafka())
    path = ("sink", "some-config", "some-token")
    wrong = misdirected(before, after, [path], keeps_uri=False)
    assert wrong is not None and wrong.secrets == ("sink.some-config.some-token",)
    assert misdirected(before, before, [path], keeps_uri=False) is None


def test_settings_that_are_not_allowed_any_more_are_compared_as_they_are_written() -> None:
    stored = settings(KAFKA, {**kafka(), "no-such-key": 1})
    assert stored.config is None
    assert judged(stored, settings(KAFKA, kafka()), keeps_uri=True) is None
    wrong = judged(stored, settings(KAFKA, kafka(sasl_mechanism="SCRAM-SHA-256")), keeps_uri=True)
    assert wrong == (("sink.kafka-config.sasl-password",), ("sink.kafka-config.sasl-mechanism",))
    wrong = judged(stored, settings(KAFKA.replace("a:", "evil:"), kafka()), keeps_uri=False)
    assert wrong == (("sink.kafka-config.sasl-password",), ("sink-uri",))


def test_value_at_a_path_that_is_not_there_is_none() -> None:
    assert value_at({"a": {"b": 1}}, ("a", "b")) == 1
    assert value_at({"a": {"b": 1}}, ("a", "b", "c")) is None and value_at({}, ("a",)) is None
