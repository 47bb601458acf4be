"""``[sink]`` and ``[filter]``: TiCDC's keys and defaults."""

from dataclasses import dataclass
from typing import Literal

from schemas.config.parse.raw_offsets import OffsetRange, RawOffsets
from schemas.config.parse.secret import SecretUrl
from schemas.config.parse.section import INT64_MAX, at_least, between, each, section, setting
from schemas.config.sink.iceberg import IcebergConfig
from schemas.config.sink.kafka import KafkaConfig
from schemas.config.sink.mysql import MysqlConfig
from schemas.config.sink.storage import CloudStorageConfig

Protocol = Literal[
    "canal-json",
    "open-protocol",
    "avro",
    "simple",
    "debezium",
    "debezium-avro",
    "canal",
    "maxwell",
    "craft",
    "csv",
    "default",
]
"""``default`` is an old name of open-protocol."""
AVRO_PROTOCOLS = ("avro", "debezium-avro")
"""Protocols whose schemas stand in a registry."""


@dataclass(frozen=True, kw_only=True)
class DispatchRule:
    """One item of ``[sink] dispatchers``; the first whose matcher matches a table counts."""

    matcher: tuple[str, ...] = setting()
    """Table-filter rules."""
    topic: str = ""
    """A topic, or an expression with ``{schema}`` and ``{table}``. Empty: the default topic, the URI's path."""
    partition: str | None = None
    """default, table, index-value, columns or ts."""
    dispatcher: str | None = None
    """Old name of ``partition``; one of the two at most."""
    index: str = ""
    """Index of an index-value rule; empty: the handle key."""
    columns: tuple[str, ...] = ()
    """Columns of a columns rule."""
    target_schema: str = ""
    """The schema's name at the destination; may hold ``{schema}`` and ``{table}``. Empty: as upstream."""
    target_table: str = ""
    """The table's, likewise."""


@dataclass(frozen=True, kw_only=True)
class ColumnSelector:
    """One item of ``[sink] column-selectors``; the first whose matcher matches a table counts."""

    matcher: tuple[str, ...] = setting()
    """Table-filter rules."""
    columns: tuple[str, ...] = setting()
    """Rules over column names; the last that matches decides, and a column that none matches is left out."""


@dataclass(frozen=True, kw_only=True)
class CsvConfig:
    """``[sink.csv]``."""

    delimiter: str = ","
    quote: str = '"'
    null: str = r"\N"
    include_commit_ts: bool = False
    binary_encoding_method: Literal["base64", "hex"] = "base64"
    output_old_value: bool = False
    output_handle_key: bool = False
    output_field_header: bool = False


@dataclass(frozen=True, kw_only=True)
class OldValueConfig:
    """``[sink.open]``."""

    output_old_value: bool = True


@dataclass(frozen=True, kw_only=True)
class DebeziumConfig(OldValueConfig):
    """``[sink.debezium]``."""

    include_start_ts: bool = False


@dataclass(frozen=True, kw_only=True)
class SinkConfig:
    """What leaves, in which form, and to where in the sink."""

    protocol: Protocol | None = None
    """Must be given, here or in the sink URI."""
    schema_registry: SecretUrl | None = None
    dispatchers: tuple[DispatchRule, ...] = ()
    column_selectors: tuple[ColumnSelector, ...] = ()
    csv: CsvConfig = section(CsvConfig)
    transaction_atomicity: Literal["none", "table"] = "none"
    """Of database sinks. Both keep a table's transaction whole; ``none`` would allow to divide it."""
    encoder_concurrency: int = setting(32, check=at_least(1))
    terminator: str = "\r\n"
    date_separator: Literal["none", "year", "month", "day"] = "day"
    enable_partition_separator: bool = True
    file_index_digit: int = setting(20, check=between(6, 20))
    enable_kafka_sink_v2: bool = setting(False, key="enable-kafka-sink-v2")
    only_output_updated_columns: bool = False
    """canal-json, open-protocol: the old row holds only columns that changed."""
    delete_only_output_handle_key_columns: bool = False
    content_compatible: bool = False
    """canal-json as the official canal writes it."""
    safe_mode: bool = False
    kafka: KafkaConfig = section(KafkaConfig, key="kafka-config")
    mysql: MysqlConfig = section(MysqlConfig, key="mysql-config")
    cloud_storage: CloudStorageConfig = section(CloudStorageConfig, key="cloud-storage-config")
    iceberg: IcebergConfig = section(IcebergConfig, key="iceberg-config")
    """Ours."""
    advance_timeout_s: int = setting(150, key="advance-timeout-in-sec", check=at_least(1))
    send_bootstrap_interval_s: int = setting(120, key="send-bootstrap-interval-in-sec", check=at_least(0))
    send_bootstrap_messages: int = setting(10000, key="send-bootstrap-in-msg-count", check=at_least(0))
    send_bootstrap_to_all_partition: bool = True
    send_all_bootstrap_at_start: bool = False
    debezium_disable_schema: bool = False
    open: OldValueConfig = section(OldValueConfig)
    debezium: DebeziumConfig = section(DebeziumConfig)


@dataclass(frozen=True, kw_only=True)
class EventFilterRule:
    """One item of ``[filter] event-filters``."""

    matcher: tuple[str, ...] = setting()
    """Table-filter rules, case-sensitive for value expressions; an empty list matches nothing."""
    ignore_event: tuple[str, ...] = ()
    ignore_sql: tuple[str, ...] = ()
    """Regular expressions over the text of a DDL."""
    ignore_insert_value_expr: str = ""
    ignore_update_new_value_expr: str = ""
    ignore_update_old_value_expr: str = ""
    ignore_delete_value_expr: str = ""
    ignore_update_only_columns: tuple[str, ...] = ()


def _raw_offsets(text: str) -> str | None:
    try:
        OffsetRange.parse(text)
    except ValueError as error:
        return str(error)
    return None


@dataclass(frozen=True, kw_only=True)
class FilterConfig:
    """``[filter]``: which tables, transactions and events go on."""

    rules: tuple[str, ...] = ("*.*",)
    """Table-filter rules, the last that matches decides. An empty list is replaced by ``*.*``."""
    ignore_txn_start_ts: tuple[int, ...] = setting((), check=each(between(0, INT64_MAX)))
    """Transactions, rows and DDL, to drop."""
    skip_damaged_records: tuple[str, ...] = setting((), check=each(_raw_offsets))
    """Damaged records of the raw log to pass over, each text ``PARTITION:OFFSET`` or ``PARTITION:FIRST-LAST``; their
    tables want a resync then.
    """
    event_filters: tuple[EventFilterRule, ...] = ()

    @property
    def skipped_records(self) -> RawOffsets:
        """What ``skip-damaged-records`` names."""
        return RawOffsets.parse(self.skip_damaged_records)

    def __post_init__(self) -> None:
        if not self.rules:
            object.__setattr__(self, "rules", ("*.*",))
