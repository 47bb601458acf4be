"""A TiDB's clock, and its DDL jobs (:mod:`consumers.processors.core.apply.ddl_jobs`)."""

import pymysql

from consumers.processors.apply.connection import Connection, is_tidb, select
from consumers.processors.apply.errors import may_heal
from consumers.processors.core.apply.ddl_jobs import DdlJob
from schemas.ids import Ts, physical_ms
from schemas.sink.sql_rows import SqlDdl

_JOBS = (
    "SELECT job_id, state, FLOOR(UNIX_TIMESTAMP(end_time)) FROM information_schema.ddl_jobs"
    " WHERE create_time >= FROM_UNIXTIME(%s) AND query = %s AND LOWER(db_name) IN %s"
    " AND job_type NOT LIKE '%%subjob%%'"
)
"""Times of jobs are shown in the session's zone, as FROM_UNIXTIME's are. A job of several changes has a line for each
of them besides its own."""


def read_clock(connection: Connection) -> int | None:
    """Return now (Unix time in s) by the clock that a TiDB's jobs go by; None: the server has no such clock.

    Raises:
        pymysql.MySQLError: it does not answer.
    """
    if not is_tidb(connection):
        return None
    connection.begin()
    try:
        ((ts,),) = select(connection, "SELECT @@tidb_current_ts")
    finally:
        connection.rollback()
    return physical_ms(Ts(int(ts))) // 1000 or None


def read_jobs(connection: Connection, ddl: SqlDdl, text: bytes, noted_s: int) -> list[DdlJob]:
    """Return the jobs of a statement since it was noted; none where the server has no such list, or does not show it.

    Raises:
        pymysql.MySQLError: it does not answer.
    """
    schemas = tuple({ddl.schema.lower(), ddl.pre_schema.lower()} - {""})
    if not (schemas and is_tidb(connection)):
        return []
    try:
        rows = select(connection, _JOBS, (noted_s, text.decode("utf-8", "surrogateescape"), schemas))
    except pymysql.MySQLError as error:
        if may_heal(error):
            raise
        return []  # an older TiDB; users without privileges on the table see no job
    return [DdlJob(int(number), str(state), None if end is None else int(end)) for number, state, end in rows]
