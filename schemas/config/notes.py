"""What to tell a user about settings that are accepted and mean nothing here, or less than they say."""

import re
from collections.abc import Iterator

from schemas.config.not_yet import other_sinks, walk_settings
from schemas.config.parse.origin import dotted
from schemas.config.rules import PARTITION_RULES
from schemas.config.sections import ConsistentConfig
from schemas.config.settings import ChangefeedConfig
from schemas.config.sink.sink import AVRO_PROTOCOLS
from schemas.config.sink.sink_uri import TICDC_DATABASE_PORT

NO_EFFECT = {
    "memory-quota": "rows wait in Kafka, and Spark's own settings bound its memory",
    "check-gc-safe-point": "a changefeed may start at any ts that the raw log still holds",
    "enable-table-monitor": "there is no per-table monitor to turn on",
    "performance-mode": "batches grow and shrink with the load by themselves",
    "active-active-progress-interval": "it is for active-active databases, which are not supported yet",
    "active-active-sync-stats-interval": "it is for active-active databases, which are not supported yet",
    "event-collector-batch-count": "there is no event collector",
    "event-collector-batch-bytes": "there is no event collector",
    "sink.mysql-config.async-ddl-timeout": "DDL that the destination runs in the background is waited for",
    "sink.cloud-storage-config.spool-disk-quota": "rows wait in Kafka, not on a disk",
    "sink.cloud-storage-config.spool-base-dir": "rows wait in Kafka, not on a disk",
    "mounter.worker-num": "Spark's parallelism decides",
    "scheduler.enable-table-across-nodes": "captures divide large tables by their own --enable-table-across-nodes",
    "scheduler": "captures have a policy of their own, by --enable-table-across-nodes and --region-threshold",
    "sql-mode": "each DDL is read by the sql_mode that it was run with",
    "sink.encoder-concurrency": "Spark's parallelism decides",
    "sink.enable-kafka-sink-v2": "there is one Kafka sink",
    "sink.advance-timeout-in-sec": "it is deprecated",
    "sink.mysql-config.enable-cache-prepared-statement": "rows are sent as literals, nothing is prepared",
    "sink.mysql-config.max-multi-update-row": "an update is written as its whole row; max-txn-row bounds statements",
    "sink.mysql-config.max-multi-update-row-size": "an update is written as its whole row, of any size",
    "sink.kafka-config.max-retry": "the producer retries for two minutes or more, then the batch fails and is repeated",
    "sink.kafka-config.write-timeout": "a cut fails where the brokers take nothing for two minutes",
    "sink.csv.output-handle-key": "TiCDC reads it and writes no handle key either",
    "sink.cloud-storage-config.flush-concurrency": "a file is sent whole",
    "sink.kafka-config.sasl-gssapi-kerberos-config-path": "Kerberos' library reads /etc/krb5.conf or KRB5_CONFIG",
    "sink.kafka-config.kafka-version": "clients agree with the brokers on versions by themselves",
}
"""Key of the setting and why it changes nothing. They tune TiCDC's own process and cannot change what is sent."""

_OPEN = ("open-protocol", "default")
ONLY_FOR = {
    "sink.schema-registry": AVRO_PROTOCOLS,
    "sink.kafka-config.glue-schema-registry-config": AVRO_PROTOCOLS,
    "sink.open.output-old-value": _OPEN,
    "sink.only-output-updated-columns": ("canal-json", *_OPEN),
    "sink.content-compatible": ("canal-json",),
    "sink.debezium-disable-schema": ("debezium",),
    "sink.debezium.output-old-value": ("debezium", "debezium-avro"),
    "sink.debezium.include-start-ts": ("debezium",),
    "sink.kafka-config.codec-config.avro-include-before-value": ("avro",),
    "sink.kafka-config.codec-config.output-row-key": ("canal-json",),
    "sink.delete-only-output-handle-key-columns": ("canal-json", "canal", *_OPEN),
    "sink.send-bootstrap-interval-in-sec": ("simple",),
    "sink.send-bootstrap-in-msg-count": ("simple",),
    "sink.send-bootstrap-to-all-partition": ("simple",),
    "sink.send-all-bootstrap-at-start": ("simple",),
    "sink.kafka-config.codec-config.encoding-format": ("simple",),
    "sink.kafka-config.codec-config.enable-tidb-extension": ("canal-json", *AVRO_PROTOCOLS, "debezium"),
    "sink.kafka-config.codec-config.max-batch-size": _OPEN,
    "sink.kafka-config.codec-config.avro-decimal-handling-mode": AVRO_PROTOCOLS,
    "sink.kafka-config.codec-config.avro-enable-watermark": AVRO_PROTOCOLS,
    "sink.kafka-config.codec-config.avro-bigint-unsigned-handling-mode": AVRO_PROTOCOLS,
    "sink.kafka-config.large-message-handle.large-message-handle-compression": (
        *("canal-json", "simple", "debezium"),
        *_OPEN,
    ),
}
"""Settings that other protocols than these do not read."""


def _kind(config: ChangefeedConfig) -> str:
    if config.uri.is_blackhole:
        return "storage sinks" if config.protocol == "csv" else "Kafka sinks"
    if config.uri.brokers:
        return "Kafka sinks"
    if config.uri.is_lake:
        return "Iceberg sinks"
    return "database sinks" if config.uri.server is not None else "storage sinks"


def notes_for(config: ChangefeedConfig) -> tuple[str, ...]:
    """Return one line per such setting."""
    parts = (_of_settings, _of_redo, _of_sink, _of_dispatchers, _of_protocol, _of_raw_changes, _of_kafka)
    return tuple(note for part in parts for note in part(config))


def _of_settings(config: ChangefeedConfig) -> Iterator[str]:
    """Of those that are not as they are by default: by their names alone."""
    for path, value, default in walk_settings(config):
        if value == default:
            continue
        key_path = re.sub(r"\[\d+\]", "[]", dotted(path))
        why = next((why for key, why in NO_EFFECT.items() if key_path == key or key_path.startswith(f"{key}.")), None)
        if why:
            yield f"{dotted(path)} has no effect: {why}"
        other = other_sinks(key_path)
        if other is not None and other != _kind(config):
            yield f"{dotted(path)} has no effect: it is for {other}"
        if key_path in ONLY_FOR and config.protocol not in ONLY_FOR[key_path]:
            reader = "a database sink" if config.uri.server is not None else f"protocol {config.protocol}"
            yield f"{dotted(path)} has no effect: {reader} does not read it"


def _of_redo(config: ChangefeedConfig) -> Iterator[str]:
    """Of ``[consistent]``."""
    if config.consistent.level == "eventual":
        yield (
            "consistent: the raw log in Kafka is the redo log of every changefeed, for as long as Kafka keeps it; "
            "nothing is written to consistent.storage, and `tidebus recover` stands in for `cdc redo apply`"
        )
    elif config.consistent != ConsistentConfig():
        yield "consistent has no effect: its level is none"


def _of_sink(config: ChangefeedConfig) -> Iterator[str]:
    """Of what depends on the kind of the sink, and of its URI."""
    server = config.uri.server
    if server is not None and server.is_default_port and server.port != TICDC_DATABASE_PORT:
        yield (
            f"the sink URI names no port, and {server.port} is taken, where TiCDC takes {TICDC_DATABASE_PORT}; write "
            "the port that is meant"
        )
    if server is not None and config.sink.column_selectors:
        yield "sink.column-selectors has no effect: it is for Kafka and storage sinks, a database has whole rows"
    if not config.initial_schema and _kind(config) in ("storage sinks", "Iceberg sinks"):
        yield "initial-schema has no effect: it is for Kafka and database sinks"
    if _kind(config) != "Kafka sinks":
        yield from (
            f"filter.event-filters[{index}].ignore-update-only-columns has no effect: it is for Kafka sinks"
            for index, rule in enumerate(config.filter.event_filters)
            if rule.ignore_update_only_columns
        )
    if config.codec.output_row_key and config.protocol == "canal-json" and not config.codec.enable_tidb_extension:
        yield (
            "sink.kafka-config.codec-config.output-row-key has no effect: the key stands in the TiDB extension, and "
            "enable-tidb-extension is off"
        )
    expires = config.uri.storage is not None and config.sink.cloud_storage.file_expiration_days > 0
    if expires and config.sink.date_separator != "day":
        yield "sink.cloud-storage-config.file-expiration-days has no effect: date-separator is not `day`"
    if config.uri.unread:
        shown = ", ".join(config.uri.unread)
        yield f"sink URI: nobody reads {shown}; TiCDC passes over unknown parameters, and so do we"
    yield from (f"sink URI: `{name}` has no effect: {why}" for name, why in config.uri.idle)


def _of_dispatchers(config: ChangefeedConfig) -> Iterator[str]:
    """Of partition rules: unknown words, old names, and what does not keep the order."""
    for index, rule in enumerate(config.sink.dispatchers):
        word = (rule.partition or rule.dispatcher or "default").lower()
        where = f"sink.dispatchers[{index}]"
        if word not in PARTITION_RULES:
            yield f"{where}.partition `{word}` is unknown and taken as `default`, as TiCDC does"
        if rule.index and word not in ("index-value", "rowid"):
            yield f"{where}.index has no effect: it goes with partition `index-value`, and this is `{word}`"
        if word == "rowid":
            yield f"{where}.partition `rowid` is the old name of `index-value`"
        if word == "ts":
            yield f"{where}.partition `ts` does not keep the changes of one row in order"
        if rule.dispatcher:
            yield f"{where}.dispatcher is the old name of `partition`"


def _of_protocol(config: ChangefeedConfig) -> Iterator[str]:
    """Of settings that mean less in a protocol than their names say."""
    if config.codec.avro_enable_watermark and config.protocol == "avro":
        yield (
            "sink.kafka-config.codec-config.avro-enable-watermark is TiCDC's test mode: its DDL and watermark messages "
            "are no Avro, and Confluent's clients fail on them"
        )
    elif config.codec.avro_enable_watermark and config.protocol == "debezium-avro":
        yield (
            "sink.kafka-config.codec-config.avro-enable-watermark is TiCDC's test mode: its DDL and watermark messages "
            "have schemas of their own among those of rows"
        )
    if config.protocol == "simple" and config.sink.send_bootstrap_interval_s and config.sink.send_bootstrap_messages:
        yield (
            "sink.send-bootstrap-in-msg-count only turns bootstraps off at 0: they are sent for all tables at "
            "the start, after each DDL, and every sink.send-bootstrap-interval-in-sec"
        )
    elif config.protocol == "simple":
        yield "no bootstraps are sent: consumers know only tables whose DDL events they have read"


def _of_raw_changes(config: ChangefeedConfig) -> Iterator[str]:
    """Of changed keys that are sent as updates, where a message lacks the old key."""
    if config.kafka.output_raw_change_event and config.protocol == "avro":
        yield (
            "sink.kafka-config.output-raw-change-event with avro: a changed key is sent without a delete of the old one"
        )
    if config.kafka.output_raw_change_event and config.protocol in _OPEN and not config.sink.open.output_old_value:
        yield (
            "sink.kafka-config.output-raw-change-event with sink.open.output-old-value = false: a changed key is sent "
            "without the old one"
        )
    if (
        config.kafka.output_raw_change_event
        and config.protocol in ("debezium", "debezium-avro")
        and not config.sink.debezium.output_old_value
    ):
        yield (
            "sink.kafka-config.output-raw-change-event with sink.debezium.output-old-value = false: a changed key is "
            "sent without the old one"
        )


def _of_kafka(config: ChangefeedConfig) -> Iterator[str]:
    """Of Kafka's own section."""
    large = config.kafka.large_message_handle
    if large.large_message_handle_option != "claim-check" and (
        large.claim_check_storage_uri is not None or large.claim_check_raw_value
    ):
        yield (
            "sink.kafka-config.large-message-handle.claim-check-* has no effect: large-message-handle-option is "
            f"`{large.large_message_handle_option}`"
        )
    if config.kafka.insecure_skip_verify and not config.tls:
        why = "TLS is off" if _kind(config) == "Kafka sinks" else "it is for Kafka sinks"
        yield f"sink.kafka-config.insecure-skip-verify has no effect: {why}"
    elif config.kafka.insecure_skip_verify:
        yield (
            "sink.kafka-config.insecure-skip-verify: the sorter's Java client skips the host name, not the certificate"
        )
