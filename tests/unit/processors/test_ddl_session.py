"""The clock of the session that a DDL runs in, where no moment is right in the session's own zone."""

import pytest

from consumers.processors.apply.connection import Connector
from consumers.processors.apply.ddl_session import set_up
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts
from schemas.sink.sql_rows import SqlDdl
from tests.support.database.fake_tidb import Answer, FakeTidb

HOUR_S = 3600
AT_TWO_THIRTY = 1_774_751_400
"""2026-03-29 02:30:00 as if in UTC; Berlin's clocks go from 02:00 to 03:00 then."""


@pytest.mark.parametrize(
    ("clock", "shown", "zones", "moment_s"),
    [
        # A zone that has the hour.
        ("", (AT_TWO_THIRTY - 8 * HOUR_S, 1), [], AT_TWO_THIRTY - 8 * HOUR_S),
        # One that leaves it out, for which servers give the moment of the jump; and one that gives no answer.
        ("", (AT_TWO_THIRTY - HOUR_S - 1800, 0), ["'+00:00'"], AT_TWO_THIRTY),
        ("", (None, None), ["'+00:00'"], AT_TWO_THIRTY),
        # The TIMESTAMP beside it tells upstream's zone.
        ("2026-03-28 21:00:00", (AT_TWO_THIRTY - HOUR_S - 1800, 0), ["'+05:30'"], AT_TWO_THIRTY - 5.5 * HOUR_S),
        ("2026-03-29 06:00:00", (AT_TWO_THIRTY, 1), ["'-03:30'"], AT_TWO_THIRTY + 3.5 * HOUR_S),
    ],
)
def test_clock_of_a_datetime_is_what_upstreams_session_saw(
    clock: str, shown: tuple[int | None, int | None], zones: list[str], moment_s: float
) -> None:
    ddl = SqlDdl(
        commit_ts=Ts(9),
        ddl_type=5,
        schema="d",
        table="t",
        pre_schema="d",
        pre_table="t",
        query="ALTER TABLE `t` ADD COLUMN `at` DATETIME DEFAULT CURRENT_TIMESTAMP",
        clock=clock,
        local_clock="2026-03-29 02:30:00",
    )

    def answer(sql: str) -> Answer:
        return [[None if cell is None else str(cell) for cell in shown]] if "UNIX_TIMESTAMP" in sql else None

    with FakeTidb(answer) as server:
        config = load_changefeed(server.uri)
        assert config.uri.server is not None
        connection = Connector(config.uri.server, config)()
        server.said.clear()
        set_up(connection, ddl, "", 0.0)
        connection.close()
        set_zones = [sql.partition(" = ")[2] for sql in server.said if "SESSION time_zone" in sql]
        (set_moment,) = [sql.partition(" = ")[2] for sql in server.said if "SESSION timestamp" in sql]
    assert set_zones == ["@@GLOBAL.time_zone", *zones]
    assert float(set_moment) == moment_s
