"""What is looked at where a destination refuses a DDL because something is there already, or gone: is its effect there?

TiCDC passes over such an error whatever the DDL is (``isIgnorableMySQLDDLError``). But a rename onto a table that is
there has not been done, and a DDL of several changes is refused whole for one of them.
"""

import logging
from collections.abc import Iterable

import pymysql

from consumers.processors.apply.connection import Connection, select
from consumers.processors.apply.errors import ALREADY_SO, UNKNOWN_VIEW, errno, reason
from consumers.processors.apply.fingerprint import is_there
from consumers.processors.core.apply.ddl_effects import Effect, Kind, effects_of, is_one_change
from schemas.ddl.job import DdlType
from schemas.sink.sql_rows import SqlDdl

log = logging.getLogger(__name__)
_NAMES = {
    Kind.COLUMN: "SELECT column_name FROM information_schema.columns",
    Kind.INDEX: "SELECT index_name FROM information_schema.statistics",
    Kind.PARTITION: "SELECT partition_name FROM information_schema.partitions",
}
_OF_TABLE = " WHERE LOWER(table_schema) = LOWER(%s) AND LOWER(table_name) = LOWER(%s)"


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
    effects = effects_of(ddl).named
    names = {kind: _names(connection, ddl, kind) for kind in {effect.kind for effect in effects}}
    return _listed(_told(effect) for effect in effects if (effect.name in names[effect.kind]) != effect.is_there)


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


def _names(connection: Connection, ddl: SqlDdl, kind: Kind) -> set[str]:
    return {str(name).lower() for (name,) in select(connection, _NAMES[kind] + _OF_TABLE, (ddl.schema, ddl.table))}


def _told(effect: Effect) -> str:
    return f"{effect.kind} {effect.name}" + ("" if effect.is_there else " gone")


def _listed(lacks: Iterable[str]) -> str:
    return "; ".join(lacks)[:1000]
