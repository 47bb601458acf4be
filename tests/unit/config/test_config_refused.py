"""The changefeed file and the sink URI: what is refused with which words, naming key, file and line."""

import pytest

from tests.support.control.changefeed_config import AVRO, CANAL, refused


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
        ("[sorter]\nisolation = 'thread'", "sorter.isolation", 2, 'got "thread"'),
        ("[sorter]\nrun-cut = 'spark'", "sorter.run-cut", 2, "did you mean `run-cuts`?"),
        ("[sorter]\ncpu-share-max = -1", "sorter.cpu-share-max", 2, "must be at least 0"),
        ("[table-images]\ntables-at-once = 17", "table-images.tables-at-once", 2, "must be from 1 to 16"),
        ("[table-images]\nlag-seconds-max = -1", "table-images.lag-seconds-max", 2, "must be at least 0"),
        ("[table-images]\nfirst = ['a.b', 'ab']", "table-images.first[1]", 2, "`ab`"),
        (
            "[[initial-rules]]\nmatcher = ['a.b']\ninitial = 'none'\n[[initial-rules]]\ninitial = 'none'\nmatcher = []",
            "initial-rules[1].matcher",
            6,
            "an empty `matcher` matches no table: name at least one table-filter rule, such as `shop.*`",
        ),
        (
            "[table-images]\nlag-seconds-max = 99999999999999999999",
            "table-images.lag-seconds-max",
            2,
            "must be a whole number of 64 bits, got 99999999999999999999",
        ),
        (
            f"[sorter]\nrows-per-second-max = {'9' * 400}",
            "sorter.rows-per-second-max",
            2,
            "must be a whole number of 64 bits, got a number of more than 40 digits",
        ),
        (
            "[scheduler]\nmin-traffic-percentage = nan",
            "scheduler.min-traffic-percentage",
            2,
            "a finite number, got nan",
        ),
        (
            f"[scheduler]\nmin-traffic-percentage = {'9' * 400}",
            "scheduler.min-traffic-percentage",
            2,
            "must be a finite number, got a number of more than 40 digits",
        ),
        ("sync-point-interval = '99999999999h'", "sync-point-interval", 1, 'must be a duration such as "10s"'),
        (
            "[filter]\nskip-damaged-records = ['0:1', '0-1']",
            "filter.skip-damaged-records",
            2,
            'must be "PARTITION:OFFSET" or "PARTITION:FIRST-LAST" of records of the raw log, got "0-1" as item 1',
        ),
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
        (
            "[filter]\nskip-damaged-records = ['3:17', '3']",
            "filter.skip-damaged-records",
            2,
            'must be "PARTITION:OFFSET" or "PARTITION:FIRST-LAST" of records of the raw log',
        ),
        (
            "[filter]\nskip-damaged-records = ['3:17-16']",
            "filter.skip-damaged-records",
            2,
            'the first one not above the last, got "3:17-16" as item 0',
        ),
        ("sync-point-interval = '5 s'", "sync-point-interval", 1, 'must be a duration such as "10s"'),
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
        ("[sink.kafka-config]\nkafka-client-id = 'a b'", "sink.kafka-config.kafka-client-id", 2, "got `a b`"),
        ("[sink]\nschema-registry = 'r:8081'", "sink.schema-registry", 2, "must be an http or https URL"),
        (
            (
                "[integrity]\nintegrity-check-level = 'correctness'\n"
                "[[sink.column-selectors]]\nmatcher = ['a.*']\ncolumns = ['a']"
            ),
            "integrity.integrity-check-level",
            2,
            "excludes column-selectors",
        ),
        (
            "[integrity]\ncorruption-handle-level = 'ignore'",
            "integrity.corruption-handle-level",
            2,
            "ignore",
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
        (f"a = {'9' * 5000}", 1, "a number of thousands of digits"),
    ],
)
def test_load_changefeed_malformed_toml_names_file_and_line(text: str, line: int, words: str) -> None:
    error = refused(CANAL, text)
    assert error.message.startswith("changefeed file is no TOML: ")
    assert words in error.message
    assert (error.fields["file"], error.fields["line"]) == ("feed.toml", line)


@pytest.mark.parametrize("levels", [65, 3000])
@pytest.mark.parametrize("text", ["{}", "x = {}", "[{}]"])
def test_load_changefeed_text_of_any_depth_is_refused(text: str, levels: int) -> None:
    deep = {
        "{}": ".".join("a" * levels) + " = 1",
        "x = {}": "[" * levels + "]" * levels,
        "[{}]": ".".join("a" * levels),
    }
    error = refused(CANAL, text.format(deep[text]))
    assert error.message == "changefeed file nests too deep"
    assert (error.fields["levels_max"], error.fields["file"]) == (64, "feed.toml")


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
        (CANAL + f"&partition-num={'9' * 5000}", "sink.kafka-config.partition-num", "must be a whole number, got"),
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


@pytest.mark.parametrize("said", ["-%2B5", "%2B-5", "--5", "%2B", "9" * 5000])
def test_load_changefeed_parameter_that_is_no_whole_number_is_refused_by_name(said: str) -> None:
    error = refused(f"kafka://h:9092/t?protocol=canal-json&max-message-bytes={said}", "")
    assert "`max-message-bytes` must be a whole number, got" in error.message
