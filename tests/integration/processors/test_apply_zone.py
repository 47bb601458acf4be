"""The zone that DDL runs in at a real server: the changefeed's, or the server's own; rows are in UTC."""

import datetime
from collections.abc import Callable, Iterator

import pytest

from compose.stack.mariadb import LocalMariaDb
from consumers.processors.apply.connection import Connection, Connector, execute, select
from consumers.processors.apply.ddl import DdlRunner
from consumers.processors.apply.destination import DatabaseDestination
from consumers.processors.core.apply.partition import DdlMark, start_position
from consumers.processors.core.apply.statements import StatementSettings
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts, compose_ts
from schemas.sink.sql_rows import SqlDdl
from tests.support.database.mariadb import mariadb

__all__ = ["mariadb"]

NOON = datetime.datetime(2024, 6, 1, 12)  # noqa: DTZ001 # as the client returns it
AT_NOON = compose_ts(int(NOON.replace(tzinfo=datetime.UTC).timestamp() * 1000))


@pytest.fixture
def connector(mariadb: LocalMariaDb) -> Iterator[Connector]:
    """Connections to a server in +03:00 with a table of one row, ``zoned.t``."""
    config = load_changefeed(mariadb.uri())
    assert config.uri.server is not None
    connect = Connector(config.uri.server, config)
    connection = connect()
    (before,) = select(connection, "SELECT @@GLOBAL.time_zone")
    try:
        execute(connection, "SET GLOBAL time_zone = '+03:00'")
        execute(connection, "DROP DATABASE IF EXISTS zoned")
        execute(connection, "CREATE DATABASE zoned")
        execute(connection, "CREATE TABLE zoned.t (id INT PRIMARY KEY)")
        execute(connection, "INSERT INTO zoned.t VALUES (1)")
        yield connect
    finally:
        execute(connection, "DROP DATABASE IF EXISTS zoned")
        execute(connection, "SET GLOBAL time_zone = %s", (before[0],))
        connection.close()


def columns_added(connector: Connector, feed: str, zone: str, *columns: str, clock: str = "", local: str = "") -> str:
    """Add columns as a DDL of a changefeed in a zone; return what the old row has in them, seen from UTC."""
    added = ", ".join(f"ADD COLUMN {column}" for column in columns)
    ddl = SqlDdl(
        commit_ts=AT_NOON,
        ddl_type=5,
        schema="zoned",
        table="t",
        pre_schema="zoned",
        pre_table="t",
        query=f"ALTER TABLE `t` {added}",
        clock=clock,
        local_clock=local,
    )
    destination = DatabaseDestination(connector, feed, 1, StatementSettings())
    destination.lead(1, start_position(Ts(1)))
    runner = DdlRunner(destination=destination, time_zone=zone)
    runner.run(DdlMark(b"position", Ts(AT_NOON - 1), ddl, 0))
    runner.close()
    connection: Connection = connector()
    try:
        ((_, *values),) = select(connection, "SELECT * FROM zoned.t")
        return " ".join(str(value) for value in values)
    finally:
        connection.close()


@pytest.mark.parametrize(("zone", "hour"), [("UTC", 12), ("Etc/UTC", 12), ("", 9)])
def test_defaults_of_timestamps_are_read_in_the_zone_of_the_ddl(
    connector: Connector, fresh_name: Callable[[str], str], zone: str, hour: int
) -> None:
    column = "`at` TIMESTAMP NOT NULL DEFAULT '2024-06-01 12:00:00'"
    assert columns_added(connector, fresh_name("feed"), zone, column) == str(NOON.replace(hour=hour))


@pytest.mark.parametrize("zone", ["UTC", ""])
@pytest.mark.parametrize("local", ["2024-06-01 20:00:00", "2024-06-01 20:00:00.123456", "2024-06-01 01:30:00.999999"])
def test_new_datetime_of_old_rows_is_what_upstreams_session_saw(
    connector: Connector, fresh_name: Callable[[str], str], zone: str, local: str
) -> None:
    """Whatever zone that had: the text is of no zone, and no other is right."""
    digits = "(6)" if "." in local else ""
    column = f"`at` DATETIME{digits} NOT NULL DEFAULT CURRENT_TIMESTAMP{digits}"
    assert columns_added(connector, fresh_name("feed"), zone, column, local=local) == local


@pytest.mark.parametrize("zone", ["UTC", ""])
@pytest.mark.parametrize("clock", ["2024-06-01 12:00:00", "2024-06-01 12:00:00.123457", "2024-06-01 12:00:00.999999"])
def test_new_timestamp_of_old_rows_is_upstreams_moment(
    connector: Connector, fresh_name: Callable[[str], str], zone: str, clock: str
) -> None:
    digits = "(6)" if "." in clock else ""
    column = f"`at` TIMESTAMP{digits} NOT NULL DEFAULT CURRENT_TIMESTAMP{digits}"
    assert columns_added(connector, fresh_name("feed"), zone, column, clock=clock) == clock


@pytest.mark.parametrize("zone", ["UTC", ""])
@pytest.mark.parametrize(
    ("clock", "local"),
    [
        ("2024-06-01 12:00:00", "2024-06-01 12:00:00"),
        ("2024-06-01 12:00:00", "2024-06-01 15:00:00.250001"),
        ("2024-06-01 12:00:00.250001", "2024-06-01 20:00:00"),
        ("2024-06-01 12:00:00.250001", "2024-06-01 06:30:00.250001"),
    ],
)
def test_new_timestamp_and_new_datetime_of_one_ddl_are_both_upstreams(
    connector: Connector, fresh_name: Callable[[str], str], zone: str, clock: str, local: str
) -> None:
    columns = [
        f"`{name}` {kind}{digits} NOT NULL DEFAULT CURRENT_TIMESTAMP{digits}"
        for name, kind, text in (("a", "TIMESTAMP", clock), ("b", "DATETIME", local))
        for digits in ["(6)" if "." in text else ""]
    ]
    added = columns_added(connector, fresh_name("feed"), zone, *columns, clock=clock, local=local)
    assert added == f"{clock} {local}"
