"""The zone that DDL runs in at a real server: the changefeed's, or the server's own; rows are in UTC."""

import datetime

import pytest

from compose.stack.mariadb import LocalMariaDb
from consumers.processors.apply.connection import Connector, execute, select
from consumers.processors.apply.ddl import DdlRunner
from consumers.processors.apply.destination import DatabaseDestination
from consumers.processors.core.apply.partition import DdlMark, start_position
from consumers.processors.core.apply.statements import StatementSettings
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts
from schemas.sink.sql_rows import SqlDdl
from tests.support.database.mariadb import mariadb as mariadb

NOON = datetime.datetime(2024, 6, 1, 12)  # noqa: DTZ001 # as the client returns it


@pytest.mark.parametrize(("zone", "hour"), [("UTC", 12), ("Etc/UTC", 12), ("", 9)])
def test_defaults_of_timestamps_are_read_in_the_zone_of_the_ddl(mariadb: LocalMariaDb, zone: str, hour: int) -> None:
    config = load_changefeed(mariadb.uri())
    assert config.uri.server is not None
    connector = Connector(config.uri.server, config)
    connection = connector()
    (before,) = select(connection, "SELECT @@GLOBAL.time_zone")
    try:
        execute(connection, "SET GLOBAL time_zone = '+03:00'")
        execute(connection, "DROP DATABASE IF EXISTS zoned")
        execute(connection, "CREATE DATABASE zoned")
        execute(connection, "CREATE TABLE zoned.t (id INT PRIMARY KEY)")
        execute(connection, "INSERT INTO zoned.t VALUES (1)")
        query = "ALTER TABLE `t` ADD COLUMN `at` TIMESTAMP NOT NULL DEFAULT '2024-06-01 12:00:00'"
        ddl = SqlDdl(
            commit_ts=Ts(9 << 18), ddl_type=5, schema="zoned", table="t", pre_schema="zoned", pre_table="t", query=query
        )
        destination = DatabaseDestination(connector, f"feed{hour}{zone}", 1, StatementSettings())
        destination.lead(1, start_position(Ts(1)))
        runner = DdlRunner(destination=destination, time_zone=zone)
        runner.run(DdlMark(b"position", Ts(8 << 18), ddl, 0))
        runner.close()
        assert select(connection, "SELECT `at` FROM zoned.t") == [(NOON.replace(hour=hour),)]
    finally:
        execute(connection, "DROP DATABASE IF EXISTS zoned")
        execute(connection, "SET GLOBAL time_zone = %s", (before[0],))
        connection.close()
