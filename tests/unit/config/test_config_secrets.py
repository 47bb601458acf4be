"""Secrets of the sink URI and the changefeed file stand in no repr, no error and no text for people."""

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.config.settings import ChangefeedConfig
from schemas.errors import ConfigError
from tests.support.control.changefeed_config import AVRO, CANAL, FULL

SECRET_FILE = (
    FULL
    + """
[consistent]
level = "sometimes"
storage = "s3://hidden-word@b"
"""
)


def test_config_with_secrets_shows_none_of_them() -> None:
    uri = "kafka://h:1/t?protocol=avro&schema-registry=http://u:hidden-word@r&sasl-mechanism=PLAIN"
    config = load_changefeed(uri + "&sasl-user=u&sasl-password=hidden-word")
    for shown in (repr(config), str(config), f"{config.kafka.sasl_password}", f"{config.sink.schema_registry:>5}"):
        assert "hidden-word" not in shown
    assert "http://***@r" in repr(config)
    assert config.sink.schema_registry is not None
    assert config.sink.schema_registry.reveal() == "http://u:hidden-word@r"


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("kafka://u:hidden-word@h:9092/t?protocol=canal-json", ""),
        (CANAL + "&sasl-user=u&sasl-password=hidden-word", ""),
        (CANAL + "&sasl-password=hidden-word&sasl-password=hidden-word", ""),
        (CANAL + "&sasl-password=hidden-word%zz", ""),
        (CANAL, "[sink.kafka-config]\nsasl-password = ['hidden-word']"),
        (AVRO.replace("http://", "ftp://u:hidden-word@"), ""),
        (CANAL, SECRET_FILE),
        ("u:hidden-word@h", ""),
        ("mysql://root:hidden-word@h:3306/?worker-count=x", ""),
        ("mysql://root:hidden/word@h:3306/", ""),
    ],
)
def test_load_changefeed_error_holds_no_secret(uri: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_changefeed(uri, text)
    assert "hidden-word" not in str(caught.value)
    assert "hidden-word" not in repr(caught.value)
    assert "hidden-word" not in repr(caught.value.fields)


@pytest.mark.parametrize("query", ["&sasl-pasword=hidden-word", "&part-of&hidden-word"])
def test_load_changefeed_note_of_an_unread_parameter_holds_no_secret(query: str) -> None:
    notes = " ".join(load_changefeed(CANAL + query).notes)
    assert "nobody reads" in notes and "hidden-word" not in notes


def test_changefeed_config_is_frozen() -> None:
    config = load_changefeed(CANAL)
    with pytest.raises(AttributeError):
        config.case_sensitive = True  # type: ignore[misc]
    assert isinstance(config, ChangefeedConfig)
