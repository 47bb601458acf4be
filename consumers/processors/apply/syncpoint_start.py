"""From where on syncpoints are written, as ``tidebus.syncpoint_start`` at the destination has it.

A syncpoint says that the destination holds all up to its ts and nothing above it. That is true as long as every leader
has let partitions stand at the next one. One that wrote none, or others, has let rows go on; and so has one of a former
release, perhaps, which notes nothing here. So a leader notes its interval, with its revision. Where the leader before
it has not noted the same, syncpoints begin at what the furthest partition holds, and whoever has a partition by that
leader's word writes to it no more.

Positions alone do not say where they begin: a partition without rows is mostly ahead of the next syncpoint, which would
be left out at each change of leaders.
"""

from consumers.processors.apply.connection import Connection, execute, select
from schemas.ids import Ts

_THERE = (
    "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'tidebus' AND table_name = 'syncpoint_start'"
)
_TABLE = """CREATE TABLE IF NOT EXISTS tidebus.syncpoint_start (
    feed VARCHAR(600) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    revision BIGINT UNSIGNED NOT NULL,
    interval_ms BIGINT UNSIGNED NOT NULL,
    from_ts BIGINT UNSIGNED NOT NULL
)"""
_LEADER = "SELECT revision FROM tidebus.changefeed WHERE feed = %s FOR UPDATE"
_NOTED = "SELECT revision, interval_ms, from_ts FROM tidebus.syncpoint_start WHERE feed = %s FOR UPDATE"
_NOTE = "REPLACE INTO tidebus.syncpoint_start (feed, revision, interval_ms, from_ts) VALUES (%s, %s, %s, %s)"
_TAKE_ALL = "UPDATE tidebus.position SET revision = %s, opened = opened + 1 WHERE feed = %s"
_HELD = "SELECT commit_ts FROM tidebus.position WHERE feed = %s FOR UPDATE"


def make_table(connection: Connection) -> None:
    """Create the table where it is not there, outside of any transaction.

    Raises:
        pymysql.MySQLError: the destination does not let us.
    """
    if not int(select(connection, _THERE)[0][0]):
        execute(connection, _TABLE)


def leader_before(connection: Connection, feed: str) -> int:
    """Return the revision of whoever has led before, within the transaction in which another takes the lead.

    Raises:
        pymysql.MySQLError: the destination does not answer.
    """
    return int(select(connection, _LEADER, (feed,))[0][0])


def begin_syncpoints(connection: Connection, feed: str, revision: int, before: int, interval_ms: int) -> Ts:
    """Note the interval of the leader of ``revision``, in the transaction in which it takes the lead over from
    ``before``; return the least ts that a syncpoint may have.

    Raises:
        pymysql.MySQLError: the destination does not answer.
    """
    noted = [tuple(map(int, row)) for row in select(connection, _NOTED, (feed,))]
    if noted and noted[0][:2] == (before, interval_ms):
        from_ts = noted[0][2]
    else:
        # Waits for what is under way. After it nobody writes before a leader gives partitions out anew.
        execute(connection, _TAKE_ALL, (revision, feed))
        from_ts = max(int(commit_ts) for (commit_ts,) in select(connection, _HELD, (feed,)))
    execute(connection, _NOTE, (feed, revision, interval_ms, from_ts))
    return Ts(from_ts)
