"""What a database destination is told of a DDL beside its statement."""

import json
from typing import Any

import pytest

from schemas.ddl.job import DdlType
from schemas.sink.sql_rows import SqlDdl, decode_ddl
from schemas.tidb.mysql_types import MysqlType
from sorters.core.encode.sql.rows import SqlRowsEncoder
from sorters.core.sql.ddl_event import ddl_events
from tests.support.recorded.ddl_jobs import column, job, snapshot, table_info


def added(*columns: dict[str, Any]) -> bytes:
    """Return the record of a DDL that adds columns to ``d.t``."""
    before, store = table_info(100, "t"), snapshot(("d", 2, [table_info(100, "t")]))
    after = table_info(100, "t", columns=[*before["cols"], *columns])
    record = job(20, DdlType.ADD_COLUMN, schema_id=2, table_id=100, table_info=after, query="ALTER TABLE t ADD COLUMN")
    change = store.apply(record)
    assert change is not None
    (event,) = ddl_events(change)
    return SqlRowsEncoder().encode_ddl(event).value


def clocked(number: int, tp: MysqlType, origin: str | None, default: str = "CURRENT_TIMESTAMP") -> dict[str, Any]:
    return {**column(number, f"c{number}", tp=tp, origin_default=origin), "default": default}


UTC, LOCAL = "2026-06-01 04:00:00", "2026-06-01 12:00:00"


@pytest.mark.parametrize(
    ("columns", "clocks"),
    [
        ([clocked(3, MysqlType.TIMESTAMP, UTC)], (UTC, "")),
        ([clocked(3, MysqlType.DATETIME, LOCAL)], ("", LOCAL)),
        ([clocked(3, MysqlType.DATETIME, LOCAL), clocked(4, MysqlType.TIMESTAMP, UTC)], (UTC, LOCAL)),
        ([clocked(3, MysqlType.DATETIME, LOCAL), clocked(4, MysqlType.DATETIME, LOCAL + ".25")], ("", LOCAL + ".25")),
        ([clocked(3, MysqlType.DATETIME, LOCAL, LOCAL)], ("", "")),  # a constant
        ([clocked(3, MysqlType.DATETIME, None)], ("", "")),  # old rows have NULL
    ],
)
def test_clock_of_new_columns_goes_with_its_zone(columns: list[dict[str, Any]], clocks: tuple[str, str]) -> None:
    ddl = decode_ddl(added(*columns))
    assert (ddl.clock, ddl.local_clock) == clocks


def test_ddl_of_a_release_before_is_read_without_what_it_did_not_know() -> None:
    raw = json.loads(added(clocked(3, MysqlType.TIMESTAMP, UTC)))
    del raw["local_clock"]
    ddl: SqlDdl = decode_ddl(json.dumps(raw).encode())
    assert (ddl.clock, ddl.local_clock) == (UTC, "")
