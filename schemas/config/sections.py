"""The smaller tables of the changefeed file: TiCDC's keys and defaults."""

from dataclasses import dataclass
from typing import Literal

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
    """``[consistent]``: the redo log."""

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
    memory_usage: RedoMemoryUsage = section(RedoMemoryUsage)


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """``[scheduler]``."""

    enable_table_across_nodes: bool = False
    region_threshold: int = setting(100_000, check=at_least(0))
    write_key_threshold: int = setting(0, check=at_least(0))
    region_per_span: int = setting(0, check=at_least(0))


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
