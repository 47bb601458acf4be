"""The changefeed file and the sink URI: defaults, precedence, and that nothing is lost on the way."""

import json

from schemas.config.changefeed import load_changefeed, parse_changefeed_text
from schemas.config.parse.duration import Seconds
from tests.support.control.changefeed_config import CANAL, FULL


def test_load_changefeed_uri_alone_gives_ticdcs_defaults() -> None:
    config = load_changefeed(CANAL)
    assert config.uri.brokers == ("127.0.0.1:9092",)
    assert config.default_topic == "topic-a"
    assert config.protocol == "canal-json"
    assert (config.case_sensitive, config.force_replicate, config.check_gc_safe_point) == (False, False, True)
    assert config.memory_quota_bytes == 1073741824
    assert (config.sync_point_interval_s, config.sync_point_retention_s) == (Seconds(600), Seconds(86400))
    assert config.error_stuck_duration_s == Seconds(1800)
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
    assert kafka.dial_timeout_s == kafka.read_timeout_s == kafka.write_timeout_s == Seconds(10)
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
    assert (config.sorter.isolation, config.sorter.run_cuts) == ("shared", "auto")
    assert (config.sorter.cpu_share_max_percent, config.sorter.rows_per_second_max) == (0, 0)
    assert not config.tls
    assert config.notes == ()


def test_load_changefeed_takes_how_it_is_run() -> None:
    config = load_changefeed(CANAL, '[sorter]\nisolation = "process"\nrun-cuts = "spark"')
    assert (config.sorter.isolation, config.sorter.run_cuts) == ("process", "spark")
    config = load_changefeed(CANAL, "[sorter]\ncpu-share-max = 50\nrows-per-second-max = 1000")
    assert (config.sorter.cpu_share_max_percent, config.sorter.rows_per_second_max) == (50, 1000)


def test_load_changefeed_takes_what_images_may_cost() -> None:
    images = load_changefeed(CANAL, "").table_images
    assert (images.first, images.tables_at_once, images.lag_max_s) == ((), 4, 0)
    images = load_changefeed(
        CANAL, "[table-images]\nfirst = ['a.b', 'a.*']\ntables-at-once = 2\nlag-seconds-max = 30"
    ).table_images
    assert (images.first, images.tables_at_once, images.lag_max_s) == (("a.b", "a.*"), 2, 30)


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
    timeouts_s = (kafka.dial_timeout_s, kafka.read_timeout_s, kafka.write_timeout_s)
    assert timeouts_s == (Seconds(1), Seconds(2), Seconds(90))
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
