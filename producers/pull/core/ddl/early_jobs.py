"""Jobs that take effect before they are done: TRUNCATE PARTITION, from its step ``delete-only`` on.

Source: pingcap/tidb ``pkg/ddl/truncate_partition.go``, ``onTruncateTablePartition``. The steps are public, write-only,
delete-only, delete-reorganization and done. The transaction that writes ``delete-only`` into the job's row puts the new
ids into the table's partition definitions, and sessions insert there from then on. So did older versions with a global
index (``pkg/ddl/partition.go``, public, delete-only, …); without one they were done in one step. From there on none is
rolled back any more: ``convertTruncateTablePartitionJob2RollbackJob`` (``pkg/ddl/rollingback.go``) makes the job go on,
as "new partitions may have been used".

The row of that step carries no TableInfo. Nothing else changes a table while a job of it runs, so it is the one before,
with the new ids. docs/decisions/2026-11-30-when-a-ddl-takes-effect.md
"""

import json
import zlib
from dataclasses import replace
from typing import Any, Final

from schemas.ddl.flashback import FLASHBACK_CLUSTER
from schemas.ddl.job import JOB_STATE_DONE, DdlDecodeError, DdlType, has_changed_schemas, read_undecodable
from schemas.rawlog.ddl_record import DdlRecord
from schemas.tidb.info_json import JsonObject, number_in, object_in, objects_in, whole_number

_JOB_STATE_RUNNING: Final = 1
_STATE_DELETE_ONLY: Final = 1
"""``model.StateDeleteOnly``, of ``schema_state``; 0 is none, as of a job that is done."""
_WHILE_IT_RUNS: Final = frozenset({"new_partition_ids", "ddl_action"})
"""What stands in the partition info of a table only while such a job runs."""


def may_count(job: JsonObject) -> bool:
    """Tell whether a job's row is one that a schema may change at: done, or early.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it does not decode.
    """
    return has_changed_schemas(job) or is_early(job)


def is_early(job: JsonObject) -> bool:
    """Tell whether this is a row, not done, from which on the job has its effect."""
    step = job.get("type"), job.get("state"), job.get("schema_state")
    return step == (DdlType.TRUNCATE_PARTITION, _JOB_STATE_RUNNING, _STATE_DELETE_ONLY)


def as_done(job: JsonObject, table_info: JsonObject) -> dict[str, Any] | None:
    """Return an early job as if it were done: with the TableInfo that its table has from then on.

    Args:
        job: JSON of the row.
        table_info: of the job's table, before it.

    Returns:
        None where the two do not fit: then nothing is known before the job is done.
    """
    try:
        new_ids, version = _new_ids(job["raw_args"]), number_in(job, "last_schema_version", 0)
        binlog, partition = object_in(job, "binlog"), object_in(table_info, "partition")
        definitions = objects_in(partition, "definitions")
        ids = [number_in(definition, "id") for definition in definitions]
    except (KeyError, TypeError, ValueError):
        return None
    if not new_ids or not new_ids.keys() <= set(ids) or not new_ids.keys().isdisjoint(new_ids.values()):
        return None
    kept = {key: value for key, value in partition.items() if key not in _WHILE_IT_RUNS}
    replaced = [{**each, "id": new_ids.get(id_, id_)} for each, id_ in zip(definitions, ids, strict=True)]
    info = {**table_info, "partition": {**kept, "definitions": replaced, "ddl_state": 0}}
    return {
        **job,
        "state": JOB_STATE_DONE,
        "schema_state": 0,
        # A version of its own, which the last one before done is; 0 would say that nothing has changed.
        "binlog": {**binlog, "SchemaVersion": version or 1, "TableInfo": info},
    }


class PartitionedTables:
    """The newest TableInfo of each partitioned table, by records of the ddl topic in their order.

    A table that nobody can be sure of is not in here.
    """

    def __init__(self) -> None:
        self._packed: dict[int, bytes] = {}
        """By table id, zlib-compressed: there may be very many."""

    def see(self, record: DdlRecord) -> None:
        """Take the next record that is in the topic, or goes there."""
        if record.kind == "table":
            self._put(record.payload)
        elif record.kind == "job":
            self._see_job(record.payload)
        elif record.kind == "undecodable":
            try:
                job = read_undecodable(record)
            except DdlDecodeError:
                self._packed.clear()  # it may have changed any of them
            else:
                self._see_job(job.payload if job is not None else {})

    def as_done(self, record: DdlRecord) -> DdlRecord | None:
        """Return the record of an early job as of one that is done; None: nothing is known before it is."""
        table_id = record.payload.get("table_id")
        packed = self._packed.get(table_id) if isinstance(table_id, int) else None
        payload = as_done(record.payload, json.loads(zlib.decompress(packed))) if packed is not None else None
        return replace(record, payload=payload) if payload is not None else None

    def _see_job(self, job: JsonObject) -> None:
        if job.get("type") == FLASHBACK_CLUSTER:
            self._packed.clear()
        # A truncated table has another id in its TableInfo; of a job that carries none nobody knows what it did.
        table_id = job.get("table_id")
        if isinstance(table_id, int):
            self._packed.pop(table_id, None)
        binlog = job.get("binlog")
        if not isinstance(binlog, dict) or job.get("type") == DdlType.DROP_TABLE:
            return
        several = binlog.get("MultipleTableInfos")
        for info in (binlog.get("TableInfo"), *(several if isinstance(several, list) else ())):
            if isinstance(info, dict):
                self._put(info)

    def _put(self, info: JsonObject) -> None:
        table_id, partition = info.get("id"), info.get("partition")
        if not isinstance(table_id, int):
            return
        if isinstance(partition, dict) and partition.get("enable"):
            text = json.dumps(info, separators=(",", ":"), ensure_ascii=False)
            self._packed[table_id] = zlib.compress(text.encode(), 1)
        else:
            self._packed.pop(table_id, None)


def _new_ids(args: object) -> dict[int, int]:
    """Return new ids by old ones: of an object since TiDB 8.4 (job version 2), of an array before; none if it has none.

    Raises:
        KeyError, TypeError, ValueError: these are no arguments of this job.
    """
    old, new = (args["old_partition_ids"], args["new_partition_ids"]) if isinstance(args, dict) else _two(args)
    by_old = dict(zip(_ids(old), _ids(new), strict=True))
    if len(by_old) != len(old) or len(set(by_old.values())) != len(old):
        raise ValueError("an id stands there twice")
    return by_old


def _two(args: object) -> list[Any]:
    if not isinstance(args, list) or len(args) != 2:
        raise TypeError(f"{str(args)[:40]!r} is no list of two")
    return args


def _ids(value: object) -> list[int]:
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:40]!r} is no list of ids")
    return [whole_number(item, "partition id") for item in value]
