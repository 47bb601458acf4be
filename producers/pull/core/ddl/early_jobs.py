"""Jobs that take effect before they are done, from the step on at which sessions begin to write by the new schema.

Sources: pingcap/tidb ``pkg/ddl``. A job goes through several steps, each a transaction that writes the job's row and
its table's TableInfo. From these on none is rolled back any more (``rollingback.go``):

- MODIFY COLUMN with new data (``modify_column.go``): the new column is public, and the old one no more.
- Several changes in one ALTER TABLE (``multi_schema_change.go``): none of them is revertible. What they add has become
  public in the one transaction that said so; columns that they drop are on their way out. Not with an index to drop:
  its columns keep its flags until it is gone.
- DROP PARTITION and TRUNCATE PARTITION (``partition.go``): ``delete-only``. The table has the new partitions, and
  sessions insert there.

The TableInfo of such a step is that of the job when it is done, but for what is on its way out, which is not public.
docs/decisions/2026-11-30-when-a-ddl-takes-effect.md
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from schemas.ddl.job import JOB_STATE_DONE, DdlType, has_changed_schemas
from schemas.rawlog.ddl_record import DdlRecord
from schemas.tidb.info_json import JsonObject, number_in, object_in, objects_in

_JOB_STATE_RUNNING: Final = 1
_DELETE_ONLY: Final = 1
"""``model.StateDeleteOnly``, of ``schema_state``, as the next one."""
_PUBLIC: Final = 5
_WRITTEN_EARLY: Final = frozenset({DdlType.ADD_COLUMN, DdlType.MODIFY_COLUMN})
"""Changes after which rows are written that the schema before does not tell of."""
_OF_PARTITIONS: Final = frozenset({DdlType.DROP_PARTITION, DdlType.TRUNCATE_PARTITION})
_WHILE_IT_RUNS: Final = frozenset({"new_partition_ids", "ddl_action"})
"""What stands in the partition info of a table only while such a job runs."""


def may_count(job: JsonObject) -> bool:
    """Tell whether a job's row is one that a schema may change at: done, or early.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it does not decode.
    """
    return has_changed_schemas(job) or is_early(job)


def is_early(job: JsonObject) -> bool:
    """Tell whether this is a row, not done, from which on the job has its effect.

    Raises:
        KeyError, TypeError: it does not decode.
    """
    if job.get("state") != _JOB_STATE_RUNNING:
        return False
    type_ = job.get("type")
    if type_ == DdlType.MULTI_SCHEMA_CHANGE:
        return _have_effect(object_in(job, "multi_schema_info"))
    wanted = _DELETE_ONLY if type_ in _OF_PARTITIONS else _PUBLIC if type_ == DdlType.MODIFY_COLUMN else None
    return wanted is not None and job.get("schema_state") == wanted


def as_done(record: DdlRecord, table_info: JsonObject) -> DdlRecord | None:
    """Return the record of an early job as of one that is done.

    Args:
        record: of its row.
        table_info: the TableInfo that stood in the meta keys at the record's ts.

    Returns:
        None where the two do not fit: then nothing is known before the job is done.
    """
    job = record.payload
    try:
        if number_in(table_info, "id") != number_in(job, "table_id"):
            return None
        info = {**table_info, **_columns(job, table_info), **_partitions(job, table_info)}
        version, binlog = number_in(job, "last_schema_version", 0), object_in(job, "binlog")
    except (KeyError, TypeError, ValueError):
        return None
    payload = {
        **job,
        "state": JOB_STATE_DONE,
        "schema_state": _PUBLIC if job["type"] == DdlType.MODIFY_COLUMN else 0,
        # A version of its own, which the last one before done is; 0 would say that nothing has changed.
        "binlog": {**binlog, "SchemaVersion": version or 1, "TableInfo": info},
    }
    return replace(record, payload=payload)


def _have_effect(several: JsonObject) -> bool:
    """Tell by ``multi_schema_info`` whether all that it changes has become visible, values of columns among it."""
    if several.get("revertible"):
        return False
    changes = objects_in(several, "sub_jobs")
    if not any(change.get("type") in _WRITTEN_EARLY for change in changes):
        return False
    return all(
        change.get("state") == JOB_STATE_DONE
        or change.get("type") == DdlType.DROP_COLUMN
        or (change.get("type") == DdlType.MODIFY_COLUMN and change.get("schema_state") == _PUBLIC)
        for change in changes
    )


def _columns(job: JsonObject, info: JsonObject) -> dict[str, object]:
    """Return columns and indexes without those that are on their way out.

    Raises:
        KeyError, TypeError, ValueError: the table is not as such a job leaves it.
    """
    columns = _public(objects_in(info, "cols"))
    if [number_in(column, "offset") for column in columns] != list(range(len(columns))):
        raise ValueError("public columns do not stand before all others")
    ids = {number_in(column, "id") for column in columns}
    changes = objects_in(object_in(job, "multi_schema_info"), "sub_jobs") if job.get("multi_schema_info") else [job]
    for change in changes:
        if change["type"] == DdlType.MODIFY_COLUMN and change["state"] != JOB_STATE_DONE:
            args = object_in(change, "raw_args")
            new = number_in(object_in(args, "changing_column"), "id")
            # One that keeps its id writes no row anew, only indexes.
            if new not in ids or new == number_in(args, "old_column_id", 0):
                raise ValueError(f"column {new} is not public, or not new")
    if info.get("index_info") is None:
        return {"cols": columns}
    return {"cols": columns, "index_info": _public(objects_in(info, "index_info"))}


def _partitions(job: JsonObject, info: JsonObject) -> dict[str, object]:
    """Return the partition info of a partition job's table without those that are on their way out.

    Raises:
        KeyError, TypeError, ValueError: the table is not as such a job leaves it.
    """
    if job["type"] not in _OF_PARTITIONS:
        return {}
    partition = object_in(info, "partition")
    ids, going = (
        {number_in(definition, "id") for definition in objects_in(partition, key)}
        for key in ("definitions", "dropping_definitions")
    )
    if not going or not ids.isdisjoint(going):
        raise ValueError("what is dropped is still there")
    kept = {key: value for key, value in partition.items() if key not in _WHILE_IT_RUNS}
    return {"partition": {**kept, "dropping_definitions": None, "ddl_state": 0}}


def _public(parts: Sequence[JsonObject]) -> list[JsonObject]:
    return [part for part in parts if number_in(part, "state") == _PUBLIC]
