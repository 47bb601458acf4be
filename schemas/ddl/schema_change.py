"""What one DDL job changes: planned from the current tables before anything is touched, so a bad job changes nothing.

The rules are TiCDC's (``cdc/entry/schema/snapshot.go``, ``DoHandleDDL``): docs/formats/tidb-encoding.md §5.4.
"""

import json
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from schemas.ddl.job import DdlJob, DdlType
from schemas.errors import Action, BusError, CorruptDataError
from schemas.ids import TableId, Ts, physical_ms
from schemas.tidb.info_json import JsonObject, ci_name, number_in
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import enabled_partitions, is_eligible, table_version


class InconsistentDdlError(BusError):
    """A job that does not fit the schema it meets, such as the drop of an unknown table.

    That a table is there before its create job is done is no such case: one with a foreign key stands in the meta keys,
    not yet public, while the job runs, and so in a snapshot of that moment.
    """

    code, action = "schema.inconsistent_ddl", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True)
class StoredTable:
    """One version of a table, not decoded. ``blob`` is the zlib-compressed TableInfo JSON; a table that is routed has
    another name than stands there.
    """

    schema_id: int
    schema: str
    table: str
    table_id: TableId
    partition_ids: tuple[TableId, ...]
    has_rows: bool
    """False for views and sequences."""
    is_view: bool
    is_sequence: bool
    version: Ts
    eligible: bool
    blob: bytes

    def __reduce__(self) -> tuple[object, ...]:
        # A store of 100,000 tables is broadcast: this halves the time that dataclasses with slots take.
        return StoredTable, tuple(getattr(self, name) for name in StoredTable.__slots__)

    @property
    def physical_ids(self) -> tuple[TableId, ...]:
        """The ids that row keys carry; none for views and sequences."""
        return (self.partition_ids or (self.table_id,)) if self.has_rows else ()

    def decode(self) -> TableVersion:
        """Return the whole version.

        Raises:
            CorruptDataError: the TableInfo does not decode.
        """
        version = table_version(self.info(), schema_id=self.schema_id, schema=self.schema, version=self.version)
        return version if version.table == self.table else replace(version, table=self.table)

    def info(self) -> dict[str, Any]:
        """Return TiDB's TableInfo JSON."""
        info: dict[str, Any] = json.loads(zlib.decompress(self.blob))
        return info

    def mentions(self, words: Iterable[str]) -> bool:
        """Tell whether any of these words, lower-case ASCII without quotes, stands anywhere in the TableInfo, in any
        case; without parsing it.
        """
        text = zlib.decompress(self.blob).lower()
        return any(word.encode() in text for word in words)


def stored_table(info: JsonObject, *, schema_id: int, schema: str, version: Ts) -> StoredTable:
    """Pack a TableInfo.

    Raises:
        CorruptDataError: a field that every TableInfo has is missing.
    """
    try:
        view, sequence = bool(info.get("view")), bool(info.get("sequence"))
        return StoredTable(
            schema_id=schema_id,
            schema=schema,
            table=ci_name(info["name"]),
            table_id=TableId(number_in(info, "id")),
            partition_ids=tuple(partition.id for partition in enabled_partitions(info)),
            has_rows=not view and not sequence,
            is_view=view,
            is_sequence=sequence,
            version=version,
            eligible=is_eligible(info),
            blob=zlib.compress(json.dumps(info, separators=(",", ":"), ensure_ascii=False).encode(), 1),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise CorruptDataError(
            "table info does not decode", table_id=info.get("id"), schema=schema, version=version, reason=repr(error)
        ) from error


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a DDL did to one table. ``pre`` None: it came; ``post`` None: it went."""

    pre: StoredTable | None
    post: StoredTable | None


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A DDL job and what it changed, tables in the order of the job's events."""

    job: DdlJob
    schema: str
    """Name of the schema of a schema job; else of the job's table."""
    tables: tuple[TableChange, ...]
    schema_dropped: bool = False
    truncated: tuple[TableId, ...] = ()
    """Physical ids whose late rows are skipped in silence."""


_OF_PARTITIONS: Final = frozenset({DdlType.DROP_PARTITION, DdlType.TRUNCATE_PARTITION})


def was_in_effect(change: SchemaChange) -> bool:
    """Tell whether a job was in effect before the schema that it met, a snapshot, and changes nothing any more.

    The partitions are the new ones, with rows in them, some steps before the job is done.
    """
    if change.job.type not in _OF_PARTITIONS:
        return False
    return all(item.pre and item.post and item.pre.physical_ids == item.post.physical_ids for item in change.tables)


Dropped = Mapping[int, tuple[Ts, tuple[StoredTable, ...]]]
"""By the id of a schema: when it was dropped, and the tables, views and sequences that it had."""
NONE_DROPPED: Final[Dropped] = {}
DROPPED_KEPT_MS: Final = 7 * 24 * 3600 * 1000
"""How long a dropped schema is known. TiDB brings back what its garbage collection has left: 10 minutes, unless
``tidb_gc_life_time`` says otherwise."""


def with_dropped(dropped: Dropped, schema_id: int, ts: Ts, tables: Collection[StoredTable]) -> Dropped:
    """Return what is known after a schema was dropped at ``ts``: by the log alone, so the same to each reader."""
    oldest_ms = physical_ms(ts) - DROPPED_KEPT_MS
    kept = {known: old for known, old in dropped.items() if physical_ms(old[0]) >= oldest_ms}
    return {**kept, schema_id: (ts, tuple(tables))}


@dataclass(frozen=True, slots=True)
class SchemaView:
    """What planning may look at: the schema before the job."""

    tables: Mapping[TableId, StoredTable]
    """Current tables by logical id."""
    schemas: Mapping[int, str]
    dropped: Dropped = field(default_factory=lambda: NONE_DROPPED)


_CREATES = frozenset({DdlType.CREATE_TABLE, DdlType.RECOVER_TABLE})
_DROPS = frozenset({DdlType.DROP_TABLE, DdlType.DROP_VIEW})
_NEW_IDS = frozenset({DdlType.TRUNCATE_TABLE, DdlType.ALTER_TABLE_PARTITIONING, DdlType.REMOVE_PARTITIONING})


def plan_job(job: DdlJob, view: SchemaView) -> SchemaChange:
    """Work out what a replicated job changes.

    Raises:
        InconsistentDdlError: it does not fit the current schema.
        CorruptDataError: its TableInfo does not decode.
    """
    assert job.type is not None
    planners: dict[DdlType, Callable[[DdlJob, SchemaView], SchemaChange]] = {
        DdlType.CREATE_SCHEMA: _plan_schema,
        DdlType.MODIFY_SCHEMA_CHARSET: _plan_schema,
        DdlType.DROP_SCHEMA: _plan_drop_schema,
        DdlType.RECOVER_SCHEMA: _plan_recover_schema,
        DdlType.CREATE_TABLES: _plan_create_tables,
        DdlType.RENAME_TABLES: _plan_rename_tables,
        DdlType.EXCHANGE_PARTITION: _plan_exchange_partition,
        DdlType.CREATE_VIEW: _plan_create_view,
    }
    planner = planners.get(job.type)
    if planner:
        return planner(job, view)
    if job.type in _CREATES:
        return _change(job, None, _post(job, view))
    pre = _existing(job, view, job.table_id)
    if job.type in _DROPS:
        return _change(job, pre, None)
    post = _post(job, view)
    if job.type in _NEW_IDS:
        truncated = pre.physical_ids if job.type is DdlType.TRUNCATE_TABLE else ()
        return _change(job, pre, post, truncated)
    if post.table_id != pre.table_id:
        raise _inconsistent(job, "job's table info has another table id", table_id=post.table_id)
    gone = tuple(pid for pid in pre.physical_ids if pid not in post.physical_ids)
    return _change(job, pre, post, gone if job.type is DdlType.TRUNCATE_PARTITION else ())


def _plan_schema(job: DdlJob, view: SchemaView) -> SchemaChange:
    if job.db_info is None:
        raise _inconsistent(job, "schema job without db info")
    return SchemaChange(job, ci_name(job.db_info["db_name"]), ())


def _plan_drop_schema(job: DdlJob, view: SchemaView) -> SchemaChange:
    name = view.schemas.get(job.schema_id)
    if name is None:
        raise _inconsistent(job, "dropped schema is unknown", schema_id=job.schema_id)
    tables = tuple(TableChange(t, None) for t in view.tables.values() if t.schema_id == job.schema_id)
    return SchemaChange(job, name, tables, schema_dropped=True)


def _plan_recover_schema(job: DdlJob, view: SchemaView) -> SchemaChange:
    """``job`` names the schema in its db info alone, perhaps by a new name; ids are the old ones."""
    if job.db_info is None:
        raise _inconsistent(job, "schema job without db info")
    schema_id, name = number_in(job.db_info, "id"), ci_name(job.db_info["db_name"])
    if job.recovered is not None:
        tables = [_stored(job, info, schema_id, name) for info in job.recovered]
    elif schema_id in view.dropped:
        old = view.dropped[schema_id][1]
        tables = [replace(table, schema=name, version=job.finished_ts) for table in old]
    else:
        raise _inconsistent(job, "schema that is brought back is unknown, as one dropped before the raw log began")
    return SchemaChange(job, name, tuple(TableChange(None, table) for table in tables))


def _plan_create_tables(job: DdlJob, view: SchemaView) -> SchemaChange:
    schema = _schema_name(job, view, job.schema_id)
    changes = tuple(TableChange(None, _stored(job, info, job.schema_id, schema)) for info in job.table_infos)
    return SchemaChange(job, schema, changes)


def _plan_create_view(job: DdlJob, view: SchemaView) -> SchemaChange:
    """OR REPLACE gives the view a new id, and no job drops the old one."""
    post = _post(job, view)
    home = post.schema_id, post.table.lower()
    old = [t for t in view.tables.values() if t.is_view and (t.schema_id, t.table.lower()) == home]
    gone = tuple(TableChange(table, None) for table in old if table.table_id != post.table_id)
    return SchemaChange(job, post.schema, (TableChange(None, post), *gone))


def _plan_rename_tables(job: DdlJob, view: SchemaView) -> SchemaChange:
    """A swap names one table twice; each step sees what the step before left."""
    working, changes = dict[TableId, StoredTable](), list[TableChange]()
    infos = {number_in(info, "id"): info for info in job.table_infos}
    for rename in job.renames:
        pre = working.get(rename.table_id) or _existing(job, view, rename.table_id)
        info = infos.get(rename.table_id)
        if info is None:
            raise _inconsistent(job, "renamed table has no table info", table_id=rename.table_id)
        schema = _schema_name(job, view, rename.new_schema_id)
        post = replace(_stored(job, info, rename.new_schema_id, schema), table=rename.new_table)
        working[rename.table_id] = post
        changes.append(TableChange(pre, post))
    return SchemaChange(job, changes[0].post.schema if changes and changes[0].post else job.schema, tuple(changes))


def _plan_exchange_partition(job: DdlJob, view: SchemaView) -> SchemaChange:
    """``job.table_id`` is the plain table; the TableInfo is the partitioned one, with the plain one's id in its
    list.
    """
    plain = _existing(job, view, job.table_id)
    if job.table_info is None:
        raise _inconsistent(job, "job has no table info")
    partitioned = _existing(job, view, TableId(number_in(job.table_info, "id")))
    post = _stored(job, job.table_info, partitioned.schema_id, partitioned.schema)
    came = [pid for pid in post.partition_ids if pid not in partitioned.partition_ids]
    went = [pid for pid in partitioned.partition_ids if pid not in post.partition_ids]
    if came != [plain.table_id] or len(went) != 1:
        raise _inconsistent(job, "exchange does not swap one partition", came=came, went=went)
    swapped = {**plain.info(), "id": went[0]}
    plain_post = _stored(job, swapped, plain.schema_id, plain.schema)
    return SchemaChange(job, post.schema, (TableChange(partitioned, post), TableChange(plain, plain_post)))


def _change(
    job: DdlJob, pre: StoredTable | None, post: StoredTable | None, truncated: tuple[TableId, ...] = ()
) -> SchemaChange:
    table = post or pre
    assert table is not None
    return SchemaChange(job, table.schema, (TableChange(pre, post),), truncated=truncated)


def _post(job: DdlJob, view: SchemaView) -> StoredTable:
    if job.table_info is None:
        raise _inconsistent(job, "job has no table info")
    return _stored(job, job.table_info, job.schema_id, _schema_name(job, view, job.schema_id))


def _stored(job: DdlJob, info: JsonObject, schema_id: int, schema: str) -> StoredTable:
    return stored_table(info, schema_id=schema_id, schema=schema, version=job.finished_ts)


def _existing(job: DdlJob, view: SchemaView, table_id: TableId) -> StoredTable:
    table = view.tables.get(table_id)
    if table is None:
        raise _inconsistent(job, "job changes an unknown table", table_id=table_id)
    return table


def _schema_name(job: DdlJob, view: SchemaView, schema_id: int) -> str:
    name = view.schemas.get(schema_id)
    if name is None:
        raise _inconsistent(job, "job's schema is unknown", schema_id=schema_id)
    return name


def _inconsistent(job: DdlJob, message: str, **fields: object) -> InconsistentDdlError:
    return InconsistentDdlError(
        message, job_id=job.job_id, finished_ts=job.finished_ts, type=job.type_id, query=job.query[:200], **fields
    )
