"""``[sink.cloud-storage-config]`` and the parameters of a storage sink URI: TiCDC's keys and defaults."""

from dataclasses import dataclass

from schemas.config.parse.duration import Seconds
from schemas.config.parse.section import at_least, between, setting, shortest_duration

STORAGE_SCHEMES = ("file", "s3", "gcs", "gs", "azblob", "azure")
STORAGE_PROTOCOLS = ("csv", "canal-json")


@dataclass(frozen=True, kw_only=True)
class CloudStorageConfig:
    """How files are written."""

    worker_count: int = setting(16, check=between(1, 512))
    """Files that are written at once."""
    flush_interval_s: Seconds = setting(Seconds(5), key="flush-interval", check=shortest_duration("2s"))
    file_size_bytes: int = setting(64 << 20, key="file-size", check=between(1 << 20, 512 << 20))
    flush_concurrency: int = setting(1, check=between(1, 512))
    """Parts of one object that are sent at once; a file is sent whole here."""
    output_column_id: bool = False
    """Column ids in schema files."""
    file_expiration_days: int = setting(0, check=at_least(0))
    file_cleanup_cron_spec: str = "0 0 2 * * *"
    spool_disk_quota_bytes: int = setting(0, key="spool-disk-quota", check=at_least(0))
    spool_base_dir: str = ""
    use_table_id_as_path: bool = False
    """Folders are named by physical table ids, without schemas."""
    output_raw_change_event: bool = False
    """Leave updates of a unique key as they are."""


_PATH = ("sink", "cloud-storage-config")
STORAGE_URI_PARAMS: dict[str, tuple[str, ...]] = {
    "protocol": ("sink", "protocol"),
    "enable-tidb-extension": ("sink", "kafka-config", "codec-config", "enable-tidb-extension"),
    **{name: (*_PATH, name) for name in ("worker-count", "flush-interval", "file-size", "flush-concurrency")},
    **{name: (*_PATH, name) for name in ("spool-disk-quota", "spool-base-dir", "use-table-id-as-path")},
    "content-compatible": ("sink", "content-compatible"),
    "only-output-updated-columns": ("sink", "only-output-updated-columns"),
    "transaction-atomicity": ("sink", "transaction-atomicity"),
    "output-row-key": ("sink", "kafka-config", "codec-config", "output-row-key"),
}
"""Parameters of a storage sink URI and the setting that each one overrides; all others are the storage's own."""
