"""Batches of the Spark source: whole transactions, bounded, and together each change once, wherever it is restarted."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.changes import Op
from schemas.ddl.job import DdlType
from schemas.ids import TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import HeldTables
from schemas.tidb.mysql_types import MysqlType
from sorters.core.source.errors import RowsReplacedError, SchemaChangedError
from sorters.core.source.offsets import SourceOffset
from sorters.core.source.options import SourceOptions, read_options
from sorters.core.source.row_shape import RowShape
from sorters.core.source.table_history import table_at
from sorters.cut.raw_records import raw_records
from sorters.log.failures import HistoryLostError
from sorters.source import planner as planner_module
from sorters.source.planner import Planner
from sorters.source.task import each_once, gathered
from tests.support.rawlog.memory_raw_log import MemoryLog, MemoryTableLog
from tests.support.rawlog.raw_log import Change, row_key
from tests.support.recorded.ddl_jobs import PRIMARY, column, job, table_info

MINE, OTHER, FIRST_TS, LAST_TS = 7, 8, 10, 60
KINDS = (Change(0, b"", b"v"), Change(0, b"", b"v", b"o"), Change(0, b"", b"", b"o", op=Op.DELETE))
Identity = tuple[int, bytes]


@dataclass
class Case:
    """A log, and the changes of the table in it."""

    log: MemoryLog
    changes: list[Change]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Changes of two tables, landed in any order within what the frontier waits for, some of them again elsewhere."""
    log = MemoryLog(partitions=2)
    _snapshot(log)
    log.publish(FIRST_TS)
    identities = draw(
        st.lists(
            st.tuples(st.integers(FIRST_TS + 1, LAST_TS), st.sampled_from([MINE, MINE, OTHER]), st.integers(1, 5)),
            unique=True,
            max_size=40,
        )
    )
    changes = [
        replace(draw(st.sampled_from(KINDS)), commit_ts=ts, key=row_key(table, handle))
        for ts, table, handle in sorted(identities, key=lambda each: each[0])
    ]
    waiting, resolved, repeats = list(changes), FIRST_TS, False
    while waiting:
        window = waiting[: draw(st.integers(1, 6))]
        taken = window.pop(draw(st.integers(0, len(window) - 1)))
        waiting.remove(taken)
        table = MINE if taken.key.startswith(row_key(MINE, 0)[:9]) else OTHER
        log.land(draw(st.integers(0, 1)), table, [taken])
        if draw(st.integers(0, 9)) == 0:
            log.land(draw(st.integers(0, 1)), table, [taken])
            repeats = True
        limit = min((change.commit_ts for change in waiting), default=LAST_TS + 1) - 1
        if draw(st.booleans()) and limit >= resolved:
            resolved = draw(st.integers(resolved, limit))
            held_ts = draw(st.integers(FIRST_TS, resolved))
            log.publish(resolved, repeats=repeats, held=_held(log, draw(st.booleans()), held_ts))
    log.publish(LAST_TS + 1, repeats=repeats)
    log.lose_lows()
    return Case(log, [change for change in changes if change.key.startswith(row_key(MINE, 0)[:9])])


def _held(log: MemoryLog, wanted: bool, ts: int) -> tuple[HeldTables, ...]:
    """Hold the table at a ts that it has not passed yet."""
    last = log.frontier[-1]
    passed = min([last.resolved_ts, *(held.ts for held in last.held)])
    if not wanted or ts < passed:
        return ()
    low = [
        next((at for at, each in enumerate(records) if any(change.commit_ts > ts for change in each)), len(records))
        for records in log.landed
    ]
    return (HeldTables(tables=(TableId(MINE),), ts=Ts(ts), low=tuple(low)),)


def _snapshot(log: MemoryLog) -> None:
    name = {"O": "d", "L": "d"}
    log.ddl.append(DdlRecord(kind="schema", ts=Ts(5), schema_id=1, payload={"id": 1, "db_name": name}))
    for table, called in ((MINE, "mine"), (OTHER, "other")):
        log.ddl.append(DdlRecord(kind="table", ts=Ts(5), schema_id=1, payload=table_info(table, called)))
    log.ddl.append(DdlRecord(kind="snapshot_end", ts=Ts(5), payload={}))


def options() -> SourceOptions:
    return read_options({"raw": "u", "table": "d.mine", "kafka": "k:1"}, stream=True)


def planner_of(log: MemoryLog, asked: SourceOptions | None = None, loaded_at: int = 5) -> Planner:
    asked = asked or options()
    table_log = MemoryTableLog(log, asked)
    table_log.newest()
    store = table_log.schemas.store
    shape = RowShape.of(store.decoded(table_at(store, asked.table, Ts(loaded_at))))
    return Planner(table_log, asked, shape)


def rows_of(log: MemoryLog, planner: Planner, start: SourceOffset, end: SourceOffset) -> list[Identity]:
    """Return what the tasks of a batch read."""
    rows = []
    events = MemoryTableLog(log, options()).events
    cut = planner.cut(start, end)
    if cut is None:
        return []
    tables, count = frozenset({TableId(MINE), TableId(9)}), 1 if cut.may_repeat else 2
    for number in range(count):
        records = raw_records(events, cut, lambda _: None, number, count)
        for chunk in each_once(gathered(records, cut, tables), cut):
            rows += list(zip(chunk.commit_ts.tolist(), chunk.key.to_pylist(), strict=True))
    return rows


def output_rows(changes: list[Change]) -> int:
    """Count rows of a DataFrame: an update has two."""
    return sum((change.op is Op.PUT) + bool(change.old_value) for change in changes)


@settings(max_examples=150, deadline=None)
@given(cases(), st.integers(1, 12), st.integers(1, 3))
def test_batches_hold_each_change_once_in_whole_transactions_wherever_a_query_is_restarted(
    case: Case, rows_max: int, step_records: int
) -> None:
    log = case.log
    planner = planner_of(log)
    start = SourceOffset(Ts(FIRST_TS), 1)
    delivered = list[Identity]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner_module, "STEP_RECORDS", step_records)
        while (end := planner.next_end(start, rows_max)) != start:
            rows = rows_of(log, planner, start, end)
            within = [change for change in case.changes if start.resolved_ts < change.commit_ts <= end.resolved_ts]
            assert sorted(rows) == sorted((change.commit_ts, change.key) for change in within)
            assert output_rows(within) <= rows_max or len({change.commit_ts for change in within}) == 1
            # A query that is started again plans the same batch anew, and goes on from either end of it.
            again = planner_of(log)
            assert Counter(rows_of(log, again, start, end)) == Counter(rows)
            assert planner_of(log).next_end(start, rows_max) == end
            delivered += rows
            start = end
    assert sorted(delivered) == sorted((change.commit_ts, change.key) for change in case.changes)


def test_backlog_below_one_frontier_record_is_read_once_for_all_borders_of_its_batches() -> None:
    log = MemoryLog(partitions=2)
    _snapshot(log)
    log.publish(FIRST_TS)
    for number in range(40):
        changes = [Change(20 + (number * 7 + at) % 45, row_key(MINE, number * 3 + at), b"v") for at in range(3)]
        log.land(number % 2, MINE if number % 5 else OTHER, changes)
    log.publish(100)
    planner, start, read, borders = planner_of(log), SourceOffset(Ts(FIRST_TS), 1), list[tuple[int, int]](), list[int]()
    read_all = planner._log.events.read_all

    def counted(ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
        for partition, offset, value in read_all(ranges):
            read.append((partition, offset))
            yield partition, offset, value

    planner._log.events.read_all = counted  # type: ignore[method-assign]
    while (end := planner.next_end(start, 10)) != start:
        start = end
        borders.append(end.resolved_ts)

    assert len(borders) > 8
    assert Counter(read) == Counter((number % 2, number // 2) for number in range(40))


def test_tasks_of_a_bounded_batch_read_the_records_that_hold_its_rows_and_no_others() -> None:
    log = MemoryLog(partitions=2)
    _snapshot(log)
    log.publish(FIRST_TS)
    for number in range(20):
        changes = [Change(20 + number * 3 + at, row_key(MINE, number * 3 + at), b"v") for at in range(3)]
        log.land(number % 2, MINE, changes)
    log.publish(100)
    planner, start, read = planner_of(log), SourceOffset(Ts(FIRST_TS), 1), list[int]()
    while (end := planner.next_end(start, 6)) != start:
        cut = planner.cut(start, end)
        read.append(0 if cut is None else cut.offsets)
        start = end
    assert read == [2] * 10


def test_batch_when_retention_has_passed_its_start_is_refused_with_both_ts() -> None:
    log = MemoryLog(partitions=2)
    _snapshot(log)
    log.publish(10)
    for ts in (20, 30, 40):
        log.land(0, MINE, [Change(ts, row_key(MINE, ts), b"v")])
        log.publish(ts)
    log.oldest[0] = 2
    start, end = SourceOffset(Ts(10), 1), SourceOffset(Ts(40), 4)

    for attempt in (lambda: planner_of(log).next_end(start, 10), lambda: planner_of(log).cut(start, end)):
        with pytest.raises(HistoryLostError) as raised:
            attempt()
        assert (raised.value.fields["asked_ts"], raised.value.fields["oldest_ts"]) == (10, 30)
    kept = planner_of(log)
    assert rows_of(log, kept, SourceOffset(Ts(30), 3), end) == [(40, row_key(MINE, 40))]


def test_table_without_changes_moves_the_checkpoint_on_once_a_minute_alone() -> None:
    log = MemoryLog(partitions=2)
    _snapshot(log)
    log.publish(10)
    planner, start = planner_of(log), SourceOffset(Ts(10), 1)
    log.land(0, OTHER, [Change(20, row_key(OTHER, 1), b"v")])
    log.publish(59_999 << 18)
    assert planner.next_end(start, 10) == start
    log.publish(60_001 << 18)
    end = planner.next_end(start, 10)
    assert end == SourceOffset(Ts(60_001 << 18), 3)
    assert planner.cut(start, end) is None


def test_query_delivers_all_before_a_ddl_and_stops_at_it_until_it_is_started_again() -> None:
    log = MemoryLog(partitions=2)
    _snapshot(log)
    log.publish(10)
    log.land(0, MINE, [Change(20, row_key(MINE, 1), b"v")])
    added = table_info(MINE, "mine", columns=[column(1, "id", not_null=True, flag=PRIMARY), column(3, "w")])
    log.ddl.append(job(30, DdlType.ADD_COLUMN, schema_id=1, table_id=MINE, table_info=added))
    log.land(1, MINE, [Change(40, row_key(MINE, 1), b"w", b"v")])
    log.ddl.append(job(50, DdlType.TRUNCATE_TABLE, schema_id=1, table_id=MINE, table_info={**added, "id": 9}))
    log.land(0, 9, [Change(60, row_key(9, 1), b"w")])
    log.publish(70)

    first = planner_of(log)
    end = first.next_end(SourceOffset(Ts(10), 1), 10)
    assert (end.resolved_ts, rows_of(log, first, SourceOffset(Ts(10), 1), end)) == (30, [(20, row_key(MINE, 1))])
    with pytest.raises(SchemaChangedError) as changed:
        first.next_end(end, 10)
    assert changed.value.fields["ddl_ts"] == 30

    second = planner_of(log, loaded_at=70)
    next_end = second.next_end(end, 10)
    assert (next_end.resolved_ts, rows_of(log, second, end, next_end)) == (49, [(40, row_key(MINE, 1))])
    with pytest.raises(RowsReplacedError) as replaced:
        second.next_end(next_end, 10)
    assert replaced.value.fields["ddl_ts"] == 50

    passing = read_options({"raw": "u", "table": "d.mine", "kafka": "k:1", "passDdlTs": "50"}, stream=True)
    third = planner_of(log, passing, loaded_at=70)
    last = third.next_end(next_end, 10)
    assert (last.resolved_ts, rows_of(log, third, next_end, last)) == (70, [(60, row_key(9, 1))])


@pytest.mark.parametrize("has_rows_before", [True, False])
def test_query_that_is_started_again_goes_on_behind_a_ddl_that_gave_a_column_another_type(
    has_rows_before: bool,
) -> None:
    log = MemoryLog(partitions=2)
    _snapshot(log)
    log.publish(10)
    changes = [Change(20, row_key(MINE, 1), b"v"), Change(30, row_key(MINE, 2), b"v")] if has_rows_before else []
    if changes:
        log.land(0, MINE, changes)
    text = column(3, "v", tp=int(MysqlType.VARCHAR), charset="utf8mb4")
    info = table_info(MINE, "mine", columns=[column(1, "id", not_null=True, flag=PRIMARY), text])
    query = "alter table mine modify v varchar(9)"
    log.ddl.append(job(30, DdlType.MODIFY_COLUMN, schema_id=1, table_id=MINE, table_info=info, query=query))
    log.land(1, MINE, [Change(40, row_key(MINE, 1), b"w", b"v")])
    log.publish(70)
    start = SourceOffset(Ts(10), 1)

    first = planner_of(log)
    end = first.next_end(start, 10)
    assert sorted(rows_of(log, first, start, end)) == [(each.commit_ts, each.key) for each in changes]
    assert sorted(rows_of(log, planner_of(log), start, end)) == [(each.commit_ts, each.key) for each in changes]
    with pytest.raises(SchemaChangedError, match=r"start the query again.*ddl_ts=30.*modify v") as stopped:
        first.next_end(end, 10)
    assert stopped.value.fields["columns"] == "column v was made anew"

    second = planner_of(log, loaded_at=70)
    last = second.next_end(end, 10)
    assert (last.resolved_ts, rows_of(log, second, end, last)) == (70, [(40, row_key(MINE, 1))])

    with pytest.raises(SchemaChangedError, match=r"spark\.read.*start a new query above it.*ddl_ts=30.*modify v"):
        planner_of(log, loaded_at=70).next_end(start, 10)


def test_border_in_the_checkpoint_reads_back_as_it_was_written() -> None:
    offset = SourceOffset(Ts(461_373_440_000_000_010), 12)
    assert SourceOffset.read(offset.as_json()) == offset
    at_image = replace(offset, image=(3, 9))
    assert SourceOffset.read(at_image.as_json()) == at_image
    assert at_image.border == offset
    assert replace(offset, frontier_offset=13) != offset
