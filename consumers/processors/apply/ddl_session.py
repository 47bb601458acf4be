"""The session that a DDL runs in: it reads the statement, names, zones and the clock as upstream's session did."""

from datetime import UTC, datetime

from consumers.processors.apply.connection import LOCK_WAIT_S, Connection, execute, select
from consumers.processors.core.apply.statements import quoted
from schemas.ddl.job import SCHEMA_TYPES
from schemas.ids import physical_ms
from schemas.sink.sql_rows import SqlDdl
from schemas.tidb.time_zone import load_zone

_LOCK_SHARE = 0.9
"""Of ``read-timeout``: so long a DDL waits for a lock on its table."""
_SQL_MODE = "STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES"

_SYNTAX_MODES = {
    1 << 0: "REAL_AS_FLOAT",
    1 << 1: "PIPES_AS_CONCAT",
    1 << 3: "IGNORE_SPACE",
    1 << 29: "HIGH_NOT_PRECEDENCE",
}
"""TiDB's bits (``pkg/parser/mysql/const.go``) of modes that say how text is read, and what all servers call them."""


def set_up(connection: Connection, ddl: SqlDdl, time_zone: str, read_timeout_s: float) -> None:
    """Set a session up for a DDL; ``time_zone`` '': the server's own, ``read_timeout_s`` 0: not known.

    Raises:
        pymysql.MySQLError: the server refuses, or does not answer.
    """
    mode = ",".join([_SQL_MODE, *(name for bit, name in _SYNTAX_MODES.items() if ddl.sql_mode & bit)])
    mode += ",NO_BACKSLASH_ESCAPES" if ddl.plain_backslashes else ""
    execute(connection, "SET SESSION sql_mode = %s", (mode,))
    # Names of zones need tables that many servers have not loaded; UTC is the one that all know as an offset.
    if time_zone:
        execute(connection, "SET SESSION time_zone = %s", ("+00:00" if load_zone(time_zone) is UTC else time_zone,))
    else:
        connection.query(b"SET SESSION time_zone = @@GLOBAL.time_zone")
    execute(connection, "SET SESSION timestamp = %s", (_moment_s(connection, ddl),))
    # A DDL that waits for a lock comes before all that come later, so it waits longer than rows do; but it hears of
    # the lock before its answer is given up, which says nothing of why.
    waits_s = max(1, int(read_timeout_s * _LOCK_SHARE)) if read_timeout_s else LOCK_WAIT_S
    connection.query(f"SET SESSION lock_wait_timeout = {waits_s}".encode())
    # TiDB's default, for schemas that are created without one.
    connection.query(b"SET SESSION collation_server = 'utf8mb4_bin'")
    schema = ddl.pre_schema or ddl.schema
    if ddl.ddl_type not in SCHEMA_TYPES and schema:
        connection.query(b"USE " + quoted(schema))


def _moment_s(connection: Connection, ddl: SqlDdl) -> float:
    """Return what CURRENT_TIMESTAMP is to be, as Unix time.

    A DATETIME holds what the session's clock showed upstream, in a zone that nobody wrote down. So it is the moment at
    which this session's clock shows the same. There may be none: this zone leaves the hour out, or a TIMESTAMP that
    came with the DATETIME says that it was another moment. Then the session gets an offset that makes both right.
    """
    utc_s = _unix_s(ddl.clock) if ddl.clock else None
    if not ddl.local_clock:
        return physical_ms(ddl.commit_ts) / 1000 if utc_s is None else utc_s
    local_s = _unix_s(ddl.local_clock)
    offset_s = None if utc_s is None else round((local_s - utc_s) / 60) * 60
    sql = "SELECT UNIX_TIMESTAMP(%s), FROM_UNIXTIME(UNIX_TIMESTAMP(%s)) = CAST(%s AS DATETIME(6))"
    ((shown_s, is_shown),) = select(connection, sql, (ddl.local_clock,) * 3)
    offset_here_s = round(local_s - float(shown_s)) if is_shown else None
    if offset_s is None:
        offset_s = offset_here_s or 0
    if offset_s != offset_here_s:
        hours, minutes = divmod(abs(offset_s) // 60, 60)
        zone = f"{'-' if offset_s < 0 else '+'}{hours:02}:{minutes:02}"
        execute(connection, "SET SESSION time_zone = %s", (zone,))
    if utc_s is not None and len(ddl.clock) > len(ddl.local_clock):
        return utc_s
    return local_s - offset_s


def _unix_s(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
