"""Which schema a row has: every version of every table, from the snapshot on, fed by the ddl topic.

Law: a row with commit_ts C of physical table T has the schema that the last DDL of T with finished_ts < C left. A row
and a DDL at one ts: the row has the schema before it.

One writer feeds the store in place (the driver, the owner); lookups read it; it pickles (Spark broadcasts it). Who
feeds one that others read at the same time feeds a :meth:`SchemaStore.copy` and hands that out. Tables are kept as
their compressed JSON and decoded at their first lookup, so 100,000 tables cost little more than their text, and a
pickled store carries no decoded ones.
"""

import bisect
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from schemas.ddl.flashback import FLASHBACK_CLUSTER, check_cluster_flashback
from schemas.ddl.job import parse_ddl_job, read_undecodable
from schemas.ddl.schema_change import (
    NONE_DROPPED,
    SchemaChange,
    SchemaView,
    StoredTable,
    plan_job,
    stored_table,
    was_in_effect,
    with_dropped,
)
from schemas.ddl.system_schemas import is_system_schema
from schemas.ddl.version_history import NO_HISTORY, TableVersions
from schemas.errors import Action, BusError, CorruptDataError
from schemas.ids import TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.tidb.info_json import JsonObject, ci_name, number_in, text_in
from schemas.tidb.table import TableVersion

RESERVED_TABLE_ID_MAX = 0x0000_FFFF_FFFF_FFFF
RESERVED_TABLE_ID_MIN = RESERVED_TABLE_ID_MAX - 1000 + 1
"""Ids from here to the maximum belong to TiDB's system tables: the DDL job tables everywhere, which no DDL job creates,
and in the newer kernel all that its bootstrap makes. Source: pingcap/tidb ``pkg/meta/metadef/system.go``,
``(ReservedGlobalIDLowerBound, ReservedGlobalIDUpperBound]``, of which the lower bound is a user's largest id."""


class UnknownTableError(BusError):
    """A row of a table that neither the snapshot nor any DDL has brought."""

    code, action = "schema.unknown_table", Action.STOP_CHANGEFEED


class SchemaGoneError(BusError):
    """The store starts after the asked ts: the row is older than the snapshot, or than what was collected."""

    code, action = "schema.history_gone", Action.STOP_CHANGEFEED


class NoSchema(Enum):
    """Why a known id has no schema at a commit_ts. Such rows are skipped in silence, as TiCDC does."""

    TRUNCATED = "truncated table id"
    DROPPED = "dropped table id"
    NOT_YET = "table id of a DDL that is not done yet"
    SYSTEM = "table of a system schema"


class SchemaStore:
    """All versions of all user tables. Only :meth:`apply` and :meth:`gc` change it."""

    def __init__(self) -> None:
        self.snapshot_ts: Ts | None = None
        """The ts from which on it answers; None until the snapshot is complete."""
        self.changes: list[SchemaChange] = []
        """Applied jobs in finished_ts order, less what :meth:`gc` dropped."""
        self._schemas: dict[int, str] = {}
        self._schema_options: dict[str, tuple[str, str]] = {}
        self._dropped = NONE_DROPPED
        self._changed_ts = Ts(0)
        """finished_ts of the last job that changed a user schema, or the snapshot's ts."""
        self._current: dict[TableId, StoredTable] = {}
        self._logical: dict[TableId, TableVersions] = {}
        self._physical: dict[TableId, TableVersions] = {}
        self._superseded: deque[tuple[Ts, bool, TableId]] = deque()
        """Each history that got a version after its first one, with that version's ts, and whether it is a physical
        table's: what :meth:`gc` looks at."""
        self._truncated: set[TableId] = set()
        self._system_tables: set[TableId] = set()
        self._last: tuple[Ts, frozenset[int]] = (Ts(0), frozenset())
        self._late_ids: set[int] = set()
        """Jobs that came in ``undecodable`` records: such a row may stand there once more, which nobody could know."""
        self._decoded: dict[tuple[TableId, Ts, str, str], TableVersion] = {}

    @classmethod
    def empty(cls) -> Self:
        """Return a store without a snapshot."""
        return cls()

    def copy(self) -> "SchemaStore":
        """Return a store that says the same, and can be fed while others read this one."""
        copied = SchemaStore()
        copied.__dict__.update(self.__dict__)  # what is replaced and never changed, and the cache of decoded tables
        copied.changes = list(self.changes)
        copied._schemas, copied._current = dict(self._schemas), dict(self._current)
        copied._schema_options = dict(self._schema_options)
        copied._logical, copied._physical = dict(self._logical), dict(self._physical)
        copied._superseded = deque(self._superseded)
        copied._truncated, copied._system_tables = set(self._truncated), set(self._system_tables)
        copied._late_ids = set(self._late_ids)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoded": {}}

    # -- feeding ------------------------------------------------------------------------------------------------

    def apply(self, record: DdlRecord) -> SchemaChange | None:
        """Take the next record of the ddl topic.

        Returns:
            What a replicated job of a user schema changed. None for snapshot records, repeats, what was in effect
            before the snapshot and all other jobs.

        Raises:
            DdlDecodeError: the job, or the row that it stands in, does not decode.
            InconsistentDdlError: the job does not fit the schema. The store is unchanged.
            FlashbackClusterError: it took jobs back that the store has applied. The store is unchanged.
            CorruptDataError: a TableInfo or DBInfo does not decode.
        """
        if record.kind == "job":
            return self._apply_job(record)
        if record.kind == "undecodable":
            return self._apply_undecodable(record)
        if self.snapshot_ts is not None:
            return None  # a snapshot landed again: the jobs that we have applied say the same
        match record.kind:
            case "schema":
                self._put_schema(record.payload)
            case "table":
                self._put_snapshot_table(record)
            case "snapshot_end":
                self.snapshot_ts = record.ts
                self._last, self._changed_ts = (record.ts, frozenset()), record.ts
        return None

    def gc(self, ts: Ts) -> None:
        """Forget what only rows with commit_ts <= ``ts`` need."""
        while self._superseded and self._superseded[0][0] <= ts:
            _, is_physical, table_id = self._superseded.popleft()
            histories = self._physical if is_physical else self._logical
            histories[table_id], gone = histories[table_id].without(ts)
            for stored in gone:
                self._decoded.pop(_key(stored), None)
        del self.changes[: bisect.bisect_right(self.changes, ts, key=_finished_ts)]
        if self.snapshot_ts is not None:
            self.snapshot_ts = max(self.snapshot_ts, ts)

    def part(self, physical_ids: Collection[TableId]) -> "SchemaStore":
        """Return a store that answers lookups of these tables as this one does now, and of no others."""
        part = SchemaStore()
        part.snapshot_ts = self.snapshot_ts
        part._physical = {pid: self._physical[pid] for pid in physical_ids if pid in self._physical}
        part._truncated = self._truncated.intersection(physical_ids)
        part._system_tables = self._system_tables.intersection(physical_ids)
        return part

    # -- lookups ------------------------------------------------------------------------------------------------

    def table_at(self, physical_id: TableId, commit_ts: Ts) -> TableVersion | None:
        """Return the schema of a row: what holds just before ``commit_ts``; None if the table is not there then."""
        history = self._physical.get(physical_id)
        stored = history.at(commit_ts) if history else None
        return self.decoded(stored) if stored else None

    def lookup(self, physical_id: TableId, commit_ts: Ts) -> TableVersion | NoSchema:
        """Return the schema of a row, or why rows of that table and ts are to be skipped.

        Raises:
            UnknownTableError: nobody ever said that this table exists.
            SchemaGoneError: the row is older than the store.
        """
        table = self.table_at(physical_id, commit_ts)
        return table if table is not None else self.why_none(physical_id, commit_ts)

    def why_none(self, physical_id: TableId, commit_ts: Ts) -> NoSchema:
        """Say why :meth:`table_at` returned None.

        Raises:
            UnknownTableError: nobody ever said that this table exists.
            SchemaGoneError: the row is older than the store.
        """
        if self.is_system(physical_id):
            return NoSchema.SYSTEM
        if self.snapshot_ts is None or commit_ts <= self.snapshot_ts:
            raise SchemaGoneError(
                "row is older than the schema", table_id=physical_id, commit_ts=commit_ts, schema_from=self.snapshot_ts
            )
        history = self._physical.get(physical_id)
        if history is None:
            raise UnknownTableError("row of an unknown table", table_id=physical_id, commit_ts=commit_ts)
        if physical_id in self._truncated:
            return NoSchema.TRUNCATED
        return NoSchema.NOT_YET if commit_ts <= history.valid_after[0] else NoSchema.DROPPED

    def versions_of(self, physical_id: TableId) -> list[tuple[Ts, TableVersion | None]]:
        """Return ``(valid_after_ts, schema)`` in ts order; each holds for commit_ts above its ts, up to the next
        one's.
        """
        history = self._physical.get(physical_id)
        if history is None:
            return []
        pairs = zip(history.valid_after, history.tables, strict=True)
        return [(ts, self.decoded(stored) if stored else None) for ts, stored in pairs]

    def stored_of(self, physical_id: TableId) -> Sequence[StoredTable | None]:
        """Return the schemas of :meth:`versions_of`, decoding nothing."""
        history = self._physical.get(physical_id)
        return history.tables if history is not None else ()

    def boundaries_of(self, physical_id: TableId) -> npt.NDArray[np.int64]:
        """Return the ``valid_after_ts`` of :meth:`versions_of` alone, int64 ascending, decoding nothing.

        ``np.searchsorted(boundaries, commit_ts, side="left") - 1`` is the version of each row (-1: before the first).
        """
        history = self._physical.get(physical_id)
        return np.array(history.valid_after if history else [], np.int64)

    def decoded(self, stored: StoredTable) -> TableVersion:
        """Return a stored version decoded, from a cache that :meth:`gc` and pickling empty."""
        key = _key(stored)
        table = self._decoded.get(key)
        if table is None:
            table = self._decoded[key] = stored.decode()
        return table

    def is_system(self, physical_id: TableId) -> bool:
        """Tell whether this is a table of a system schema."""
        return physical_id in self._system_tables or RESERVED_TABLE_ID_MIN <= physical_id <= RESERVED_TABLE_ID_MAX

    def stored_at(self, ts: Ts) -> Iterator[StoredTable]:
        """Yield all user tables (views and sequences too) as DDLs with finished_ts <= ``ts`` left them, not decoded."""
        for history in self._logical.values():
            stored = history.at(Ts(ts + 1))
            if stored:
                yield stored

    def table_ids(self) -> npt.NDArray[np.int64]:
        """Return the ids of all user tables that there are or were, not those of partitions; int64, in any order."""
        return np.fromiter(self._logical, np.int64, len(self._logical))

    def newest_of(self, physical_id: TableId) -> StoredTable | None:
        """Return the table that a physical id belongs to, as it is now or was last."""
        history = self._physical.get(physical_id)
        return next((stored for stored in reversed(history.tables) if stored), None) if history else None

    def stored_table_at(self, table_id: TableId, ts: Ts) -> StoredTable | None:
        """Return one of :meth:`stored_at`."""
        history = self._logical.get(table_id)
        return history.at(Ts(ts + 1)) if history else None

    def tables_at(self, ts: Ts) -> Iterator[TableVersion]:
        """Yield the same, decoded."""
        return map(self.decoded, self.stored_at(ts))

    def pullable_tables_at(self, ts: Ts) -> dict[TableId, StoredTable]:
        """Return what a puller has to pull after ``ts``: physical ids of user tables, ineligible ones too."""
        return {pid: stored for stored in self.stored_at(ts) for pid in stored.physical_ids}

    def changes_between(self, after_ts: Ts, to_ts: Ts) -> list[SchemaChange]:
        """Return applied jobs with ``after_ts < finished_ts <= to_ts``, in order."""
        start = bisect.bisect_right(self.changes, after_ts, key=_finished_ts)
        return self.changes[start : bisect.bisect_right(self.changes, to_ts, key=_finished_ts)]

    def schema_options(self, schema: str) -> tuple[str, str]:
        """Return the charset and collation of a schema as they are now, or were last; '': nobody has said."""
        return self._schema_options.get(schema, ("", ""))

    def schema_names(self) -> dict[int, str]:
        """Return the names of all schemas, by id, as they are now."""
        return dict(self._schemas)

    # -- internals ----------------------------------------------------------------------------------------------

    def _put_schema(self, db_info: JsonObject) -> None:
        try:
            name = self._schemas[number_in(db_info, "id")] = ci_name(db_info["db_name"])
            self._schema_options[name] = text_in(db_info, "charset"), text_in(db_info, "collate")
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptDataError("db info does not decode", db_info=str(db_info)[:200], reason=repr(error)) from error

    def _put_snapshot_table(self, record: DdlRecord) -> None:
        schema = self._schemas.get(record.schema_id)
        if schema is None:
            raise CorruptDataError(
                "snapshot has a table of an unknown schema",
                schema_id=record.schema_id,
                table_id=record.payload.get("id"),
            )
        stored = stored_table(record.payload, schema_id=record.schema_id, schema=schema, version=record.ts)
        if is_system_schema(schema):
            self._system_tables.update(stored.physical_ids)
        else:
            self._put_table(record.ts, stored)

    def _apply_job(self, record: DdlRecord) -> SchemaChange | None:
        try:
            return self._apply_job_of_any_form(record)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise CorruptDataError(
                "ddl job does not decode",
                job_id=str(record.payload.get("id"))[:40],
                ts=record.ts,
                reason=repr(error)[:500],
            ) from error

    def _apply_job_of_any_form(self, record: DdlRecord) -> SchemaChange | None:
        job = parse_ddl_job(record)
        last_ts, last_ids = self._last
        if job.finished_ts < last_ts or (job.finished_ts == last_ts and (job.job_id in last_ids or not last_ids)):
            return None  # landed again, or part of the snapshot already
        change: SchemaChange | None = None
        if job.type_id == FLASHBACK_CLUSTER:
            check_cluster_flashback(record.payload, job.finished_ts, self._changed_ts)
        elif job.type is None:
            pass  # not replicated: not even applied
        elif is_system_schema(job.schema):
            infos = (job.table_info, *job.table_infos)
            self._system_tables.update(TableId(number_in(info, "id")) for info in infos if info)
        else:
            planned = plan_job(job, SchemaView(self._current, self._schemas, self._dropped))
            if not was_in_effect(planned):
                change = planned
                self._commit(planned)
        ids = last_ids if job.finished_ts == last_ts else frozenset[int]()
        self._last = (job.finished_ts, ids | {job.job_id})
        return change

    def _apply_undecodable(self, record: DdlRecord) -> SchemaChange | None:
        job = read_undecodable(record)
        if job is None or int(job.payload["id"]) in self._late_ids:
            return None
        change = self._apply_job(job)
        self._late_ids.add(int(job.payload["id"]))
        return change

    def _commit(self, change: SchemaChange) -> None:
        job, ts = change.job, change.job.finished_ts
        if job.db_info is not None and not change.schema_dropped:
            self._put_schema(job.db_info)
        # Two passes: in an exchange or a swap one table's old id is another's new one.
        for table in change.tables:
            if table.pre:
                self._remove_table(ts, table.pre)
        for table in change.tables:
            if table.post:
                self._put_table(ts, table.post)
        self._truncated.update(change.truncated)
        if change.schema_dropped:
            self._schemas.pop(job.schema_id, None)
            gone = [table.pre for table in change.tables if table.pre]
            self._dropped = with_dropped(self._dropped, job.schema_id, ts, gone)
        self._changed_ts = ts
        self.changes.append(change)

    def _remove_table(self, ts: Ts, table: StoredTable) -> None:
        self._current.pop(table.table_id, None)
        self._put(self._logical, table.table_id, ts, None)
        for pid in table.physical_ids:
            self._put(self._physical, pid, ts, None)

    def _put_table(self, ts: Ts, table: StoredTable) -> None:
        self._current[table.table_id] = table
        self._put(self._logical, table.table_id, ts, table)
        for pid in table.physical_ids:
            self._put(self._physical, pid, ts, table)

    def _put(
        self, histories: dict[TableId, TableVersions], table_id: TableId, ts: Ts, table: StoredTable | None
    ) -> None:
        history = histories.get(table_id, NO_HISTORY)
        if history.valid_after and history.valid_after[-1] < ts:
            self._superseded.append((ts, histories is self._physical, table_id))
        histories[table_id] = history.put(ts, table)


def _finished_ts(change: SchemaChange) -> Ts:
    return change.job.finished_ts


def _key(stored: StoredTable) -> tuple[TableId, Ts, str, str]:
    return stored.table_id, stored.version, stored.schema, stored.table
