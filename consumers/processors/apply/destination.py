"""What a changefeed keeps in its destination, in the schema ``tidebus``: how far each partition is, and who may write.

A partition's position is changed in the transaction that writes its rows, on the condition that it is where this
processor left it, and that nobody has taken it over since (``opened`` counts who has): so every row takes effect once,
and a processor that was given up writes nothing more, however late it wakes. DDL and syncpoints are for the leader of
all processors: its ``revision``, which grows with each, must be the changefeed's, and no partition can be taken over by
word of a leader before the last one that gave it to somebody.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import pymysql

from consumers.processors.apply.connection import Connect, Connection, execute, select
from consumers.processors.apply.errors import (
    ProcessorReplacedError,
    errno,
    general_error,
)
from consumers.processors.apply.resync import noted_tables
from consumers.processors.apply.row_writer import PositionMovedError, write_rows
from consumers.processors.apply.shape import ShapeCheck
from consumers.processors.apply.syncpoint_start import begin_syncpoints, leader_before, make_table
from consumers.processors.core.apply.index_ddl import IndexDdl
from consumers.processors.core.apply.partition import Claim
from consumers.processors.core.apply.statements import StatementSettings
from schemas.ids import Ts
from schemas.sink.sql_rows import NO_TABLE, decode_ddl, encode_ddl

Result = TypeVar("Result")

SCHEMA = "tidebus"
TABLES = (
    "CREATE DATABASE IF NOT EXISTS tidebus",
    """CREATE TABLE IF NOT EXISTS tidebus.changefeed (
        feed VARCHAR(600) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
        revision BIGINT UNSIGNED NOT NULL,
        opened BIGINT UNSIGNED NOT NULL DEFAULT 0,
        syncpoint_ts BIGINT UNSIGNED NOT NULL DEFAULT 0,
        ddl_position VARBINARY(64) NULL,
        ddl_state VARCHAR(16) CHARACTER SET ascii NULL,
        ddl_query LONGTEXT CHARACTER SET utf8mb4 NULL,
        ddl_before CHAR(64) CHARACTER SET ascii NULL,
        updated_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP
    )""",
    """CREATE TABLE IF NOT EXISTS tidebus.position (
        feed VARCHAR(600) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
        part INT NOT NULL,
        revision BIGINT UNSIGNED NOT NULL,
        opened BIGINT UNSIGNED NOT NULL DEFAULT 0,
        position VARBINARY(64) NOT NULL,
        next_offset BIGINT NOT NULL,
        commit_ts BIGINT UNSIGNED NOT NULL,
        updated_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
        PRIMARY KEY (feed, part)
    )""",
    """CREATE TABLE IF NOT EXISTS tidebus.index_ddl (
        feed VARCHAR(600) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
        position VARBINARY(64) NOT NULL,
        start_ts BIGINT UNSIGNED NOT NULL,
        ddl LONGBLOB NOT NULL,
        ddl_before CHAR(64) CHARACTER SET ascii NOT NULL,
        noted_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
        PRIMARY KEY (feed, position)
    )""",
)
UNDER_WAY = ("begun", "refused")
"""States of a DDL that is not done."""
_NOT_OF_CHARSET = 1366
"""A text that the column's character set does not have."""
_NAMES = ("changefeed", "position", "index_ddl")
_DDL_BEGUN = (
    "UPDATE tidebus.changefeed SET ddl_state = 'begun', ddl_position = %s, ddl_query = %s, ddl_before = %s,"
    " updated_at = COALESCE(FROM_UNIXTIME(%s), CURRENT_TIMESTAMP) WHERE feed = %s AND revision = %s"
)
_DDL_REFUSED = (
    "UPDATE tidebus.changefeed SET ddl_state = 'refused', updated_at = updated_at"
    " WHERE feed = %s AND revision = %s AND ddl_state = 'begun'"
)
_LEAD = (
    "UPDATE tidebus.changefeed SET revision = %s, opened = opened + 1, updated_at = updated_at"
    " WHERE feed = %s AND revision <= %s"
)
"""Whoever follows must still find when a DDL was begun."""
_INDEX_NOTED = (
    "REPLACE INTO tidebus.index_ddl (feed, position, start_ts, ddl, ddl_before, noted_at)"
    " VALUES (%s, %s, %s, %s, %s, COALESCE(FROM_UNIXTIME(%s), CURRENT_TIMESTAMP))"
)
_DDL_DONE = "UPDATE tidebus.changefeed SET ddl_state = 'done', ddl_position = %s WHERE feed = %s AND revision = %s"
_SYNCPOINT = "UPDATE tidebus.changefeed SET syncpoint_ts = %s WHERE feed = %s AND revision = %s"
_SCHEMA_THERE = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = %s AND table_name IN %s"


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """How far a partition is."""

    position: bytes
    next_offset: int


@dataclass(frozen=True, slots=True)
class NotedDdl:
    """What is kept of the DDL that was noted last."""

    before: str | None
    """What the destination looked like before it."""
    noted_s: int
    """When it was noted (Unix time)."""
    was_refused: bool
    """The destination has not taken it when it was said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationState:
    """What the destination holds when a processor begins."""

    positions: Mapping[int, PartitionPosition]
    ddl_noted: bytes | None
    """Position of a DDL that was begun and not finished."""
    syncpoint_ts: Ts
    """The last one written; 0: none."""
    syncpoints_from: Ts = Ts(0)
    """None may have a lower ts: the destination has held more than that; 0: nothing is known, as none are wanted."""


class DatabaseDestination:
    """One changefeed's part of the schema ``tidebus``. Connections are the caller's: one a thread."""

    def __init__(self, connect: Connect, feed: str, revision: int, settings: StatementSettings) -> None:
        """``revision`` grows with each leader of the changefeed's processors; who only applies needs none (0)."""
        self.connect = connect
        self.feed, self.revision = feed, revision
        self._settings = settings
        self._shapes = ShapeCheck()
        self._opened: dict[int, int] = {}
        """How often each partition of ours was taken over when we did."""

    def lead(self, partitions: int, start: bytes, syncpoints_ms: int = 0) -> DestinationState:
        """Take DDL and syncpoints over: no leader of a lower revision writes any more. Who has a partition keeps it,
        unless there are syncpoints now where there were none, or others.

        Args:
            partitions: how many there are.
            start: where one begins that is not known here.
            syncpoints_ms: their interval; 0: none are written.

        Raises:
            ProcessorReplacedError: a leader of a higher revision is there.
            DestinationUnreachableError, DestinationRefusedError
        """
        return self.connected(lambda connection: self._lead(connection, partitions, start, syncpoints_ms))

    def positions(self, parts: Collection[int]) -> dict[int, PartitionPosition]:
        """Return where some partitions are, whoever has them.

        Raises:
            DestinationUnreachableError, DestinationRefusedError
        """
        return self.connected(lambda connection: {part: at for part, _, at in self._rows(connection, parts)})

    def take(self, parts: Collection[int], revision: int) -> dict[int, PartitionPosition]:
        """Take some partitions over by word of the leader of ``revision``, and return where they are.

        Raises:
            ProcessorReplacedError: a later leader has given one of them to somebody.
            DestinationUnreachableError, DestinationRefusedError
        """
        return self.connected(lambda connection: self._take(connection, parts, revision))

    def connected(self, use: Callable[[Connection], Result]) -> Result:
        """Use a connection of its own, and give it back.

        Raises:
            DestinationUnreachableError, DestinationRefusedError: besides what ``use`` raises.
        """
        connection = self.connect()
        try:
            return use(connection)
        except pymysql.MySQLError as error:
            raise general_error(error, schema=SCHEMA) from error
        finally:
            connection.close()

    def _lead(self, connection: Connection, partitions: int, start: bytes, syncpoints_ms: int) -> DestinationState:
        # Asked first: who may write there need not be one who may create it.
        if select(connection, _SCHEMA_THERE, (SCHEMA, _NAMES))[0][0] != len(_NAMES):
            for sql in TABLES:
                execute(connection, sql)
        if syncpoints_ms:
            make_table(connection)
        connection.begin()
        execute(connection, "INSERT IGNORE INTO tidebus.changefeed (feed, revision) VALUES (%s, 0)", (self.feed,))
        before = leader_before(connection, self.feed) if syncpoints_ms else 0
        if not execute(connection, _LEAD, (self.revision, self.feed, self.revision)):
            raise self._replaced()
        for part in range(partitions):
            execute(
                connection,
                "INSERT IGNORE INTO tidebus.position (feed, part, revision, position, next_offset, commit_ts)"
                " VALUES (%s, %s, %s, %s, 0, %s)",
                (self.feed, part, self.revision, start, int.from_bytes(start[:8], "big")),
            )
        from_ts = Ts(0)
        if syncpoints_ms:
            from_ts = begin_syncpoints(connection, self.feed, self.revision, before, syncpoints_ms)
        connection.commit()
        sql = "SELECT ddl_position, ddl_state, syncpoint_ts FROM tidebus.changefeed WHERE feed = %s"
        ((position, state, syncpoint_ts),) = select(connection, sql, (self.feed,))
        noted = bytes(position) if state in UNDER_WAY else None
        positions = {part: at for part, _, at in self._rows(connection, range(partitions))}
        return DestinationState(
            positions=positions, ddl_noted=noted, syncpoint_ts=Ts(int(syncpoint_ts)), syncpoints_from=from_ts
        )

    def _take(self, connection: Connection, parts: Collection[int], revision: int) -> dict[int, PartitionPosition]:
        connection.begin()
        # Waits for what an earlier processor has under way; `opened` changes the rows, so that who looks for conflicts
        # only when it commits (TiDB) finds one.
        sql = (
            "UPDATE tidebus.position SET revision = %s, opened = opened + 1"
            " WHERE feed = %s AND part IN %s AND revision <= %s"
        )
        if execute(connection, sql, (revision, self.feed, tuple(parts), revision)) != len(parts):
            connection.rollback()
            raise self._replaced(partitions=sorted(parts), term=revision)
        # FOR UPDATE: TiDB's plain SELECT shows what stood there when the transaction began.
        rows = self._rows(connection, parts, " FOR UPDATE")
        connection.commit()
        self._opened.update((part, opened) for part, opened, _ in rows)
        return {part: at for part, _, at in rows}

    def _rows(
        self, connection: Connection, parts: Collection[int], lock: str = ""
    ) -> list[tuple[int, int, PartitionPosition]]:
        sql = "SELECT part, opened, position, next_offset FROM tidebus.position WHERE feed = %s AND part IN %s"
        rows = select(connection, sql + lock, (self.feed, tuple(parts)))
        return [
            (int(part), int(opened), PartitionPosition(bytes(at), int(offset))) for part, opened, at, offset in rows
        ]

    def apply(self, connection: Connection, part: int, before: bytes, claim: Claim) -> None:
        """Write the rows of a claim and its position in one transaction.

        Raises:
            ProcessorReplacedError: another processor has moved the position, or taken over.
            RowRefusedError: names the first row that the destination does not take. Nothing is written.
            ShapeDiffersError: a table cannot hold rows of its image. Nothing is written.
            DestinationUnreachableError: whether it was written, :meth:`take` tells.
            DestinationRefusedError
        """
        move = self._move(connection, part, before, PartitionPosition(claim.position, claim.next_offset))
        try:
            self._shapes.check(connection, claim.rows)
            write_rows(connection, move, claim.rows, self._with_notes(connection, claim))
        except pymysql.MySQLError as error:
            raise general_error(error, partition=part) from error
        except PositionMovedError as error:
            raise self._replaced(partition=part) from error

    def _with_notes(self, connection: Connection, claim: Claim) -> StatementSettings:
        """Return how a claim's rows are written. What is noted changes only while all partitions stand still."""
        tables = {part.form.notes for part in claim.rows.slices} - {NO_TABLE}
        if not tables:
            return self._settings
        return replace(self._settings, noted=noted_tables(connection, self.feed, tables))

    def keep(self, connection: Connection, part: int, before: bytes, at: PartitionPosition) -> None:
        """Move a partition's position over what holds no rows.

        Raises:
            ProcessorReplacedError, DestinationUnreachableError, DestinationRefusedError
        """
        try:
            connection.query(self._move(connection, part, before, at))
        except pymysql.MySQLError as error:
            raise general_error(error, partition=part) from error
        if not connection.affected_rows():
            raise self._replaced(partition=part)

    def pass_ddl(
        self,
        connection: Connection,
        position: bytes,
        next_offsets: Mapping[int, int],
        apart: IndexDdl | None = None,
    ) -> None:
        """Note a DDL as done, and move all partitions behind it, whoever has them, in one transaction.

        ``apart``: it is not, but an index to be built beside the rows, which is noted in the same transaction.
        """
        connection.begin()
        self._note(connection, _DDL_DONE, (position,))
        if apart is not None:
            noted = (apart.start_ts, encode_ddl(apart.ddl), apart.before, apart.noted_s)
            execute(connection, _INDEX_NOTED, (self.feed, position, *noted))
        for part, offset in sorted(next_offsets.items()):
            moved = execute(
                connection,
                "UPDATE tidebus.position SET position = %s, next_offset = %s, commit_ts = %s"
                " WHERE feed = %s AND part = %s",
                (position, offset, int.from_bytes(position[:8], "big"), self.feed, part),
            )
            if not moved:
                connection.rollback()
                raise self._replaced(partition=part)
        connection.commit()

    def index_ddls(self, connection: Connection) -> list[IndexDdl]:
        """Return the indexes that are still to be built, in their order."""
        sql = (
            "SELECT position, start_ts, ddl, ddl_before, UNIX_TIMESTAMP(noted_at) FROM tidebus.index_ddl"
            " WHERE feed = %s ORDER BY position"
        )
        return [
            IndexDdl(bytes(position), Ts(int(start_ts)), decode_ddl(bytes(ddl)), str(before), int(noted_s))
            for position, start_ts, ddl, before, noted_s in select(connection, sql, (self.feed,))
        ]

    def index_done(self, connection: Connection, position: bytes) -> None:
        """Note that an index is built, or not wanted."""
        sql = "DELETE FROM tidebus.index_ddl WHERE feed = %s AND position = %s"
        execute(connection, sql, (self.feed, position))

    def note_ddl(self, connection: Connection, position: bytes, query: str, before: str, noted_s: int | None) -> None:
        """Note a DDL as begun; ``noted_s``: when, by another clock than the server's own (Unix time)."""
        try:
            self._note(connection, _DDL_BEGUN, (position, query, before, noted_s))
        except pymysql.MySQLError as error:
            if errno(error) != _NOT_OF_CHARSET:
                raise
            # A release before gave the column the server's character set. The text is for people alone.
            escaped = query.encode("ascii", "backslashreplace").decode()
            self._note(connection, _DDL_BEGUN, (position, escaped, before, noted_s))

    def note_refusal(self, connection: Connection) -> None:
        """Note that the DDL which is noted as begun has not run, since the destination does not take it."""
        execute(connection, _DDL_REFUSED, (self.feed, self.revision))

    def noted(self, connection: Connection) -> NotedDdl:
        """Return what is kept of the DDL that is noted."""
        sql = "SELECT ddl_before, UNIX_TIMESTAMP(updated_at), ddl_state FROM tidebus.changefeed WHERE feed = %s"
        for before, noted_s, state in select(connection, sql, (self.feed,)):
            return NotedDdl(before, int(noted_s), state == "refused")
        return NotedDdl(None, 0, False)

    def note_syncpoint(self, connection: Connection, ts: Ts) -> None:
        """Note a syncpoint as written, within the caller's transaction."""
        self._note(connection, _SYNCPOINT, (ts,))

    def check_revision(self, connection: Connection) -> None:
        """Make sure that no other processor has taken over.

        Raises:
            ProcessorReplacedError
        """
        sql = "SELECT COUNT(*) FROM tidebus.changefeed WHERE feed = %s AND revision = %s"
        if select(connection, sql, (self.feed, self.revision))[0][0] != 1:
            raise self._replaced()

    def fence(self, connection: Connection) -> None:
        """Make sure that no other processor takes the lead over before the end of the caller's transaction.

        Raises:
            ProcessorReplacedError: one has.
        """
        sql = "SELECT revision FROM tidebus.changefeed WHERE feed = %s FOR UPDATE"
        if select(connection, sql, (self.feed,)) != [(self.revision,)]:
            connection.rollback()
            raise self._replaced()

    def _note(self, connection: Connection, sql: str, arguments: tuple[object, ...]) -> None:
        if not execute(connection, sql, (*arguments, self.feed, self.revision)):
            connection.rollback()
            raise self._replaced()

    def _move(self, connection: Connection, part: int, before: bytes, at: PartitionPosition) -> bytes:
        """Return the statement that moves a position of ours; where it finds none, it is not ours any more."""
        sql = (
            "UPDATE tidebus.position SET position = %s, next_offset = %s, commit_ts = %s"
            " WHERE feed = %s AND part = %s AND opened = %s AND position = %s"
        )
        arguments = (
            *(at.position, at.next_offset, int.from_bytes(at.position[:8], "big")),
            *(self.feed, part, self._opened.get(part), before),
        )
        with connection.cursor() as cursor:
            return bytes(cursor.mogrify(sql, arguments).encode("utf-8", "surrogateescape"))

    def _replaced(self, **where: object) -> ProcessorReplacedError:
        return ProcessorReplacedError(
            "another processor has written here", feed=self.feed, revision=self.revision, **where
        )
