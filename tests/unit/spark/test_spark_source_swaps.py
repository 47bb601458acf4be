"""The Spark source where a DDL gives a physical table to another name: each change is of whoever had it then."""

from typing import Any

import pytest

from schemas.ddl.job import DdlType
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord
from sorters.core.source.errors import RowsReplacedError
from sorters.core.source.offsets import SourceOffset
from sorters.core.source.options import SourceOptions, read_options
from sorters.core.source.row_shape import RowShape
from sorters.core.source.table_history import table_at
from sorters.source import task as task_module
from sorters.source.query import Query, spark_schema
from tests.support.lakes.lake_bank import row
from tests.support.rawlog.memory_raw_log import MemoryEvents, MemoryLog, MemoryTableLog
from tests.support.rawlog.raw_log import Change, row_key
from tests.support.recorded.ddl_jobs import job, table_info

DDL_TS, LAST_TS = 20, 40
Row = tuple[int, int]
"""_commit_version, and as v the physical table."""


class Events(MemoryEvents):
    """Region events that can be let go of."""

    def close(self) -> None:
        """Nothing is open."""


def partitioned(*ids: int) -> dict[str, Any]:
    definitions = [{"id": each, "name": {"O": f"p{each}", "L": f"p{each}"}} for each in ids]
    return {**table_info(10, "t"), "partition": {"enable": True, "definitions": definitions}}


def renames(*steps: tuple[int, str], **tables: int) -> DdlRecord:
    """Return the job of RENAMEs; ``tables``: the names and ids that they leave."""
    home = {"old_schema_name": {"O": "d"}, "new_schema_id": 1}
    infos = [{**home, "table_id": table_id, "new_table_name": {"O": name}} for table_id, name in steps]
    after = [table_info(table_id, name) for name, table_id in tables.items()]
    args = {"rename_table_infos": infos}
    return job(DDL_TS, DdlType.RENAME_TABLES, schema_id=1, raw_args=args, table_infos=after)


EXCHANGE = job(DDL_TS, DdlType.EXCHANGE_PARTITION, schema_id=1, table_id=11, table_info=partitioned(11, 22))
SWAP = renames((10, "tmp"), (11, "t"), (10, "u"), u=10, t=11)
OTHER_CASE = renames((10, "T"), T=10)
MOVED = renames((10, "old"), old=10)
CASES = [
    pytest.param(partitioned(21, 22), EXCHANGE, "d.t", {21, 22}, {11, 22}, id="EXCHANGE PARTITION, the table"),
    pytest.param(partitioned(21, 22), EXCHANGE, "D.U", {11}, {21}, id="EXCHANGE PARTITION, the other"),
    pytest.param(table_info(10, "T"), SWAP, "d.t", {10}, {11}, id="RENAMEs that swap, in another case"),
    pytest.param(table_info(10, "t"), SWAP, "d.u", {11}, {10}, id="RENAMEs that swap, the other"),
]


def raw_log(first: dict[str, Any], ddl: DdlRecord) -> MemoryLog:
    """Return a log of ``d.u`` and another table, each physical table of which has a row at each ts around a DDL."""
    log = MemoryLog(partitions=1)
    log.ddl.append(DdlRecord(kind="schema", ts=Ts(5), schema_id=1, payload={"id": 1, "db_name": {"O": "d", "L": "d"}}))
    for info in (first, table_info(11, "u")):
        log.ddl.append(DdlRecord(kind="table", ts=Ts(5), schema_id=1, payload=info))
    log.ddl += [DdlRecord(kind="snapshot_end", ts=Ts(5), payload={}), ddl]
    log.publish(10)
    for table in (10, 11, 21, 22):
        log.land(0, table, [Change(ts, row_key(table, ts), row(table)) for ts in range(11, LAST_TS + 1)])
    log.publish(LAST_TS)
    log.lose_lows()
    return log


def query_of(log: MemoryLog, table: str, **more: str) -> Query:
    given = {"raw": "u", "kafka": "k:1", "table": table, "maxRowsPerBatch": "0", **more}
    options: SourceOptions = read_options(given, stream=True)
    table_log = MemoryTableLog(log, options)
    table_log.newest()
    store = table_log.schemas.store
    query = Query(options, spark_schema(RowShape.of(store.decoded(table_at(store, options.table, Ts(LAST_TS))))))
    query.__dict__["log"] = table_log
    return query


def rows_of(log: MemoryLog, query: Query, start: SourceOffset) -> list[Row]:
    """Return what the tasks of the batch that follows make of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_module, "settle_worker", lambda: None)
        patch.setattr(task_module, "raw_topic_reader", lambda *_, **__: Events(log))
        tasks = query.partitions(start, query.next_end(start))
        rows = [out for task in tasks for batch in task.batches() for out in batch.to_pylist()]
    return sorted((out["_commit_version"], out["v"]) for out in rows)


def each_at(ids: set[int], first_ts: int, last_ts: int) -> list[Row]:
    return [(ts, each) for ts in range(first_ts, last_ts + 1) for each in sorted(ids)]


@pytest.mark.parametrize(("first", "ddl", "table", "before", "after"), CASES)
def test_query_that_stopped_at_a_ddl_goes_on_with_what_the_name_has_since(
    first: dict[str, Any], ddl: DdlRecord, table: str, before: set[int], after: set[int]
) -> None:
    log = raw_log(first, ddl)
    start, border = SourceOffset(Ts(10), 1), SourceOffset(Ts(DDL_TS - 1), 1)
    assert rows_of(log, query_of(log, table), start) == each_at(before, 11, DDL_TS - 1)
    assert query_of(log, table).next_end(start) == border
    with pytest.raises(RowsReplacedError):
        query_of(log, table).next_end(border)

    again = query_of(log, table, passDdlTs=str(DDL_TS))
    assert rows_of(log, again, border) == each_at(after, DDL_TS, LAST_TS)


@pytest.mark.parametrize(("first", "ddl", "table", "before", "after"), CASES)
def test_batch_over_a_ddl_has_rows_of_the_name_on_both_sides(
    first: dict[str, Any], ddl: DdlRecord, table: str, before: set[int], after: set[int]
) -> None:
    log = raw_log(first, ddl)
    rows = rows_of(log, query_of(log, table, passDdlTs=str(DDL_TS)), SourceOffset(Ts(10), 1))
    assert rows == each_at(before, 11, DDL_TS - 1) + each_at(after, DDL_TS, LAST_TS)


def test_query_that_goes_on_by_a_new_name_has_the_change_at_the_very_ts_of_the_rename() -> None:
    log = raw_log(table_info(10, "t"), MOVED)
    again = query_of(log, "d.old", passDdlTs=str(DDL_TS))
    assert rows_of(log, again, SourceOffset(Ts(DDL_TS - 1), 1)) == each_at({10}, DDL_TS, LAST_TS)


def test_name_that_changes_its_case_alone_is_the_same() -> None:
    log = raw_log(table_info(10, "t"), OTHER_CASE)
    assert rows_of(log, query_of(log, "d.t"), SourceOffset(Ts(10), 1)) == each_at({10}, 11, LAST_TS)
