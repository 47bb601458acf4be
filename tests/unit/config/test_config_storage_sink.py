"""Storage sinks' URIs and settings, and what their sorters are told."""

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.errors import ConfigError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.topic import has_processors, sink_topic, sorter_config
from sorters.core.encode.storage.csv_lines import CsvLines
from sorters.core.encode.storage.rows import CanalJsonLines, StorageEncoder
from sorters.core.feed.feed import compile_feed

FILE = "file:///data/out?protocol=csv"


def info_of(uri: str) -> ChangefeedInfo:
    return ChangefeedInfo(
        namespace="default",
        changefeed_id="a",
        upstream=UpstreamId("u"),
        sink_uri=uri,
        start_ts=Ts(77),
        create_time="now",
    )


def test_storage_uri_gives_the_storage_its_parameters_and_the_sink_its_own() -> None:
    uri = "s3://bucket/prefix?protocol=canal-json&flush-interval=10s&file-size=1048576&endpoint=http://127.0.0.1:9&access-key=me"
    config = load_changefeed(uri)
    assert config.uri.storage is not None
    assert (config.uri.storage.protocol, config.uri.storage.root) == ("s3", "bucket/prefix")
    assert config.uri.storage.options["endpoint_url"] == "http://127.0.0.1:9"
    assert config.protocol == "canal-json"
    assert config.sink.cloud_storage.file_size_bytes == 1 << 20
    assert float(config.sink.cloud_storage.flush_interval_s) == 10
    assert has_processors(uri)


@pytest.mark.parametrize(
    ("uri", "text", "message"),
    [
        ("file:///x", "", "a storage sink writes csv or canal-json"),
        ("file:///x?protocol=avro", "", "a storage sink writes csv or canal-json"),
        ("file://relative?protocol=csv", "", "an absolute path"),
        ("s3://b?protocol=csv&external-id=1", "", "external-id without role-arn"),
        (FILE, "[sink.csv]\ndelimiter = 'abcd'", "one to three characters"),
        (FILE, "[sink.cloud-storage-config]\nfile-cleanup-cron-spec = '0 0 2'", "six fields"),
        (FILE, "[sink.csv]\nquote = 'ab'", "one character, or none"),
        (FILE, "[sink]\ntransaction-atomicity = 'table'", "for database sinks"),
    ],
)
def test_settings_that_do_not_fit_a_storage_are_refused(uri: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_changefeed(uri, text)


def test_storage_sorter_writes_lines_to_a_topic_of_its_own() -> None:
    text = "[sink.csv]\ndelimiter = ';'\n[sink]\nterminator = \"\\n\"\n[[sink.dispatchers]]\nmatcher=['*.*']\ntopic='x'"
    config = sorter_config(load_changefeed(FILE, text), info_of(FILE), "k:1")
    feed = compile_feed(config, "default")
    assert feed.topic("d", "t") == sink_topic(info_of(FILE))
    assert config.uri.bootstrap_servers == "k:1"
    encoder = feed.encoder
    assert isinstance(encoder, StorageEncoder)
    assert encoder.start_ts == 77
    assert isinstance(encoder.format, CsvLines)
    assert (encoder.format.form.delimiter, encoder.format.terminator) == (";", "\n")
    assert feed.bootstraps is not None
    json_uri = "file:///x?protocol=canal-json&enable-tidb-extension=true"
    other = compile_feed(sorter_config(load_changefeed(json_uri), info_of(json_uri), "k:1"), "default").encoder
    assert isinstance(other, StorageEncoder)
    assert isinstance(other.format, CanalJsonLines)
    assert other.format.encoder.enable_tidb_extension


@pytest.mark.parametrize("uri", [FILE, "mysql://root@h/"])
def test_sorter_before_a_processor_keeps_names_and_no_topics_of_dispatchers(uri: str) -> None:
    text = "[[sink.dispatchers]]\nmatcher = ['d.*']\ntopic = 'x'\npartition = 'ts'\ntarget-schema = 'e'\n"
    text += "[[filter.event-filters]]\nmatcher = ['*.*']\nignore-update-only-columns = ['a']"
    feed = compile_feed(sorter_config(load_changefeed(uri, text), info_of(uri), "k:1"), "default")
    assert feed.routes.name("d", "t") == ("e", "t")
    rule = feed.dispatcher.rule_for("d", "t")
    assert (feed.topic("d", "t"), rule.partition.value) == (sink_topic(info_of(uri)), "table")
    assert not feed.update_columns.concern("d", "t")  # of Kafka sinks alone
