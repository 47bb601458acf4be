"""Sink URIs and refusals, for the tests of the changefeed's settings."""

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.errors import Action, ConfigError

CANAL = "kafka://127.0.0.1:9092/topic-a?protocol=canal-json"
AVRO = "kafka://h:9092/topic-a?protocol=avro&schema-registry=http://r:8081"
FULL = """
case-sensitive = true
force-replicate = true
[filter]
rules = ['*.*', '!test.*']
ignore-txn-start-ts = [1, 470615985131618305]
[sink]
dispatchers = [
  {matcher = ['test1.*', 'test2.*'], topic = "Topic-expression-1", partition = "ts"},
  {matcher = ['test3.*'], topic = "t_{schema}_{table}", partition = "index-value", index = "uk1"},
  {matcher = ['test6.*'], partition = "columns", columns = ["a", "b"]},
]
[sink.kafka-config]
sasl-mechanism = "plain"
sasl-user = "u"
sasl-password = "hidden-word"
dial-timeout = "1500ms"
output-raw-change-event = true
"""
"""A file with a setting of most kinds."""


def refused(uri: str, text: str = "", kind: type[ConfigError] = ConfigError) -> ConfigError:
    """Return the error with which a sink URI and a file's text are refused."""
    with pytest.raises(kind) as caught:
        load_changefeed(uri, text, file="feed.toml")
    assert type(caught.value) is kind
    assert caught.value.action is Action.STOP_CHANGEFEED
    return caught.value
