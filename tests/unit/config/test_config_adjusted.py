"""Values that TiCDC takes for unset, ranges that it clamps to, parameters that it passes over."""

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.errors import ConfigError
from tests.support.control.changefeed_config import CANAL

MYSQL = "mysql://root@h/"
FILES = "file:///data/out?protocol=csv"
LARGE = """
[sink.kafka-config.large-message-handle]
large-message-handle-option = ''
large-message-handle-compression = ''
claim-check-storage-uri = ''
"""


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        (CANAL, "memory-quota = 0\nperformance-mode = ''"),
        (CANAL, "[sink]\nschema-registry = ''\nadvance-timeout-in-sec = 0"),
        (CANAL, "[sink.kafka-config]\ncompression = ''\nkafka-client-id = ''\nca = ''\ncert = ''\nkey = ''"),
        (CANAL, "[sink.kafka-config]\nenable-tls = false\nca = ''\nsasl-user = ''\nsasl-password = ''"),
        (CANAL, LARGE),
        (CANAL, "[consistent]\nlevel = 'none'\nstorage = ''\ncompression = 'none'\nmax-log-size = 0"),
        (CANAL + "&compression=", ""),
        (FILES, "[sink]\nfile-index-digit = 0\ndate-separator = ''"),
        (MYSQL, "[sink.mysql-config]\nssl-ca = ''\nwrite-timeout = ''"),
    ],
)
def test_load_changefeed_empty_and_zero_are_unset_as_in_ticdc(uri: str, text: str) -> None:
    read, plain = load_changefeed(uri, text), load_changefeed(uri.replace("&compression=", ""))
    assert (read.sink.protocol, read.notes) == (plain.sink.protocol, plain.notes)
    assert (read.kafka.compression, read.kafka.ca, read.memory_quota_bytes) == ("none", None, 1 << 30)
    assert read.sink.file_index_digit == 20 and read.sink.mysql == plain.sink.mysql


KAFKA_TEXT = """
[sink.kafka-config]
kafka-client-id = 'x'
[sink.kafka-config.codec-config]
enable-tidb-extension = true
"""


@pytest.mark.parametrize(
    ("uri", "names", "text"),
    [
        (MYSQL + "?", "worker-count max-txn-row safe-mode batch-dml-enable tidb-txn-mode ssl-ca read-timeout", ""),
        (MYSQL + "?", "worker-count", "[sink.mysql-config]\nworker-count = 9"),
        (CANAL + "&", "enable-tidb-extension kafka-client-id partition-num ca sasl-mechanism enable-tls", KAFKA_TEXT),
        ("kafka://h/t?", "protocol max-message-bytes", "[sink]\nprotocol = 'simple'"),
        (FILES + "&", "worker-count flush-interval file-size use-table-id-as-path", "[sink]\ndate-separator = 'year'"),
    ],
)
def test_empty_parameter_of_a_sink_uri_is_none_and_the_file_counts(uri: str, names: str, text: str) -> None:
    read = load_changefeed(uri + "&".join(f"{name}=" for name in names.split()), text)
    plain = load_changefeed(uri, text)
    assert (read.sink, read.notes) == (plain.sink, plain.notes)


def test_empty_parameter_given_twice_or_with_a_meaning_of_its_own_is_read() -> None:
    with pytest.raises(ConfigError, match="`worker-count` and `worker-count`; one of them, once"):
        load_changefeed(MYSQL + "?worker-count=&worker-count=3")
    assert (
        load_changefeed(MYSQL + "?time-zone=", "[sink.mysql-config]\ntime-zone = 'Asia/Tokyo'").sink.mysql.time_zone
        == ""
    )


@pytest.mark.parametrize(
    ("uri", "text", "note"),
    [
        (MYSQL + "?worker-count=5000", "", "sink.mysql-config.worker-count is taken as 1024"),
        (MYSQL, "[sink.mysql-config]\nmax-txn-row = 9999", "sink.mysql-config.max-txn-row is taken as 2048"),
        (FILES + "&flush-interval=1s", "", "sink.cloud-storage-config.flush-interval is taken as 2s"),
        (FILES + "&flush-interval=1h", "", "sink.cloud-storage-config.flush-interval is taken as 10m"),
        (FILES + "&file-size=5", "", "sink.cloud-storage-config.file-size is taken as 1048576"),
        (FILES, "[sink]\nfile-index-digit = 5", "sink.file-index-digit is not from 6 to 20"),
        (CANAL + "&partiton-num=3", "", "nobody reads `partiton-num` (did you mean `partition-num`?)"),
        ("s3://b?protocol=csv&nonsense=1", "", "nobody reads `nonsense`"),
        ("mysql://root@h/db", "", "nobody reads its path"),
        (MYSQL + "?has-vector-type=true", "", "sink URI: `has-vector-type` has no effect: VECTOR columns"),
        (MYSQL + "?enable-ddl-ts=true&x=1", "", "nobody reads `x`;"),
        (CANAL + "&enable-ddl-ts=true", "", "nobody reads `enable-ddl-ts`"),
        ("s3://b?protocol=csv&provider=minio", "", "sink URI: `provider` has no effect: every provider"),
        (CANAL, "sink.case-sensitive = true", "sink.case-sensitive has no effect: it is TiCDC's own copy of"),
        (
            CANAL,
            "[sink.integrity]\nintegrity-check-level = 'correctness'",
            "sink.integrity has no effect: it is TiCDC's",
        ),
        (CANAL, "[scheduler]\nregion-count-per-span = 7", "scheduler.region-count-per-span has no effect"),
        (CANAL, "[scheduler]\nmin-traffic-percentage = 0.5", "scheduler.min-traffic-percentage has no effect"),
        (CANAL, "[sink.kafka-config]\nwrite-timeout = '3s'", "sink.kafka-config.write-timeout has no effect"),
        (CANAL, "sync-point-interval = '11m'", "sync-point-interval has no effect: it is for database sinks"),
    ],
)
def test_load_changefeed_what_ticdc_clamps_or_passes_over_is_noted(uri: str, text: str, note: str) -> None:
    assert any(note in shown for shown in load_changefeed(uri, text).notes)


def test_load_changefeed_flat_avro_is_avro() -> None:
    uri = "kafka://h/t?protocol=Flat-Avro&schema-registry=http://r"
    assert load_changefeed(uri).protocol == "avro"
    assert load_changefeed("kafka://h/t?schema-registry=http://r", "[sink]\nprotocol = 'flat-avro'").protocol == "avro"


def test_load_changefeed_column_selectors_are_nothing_to_a_database() -> None:
    text = "[[sink.column-selectors]]\nmatcher = ['*.*']\ncolumns = ['a']"
    config = load_changefeed(MYSQL, text)
    assert config.sink.column_selectors == ()
    assert any("column-selectors has no effect" in note for note in config.notes)


def test_load_changefeed_clamped_values_are_the_ends_of_their_ranges() -> None:
    assert load_changefeed(MYSQL + "?worker-count=5000").sink.mysql.worker_count == 1024
    storage = load_changefeed(FILES + "&flush-interval=1s&file-size=999999999").sink.cloud_storage
    assert (float(storage.flush_interval_s), storage.file_size_bytes) == (2.0, 512 << 20)


@pytest.mark.parametrize(
    ("uri", "word"), [(MYSQL + "?dry-run=true", "dry-run"), ("azure://c?protocol=csv&access-tier=x", "access-tier")]
)
def test_load_changefeed_parameters_that_change_what_is_written_are_refused_by_name(uri: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        load_changefeed(uri)
