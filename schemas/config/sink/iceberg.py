"""``[sink.iceberg-config]`` and the parameters of an Iceberg sink URI, ``iceberg://?warehouse=file:///…``.

Names are those of TiCDC's open branch (pingcap/ticdc pull request 4100) where it has them; ``tags-kept`` is ours.
"""

from dataclasses import dataclass
from typing import Literal

from schemas.config.parse.duration import Seconds
from schemas.config.parse.section import at_least, setting, shortest_duration

ICEBERG_SCHEMES = ("iceberg",)
LakeMode = Literal["append", "upsert"]


@dataclass(frozen=True, kw_only=True)
class IcebergConfig:
    """Where lake tables stand, and how they are written."""

    mode: LakeMode = "append"
    """``append``: every change is a row. ``upsert``: a row of TiDB is a row."""
    commit_interval_s: Seconds = setting(Seconds(60), key="commit-interval", check=shortest_duration("1s"))
    catalog: Literal["hadoop", "glue", "rest", "jdbc"] = "hadoop"
    warehouse: str = ""
    """``file:///path``; must be given."""
    namespace: str = ""
    """Stands before the schema's name: ``namespace.schema.table``. Empty: ``schema.table``."""
    tags_kept: int = setting(100, check=at_least(1))
    """Tags ``wm_TS`` that a table keeps; older ones go, with the snapshots that only they held once these expire."""


ICEBERG_PATH = ("sink", "iceberg-config")
ICEBERG_URI_PARAMS: dict[str, tuple[str, ...]] = {
    name: (*ICEBERG_PATH, name)
    for name in ("mode", "commit-interval", "catalog", "warehouse", "namespace", "tags-kept")
}
"""Parameters of an Iceberg sink URI and the setting that each one overrides."""
ICEBERG_LATER_PARAMS = {
    "partitioning": "partitions of lake tables",
    "target-file-size": "a size of data files; Iceberg's own default holds",
    "auto-tune-file-size": "a size of data files; Iceberg's own default holds",
    "emit-metadata-columns": "lake tables of mode append without change columns",
    "enable-checkpoint-table": "tables of checkpoints; tags and snapshot summaries say how far a table is",
    "enable-global-checkpoint-table": "tables of checkpoints; tags and snapshot summaries say how far a table is",
    "allow-takeover": "lake tables of another changefeed",
    "schema-mode": "another choice of what a ddl may do",
}
"""TiCDC's further parameters, which nobody may pass over; ``config.not_supported_yet``."""
