"""What TiDB writes when it runs a DDL: the job's row in ``mysql.tidb_ddl_job``, and the meta keys.

Three transactions a job, as in a recording of TiDB (Feb 2026):

    1. the job is put into ``mysql.tidb_ddl_job``, state queueing
    2. meta keys (DBInfo or TableInfo), schema version and its diff, and the job again, state done: **the DDL happens
       at this transaction's commit_ts**, and this row is what CDC clients learn of it by
    3. the job moves from ``mysql.tidb_ddl_job`` to the history
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from producers.region_server.core.store.commands import Mutation
from schemas.ids import TableId, Ts
from schemas.tidb.codec import encode_bytes, encode_compact_bytes, encode_uint, encode_varint
from schemas.tidb.keys import meta_hash_key, row_key

DDL_JOB_TABLE_ID = TableId((1 << 48) - 2)
"""``mysql.tidb_ddl_job``. Source: pingcap/tidb ``pkg/meta/metadef``; reserved ids count down from 2^48 - 1."""
MYSQL_SCHEMA_ID = 1
NEXT_GLOBAL_ID_KEY = b"NextGlobalID"
SCHEMA_VERSION_KEY = b"SchemaVersionKey"

_CREATE_SCHEMA, _CREATE_TABLE = 1, 3
_DONE, _SYNCED, _QUEUEING = 4, 6, 8
_PUBLIC = 5
_META_STRING = ord("s")
_VARINT, _COMPACT_BYTES = b"\x08", b"\x02"


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlPlan:
    """A CREATE SCHEMA (``table`` None), a CREATE TABLE, or a job over a table that is there; all ids are given out."""

    job_id: int
    schema_id: int
    schema_name: str
    schema_version: int
    query: str
    table: Mapping[str, Any] | None = None
    """TableInfo with its own ids and names in it, as the job leaves it."""
    kind: int | None = None
    """TiDB's number of a job over a table that is there, such as 5, ADD COLUMN; None: it creates."""
    old_table_id: int | None = None
    """Of a job that gives the table another id, such as 11, TRUNCATE TABLE: the one that it had."""


def meta_string_key(key: bytes) -> bytes:
    """The key of a meta string, such as ``NextGlobalID``.

    >>> meta_string_key(b"SchemaVersionKey").hex()
    '6d536368656d615665ff7273696f6e4b6579ff0000000000000000f70000000000000073'
    """
    return b"m" + encode_bytes(key) + encode_uint(_META_STRING)


def schema_mutation(schema_id: int, name: str) -> Mutation:
    """Put a DBInfo."""
    return Mutation("put", meta_hash_key(b"DBs", b"DB:%d" % schema_id), _json(_db_info(schema_id, name)))


def table_mutation(schema_id: int, table: Mapping[str, Any]) -> Mutation:
    """Put a TableInfo."""
    return Mutation("put", _table_key(schema_id, table["id"]), _json(table))


def number_mutation(key: bytes, value: int) -> Mutation:
    """Put a number under a meta string key."""
    return Mutation("put", meta_string_key(key), b"%d" % value)


def queue_job(plan: DdlPlan, start_ts: Ts) -> list[Mutation]:
    """Transaction 1."""
    return [Mutation("put", row_key(DDL_JOB_TABLE_ID, plan.job_id), _job_row(plan, _job(plan, _QUEUEING, start_ts)))]


def finish_job(plan: DdlPlan, start_ts: Ts) -> list[Mutation]:
    """Transaction 2, the DDL itself; ``start_ts`` is the transaction's own."""
    kind, table_id = _kind(plan), plan.table["id"] if plan.table else 0
    old_id = plan.old_table_id
    diff = {
        "version": plan.schema_version,
        "type": kind,
        "schema_id": plan.schema_id,
        "table_id": table_id,
        "old_table_id": old_id or 0,
        "old_schema_id": 0,
        "regenerate_schema_map": False,
        "affected_options": None,
    }
    put_info = (
        table_mutation(plan.schema_id, plan.table) if plan.table else schema_mutation(plan.schema_id, plan.schema_name)
    )
    gone = [] if old_id is None else [Mutation("delete", _table_key(plan.schema_id, old_id))]
    return [
        put_info,
        *gone,
        number_mutation(SCHEMA_VERSION_KEY, plan.schema_version),
        Mutation("put", meta_string_key(b"Diff:%d" % plan.schema_version), _json(diff)),
        Mutation("put", row_key(DDL_JOB_TABLE_ID, plan.job_id), _job_row(plan, _job(plan, _DONE, start_ts))),
    ]


def archive_job(plan: DdlPlan, start_ts: Ts) -> list[Mutation]:
    """Transaction 3."""
    history = meta_hash_key(b"DDLJobHistory", plan.job_id.to_bytes(8, "big"))
    return [
        Mutation("put", history, _json(_job(plan, _SYNCED, start_ts))),
        Mutation("delete", row_key(DDL_JOB_TABLE_ID, plan.job_id)),
    ]


def _kind(plan: DdlPlan) -> int:
    if plan.kind is not None:
        return plan.kind
    return _CREATE_TABLE if plan.table else _CREATE_SCHEMA


def _table_key(schema_id: int, table_id: int) -> bytes:
    return meta_hash_key(b"DB:%d" % schema_id, b"Table:%d" % table_id)


def _id_before(plan: DdlPlan) -> int:
    """Return the id of the job's table as it was when the job began."""
    if plan.old_table_id is not None:
        return plan.old_table_id
    return int(plan.table["id"]) if plan.table else 0


def _job(plan: DdlPlan, state: int, ts: Ts) -> dict[str, Any]:
    """The job's JSON, fields as TiDB writes them; the resulting schema is known from state done on."""
    done = state != _QUEUEING
    db_info = _db_info(plan.schema_id, plan.schema_name)
    raw_args = _raw_args(plan)
    return {
        "id": plan.job_id,
        "type": _kind(plan),
        "schema_id": plan.schema_id,
        "table_id": _id_before(plan),
        "schema_name": plan.schema_name,
        "table_name": plan.table["name"]["O"] if plan.table else "",
        "state": state,
        "warning": None,
        "err": None,
        "err_count": 0,
        "row_count": 0,
        "raw_args": None if state == _SYNCED else raw_args,
        "schema_state": _PUBLIC if done else 0,
        "snapshot_ver": 0,
        "real_start_ts": ts if done else 0,
        "start_ts": ts,
        "dependency_id": 0,
        "query": plan.query,
        "binlog": {
            "SchemaVersion": plan.schema_version if done else 0,
            "DBInfo": None if plan.table or not done else db_info,
            "TableInfo": plan.table if done else None,
            "FinishedTS": ts if state == _SYNCED else 0,
            "MultipleTableInfos": None,
        },
        "version": 2,
        "reorg_meta": None,
        "multi_schema_info": None,
        "priority": 0,
        "seq_num": 0,
        "charset": "",
        "collate": "",
        "admin_operator": 0,
        "trace_info": {"session_alias": "", "trace_id": "", "connection_id": 1},
        "bdr_role": "",
        "cdc_write_source": 0,
        "local_mode": False,
        "sql_mode": 1436549152,
        "last_schema_version": plan.schema_version if done else 0,
    }


def _raw_args(plan: DdlPlan) -> dict[str, Any] | None:
    if plan.table is None:
        return {"db_info": _db_info(plan.schema_id, plan.schema_name)}
    if plan.old_table_id is not None:
        return {"fk_check": True, "new_table_id": plan.table["id"]}
    return {"table_info": plan.table, "fk_check": True} if plan.kind is None else None


def _job_row(plan: DdlPlan, job: Mapping[str, Any]) -> bytes:
    """The row, in format v1 as TiDB writes it: reorg, schema_ids, table_ids, job_meta, type, processing."""
    done = job["state"] != _QUEUEING
    table_id = _id_before(plan)
    columns: list[tuple[int, int | bytes]] = [
        (2, 0), (3, b"%d" % plan.schema_id), (4, b"%d" % table_id), (5, _json(job)), (6, _kind(plan)), (7, int(done)),
    ]  # fmt: skip
    out = bytearray()
    for column_id, value in columns:
        out += _VARINT + encode_varint(column_id)
        if isinstance(value, int):
            out += _VARINT + encode_varint(value)
        else:
            out += _COMPACT_BYTES + encode_compact_bytes(value)
    return bytes(out)


def _db_info(schema_id: int, name: str) -> dict[str, Any]:
    return {"id": schema_id, "db_name": {"O": name, "L": name.lower()}, "charset": "utf8mb4", "collate": "utf8mb4_bin",
            "Deprecated": {}, "state": _PUBLIC, "policy_ref_info": None}  # fmt: skip


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
