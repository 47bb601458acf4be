"""FLASHBACK: what brings a dropped database back, and what takes the whole cluster back.

FLASHBACK TABLE is a job of the type of RECOVER TABLE, and carries the table. FLASHBACK DATABASE (TiDB calls its job
``flashback schema``) has named the database alone since TiDB 7.1: its tables are those that it had when it was dropped,
with their old ids, so whoever has read all jobs knows them. FLASHBACK CLUSTER rewrites rows, which come as changes like
any others, and meta keys, for which there is no job: where it takes DDL back nobody can follow.

Source: pingcap/tidb ``pkg/ddl/schema.go``, ``pkg/ddl/cluster.go`` and ``pkg/meta/model/job_args.go``.
"""

from collections.abc import Mapping
from typing import Final

from schemas.errors import Action, BusError
from schemas.ids import Ts
from schemas.tidb.info_json import JsonObject, object_in, optional_objects_in

FLASHBACK_CLUSTER: Final = 62
"""TiDB's action type, of no schema's DDL."""
_DO = (
    "begin a raw log of a new --upstream name, make the destination's tables as they stand upstream, and create the "
    "changefeed anew on it; or, where that ddl was of no table of this changefeed, put its start_ts into "
    "filter.ignore-txn-start-ts and resume"
)


class FlashbackClusterError(BusError):
    """FLASHBACK CLUSTER took DDL back: from here on no schema that we know fits the rows."""

    code, action = "schema.flashback_cluster", Action.STOP_CHANGEFEED


def carried_tables(raw: JsonObject) -> tuple[JsonObject, ...] | None:
    """Return the TableInfos that a ``flashback schema`` job carries itself, as before TiDB 7.1; None: it has none.

    Raises:
        KeyError, TypeError: its arguments are of another form.
    """
    info = _first_argument(raw, "recover_info")
    if not isinstance(info, Mapping) or info.get("LoadTablesOnExecute"):
        return None
    tables = (*optional_objects_in(info, "RecoverTableInfos"), *optional_objects_in(info, "RecoverTabsInfo"))
    return tuple(object_in(table, "TableInfo") for table in tables)


def check_cluster_flashback(raw: JsonObject, finished_ts: Ts, changed_ts: Ts) -> None:
    """Pass over a FLASHBACK CLUSTER that took no DDL back.

    Args:
        raw: the job.
        finished_ts: of it.
        changed_ts: finished_ts of the last DDL before it that changed a schema.

    Raises:
        FlashbackClusterError: it took some back, or does not say how far it went.
    """
    to_ts = _first_argument(raw, "flashback_ts")
    if isinstance(to_ts, int) and to_ts >= changed_ts:
        return
    raise FlashbackClusterError(
        "the cluster was taken back to before a ddl",
        job_id=raw.get("id"),
        finished_ts=finished_ts,
        flashback_ts=to_ts,
        last_ddl_ts=changed_ts,
        query=str(raw.get("query"))[:200],
        do=_DO,
    )


def _first_argument(raw: JsonObject, name: str) -> object:
    """Return it by its name, as since TiDB 8.4 (job version 2), or as the first of an array."""
    args = raw.get("raw_args")
    if isinstance(args, Mapping):
        return args.get(name)
    return args[0] if isinstance(args, list) and args else None
