"""DDL jobs: a row of ``mysql.tidb_ddl_job`` to a raw-log record, and the record's JSON to the fields that we use.

Sources: pingcap/tidb ``pkg/meta/model/job.go``; pingcap/tiflow ``cdc/entry/mounter.go`` (``ParseDDLJob``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from schemas.ddl.flashback import FLASHBACK_CLUSTER, carried_tables
from schemas.ddl.job_row import job_in_row
from schemas.errors import Action, BusError, CorruptDataError
from schemas.ids import TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.tidb.info_json import (
    JsonObject,
    ci_name,
    number_in,
    object_in,
    objects_in,
    optional_object_in,
    optional_objects_in,
    text_in,
    whole_number,
)

DDL_JOB_TABLE_ID = TableId((1 << 48) - 2)
"""``mysql.tidb_ddl_job``; its TableInfo stands in the meta keys as that of any table."""
JOB_STATE_DONE = 4


class DdlDecodeError(BusError):
    """A row of the job table, or a job in it, that does not decode; ``fields`` name the job (if known) and the ts."""

    code, action = "schema.undecodable_ddl", Action.STOP_CHANGEFEED


class DdlType(IntEnum):
    """The action types that are replicated; any other is discarded, and not even applied to the schema."""

    CREATE_SCHEMA = 1
    DROP_SCHEMA = 2
    CREATE_TABLE = 3
    DROP_TABLE = 4
    ADD_COLUMN = 5
    DROP_COLUMN = 6
    ADD_INDEX = 7
    DROP_INDEX = 8
    ADD_FOREIGN_KEY = 9
    DROP_FOREIGN_KEY = 10
    TRUNCATE_TABLE = 11
    MODIFY_COLUMN = 12
    REBASE_AUTO_ID = 13
    RENAME_TABLE = 14
    SET_DEFAULT_VALUE = 15
    MODIFY_TABLE_COMMENT = 17
    RENAME_INDEX = 18
    ADD_PARTITION = 19
    DROP_PARTITION = 20
    CREATE_VIEW = 21
    MODIFY_TABLE_CHARSET = 22
    TRUNCATE_PARTITION = 23
    DROP_VIEW = 24
    RECOVER_TABLE = 25
    MODIFY_SCHEMA_CHARSET = 26
    ADD_PRIMARY_KEY = 32
    DROP_PRIMARY_KEY = 33
    ADD_COLUMNS = 37
    DROP_COLUMNS = 38
    ALTER_INDEX_VISIBILITY = 41
    EXCHANGE_PARTITION = 42
    RENAME_TABLES = 47
    CREATE_TABLES = 60
    MULTI_SCHEMA_CHANGE = 61
    RECOVER_SCHEMA = 63
    REORGANIZE_PARTITION = 64
    ALTER_TTL = 65
    REMOVE_TTL = 67
    ALTER_TABLE_PARTITIONING = 71
    REMOVE_PARTITIONING = 72
    ADD_FULLTEXT_INDEX = 230
    """TiCDC's own number, as the next: TiDB has none yet, so the statement tells (:func:`_type_of`)."""
    CREATE_HYBRID_INDEX = 231


DDL_TYPE_NAMES: dict[DdlType, str] = {
    DdlType.CREATE_SCHEMA: "create schema",
    DdlType.DROP_SCHEMA: "drop schema",
    DdlType.CREATE_TABLE: "create table",
    DdlType.DROP_TABLE: "drop table",
    DdlType.ADD_COLUMN: "add column",
    DdlType.DROP_COLUMN: "drop column",
    DdlType.ADD_INDEX: "add index",
    DdlType.DROP_INDEX: "drop index",
    DdlType.ADD_FOREIGN_KEY: "add foreign key",
    DdlType.DROP_FOREIGN_KEY: "drop foreign key",
    DdlType.TRUNCATE_TABLE: "truncate table",
    DdlType.MODIFY_COLUMN: "modify column",
    DdlType.REBASE_AUTO_ID: "rebase auto_increment ID",
    DdlType.RENAME_TABLE: "rename table",
    DdlType.SET_DEFAULT_VALUE: "set default value",
    DdlType.MODIFY_TABLE_COMMENT: "modify table comment",
    DdlType.RENAME_INDEX: "rename index",
    DdlType.ADD_PARTITION: "add partition",
    DdlType.DROP_PARTITION: "drop partition",
    DdlType.CREATE_VIEW: "create view",
    DdlType.MODIFY_TABLE_CHARSET: "modify table charset and collate",
    DdlType.TRUNCATE_PARTITION: "truncate partition",
    DdlType.DROP_VIEW: "drop view",
    DdlType.RECOVER_TABLE: "recover table",
    DdlType.MODIFY_SCHEMA_CHARSET: "modify schema charset and collate",
    DdlType.ADD_PRIMARY_KEY: "add primary key",
    DdlType.DROP_PRIMARY_KEY: "drop primary key",
    DdlType.ADD_COLUMNS: "add multi-columns",
    DdlType.DROP_COLUMNS: "drop multi-columns",
    DdlType.ALTER_INDEX_VISIBILITY: "alter index visibility",
    DdlType.EXCHANGE_PARTITION: "exchange partition",
    DdlType.RENAME_TABLES: "rename tables",
    DdlType.CREATE_TABLES: "create tables",
    DdlType.MULTI_SCHEMA_CHANGE: "alter table multi-schema change",
    DdlType.RECOVER_SCHEMA: "flashback schema",
    DdlType.REORGANIZE_PARTITION: "alter table reorganize partition",
    DdlType.ALTER_TTL: "alter table ttl",
    DdlType.REMOVE_TTL: "alter table no_ttl",
    DdlType.ALTER_TABLE_PARTITIONING: "alter table partition by",
    DdlType.REMOVE_PARTITIONING: "alter table remove partitioning",
    DdlType.ADD_FULLTEXT_INDEX: "add fulltext index",
    DdlType.CREATE_HYBRID_INDEX: "create hybrid index",
}
"""``ActionType.String()``; event filters and oracles use these words. The last two are TiCDC's events."""
_INVOLVES_SHARED = 1
"""``model.SharedInvolving``, of ``involving_schema_info``."""
_TYPE_IDS = frozenset(int(type_) for type_ in DdlType)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """One table of a rename."""

    table_id: TableId
    old_schema: str
    new_schema_id: int
    new_table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlJob:
    """A finished job. ``type`` is None when its action is not replicated."""

    job_id: int
    type_id: int
    type: DdlType | None
    schema_id: int
    schema: str
    table_id: TableId
    table: str
    query: str
    schema_version: int
    start_ts: Ts
    finished_ts: Ts
    db_info: JsonObject | None
    table_info: JsonObject | None
    table_infos: tuple[JsonObject, ...]
    """MultipleTableInfos, of create tables and rename tables."""
    renames: tuple[Rename, ...]
    """Of rename tables only."""
    recovered: tuple[JsonObject, ...] | None
    """TableInfos of flashback schema; None: the schema's, as it was dropped."""
    referred: tuple[tuple[str, str], ...]
    """Schema and table of what it reads and does not change: of LIKE, and of foreign keys."""
    charset: str
    collation: str
    sql_mode: int
    bdr_role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobScope:
    """Which tables a job that nobody could read, or apply, may concern. Without a schema: any."""

    ts: Ts
    """finished_ts, or commit_ts of the row."""
    start_ts: Ts
    schema: str = ""
    table: str = ""
    table_id: TableId = TableId(0)


SCHEMA_TYPES = frozenset(
    {DdlType.CREATE_SCHEMA, DdlType.DROP_SCHEMA, DdlType.RECOVER_SCHEMA, DdlType.MODIFY_SCHEMA_CHARSET}
)
"""Jobs of a whole schema."""
_MORE_THAN_ONE_TABLE = SCHEMA_TYPES | {
    DdlType.RENAME_TABLE,
    DdlType.RENAME_TABLES,
    DdlType.CREATE_TABLES,
    DdlType.EXCHANGE_PARTITION,
}
"""Jobs whose ``schema_name`` and ``table_name`` do not name all that they change (a rename has the new name only)."""


def has_changed_schemas(job: Mapping[str, Any]) -> bool:
    """Tell whether a job is done, and changed a schema.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: its JSON does not decode.
    """
    done = int(job["state"]) == JOB_STATE_DONE
    changed = int((job.get("binlog") or {}).get("SchemaVersion") or 0) != 0
    changed |= job.get("type") == FLASHBACK_CLUSTER  # it counts no version, and changes all of them
    return done and changed


def decode_ddl_job_row(
    value: bytes,
    table: JsonObject,
    *,
    start_ts: Ts,
    commit_ts: Ts,
    key: bytes = b"",
    counts: Callable[[Mapping[str, Any]], bool] = has_changed_schemas,
) -> DdlRecord | None:
    """Turn a PUT of ``mysql.tidb_ddl_job`` into a record of the ddl topic.

    Args:
        value: the row value, format v1 or v2.
        table: the job table's TableInfo JSON (which column holds the job differs between TiDB versions).
        start_ts: of the transaction that wrote the row.
        commit_ts: of the same; it becomes the job's finished_ts.
        key: of the row, for the error.
        counts: tells by the job's JSON whether there is to be a record of it.

    Returns:
        None where it does not count: it is not done yet, or changed no schema.

    Raises:
        DdlDecodeError: the row or its JSON does not decode.
    """
    try:
        job = job_in_row(value, table)
        if not counts(job):
            return None
        int(job["id"])
    except (KeyError, TypeError, ValueError, AttributeError, CorruptDataError) as error:
        raise DdlDecodeError(
            "row of mysql.tidb_ddl_job does not decode",
            key=key.hex(),
            commit_ts=commit_ts,
            start_ts=start_ts,
            reason=repr(error),
        ) from error
    return DdlRecord(kind="job", ts=commit_ts, start_ts=start_ts, payload=job)


def undecodable_record(
    key: bytes, value: bytes, table: JsonObject, *, start_ts: Ts, commit_ts: Ts, error: DdlDecodeError
) -> DdlRecord:
    """Keep a row that :func:`decode_ddl_job_row` refused, with all that a later version needs to read it."""
    columns = [{"id": column.get("id"), "name": column.get("name")} for column in objects_in(table, "cols")]
    return DdlRecord(
        kind="undecodable",
        ts=commit_ts,
        start_ts=start_ts,
        payload={
            "key": key.hex(),
            "value": value.hex(),
            "cols": columns,
            "reason": str(error.fields.get("reason", error)),
        },
    )


def read_undecodable(record: DdlRecord) -> DdlRecord | None:
    """Try again to read an ``undecodable`` record: perhaps another version wrote it.

    Returns:
        The job's record; None when the row is no finished job that changed a schema.

    Raises:
        DdlDecodeError: it still does not decode; the error names key and commit_ts.
    """
    raw = record.payload
    try:
        key, value, table = bytes.fromhex(raw["key"]), bytes.fromhex(raw["value"]), {"cols": list(raw["cols"])}
    except (KeyError, TypeError, ValueError) as error:
        raise DdlDecodeError("undecodable ddl record is not whole", commit_ts=record.ts, reason=repr(error)) from error
    return decode_ddl_job_row(value, table, start_ts=record.start_ts, commit_ts=record.ts, key=key)


def job_scope(record: DdlRecord) -> JobScope:
    """Return what a ``job`` or ``undecodable`` record concerns, by as much of it as can be read."""
    raw = record.payload
    schema, name, table_id, type_id = (raw.get(key) for key in ("schema_name", "table_name", "table_id", "type"))
    named = isinstance(schema, str) and schema and isinstance(name, str) and name and isinstance(table_id, int)
    concerns_one_table = isinstance(type_id, int) and type_id in _TYPE_IDS and type_id not in _MORE_THAN_ONE_TABLE
    if record.kind != "job" or not named or not concerns_one_table:
        return JobScope(ts=record.ts, start_ts=record.start_ts)
    return JobScope(
        ts=record.ts,
        start_ts=record.start_ts,
        schema=str(schema),
        table=str(name),
        table_id=TableId(int(table_id or 0)),
    )


def parse_ddl_job(record: DdlRecord) -> DdlJob:
    """Read the fields of a ``job`` record.

    Raises:
        DdlDecodeError: a field is missing or of another type; the error names job and finished_ts.
    """
    raw = record.payload
    try:
        return _parse(raw, record)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DdlDecodeError(
            "ddl job does not decode", job_id=raw.get("id"), finished_ts=record.ts, reason=repr(error)
        ) from error


def _type_of(type_id: int, query: str) -> int:
    """Return a job's type; of one that is not known, TiCDC's own where the statement tells.

    Source: pingcap/ticdc ``logservice/schemastore/persist_storage.go``, ``handleDDLJob``, which asks it of all jobs.
    """
    if type_id in _TYPE_IDS:
        return type_id
    text = query.strip().upper()
    if text.startswith("CREATE HYBRID INDEX"):
        return DdlType.CREATE_HYBRID_INDEX
    return DdlType.ADD_FULLTEXT_INDEX if "ADD FULLTEXT INDEX" in text else type_id


def _parse(raw: JsonObject, record: DdlRecord) -> DdlJob:
    binlog, query = object_in(raw, "binlog"), text_in(raw, "query")
    type_id = _type_of(number_in(raw, "type"), query)
    known = type_id in _TYPE_IDS
    return DdlJob(
        job_id=number_in(raw, "id"),
        type_id=type_id,
        type=DdlType(type_id) if known else None,
        schema_id=number_in(raw, "schema_id"),
        schema=text_in(raw, "schema_name"),
        table_id=TableId(number_in(raw, "table_id")),
        table=text_in(raw, "table_name"),
        query=query,
        schema_version=number_in(binlog, "SchemaVersion"),
        start_ts=record.start_ts,
        finished_ts=record.ts,
        db_info=optional_object_in(binlog, "DBInfo"),
        table_info=optional_object_in(binlog, "TableInfo"),
        table_infos=tuple(optional_objects_in(binlog, "MultipleTableInfos")),
        renames=_renames(raw) if type_id == DdlType.RENAME_TABLES else (),
        recovered=carried_tables(raw) if type_id == DdlType.RECOVER_SCHEMA else (),
        referred=tuple(
            (str(item["database"]), str(item["table"]))
            for item in optional_objects_in(raw, "involving_schema_info")
            if item.get("mode") == _INVOLVES_SHARED
        ),
        charset=text_in(raw, "charset"),
        collation=text_in(raw, "collate"),
        sql_mode=number_in(raw, "sql_mode", 0),
        bdr_role=text_in(raw, "bdr_role"),
    )


def _renames(raw: JsonObject) -> tuple[Rename, ...]:
    """Read the arguments of ``rename tables``: an object since TiDB 8.4 (job version 2), an array before."""
    args = raw["raw_args"]
    if isinstance(args, dict):
        return tuple(
            Rename(
                table_id=TableId(number_in(item, "table_id")),
                old_schema=ci_name(item["old_schema_name"]),
                new_schema_id=number_in(item, "new_schema_id"),
                new_table=ci_name(item["new_table_name"]),
            )
            for item in objects_in(args, "rename_table_infos")
        )
    # Old names follow where the version has them.
    _, new_schema_ids, new_names, table_ids, old_schemas, *_ = _list(args)
    columns = zip(*map(_list, (table_ids, old_schemas, new_schema_ids, new_names)), strict=True)
    return tuple(
        Rename(
            table_id=TableId(whole_number(table_id, "table id")),
            old_schema=ci_name(old_schema),
            new_schema_id=whole_number(new_schema_id, "schema id"),
            new_table=ci_name(new_name),
        )
        for table_id, old_schema, new_schema_id, new_name in columns
    )


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:40]!r} is no list")
    return value
