"""What a REST catalog is asked with: OAuth2 by Iceberg's own names, and shown to nobody."""

import re

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.config.lake_rules import catalog_options
from schemas.errors import ConfigError
from schemas.masking import mask_uri
from sorters.spark.session import SHOWN_AS_STARS

REST = "iceberg://?catalog=rest&catalog-uri=http://h"
OAUTH = "catalog-user=bus&catalog-password=oauth-secret"


def test_client_of_oauth2_is_icebergs_credential_with_its_server_and_scope() -> None:
    server = "catalog-oauth2-server-uri=https://id/token&catalog-scope=lake%20write"
    config = load_changefeed(f"{REST}&{OAUTH}&{server}", None)
    assert catalog_options(config) == {
        "type": "rest",
        "uri": "http://h",
        "credential": "bus:oauth-secret",
        "oauth2-server-uri": "https://id/token",
        "scope": "lake write",
    }


def test_token_that_is_given_is_icebergs() -> None:
    uri = f"{REST}&catalog-token=bearer-of-old"
    config = load_changefeed(uri, None)
    assert catalog_options(config) == {"type": "rest", "uri": "http://h", "token": "bearer-of-old"}
    assert "bearer-of-old" not in repr(config) and "bearer-of-old" not in mask_uri(uri)


@pytest.mark.parametrize(
    ("more", "key", "said"),
    [
        (f"&{OAUTH}&catalog-token=bearer-of-old", "catalog-token", "instead of"),
        ("&catalog-oauth2-server-uri=http://id", "catalog-oauth2-server-uri", "needs catalog-password"),
        ("&catalog-scope=lake", "catalog-scope", "needs catalog-password"),
        (f"&{OAUTH}&catalog-oauth2-server-uri=id", "catalog-oauth2-server-uri", "must begin with http:// or https://"),
        (f"&{OAUTH}&catalog-oauth2-server-uri=http://u:oauth-word@id", "catalog-oauth2-server-uri", "no password"),
    ],
)
def test_oauth2_that_cannot_be_is_refused_without_its_secret(more: str, key: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        load_changefeed(f"{REST}{more}", None)
    assert str(raised.value.fields["key"]).endswith(key)
    assert not any(secret in str(raised.value) for secret in ("oauth-secret", "bearer-of-old", "oauth-word"))


@pytest.mark.parametrize("key", ["catalog-token", "catalog-oauth2-server-uri", "catalog-scope"])
def test_oauth2_is_of_rest_alone(key: str) -> None:
    for catalog in ("", "&catalog=jdbc&catalog-uri=jdbc:sqlite:/x.db"):
        with pytest.raises(ConfigError, match="catalog=rest"):
            load_changefeed(f"iceberg://?warehouse=file:///w{catalog}&{key}=http://x", None)


@pytest.mark.parametrize(
    "name", ["credential", "token", "jdbc.password", "s3.access-key-id", "s3.secret-access-key", "header.Authorization"]
)
def test_spark_shows_no_secret_of_a_catalog(name: str) -> None:
    assert re.search(SHOWN_AS_STARS, f"spark.sql.catalog.lake.{name}")


def test_spark_shows_what_is_no_secret() -> None:
    for name in ("spark.sql.catalog.lake.uri", "spark.sql.catalog.lake.oauth2-server-uri", "spark.master"):
        assert not re.search(SHOWN_AS_STARS, name)
