"""Whether the effect of a DDL is there: asked where a destination refuses it because something is there already, or
gone, and where a destination looks otherwise than before a DDL that an earlier processor has begun.

TiCDC passes over such an error whatever the DDL is (``isIgnorableMySQLDDLError``). But a rename onto a table that is
there has not been done, and a DDL of several changes is refused whole for one of them.

A destination may look otherwise because the DDL has run, or because somebody has taken away what stood in its way.
"""

import logging
from collections.abc import Iterable, Mapping
from enum import Enum

import pymysql

from consumers.processors.apply.connection import Connection, select
from consumers.processors.apply.errors import ALREADY_SO, UNKNOWN_VIEW, errno, reason
from consumers.processors.apply.fingerprint import are_exchanged, is_schema_there, is_there
from consumers.processors.core.apply.ddl_effects import Effect, Kind, effects_of, is_one_change
from schemas.ddl.job import SCHEMA_TYPES, DdlType
from schemas.sink.sql_rows import SqlDdl

log = logging.getLogger(__name__)
_NAMES = {
    Kind.COLUMN: "SELECT column_name FROM information_schema.columns",
    Kind.INDEX: "SELECT index_name FROM information_schema.statistics",
    Kind.INDEX_ON: "SELECT CONCAT(IF(non_unique = 1, '', 'unique '), GROUP_CONCAT(column_name ORDER BY seq_in_index))"
    " FROM information_schema.statistics",
    Kind.PARTITION: "SELECT partition_name FROM information_schema.partitions",
    Kind.FOREIGN_KEY: "SELECT constraint_name FROM information_schema.table_constraints",
}
_OF_TABLE = " WHERE LOWER(table_schema) = LOWER(%s) AND LOWER(table_name) = LOWER(%s)"
_AS_WELL = {
    Kind.INDEX_ON: " AND index_name <> 'PRIMARY' GROUP BY index_name, non_unique HAVING COUNT(column_name) = COUNT(*)",
    Kind.FOREIGN_KEY: " AND constraint_type = 'FOREIGN KEY'",
}
_LEAVES: Mapping[int, bool] = {
    DdlType.CREATE_SCHEMA: True,
    DdlType.RECOVER_SCHEMA: True,
    DdlType.DROP_SCHEMA: False,
    DdlType.CREATE_TABLE: True,
    DdlType.CREATE_TABLES: True,
    DdlType.RECOVER_TABLE: True,
    DdlType.DROP_TABLE: False,
    DdlType.DROP_VIEW: False,
}
"""Whether the schema, table or view that a DDL is about is there behind it."""
Outcome = Enum("Outcome", ["DONE", "NOT_DONE", "UNKNOWN"])


def is_already_so(ddl: SqlDdl, error: pymysql.MySQLError) -> bool:
    """Tell whether a DDL is refused as something is there already, or gone."""
    return errno(error) in ALREADY_SO or (ddl.ddl_type == DdlType.DROP_VIEW and errno(error) == UNKNOWN_VIEW)


def what_lacks(connection: Connection, ddl: SqlDdl) -> str:
    """Return what the destination does not have as a DDL leaves it, for people; empty: nothing that a name tells.

    Raises:
        pymysql.MySQLError: it does not answer.
    """
    if is_one_change(ddl):
        return ""
    if ddl.ddl_type == DdlType.RENAME_TABLE:
        return _lacks_of_rename(connection, ddl)
    return _listed(_told(effect) for effect in _lacking(connection, ddl, effects_of(ddl).named))


def outcome(connection: Connection, ddl: SqlDdl, before: str | None) -> Outcome:
    """Tell what has become of a DDL that was begun, where the destination looks otherwise than ``before``.

    What may be done once more without harm, and leaves nothing that a name tells, counts as not done.

    Raises:
        pymysql.MySQLError: it does not answer.
    """
    match ddl.ddl_type:
        case DdlType.RENAME_TABLE:
            return _known(not _lacks_of_rename(connection, ddl))
        case DdlType.EXCHANGE_PARTITION:
            are = are_exchanged(connection, ddl, before)
            return Outcome.UNKNOWN if are is None else _known(are)
        case DdlType.REMOVE_PARTITIONING:
            return _known(not _names(connection, ddl, Kind.PARTITION))
        case kind if (is_left := _LEAVES.get(kind)) is not None:
            there = is_schema_there(connection, ddl.schema) if kind in SCHEMA_TYPES else _is_there(connection, ddl)
            return _known(there == is_left)
    effects = effects_of(ddl)
    if ddl.ddl_type == DdlType.CREATE_VIEW and effects.once:  # one without OR REPLACE
        return _known(_is_there(connection, ddl))
    if left := effects.named + effects.likely:
        return _known(not _lacking(connection, ddl, left))
    return Outcome.UNKNOWN if effects.once else Outcome.NOT_DONE


def what_happens_once(ddl: SqlDdl) -> str:
    """Return the changes of a DDL for which its outcome is not known."""
    return _listed(effects_of(ddl).once)


def what_is_unknown(ddl: SqlDdl) -> str:
    """Return the changes of a DDL of which :func:`what_lacks` cannot tell whether they have been done."""
    return "" if is_one_change(ddl) or ddl.ddl_type == DdlType.RENAME_TABLE else _listed(effects_of(ddl).unknown)


def warn_of_passing(ddl: SqlDdl, error: pymysql.MySQLError) -> None:
    """Say that a DDL is passed over."""
    log.warning(
        "a ddl that the destination refuses is passed over: its effect is there already",
        extra={
            "table": ddl.name,
            "commit_ts": ddl.commit_ts,
            "query": ddl.query[:4000],
            "errno": errno(error),
            "reason": reason(error)[:500],
        },
    )


def _lacks_of_rename(connection: Connection, ddl: SqlDdl) -> str:
    lacks = list[str]()
    if not ddl.pre_table or is_there(connection, ddl.pre_schema, ddl.pre_table):
        lacks.append(f"table {ddl.pre_schema}.{ddl.pre_table} gone")
    if not is_there(connection, ddl.schema, ddl.table):
        lacks.append(f"table {ddl.name}")
    return _listed(lacks)


def _is_there(connection: Connection, ddl: SqlDdl) -> bool:
    return is_there(connection, ddl.schema, ddl.table)


def _known(is_done: bool) -> Outcome:
    return Outcome.DONE if is_done else Outcome.NOT_DONE


def _lacking(connection: Connection, ddl: SqlDdl, effects: Iterable[Effect]) -> list[Effect]:
    effects = list(effects)
    names = {kind: _names(connection, ddl, kind) for kind in {effect.kind for effect in effects}}
    return [effect for effect in effects if (effect.name in names[effect.kind]) != effect.is_there]


def _names(connection: Connection, ddl: SqlDdl, kind: Kind) -> set[str]:
    sql = _NAMES[kind] + _OF_TABLE + _AS_WELL.get(kind, "")
    names = select(connection, sql, (ddl.schema, ddl.table))
    # A table without partitions has one of no name.
    return {str(name).lower() for (name,) in names if name is not None}


def _told(effect: Effect) -> str:
    return f"{effect.kind} {effect.name}" + ("" if effect.is_there else " gone")


def _listed(lacks: Iterable[str]) -> str:
    return "; ".join(lacks)[:1000]
