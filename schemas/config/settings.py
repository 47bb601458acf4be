"""The settings of a changefeed, as frozen values. :mod:`schemas.config.changefeed` reads and checks them."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from schemas.config.parse.duration import Seconds
from schemas.config.parse.origin import Origin
from schemas.config.parse.section import at_least, between, section, setting, shortest_duration
from schemas.config.sections import (
    ConsistentConfig,
    Initial,
    InitialRule,
    IntegrityConfig,
    MounterConfig,
    SchedulerConfig,
    SorterConfig,
    SyncedStatusConfig,
    TableImagesConfig,
)
from schemas.config.sink.blackhole import BLACKHOLE_PROTOCOL
from schemas.config.sink.kafka import CodecConfig, KafkaConfig
from schemas.config.sink.sink import FilterConfig, SinkConfig
from schemas.config.sink.sink_uri import SinkUri
from schemas.ids import Ts

SQL_ROWS_PROTOCOL = "sql-rows"
"""Between the sorter and the processors of a database sink (:mod:`schemas.sink.sql_rows`); users cannot ask for it."""
SQL_MODE_DEFAULT = (
    "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION"
)
"""TiDB's own default of sql_mode."""


@dataclass(frozen=True, kw_only=True)
class ChangefeedFile:
    """The top level of the changefeed file."""

    memory_quota_bytes: int = setting(1024 * 1024 * 1024, key="memory-quota", check=at_least(1))
    case_sensitive: bool = False
    """Of table-filter rules and matchers; those of value expressions are always case-sensitive."""
    force_replicate: bool = False
    """Also rows of tables without primary key and not-null unique key."""
    check_gc_safe_point: bool = True
    ignore_ineligible_table: bool = False
    """Create the changefeed although it holds tables without a usable key; they are skipped."""
    enable_sync_point: bool = False
    sync_point_interval_s: Seconds = setting(Seconds(600), key="sync-point-interval")
    sync_point_retention_s: Seconds = setting(Seconds(86400), key="sync-point-retention")
    bdr_mode: bool = False
    """Bidirectional replication: only what users wrote in this upstream, and DDL of the primary cluster alone."""
    error_stuck_duration_s: Seconds = setting(
        Seconds(1800), key="changefeed-error-stuck-duration", check=shortest_duration("30m")
    )
    enable_table_monitor: bool = False
    performance_mode: Literal["throughput", "low-latency"] = "throughput"
    event_collector_batch_count: int = setting(0, check=between(0, 8192))
    event_collector_batch_bytes: int = setting(0, check=at_least(0))
    enable_active_active: bool = False
    active_active_progress_interval_s: Seconds = setting(
        Seconds(1800), key="active-active-progress-interval", check=shortest_duration("1ns")
    )
    active_active_sync_stats_interval_s: Seconds = setting(Seconds(60), key="active-active-sync-stats-interval")
    sql_mode: str = SQL_MODE_DEFAULT
    initial: Initial = "none"
    """Of tables that no item of ``initial_rules`` matches. Ours."""
    initial_rules: tuple[InitialRule, ...] = ()
    state_proofs: tuple[str, ...] = ()
    """Table-filter rules: of which tables what they hold is carried along, and told at watermarks. Ours."""
    initial_schema: bool = True
    """Tables with an image are made before their first row: a database makes those that it lacks, consumers of topics
    are told. Ours.
    """
    filter: FilterConfig = section(FilterConfig)
    mounter: MounterConfig = section(MounterConfig)
    sink: SinkConfig = section(SinkConfig)
    consistent: ConsistentConfig = section(ConsistentConfig)
    scheduler: SchedulerConfig = section(SchedulerConfig)
    integrity: IntegrityConfig = section(IntegrityConfig)
    synced_status: SyncedStatusConfig = section(SyncedStatusConfig)
    sorter: SorterConfig = section(SorterConfig)
    table_images: TableImagesConfig = section(TableImagesConfig)


@dataclass(frozen=True, kw_only=True)
class ChangefeedConfig(ChangefeedFile):
    """All settings of a changefeed, the sink URI's among them."""

    uri: SinkUri
    origin: Origin = dataclasses.field(default_factory=Origin, compare=False, repr=False)
    """Where the settings stand: for errors that only a table, a topic or a row brings up."""
    start_ts: Ts = Ts(0)
    """The changefeed's, where what its sorter writes depends on it: in the table versions of a storage sink."""
    time_zone: str = "UTC"
    """The changefeed's, for TIMESTAMPs: no setting, but what it was created with (``ChangefeedInfo.time_zone``)."""
    notes: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    """Settings that were accepted but mean nothing here, or less than they say: to be shown at creation."""

    @property
    def protocol(self) -> str:
        """As it was given; never unset. ``default`` is open-protocol. Of a database sink: the topic's in between; of
        an Iceberg sink the same, though nothing is encoded."""
        if self.uri.server is not None or self.uri.is_lake:
            return SQL_ROWS_PROTOCOL
        if self.uri.is_blackhole and self.sink.protocol is None:
            return BLACKHOLE_PROTOCOL
        assert self.sink.protocol is not None
        return self.sink.protocol

    @property
    def wants_initial(self) -> bool:
        """Whether the changefeed waits for images of tables before it begins."""
        return self.initial == "snapshot" or any(rule.initial == "snapshot" for rule in self.initial_rules)

    @property
    def kafka(self) -> KafkaConfig:
        return self.sink.kafka

    @property
    def codec(self) -> CodecConfig:
        return self.sink.kafka.codec

    @property
    def default_topic(self) -> str:
        return self.uri.default_topic

    @property
    def tls(self) -> bool:
        """Talk TLS to the brokers."""
        if self.kafka.enable_tls is not None:
            return self.kafka.enable_tls
        return self.uri.scheme == "kafka+ssl" or self.kafka.ca is not None
