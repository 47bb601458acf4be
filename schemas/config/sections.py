"""The smaller tables of the changefeed file: TiCDC's keys and defaults."""

from dataclasses import dataclass
from typing import Literal

from schemas.config.parse.duration import Seconds
from schemas.config.parse.secret import Secret
from schemas.config.parse.section import at_least, between, section, setting


@dataclass(frozen=True, kw_only=True)
class MounterConfig:
    """``[mounter]``."""

    worker_num: int = setting(16, check=at_least(1))


@dataclass(frozen=True, kw_only=True)
class RedoMemoryUsage:
    """``[consistent.memory-usage]``."""

    memory_quota_percentage: int = setting(50, check=between(0, 100))


@dataclass(frozen=True, kw_only=True)
class ConsistentConfig:
    """``[consistent]``: the redo log. Nothing reads it: the raw log is one."""

    level: Literal["none", "eventual"] = "none"
    max_log_size_mib: int = setting(64, key="max-log-size", check=at_least(1))
    flush_interval_ms: int = setting(2000, key="flush-interval", check=at_least(50))
    meta_flush_interval_ms: int = setting(200, key="meta-flush-interval", check=at_least(50))
    encoding_worker_num: int = setting(16, check=at_least(1))
    flush_worker_num: int = setting(8, check=at_least(1))
    storage: Secret | None = None
    """A URI, which may hold credentials."""
    use_file_backend: bool = False
    compression: Literal["", "lz4"] = ""
    flush_concurrency: int = setting(1, check=at_least(1))
    event_collector_batch_count: int = setting(0, check=at_least(0))
    memory_usage: RedoMemoryUsage = section(RedoMemoryUsage)


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """``[scheduler]``."""

    enable_table_across_nodes: bool = False
    region_threshold: int = setting(100_000, check=at_least(0))
    write_key_threshold: int = setting(0, check=at_least(0))
    region_per_span: int = setting(0, check=at_least(0))
    region_count_per_span: int = setting(100, check=at_least(0))
    region_count_refresh_interval_s: Seconds = setting(Seconds(300), key="region-count-refresh-interval")
    scheduling_task_count_per_node: int = setting(20, check=at_least(0))
    enable_splittable_check: bool = False
    force_split: bool = False
    balance_score_threshold: int = setting(20, check=at_least(0))
    min_traffic_percentage: float = setting(0.8, check=at_least(0))
    max_traffic_percentage: float = setting(1.25, check=at_least(0))


@dataclass(frozen=True, kw_only=True)
class IntegrityConfig:
    """``[integrity]``: row checksums."""

    integrity_check_level: Literal["none", "correctness"] = "none"
    corruption_handle_level: Literal["warn", "error"] = "warn"

    @property
    def enabled(self) -> bool:
        """Row checksums are verified."""
        return self.integrity_check_level == "correctness"


@dataclass(frozen=True, kw_only=True)
class SyncedStatusConfig:
    """``[synced-status]``: when the API calls a changefeed synced."""

    synced_check_interval_s: int = setting(300, key="synced-check-interval", check=at_least(1))
    checkpoint_interval_s: int = setting(15, key="checkpoint-interval", check=at_least(1))


Initial = Literal["none", "snapshot"]
"""Whether rows that a table had before its changefeed came to it go out, as a table image."""


@dataclass(frozen=True, kw_only=True)
class InitialRule:
    """One item of ``initial-rules``; the first whose matcher matches a table counts. TiCDC has no such list."""

    matcher: tuple[str, ...] = setting()
    """Table-filter rules."""
    initial: Initial = setting()


@dataclass(frozen=True, kw_only=True)
class TableImagesConfig:
    """``[table-images]``: in what order images come, and at what cost to the changefeed itself. TiCDC has no such
    table.
    """

    first: tuple[str, ...] = ()
    """Table-filter rules: tables that match the first of them come before all others, and so on."""
    tables_at_once: int = setting(4, check=between(1, 16))
    """Of so many tables a chunk is scanned at one barrier; all of them go out at one ts."""
    lag_max_s: int = setting(0, key="lag-seconds-max", check=at_least(0))
    """While the changefeed's checkpoint is further behind PD's clock no chunk is begun; 0: no bound."""


@dataclass(frozen=True, kw_only=True)
class SorterConfig:
    """``[sorter]``: how TideBus runs the changefeed. TiCDC has no such table."""

    isolation: Literal["shared", "process"] = "shared"
    """``process``: in a service of its own, from the start."""
    run_cuts: Literal["auto", "driver", "spark"] = "auto"
    """By whom: ``auto`` goes by cost."""
    cpu_share_max_percent: int = setting(0, key="cpu-share-max", check=at_least(0))
    """Of one core, what its cuts may take of their service over time; 0: no bound."""
    rows_per_second_max: int = setting(0, check=at_least(0))
    """Rows that it may write, over time; 0: no bound."""
