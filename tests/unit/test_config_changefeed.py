"""The changefeed file and the sink URI: defaults, precedence, and what is refused with which words."""

import json

import pytest

from schemas.config.changefeed import ChangefeedConfig, config_table, load_changefeed, parse_changefeed_text
from schemas.config.origin import NotSupportedYetError
from schemas.errors import Action, ConfigError

CANAL = "kafka://127.0.0.1:9092/topic-a?protocol=canal-json"
AVRO = "kafka://h:9092/topic-a?protocol=avro&schema-registry=http://r:8081"


def refused(uri: str, text: str = "", kind: type[ConfigError] = ConfigError) -> ConfigError:
    with pytest.raises(kind) as caught:
        load_changefeed(uri, text, file="feed.toml")
    assert type(caught.value) is kind
    assert caught.value.action is Action.STOP_CHANGEFEED
    return caught.value


def test_load_changefeed_uri_alone_gives_ticdcs_defaults() -> None:
    config = load_changefeed(CANAL)
    assert config.uri.brokers == ("127.0.0.1:9092",)
    assert config.default_topic == "topic-a"
    assert config.protocol == "canal-json"
    assert (config.case_sensitive, config.force_replicate, config.check_gc_safe_point) == (False, False, True)
    assert config.memory_quota_bytes == 1073741824
    assert (config.sync_point_interval_s, config.sync_point_retention_s) == (600, 86400)
    assert config.error_stuck_duration_s == 1800
    assert config.filter.rules == ("*.*",)
    assert config.mounter.worker_num == 16
    sink, kafka, codec = config.sink, config.kafka, config.codec
    assert (sink.transaction_atomicity, sink.encoder_concurrency, sink.terminator) == ("none", 32, "\r\n")
    assert (sink.date_separator, sink.enable_partition_separator, sink.file_index_digit) == ("day", True, 20)
    assert (sink.send_bootstrap_interval_s, sink.send_bootstrap_messages) == (120, 10000)
    assert (sink.send_bootstrap_to_all_partition, sink.send_all_bootstrap_at_start) == (True, False)
    assert (sink.advance_timeout_s, sink.open.output_old_value, sink.debezium.output_old_value) == (150, True, True)
    assert (sink.csv.delimiter, sink.csv.quote, sink.csv.null) == (",", '"', "\\N")
    assert (kafka.partition_num, kafka.replication_factor, kafka.max_message_bytes) == (None, 1, 10485760)
    assert (kafka.compression, kafka.required_acks, kafka.auto_create_topic, kafka.max_retry) == ("none", -1, True, 5)
    assert kafka.dial_timeout_s == kafka.read_timeout_s == kafka.write_timeout_s == 10
    assert (kafka.kafka_version, kafka.kafka_client_id, kafka.output_raw_change_event) == ("2.4.0", None, False)
    assert (codec.enable_tidb_extension, codec.max_batch_size, codec.avro_enable_watermark) == (False, 16, False)
    assert (codec.avro_decimal_handling_mode, codec.avro_bigint_unsigned_handling_mode) == ("precise", "long")
    consistent = config.consistent
    assert (consistent.level, consistent.max_log_size_mib, consistent.flush_interval_ms) == ("none", 64, 2000)
    assert (consistent.meta_flush_interval_ms, consistent.encoding_worker_num) == (200, 16)
    assert (consistent.flush_worker_num, consistent.memory_usage.memory_quota_percentage) == (8, 50)
    assert (config.scheduler.enable_table_across_nodes, config.scheduler.region_threshold) == (False, 100000)
    assert (config.integrity.integrity_check_level, config.integrity.corruption_handle_level) == ("none", "warn")
    assert config.synced_status.synced_check_interval_s == 300
    assert config.synced_status.checkpoint_interval_s == 15
    assert not config.tls
    assert config.notes == ()


def test_load_changefeed_all_uri_parameters_reach_their_settings() -> None:
    config = load_changefeed(
        "kafka+ssl://h1:9093,h2,[::1]:9094/t?protocol=canal-json&partition-num=4&replication-factor=3&kafka-version=3.6.0"
        "&max-message-bytes=1000&max-retry=7&compression=zstd&kafka-client-id=me&auto-create-topic=false"
        "&required-acks=1&dial-timeout=1s&read-timeout=2s&write-timeout=1m30s&max-message-count=9"
        "&enable-tidb-extension=true&ca=/ca.pem&cert=/c.pem&key=/k.pem&insecure-skip-verify=true"
        "&sasl-user=u%40x&sasl-password=p%26+q&sasl-mechanism=scram-sha-512"
    )
    kafka = config.kafka
    assert config.uri.bootstrap_servers == "h1:9093,h2:9092,[::1]:9094"
    assert (kafka.partition_num, kafka.replication_factor, kafka.kafka_version) == (4, 3, "3.6.0")
    assert (kafka.max_message_bytes, kafka.max_retry, kafka.compression) == (1000, 7, "zstd")
    assert (kafka.kafka_client_id, kafka.auto_create_topic, kafka.required_acks) == ("me", False, 1)
    assert (kafka.dial_timeout_s, kafka.read_timeout_s, kafka.write_timeout_s) == (1, 2, 90)
    assert (config.codec.max_batch_size, config.codec.enable_tidb_extension) == (9, True)
    assert (kafka.ca, kafka.cert, kafka.key, kafka.insecure_skip_verify) == ("/ca.pem", "/c.pem", "/k.pem", True)
    assert (kafka.sasl_user, kafka.sasl_mechanism) == ("u@x", "SCRAM-SHA-512")
    assert kafka.sasl_password is not None
    assert kafka.sasl_password.reveal() == "p& q"
    assert config.tls


def test_load_changefeed_uri_overrides_the_file() -> None:
    text = """
    [sink]
    protocol = "avro"
    schema-registry = "http://r:1"
    [sink.kafka-config]
    partition-num = 2
    replication-factor = 2
    codec-config = { enable-tidb-extension = true, avro-decimal-handling-mode = "string" }
    """
    config = load_changefeed("kafka://h:1/t?protocol=canal-json&partition-num=9&enable-tidb-extension=false", text)
    assert (config.protocol, config.kafka.partition_num, config.kafka.replication_factor) == ("canal-json", 9, 2)
    assert not config.codec.enable_tidb_extension
    assert config.codec.avro_decimal_handling_mode == "string"


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


@pytest.mark.parametrize(("uri", "text"), [(CANAL, FULL), (AVRO, ""), (CANAL + "&partition-num=3&dial-timeout=7s", "")])
def test_config_table_loaded_again_is_the_same_config(uri: str, text: str) -> None:
    config = load_changefeed(uri, text)
    stored = json.loads(json.dumps(config_table(config)))
    assert load_changefeed(uri, stored) == config
    assert load_changefeed(uri.partition("?")[0], stored) == config


def test_load_changefeed_parsed_table_equals_text_and_is_left_as_it_was() -> None:
    table, _ = parse_changefeed_text(FULL)
    before = json.dumps(table)
    assert load_changefeed(CANAL + "&partition-num=3", table) == load_changefeed(CANAL + "&partition-num=3", FULL)
    assert json.dumps(table) == before


def test_load_changefeed_event_filters_by_type_and_text_are_taken() -> None:
    text = "[[filter.event-filters]]\nmatcher = ['a.*']\nignore-event = ['Delete', 'all ddl']\nignore-sql = ['^drop']"
    (rule,) = load_changefeed(CANAL, text).filter.event_filters
    assert (rule.matcher, rule.ignore_event, rule.ignore_sql) == (("a.*",), ("Delete", "all ddl"), ("^drop",))


def test_load_changefeed_empty_filter_rules_mean_all() -> None:
    assert load_changefeed(CANAL, "[filter]\nrules = []").filter.rules == ("*.*",)


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "line", "words"),
    [
        ("\n\ncase-sensitiv = true", "case-sensitiv", 3, "unknown key `case-sensitiv` in the changefeed file"),
        ("[sink]\n\ndispatchrs = []", "sink.dispatchrs", 3, "did you mean `dispatchers`?"),
        (
            "[sink]\ndispatchers = [\n  {matcher = ['a.*'], topc = 'x'},\n]",
            "sink.dispatchers[0].topc",
            3,
            "unknown key `topc` in item 0 of `dispatchers`; did you mean `topic`?",
        ),
        (
            "[[filter.event-filters]]\nmatcher = ['a.b']\n[[filter.event-filters]]\nmatcher = ['a.b']\nzzz = 1",
            "filter.event-filters[1].zzz",
            5,
            "known here: ignore-delete-value-expr, ",
        ),
        ("[sink.kafka-config.codec-config]\nx = 1", "sink.kafka-config.codec-config.x", 2, "unknown key `x`"),
        ("[mounter]\nworker-num = 'many'", "mounter.worker-num", 2, 'must be a whole number, got "many"'),
        ("case-sensitive = 1", "case-sensitive", 1, "must be true or false, got 1"),
        ("memory-quota = true", "memory-quota", 1, "must be a whole number, got true"),
        ("filter = 3", "filter", 1, "`filter` must be a table, got 3"),
        ("[filter]\nrules = '*.*'", "filter.rules", 2, 'must be a list, got "*.*"'),
        ("[filter]\nrules = [\n'a.b',\n7]", "filter.rules[1]", 4, "item 1 of `rules` must be a string, got 7"),
        (
            "[filter]\nrules = ['a.b',\n'a%.b']",
            "filter.rules[1]",
            3,
            "table-filter rule `a%.b` is illegal: unexpected `%`",
        ),
        ("[filter]\nrules = ['@file']", "filter.rules[0]", 2, "rules from a file (@path) are refused"),
        (
            "[filter]\nignore-txn-start-ts = [-1]",
            "filter.ignore-txn-start-ts",
            2,
            "must be from 0 to 9223372036854775807",
        ),
        ("sync-point-interval = '5s'", "sync-point-interval", 1, 'must be at least 30s, got "5s"'),
        ("sync-point-interval = '5 s'", "sync-point-interval", 1, 'must be a duration such as "10s"'),
        ("[sink]\nfile-index-digit = 5", "sink.file-index-digit", 2, "must be from 6 to 20, got 5"),
        ("[sink]\ndate-separator = 'week'", "sink.date-separator", 2, 'must be one of "none", "year", "month", "day"'),
        ("[sink]\ntransaction-atomicity = 'table'", "sink.transaction-atomicity", 2, "is for database sinks"),
        (
            "[sink.kafka-config]\nrequired-acks = 2",
            "sink.kafka-config.required-acks",
            2,
            "must be one of -1, 0, 1, got 2",
        ),
        ("[sink.kafka-config]\ncompression = 'lzma'", "sink.kafka-config.compression", 2, '"none", "gzip", "snappy"'),
        ("[sink.kafka-config]\npartition-num = 0", "sink.kafka-config.partition-num", 2, "must be from 1 to"),
        ("[sink]\ndispatchers = [{topic = 'x'}]", "sink.dispatchers[0]", 2, "`matcher` is missing"),
        (
            "[[sink.dispatchers]]\nmatcher = ['a.b']\npartition = 'ts'\ndispatcher = 'ts'",
            "sink.dispatchers[0].dispatcher",
            4,
            "`partition` and `dispatcher` are given",
        ),
        (
            "[[sink.dispatchers]]\nmatcher = ['a.b']\ntopic = '{scheme}'",
            "sink.dispatchers[0].topic",
            3,
            "topic expression `{scheme}` is illegal: allowed are letters",
        ),
        (
            "[[sink.dispatchers]]\nmatcher = ['a.b.c']",
            "sink.dispatchers[0].matcher[0]",
            2,
            "table-filter rule `a.b.c` is illegal: unexpected `.` at character 4",
        ),
        (
            "[[sink.dispatchers]]\nmatcher = ['a.b']\nindex = 'i'",
            "sink.dispatchers[0].index",
            3,
            '`index` goes with partition = "index-value", got "default"',
        ),
        (
            "[[sink.dispatchers]]\nmatcher = ['a.b']\npartition = 'table'\ncolumns = ['a']",
            "sink.dispatchers[0].columns",
            4,
            '`columns` goes with partition = "columns", got "table"',
        ),
        (
            "[[sink.dispatchers]]\nmatcher = ['a.b']\npartition = 'columns'",
            "sink.dispatchers[0]",
            1,
            "needs the list `columns`",
        ),
        (
            "[[filter.event-filters]]\nmatcher = ['a.b']\nignore-event = ['drop tabel']",
            "filter.event-filters[0].ignore-event[0]",
            3,
            "unknown event `drop tabel` of ignore-event; did you mean `drop table`?",
        ),
        (
            "[[filter.event-filters]]\nmatcher = ['a.b']\nignore-sql = ['(a']",
            "filter.event-filters[0].ignore-sql[0]",
            3,
            "regular expression `(a` is illegal",
        ),
        ("[sink.kafka-config]\nsasl-user = 'u'", "sink.kafka-config.sasl-user", 2, "without `sasl-mechanism`"),
        ("[sink.kafka-config]\nsasl-mechanism = 'PLAIN'", "sink.kafka-config.sasl-mechanism", 2, "needs sasl-user and"),
        ("[sink.kafka-config]\ncert = 'c'", "sink.kafka-config.cert", 2, "`cert` is given without `key`"),
        ("[sink.kafka-config]\ncert = 'c'\nkey = 'k'", "sink.kafka-config.cert", 2, "are given without `ca`"),
        ("[sink.kafka-config]\nca = 'c'", "sink.kafka-config.ca", 2, "`ca` alone needs kafka+ssl://"),
        ("[sink.kafka-config]\ninsecure-skip-verify = true", "sink.kafka-config.insecure-skip-verify", 2, "TLS is off"),
        ("[sink.kafka-config]\nkafka-client-id = 'a b'", "sink.kafka-config.kafka-client-id", 2, "got `a b`"),
        ("[sink]\nschema-registry = 'r:8081'", "sink.schema-registry", 2, "must be an http or https URL"),
        (
            "[integrity]\nintegrity-check-level = 'correctness'",
            "integrity.integrity-check-level",
            2,
            "is for avro and simple, got canal-json",
        ),
        (
            "[sink.kafka-config.large-message-handle]\nlarge-message-handle-option = 'claim-check'",
            "sink.kafka-config.large-message-handle.large-message-handle-option",
            2,
            "needs enable-tidb-extension=true",
        ),
    ],
)
def test_load_changefeed_bad_setting_names_key_file_and_line(text: str, key: str, line: int, words: str) -> None:
    error = refused(CANAL, text)
    assert words in error.message
    assert (error.fields["key"], error.fields["file"], error.fields["line"]) == (key, "feed.toml", line)
    assert all(part in str(error) for part in (f"key={key}", "file=feed.toml", f"line={line}"))


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a = 1\nb = = 2", 2, "invalid value"),
        ("[sink\nx = 1", 1, "expected ']'"),
        ("a = 1\na = 2", 2, "cannot overwrite a value"),
        ("a = 1\n\nb = [1, ", 3, "at its end"),
        ('a = "x', 1, "unterminated string"),
    ],
)
def test_load_changefeed_malformed_toml_names_file_and_line(text: str, line: int, words: str) -> None:
    error = refused(CANAL, text)
    assert error.message.startswith("changefeed file is no TOML: ")
    assert words in error.message
    assert (error.fields["file"], error.fields["line"]) == ("feed.toml", line)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("", "must start with a scheme such as kafka://"),
        ("127.0.0.1:9092/t", "must start with a scheme"),
        ("kafkaa://h/t", "sink scheme `kafkaa` is unknown, known are kafka, kafka+ssl, mysql"),
        ("kafka://h:9092", "names no default topic"),
        ("kafka://h:9092/?protocol=canal-json", "names no default topic"),
        ("kafka://h/a/b", "path must be one topic"),
        ("kafka://h/a%20b", "default topic may hold only letters"),
        ("kafka://h/..", "default topic may hold only letters"),
        ("kafka://h/" + "t" * 250, "250 characters, 249 are allowed"),
        ("kafka:///t", "has no host"),
        ("kafka://h:x/t", "broker address must be host or host:port"),
        ("kafka://h:0/t", "port must be from 1 to 65535"),
        ("kafka://h,/t", "broker address must be host or host:port"),
        ("kafka://h/t#x", "must not have a fragment"),
        ("kafka://h/t?partition-num=%zz", "% in the parameter `partition-num` must be followed by two hexadecimal"),
        ("kafka://h/t?protocol=%ff", "is not UTF-8"),
        ("kafka://h/t?partiton-num=3", "unknown key `partiton-num` in the sink URI; did you mean `partition-num`?"),
        ("kafka://h/t?partition-num=3&partition-num=4", "gives `partition-num` and `partition-num`; one of them, once"),
        ("kafka://h/t?max-batch-size=3&max-message-count=4", "gives `max-batch-size` and `max-message-count`"),
    ],
)
def test_load_changefeed_malformed_uri_says_what_is_wrong(uri: str, words: str) -> None:
    error = refused(uri)
    assert words in error.message
    assert error.fields["where"] == "sink URI"


@pytest.mark.parametrize(
    ("uri", "key", "words"),
    [
        ("kafka://h/t", "sink.protocol", "protocol is missing"),
        ("kafka://h/t?protocol=canal-jsn", "sink.protocol", 'must be one of "canal-json", "open-protocol", "avro"'),
        ("kafka://h/t?protocol=csv", "sink.protocol", "csv is for storage sinks"),
        ("kafka://h/t?protocol=avro", "sink.schema-registry", "avro needs a schema registry"),
        (CANAL + "&partition-num=x", "sink.kafka-config.partition-num", 'must be a whole number, got "x"'),
        (CANAL + "&partition-num=-1", "sink.kafka-config.partition-num", 'must be from 1 to 2147483647, got "-1"'),
        (CANAL + "&auto-create-topic=maybe", "sink.kafka-config.auto-create-topic", 'true or false, got "maybe"'),
        (CANAL + "&dial-timeout=10", "sink.kafka-config.dial-timeout", "must be a duration"),
        (CANAL + "&enable-tls=false&ca=/x", "sink.kafka-config.enable-tls", "enable-tls=false, but a certificate"),
        ("kafka+ssl" + CANAL[5:] + "&enable-tls=false", "sink.kafka-config.enable-tls", "the scheme is kafka+ssl"),
        (
            CANAL + "&avro-enable-watermark=true",
            "sink.kafka-config.codec-config.avro-enable-watermark",
            "needs enable-tidb-extension=true",
        ),
        (AVRO + "&content-compatible=true", "sink.content-compatible", "is for canal-json, and protocol is avro"),
        (
            AVRO + "&only-output-updated-columns=true",
            "sink.only-output-updated-columns",
            "is for canal-json and open-protocol, and protocol is avro",
        ),
    ],
)
def test_load_changefeed_bad_uri_parameter_names_the_setting(uri: str, key: str, words: str) -> None:
    error = refused(uri)
    assert words in error.message
    assert error.fields["key"] == key


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("force-replicate = true", "force-replicate is not allowed with protocol avro"),
        ("[[sink.dispatchers]]\nmatcher = ['*.*']\ntopic = '{schema}'", "avro needs a topic per table"),
        ("[sink]\ndelete-only-output-handle-key-columns = true", "is for canal-json and canal and"),
        (
            "[integrity]\nintegrity-check-level = 'correctness'",
            "needs enable-tidb-extension=true, avro-decimal-handling-mode=string",
        ),
        (
            "[sink.kafka-config.large-message-handle]\nlarge-message-handle-option = 'handle-key-only'",
            "protocol is avro",
        ),
        (
            "[sink.kafka-config.glue-schema-registry-config]\nregistry-name = 'a'\nregion = 'b'",
            "exclude each other",
        ),
    ],
)
def test_load_changefeed_option_that_avro_excludes_is_refused(text: str, words: str) -> None:
    assert words in refused(AVRO, text).message


@pytest.mark.parametrize(
    ("uri", "text", "key"),
    [
        (CANAL.replace("canal-json", "simple"), "", "sink.protocol"),
        (CANAL.replace("canal-json", "open-protocol"), "", "sink.protocol"),
        (CANAL.replace("canal-json", "debezium"), "", "sink.protocol"),
        (CANAL.replace("canal-json", "canal"), "", "sink.protocol"),
        (CANAL, "bdr-mode = true", "bdr-mode"),
        *(
            (
                CANAL,
                f"[[filter.event-filters]]\nmatcher = ['a.*']\nignore-{event}-value-expr = 'a > 1'",
                f"filter.event-filters[0].ignore-{event}-value-expr",
            )
            for event in ("insert", "update-new", "update-old", "delete")
        ),
        (CANAL, "enable-sync-point = true", "enable-sync-point"),
        (CANAL, "sync-point-interval = '11m'", "sync-point-interval"),
        (CANAL, "sql-mode = ''", "sql-mode"),
        (CANAL, "[consistent]\nlevel = 'eventual'", "consistent.level"),
        (
            CANAL,
            "[consistent.memory-usage]\nmemory-quota-percentage = 1",
            "consistent.memory-usage.memory-quota-percentage",
        ),
        (CANAL, "[[sink.column-selectors]]\nmatcher = ['a.*']\ncolumns = ['a']", "sink.column-selectors"),
        (CANAL, "[sink.csv]\ndelimiter = ';'", "sink.csv.delimiter"),
        (CANAL, "[sink.mysql-config]\nworker-count = 1", "sink.mysql-config"),
        (CANAL, "[sink.pulsar-config]\nx = 1", "sink.pulsar-config"),
        (CANAL, "[sink.cloud-storage-config]\nx = 1", "sink.cloud-storage-config"),
        (CANAL + "&sasl-mechanism=gssapi", "", "sink.kafka-config.sasl-mechanism"),
        (CANAL, "[sink.kafka-config]\nsasl-oauth-token-url = 'x'", "sink.kafka-config.sasl-oauth-token-url"),
        (
            CANAL,
            "[sink.kafka-config.large-message-handle]\nlarge-message-handle-compression = 'lz4'",
            "sink.kafka-config.large-message-handle.large-message-handle-compression",
        ),
    ],
)
def test_load_changefeed_setting_without_effect_yet_is_refused_by_its_own_code(uri: str, text: str, key: str) -> None:
    error = refused(uri, text, NotSupportedYetError)
    assert error.code == "config.not_supported_yet"
    assert error.fields["key"] == key
    assert "is not supported yet" in error.message


@pytest.mark.parametrize(
    "uri", ["mysql://root@h:3306/", "tidb://h", "pulsar://h/t", "s3://b/p", "file:///x", "blackhole://"]
)
def test_load_changefeed_other_sink_of_ticdc_is_refused_by_its_own_code(uri: str) -> None:
    error = refused(uri, "", NotSupportedYetError)
    assert f"sink scheme `{uri.partition(':')[0]}` is not supported yet" in error.message


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


@pytest.mark.parametrize(
    ("uri", "text", "note"),
    [
        (CANAL, "memory-quota = 5", "memory-quota has no effect: "),
        (CANAL, "ignore-ineligible-table = true", "tables without a usable key are always left out"),
        (CANAL + "&max-retry=9", "", "sink.kafka-config.max-retry has no effect: "),
        (CANAL, "[scheduler]\nregion-threshold = 5", "scheduler.region-threshold has no effect: "),
        (CANAL + "&kafka-version=3.0.0", "", "sink.kafka-config.kafka-version has no effect: "),
        (CANAL + "&max-batch-size=3", "", "codec-config.max-batch-size has no effect: protocol canal-json"),
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


# --- secrets -----------------------------------------------------------------------------------------------------

SECRET_FILE = (
    FULL
    + """
[consistent]
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
        (CANAL + "&sasl-pasword=hidden-word", ""),
        (CANAL, "[sink.kafka-config]\nsasl-password = ['hidden-word']"),
        (AVRO.replace("http://", "ftp://u:hidden-word@"), ""),
        (CANAL, SECRET_FILE),
        ("u:hidden-word@h", ""),
        ("mysql://root:hidden-word@h:3306/", ""),
    ],
)
def test_load_changefeed_error_holds_no_secret(uri: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_changefeed(uri, text)
    assert "hidden-word" not in str(caught.value)
    assert "hidden-word" not in repr(caught.value)
    assert "hidden-word" not in repr(caught.value.fields)


def test_changefeed_config_is_frozen() -> None:
    config = load_changefeed(CANAL)
    with pytest.raises(AttributeError):
        config.case_sensitive = True  # type: ignore[misc]
    assert isinstance(config, ChangefeedConfig)
    assert isinstance(config_table(config), dict)
