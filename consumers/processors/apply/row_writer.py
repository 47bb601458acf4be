"""Writes a claim's rows and its position in one transaction, in two round trips where that can be.

Statements go to the server side by side (``multi-stmt-enable``), BEGIN and the change of the position first; COMMIT is
sent once all have been answered. So a transaction takes two round trips, however many tables it is about. A server
stops at the first statement that fails and says nothing of those behind it, so the one that failed is known by its
number.

A statement that is longer than the server's ``max_allowed_packet`` would end the connection without a word of why, so
long ones are held against it before they are sent.
"""

from collections.abc import Iterator
from dataclasses import replace

import pymysql
from pymysql.constants import CLIENT

from consumers.processors.apply.connection import LOOSE_SQL_MODE, ROW_SQL_MODE, Connection, execute, select
from consumers.processors.apply.errors import (
    RowRefusedError,
    errno,
    general_error,
    is_of_statement,
    is_refusal,
    may_heal,
    reason,
)
from consumers.processors.core.apply.statements import Statement, StatementSettings, statements
from consumers.processors.core.apply.waiting import RowBatch
from schemas.errors import BusError
from schemas.sink.sql_rows import SqlRow

PACKET_BYTES_MAX = 2 * 1024 * 1024
"""Of statements that are sent together: with one more it stays below the least max_allowed_packet that is common."""
_LARGER_PACKETS = (
    "a larger max_allowed_packet of the destination, which new connections get, or filter.rules without the table"
)
_NO_MATTER = frozenset({1265, 1287})
"""Warnings of an ENUM's error value ("data truncated"), and, from MySQL 8.0.20 on, of VALUES() in our own SQL
("deprecated"), in place of which a MariaDB or TiDB knows nothing else."""


class PositionMovedError(Exception):
    """The position was not found where it should be; the caller says who may have moved it."""


class _StatementFailedError(Exception):
    def __init__(self, statement: Statement, error: pymysql.MySQLError) -> None:
        super().__init__(statement, error)
        self.statement, self.error = statement, error


def write_rows(connection: Connection, move: bytes, rows: RowBatch, settings: StatementSettings) -> None:
    """Write rows in one transaction that begins with ``move``.

    Args:
        move: an UPDATE that must find a row, the position.

    Raises:
        PositionMovedError: it does not; nothing is written, and the connection is no good any more.
        RowRefusedError: names the first row that the destination does not take. Nothing is written.
        DestinationUnreachableError: there is no room for a statement's rows, or somebody else has them locked; it names
            the first. Nothing is written.
        pymysql.MySQLError: any other; whether it was written is not known.
    """
    opening = [b"BEGIN", move]
    settings = replace(settings, bytes_max=min(settings.bytes_max, connection.packet_bytes_max // 2))
    try:
        for group in _packets(statements(rows, settings), together=_takes_many(connection)):
            fits = _fits(connection, opening, group)
            if group[0].loose:
                _send(connection, opening, [])
                _run_loose(connection, group[0])
            elif fits:
                _send(connection, opening, group)
            else:
                _send(connection, opening, [])
                for statement in group:
                    _send(connection, [], [statement])
            opening = []
        connection.commit()
    except _StatementFailedError as failed:
        connection.rollback()
        if may_heal(failed.error):
            first = _where(failed.statement.form.name, failed.statement.row(0))
            raise general_error(failed.error, **first, rows=len(failed.statement)) from failed.error
        raise _refused(connection, rows, failed, settings) from failed.error


def _takes_many(connection: Connection) -> bool:
    return bool(connection.client_flag & CLIENT.MULTI_STATEMENTS)


def _packets(made: Iterator[Statement], *, together: bool) -> Iterator[list[Statement]]:
    """Divide statements into what is sent together; a loose one stands alone."""
    group: list[Statement] = []
    size = 0
    for statement in made:
        if group and (statement.loose or not together or size + len(statement.sql) > PACKET_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(statement)
        size += len(statement.sql)
        if statement.loose:
            yield group
            group, size = [], 0
    if group:
        yield group


def _fits(connection: Connection, opening: list[bytes], group: list[Statement]) -> bool:
    """Tell whether the server takes all that is to be sent at once.

    Raises:
        RowRefusedError: it does not even take each statement by itself.
    """
    size = sum(len(sql) + 1 for sql in (*opening, *(statement.sql for statement in group)))
    allowed: int = connection.packet_bytes_max
    longest = max(group, key=lambda statement: len(statement.sql))
    if len(longest.sql) + 1 >= allowed:  # with the byte that says that it is a statement
        raise RowRefusedError(
            "destination takes no statement as long as the row's",
            **_where(longest.form.name, longest.row(0)),
            bytes=len(longest.sql),
            bytes_max=allowed,
            what_helps=_LARGER_PACKETS,
        )
    return size < allowed


def _send(connection: Connection, opening: list[bytes], group: list[Statement]) -> None:
    """Send statements and take their answers; the second one of ``opening`` must find a row."""
    sent = [*opening, *(statement.sql for statement in group)]
    together = _takes_many(connection)
    for at, sql in enumerate(sent):
        try:
            if not together or at == 0:
                connection.query(b";".join(sent) if together else sql)
            else:
                connection.next_result()
        except pymysql.MySQLError as error:
            if at < len(opening) or (may_heal(error) and not is_of_statement(error)):
                raise
            raise _StatementFailedError(group[at - len(opening)], error) from error
        # Before all rows: a processor that was replaced must not come to write one, nor to blame one.
        if opening and at == 1 and not connection.affected_rows():
            raise PositionMovedError


def _run_loose(connection: Connection, statement: Statement) -> None:
    try:
        execute(connection, "SET SESSION sql_mode = %s", (LOOSE_SQL_MODE,))
        connection.query(statement.sql)
        for _, number, text in select(connection, "SHOW WARNINGS"):
            if number not in _NO_MATTER:
                raise pymysql.DataError(number, text)
    except pymysql.MySQLError as error:
        if may_heal(error):
            raise
        raise _StatementFailedError(statement, error) from error
    finally:
        execute(connection, "SET SESSION sql_mode = %s", (ROW_SQL_MODE,))


def _refused(
    connection: Connection, rows: RowBatch, failed: _StatementFailedError, settings: StatementSettings
) -> BusError:
    """Find the row that a statement has failed at, by trying the table's rows one by one; none is kept."""
    name = failed.statement.form.name
    mine = RowBatch(tuple(part for part in rows.slices if part.form.name == name))
    settings_alone = replace(settings, rows_max=1)
    refused = _first_refused(connection, statements(mine, settings_alone))
    # None: the rows fail only together, which the server's own text tells best.
    row, error = refused or (failed.statement.row(0), failed.error)
    if may_heal(error):  # meanwhile somebody has locked it, or ended the connection
        return general_error(error, **_where(name, row))
    what = "we lack a privilege" if is_refusal(error) else "destination does not take a row"
    return RowRefusedError(
        what,
        **_where(name, row),
        errno=errno(error),
        reason=reason(error)[:500],
    )


def _where(table: str, row: SqlRow) -> dict[str, object]:
    return {"table": table, "key": row.key.decode("utf-8", "replace")[:200], "commit_ts": row.commit_ts}


def _first_refused(connection: Connection, made: Iterator[Statement]) -> tuple[SqlRow, pymysql.MySQLError] | None:
    try:
        connection.begin()
        for statement in made:
            try:
                if statement.loose:
                    _run_loose(connection, statement)
                else:
                    connection.query(statement.sql)
            except _StatementFailedError as failed:
                return statement.row(0), failed.error
            except pymysql.MySQLError as error:
                return statement.row(0), error
        return None
    finally:
        try:
            connection.rollback()
        except pymysql.MySQLError:
            connection.close()
