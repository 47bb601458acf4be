"""Which tables a changefeed's prologue lands: all that it had at any time, dropped and truncated ones too."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from compose.capture.prologue.tables import prologue_tables
from schemas.errors import BusError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.rawlog.ddl_record import DdlRecord
from tests.support.recorded.ddl_jobs import job, table_info

CREATE, DROP, TRUNCATE, RENAME = 3, 4, 11, 14
START_TS, END_TS = Ts(10), Ts(50)


def tables_of(*jobs: DdlRecord, **filters: Sequence[object]) -> list[int]:
    """Return what is landed of the tables d.kept (1), d.left (2), other.table (3) and of what jobs make."""
    info = ChangefeedInfo(
        changefeed_id="a",
        upstream=UpstreamId("u"),
        sink_uri="kafka://h:1/t?protocol=canal-json",
        config={"filter": {"rules": ["d.*", "!d.left"], **filters}},
        start_ts=START_TS,
    )
    records = []
    for schema_id, name, tables in ((1, "d", [(1, "kept"), (2, "left")]), (2, "other", [(3, "table")])):
        schema = {"id": schema_id, "db_name": {"O": name, "L": name}}
        records.append(DdlRecord(kind="schema", ts=START_TS, schema_id=schema_id, payload=schema))
        for table_id, table in tables:
            payload = table_info(table_id, table)
            records.append(DdlRecord(kind="table", ts=START_TS, schema_id=schema_id, payload=payload))
    records.append(DdlRecord(kind="snapshot_end", ts=START_TS, payload={}))
    return sorted(prologue_tables(info, [*records, *jobs], END_TS))


def created(ts: int, table_id: int, name: str, schema_id: int = 1) -> DdlRecord:
    return job(ts, CREATE, schema_id=schema_id, table_id=table_id, table_info=table_info(table_id, name))


def unreadable(ts: int) -> DdlRecord:
    """Return a job on a table that nobody has heard of."""
    return job(ts, TRUNCATE, schema_id=1, table_id=99, table_info=table_info(100, "new"))


def test_the_tables_of_the_filter_at_the_start_are_landed() -> None:
    assert tables_of() == [1]


def test_a_table_is_landed_that_came_and_went_in_the_interval() -> None:
    dropped = job(30, DROP, schema_id=1, table_id=7, table_info=table_info(7, "short"))
    assert tables_of(created(20, 7, "short"), dropped) == [1, 7]


def test_a_truncated_table_is_landed_under_both_ids() -> None:
    assert tables_of(job(20, TRUNCATE, schema_id=1, table_id=1, table_info=table_info(8, "kept"))) == [1, 8]


@pytest.mark.parametrize(("name", "landed"), [("new", [1, 2]), ("left", [1])])
def test_a_table_is_landed_whole_if_the_filter_lets_any_of_its_names_through(name: str, landed: list[int]) -> None:
    assert tables_of(job(20, RENAME, schema_id=1, table_id=2, table_info=table_info(2, name))) == landed


def test_a_table_that_leaves_the_filter_is_landed_too() -> None:
    assert tables_of(job(20, RENAME, schema_id=1, table_id=1, table_info=table_info(1, "left"))) == [1]


def test_what_comes_after_the_end_is_not_looked_at() -> None:
    assert tables_of(created(50, 7, "last"), created(51, 8, "late"), unreadable(52)) == [1, 7]


def test_a_job_that_cannot_be_applied_stops_the_prologue_unless_the_changefeed_leaves_it_out() -> None:
    with pytest.raises(BusError, match="unknown table"):
        tables_of(unreadable(20))
    assert tables_of(unreadable(20), **{"ignore-txn-start-ts": [19]}) == [1]


def test_a_table_that_cannot_be_replicated_now_is_landed_as_it_may_be_later() -> None:
    no_key = replace(
        created(20, 7, "plain"),
        payload={
            **created(20, 7, "plain").payload,
            "binlog": {
                "SchemaVersion": 1,
                "DBInfo": None,
                "TableInfo": table_info(7, "plain", pk_is_handle=False),
                "FinishedTS": 0,
                "MultipleTableInfos": None,
            },
        },
    )
    assert tables_of(no_key) == [1, 7]
