"""Settings of TiCDC that do nothing here yet, or less than they say: refused by their own code, or noted."""

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.config.parse.origin import NotSupportedYetError
from schemas.errors import ConfigError
from tests.support.control.changefeed_config import AVRO, CANAL, refused

FILES = "file:///data/out?protocol=csv"
LARGE = "[sink.kafka-config.large-message-handle]\n"


@pytest.mark.parametrize(
    ("uri", "text", "key"),
    [
        (CANAL.replace("canal-json", "maxwell"), "", "sink.protocol"),
        (CANAL, "enable-sync-point = true", "enable-sync-point"),
        (
            CANAL,
            "sql-mode = ''\n[[filter.event-filters]]\nmatcher = ['*.*']\nignore-insert-value-expr = 'a = 1'",
            "sql-mode",
        ),
        ("mysql://u@h:1/", "enable-active-active = true", "enable-active-active"),
        (CANAL, "[sink.pulsar-config]\nx = 1", "sink.pulsar-config"),
        (CANAL + "&sasl-gssapi-auth-type=USER", "", "sink.kafka-config.sasl-gssapi-auth-type"),
        (CANAL, "[sink.kafka-config]\nsasl-gssapi-password = 'x'", "sink.kafka-config.sasl-gssapi-password"),
        (CANAL, "[sink.kafka-config]\nsasl-oauth-audience = 'x'", "sink.kafka-config.sasl-oauth-audience"),
        (
            CANAL,
            "[sink.kafka-config]\nsasl-oauth-grant-type = 'password'",
            "sink.kafka-config.sasl-oauth-grant-type",
        ),
    ],
)
def test_load_changefeed_setting_without_effect_yet_is_refused_by_its_own_code(uri: str, text: str, key: str) -> None:
    error = refused(uri, text, NotSupportedYetError)
    assert error.code == "config.not_supported_yet"
    assert error.fields["key"] == key
    assert "is not supported yet" in error.message


@pytest.mark.parametrize("uri", ["pulsar://h/t", "noop:///x"])
def test_load_changefeed_other_sink_of_ticdc_is_refused_by_its_own_code(uri: str) -> None:
    error = refused(uri, "", NotSupportedYetError)
    assert f"sink scheme `{uri.partition(':')[0]}` is not supported yet" in error.message


@pytest.mark.parametrize(
    ("uri", "more", "what"),
    [
        (CANAL, "", "for storage sinks"),
        ("blackhole:///?protocol=csv", "", "for storage sinks"),
        (FILES, "[consistent]\nlevel = 'eventual'\nstorage = 's3://b/p'", "excludes a redo log"),
    ],
)
def test_load_changefeed_active_active_where_ticdc_refuses_it_is_refused(uri: str, more: str, what: str) -> None:
    error = refused(uri, f"enable-active-active = true\n{more}", ConfigError)
    assert (error.code, error.fields["key"]) == ("bus.config", "enable-active-active")
    assert what in error.message


def test_load_changefeed_active_active_intervals_of_database_sinks_are_noted_and_checked() -> None:
    text = (
        "enable-active-active = true\nactive-active-progress-interval = '{}'\nactive-active-sync-stats-interval = '0s'"
    )
    config = load_changefeed(FILES, text.format("1h"))
    assert config.enable_active_active
    named = [note.partition(" ")[0] for note in config.notes]
    assert named == ["active-active-progress-interval", "active-active-sync-stats-interval"]
    assert refused(FILES, text.format("0s"), ConfigError).fields["key"] == "active-active-progress-interval"


@pytest.mark.parametrize(
    "text",
    [
        "enable-sync-point = false\nsync-point-interval = '600s'\nbdr-mode = false",
        "[consistent]\nlevel = 'none'",
        "[sink.csv]\ndelimiter = ','",
        "[sink.mysql-config]",
        "[sink]\ncolumn-selectors = []",
    ],
)
def test_load_changefeed_setting_at_its_default_passes(text: str) -> None:
    assert load_changefeed(CANAL, text) == load_changefeed(CANAL)


@pytest.mark.parametrize("uri", [CANAL, FILES, "mysql://root@h:3306/"])
def test_load_changefeed_takes_images_into_every_sink_but_lakes(uri: str) -> None:
    rules = "[[initial-rules]]\nmatcher = ['a.*']\ninitial = 'snapshot'"
    for text in ("initial = 'snapshot'", rules):
        config = load_changefeed(uri, text)
        assert (config.wants_initial, config.initial_schema) == (True, True)


@pytest.mark.parametrize(
    ("uri", "text", "note"),
    [
        (CANAL, "memory-quota = 5", "memory-quota has no effect: "),
        (CANAL, "sql-mode = ''", "sql-mode has no effect: each DDL is read by the sql_mode that it was run with"),
        (CANAL, "[scheduler]\nenable-table-across-nodes = true", "captures divide large tables by their own"),
        (FILES, "initial-schema = false", "initial-schema has no effect: it is for Kafka and database sinks"),
        (CANAL, "[sink]\nterminator = 'x'", "sink.terminator has no effect: it is for storage sinks"),
        (CANAL, "[sink]\ndate-separator = 'none'", "sink.date-separator has no effect: it is for storage sinks"),
        (CANAL, "[sink.csv]\noutput-handle-key = true", "sink.csv.output-handle-key has no effect: it is for storage"),
        (CANAL, "[sink.mysql-config]\nworker-count = 1", "mysql-config.worker-count has no effect: it is for database"),
        (CANAL, "[sink.cloud-storage-config]\nworker-count = 3", "cloud-storage-config.worker-count has no effect: it"),
        (
            AVRO + "&content-compatible=true",
            "",
            "sink.content-compatible has no effect: protocol avro does not read it",
        ),
        (
            AVRO,
            "[sink]\nonly-output-updated-columns = true",
            "sink.only-output-updated-columns has no effect: protocol",
        ),
        (
            CANAL,
            "[[sink.dispatchers]]\nmatcher = ['a.b']\nindex = 'i'",
            "sink.dispatchers[0].index has no effect: it goes with partition `index-value`, and this is `default`",
        ),
        (CANAL + "&max-retry=9", "", "sink.kafka-config.max-retry has no effect: "),
        (CANAL, "[scheduler]\nregion-threshold = 5", "scheduler.region-threshold has no effect: "),
        (CANAL + "&kafka-version=3.0.0", "", "sink.kafka-config.kafka-version has no effect: "),
        (CANAL + "&write-timeout=5s", "", "sink.kafka-config.write-timeout has no effect: "),
        (CANAL, "[sink.kafka-config]\nwrite-timeout = '5s'", "sink.kafka-config.write-timeout has no effect: "),
        (
            FILES + "&flush-concurrency=4",
            "",
            "cloud-storage-config.flush-concurrency has no effect: a file is sent whole",
        ),
        (
            "mysql://root@h/",
            "[consistent]\nlevel = 'eventual'\nstorage = 's3://b/redo'\ncompression = 'lz4'\nuse-file-backend = true",
            "consistent: the raw log in Kafka is the redo log of every changefeed",
        ),
        (FILES, "[sink.csv]\noutput-handle-key = true", "sink.csv.output-handle-key has no effect: TiCDC reads it and"),
        (
            FILES,
            "[sink]\ndate-separator = 'none'\n[sink.cloud-storage-config]\nfile-expiration-days = 3",
            "cloud-storage-config.file-expiration-days has no effect: date-separator is not `day`",
        ),
        (CANAL + "&output-row-key=true", "", "output-row-key has no effect: the key stands in the TiDB extension"),
        (CANAL + "&debezium-include-start-ts=true", "", "sink.debezium.include-start-ts has no effect: protocol canal"),
        (
            FILES,
            "[[filter.event-filters]]\nmatcher = ['*.*']\nignore-update-only-columns = ['a']",
            "filter.event-filters[0].ignore-update-only-columns has no effect: it is for Kafka sinks",
        ),
        (CANAL + "&max-batch-size=3", "", "codec-config.max-batch-size has no effect: protocol canal-json"),
        (CANAL + "&encoding-format=avro", "", "codec-config.encoding-format has no effect: protocol canal-json"),
        (CANAL.replace("canal-json", "simple"), "", "send-bootstrap-in-msg-count only turns bootstraps off at 0"),
        (
            CANAL.replace("canal-json", "simple"),
            "[sink]\nsend-bootstrap-in-msg-count = 0",
            "consumers know only tables whose DDL events they have read",
        ),
        (
            CANAL.replace("canal-json", "simple"),
            "[sink]\ndelete-only-output-handle-key-columns = true",
            "delete-only-output-handle-key-columns has no effect: protocol simple",
        ),
        (
            "mysql://root@h:1/",
            "[sink]\ndelete-only-output-handle-key-columns = true",
            "delete-only-output-handle-key-columns has no effect: a database sink does not read it",
        ),
        (
            "mysql://root@h:1/",
            (
                "[integrity]\nintegrity-check-level = 'correctness'\n"
                "[[sink.column-selectors]]\nmatcher = ['a.*']\ncolumns = ['a']"
            ),
            "sink.column-selectors has no effect: it is for Kafka and storage sinks",
        ),
        (CANAL + "&insecure-skip-verify=true", "", "insecure-skip-verify has no effect: TLS is off"),
        (
            "mysql://root@h:1/",
            "[sink.kafka-config]\ninsecure-skip-verify = true",
            "sink.kafka-config.insecure-skip-verify has no effect: it is for Kafka sinks",
        ),
        (
            CANAL,
            "[[sink.dispatchers]]\nmatcher = ['*.*']\ndispatcher = 'ts'\npartition = ''",
            "does not keep the changes of one row in order",
        ),
        (CANAL, "sync-point-interval = '5s'", "sync-point-interval has no effect: it is for database sinks"),
        (AVRO, "[sink.kafka-config]\noutput-raw-change-event = true", "without a delete of the old one"),
        (CANAL, "[[sink.dispatchers]]\nmatcher = ['*.*']\ndispatcher = 'rowid'", "is the old name of `partition`"),
        (
            CANAL,
            "[[sink.dispatchers]]\nmatcher = ['*.*']\npartition = 'row'",
            "`row` is unknown and taken as `default`",
        ),
        (
            CANAL,
            "[[sink.dispatchers]]\nmatcher = ['*.*']\npartition = 'ts'",
            "does not keep the changes of one row in order",
        ),
    ],
)
def test_load_changefeed_setting_that_means_less_than_it_says_is_noted(uri: str, text: str, note: str) -> None:
    assert any(note in line for line in load_changefeed(uri, text).notes)


def test_load_changefeed_of_a_database_without_syncpoints_takes_any_pace_of_them() -> None:
    config = load_changefeed("mysql://root@h:1/", "sync-point-interval = '5s'\nsync-point-retention = '1m'")
    assert (config.enable_sync_point, config.notes) == (False, ())
