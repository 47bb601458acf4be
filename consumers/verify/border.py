"""Where a changefeed's rows stand in a database: a snapshot of it, and the ts that a table is at in this snapshot.

A processor moves a partition's position in the transaction that writes its rows, and a table's rows are in one
partition. So what a snapshot shows of a table is what the partition's position in the same snapshot says: everything up
to a ts, and nothing above it. Nobody needs to stand still for it.

Only where a position is a row's may something be missing: another transaction of the same commit_ts, which TiDB may
give two that do not touch each other. Such a border is not whole: a difference there is no difference yet.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pymysql

from consumers.processors.apply.connection import Connect, Connection, execute, select
from consumers.processors.apply.destination import UNDER_WAY
from consumers.processors.apply.errors import general_error
from consumers.verify.errors import NothingAppliedError, TableInMotionError
from schemas.ids import Ts
from schemas.sink.position import POSITION_CLASS_AT, PositionClass
from schemas.sink.topic import PARTITIONS

_LONG_S = 24 * 3600
_POSITIONS = "SELECT part, position FROM tidebus.position WHERE feed = %s AND part < %s ORDER BY part"
"""A former release began partitions, too, that somebody had added to the topic, and no sorter writes."""
_DDL_STATE = "SELECT ddl_state FROM tidebus.changefeed WHERE feed = %s"


@dataclass(frozen=True, slots=True)
class Border:
    """Where one partition stands."""

    ts: Ts
    is_whole: bool
    """Nothing of ``ts`` can be missing."""
    position: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A destination at one moment."""

    connection: Connection
    borders: tuple[Border, ...]
    """By partition."""


@contextmanager
def snapshot(connect: Connect, feed: str) -> Iterator[Snapshot]:
    """Open a snapshot of a destination.

    Args:
        connect: to the destination.
        feed: the changefeed, as it is called in the schema ``tidebus``.

    Raises:
        NothingAppliedError: no processor has begun there yet.
        TableInMotionError: a DDL is under way.
        DestinationUnreachableError, DestinationRefusedError
    """
    connection = connect()
    try:
        yield Snapshot(connection, _borders(connection, feed))
    except pymysql.MySQLError as error:
        raise general_error(error, side="destination") from error
    finally:
        connection.close()


def read_settings(connection: Connection) -> None:
    """Set a session up that reads for long and sees one moment."""
    connection.query(b"SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    execute(connection, "SET SESSION wait_timeout = %s, time_zone = '+00:00'", (_LONG_S,))


def _borders(connection: Connection, feed: str) -> tuple[Border, ...]:
    read_settings(connection)
    connection.query(b"START TRANSACTION WITH CONSISTENT SNAPSHOT")
    there = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'tidebus' AND table_name = 'position'"
    rows = select(connection, _POSITIONS, (feed, PARTITIONS)) if select(connection, there)[0][0] else []
    if not rows:
        raise NothingAppliedError("no processor has begun at this destination", feed=feed)
    # A DDL runs in no transaction: it may show already, or half, while its position does not.
    if any(state in UNDER_WAY for (state,) in select(connection, _DDL_STATE, (feed,))):
        raise TableInMotionError("a DDL is under way at the destination", feed=feed)
    return tuple(_border(bytes(position)) for _, position in rows)


def _border(position: bytes) -> Border:
    # Its head alone: behind it may stand what is no record's position, such as a transaction's end.
    ts = Ts(int.from_bytes(position[:POSITION_CLASS_AT], "big"))
    return Border(ts, position[POSITION_CLASS_AT] != PositionClass.ROW, position)
