"""Schemas that are never replicated, whatever a filter says: TiDB's own, those of its tools, and ours."""

SYSTEM_SCHEMAS = frozenset(
    {
        *("information_schema", "performance_schema", "metrics_schema", "inspection_schema", "mysql", "sys"),
        *("workload_schema", "tidb_cdc", "lightning_task_info", "dm_heartbeat"),
        "tidebus",
    }
)
"""Lower case. ``tidebus`` is where a changefeed keeps its positions in a database destination: replicated on, from a
destination that is a source too, it would write over those of the next bus. Sources: pingcap/tidb
``pkg/util/filter/schema.go``, TiCDC ``pkg/filter``, ``IsSysSchema``."""


def is_system_schema(schema: str) -> bool:
    """Tell whether a schema is one of them, in any case; no changefeed sees its tables."""
    return schema.lower() in SYSTEM_SCHEMAS
