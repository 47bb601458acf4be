"""The books of a cut find what is lost, changed or repeated between the raw log and the sink, and nothing else."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from schemas.config.changefeed import load_changefeed
from schemas.flow.flow_sum import FlowSum, total_of
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import compile_feed
from sorters.core.flow.ledger import CutFlow, FlowBrokenError, check_flow
from sorters.core.mount.corrupt_rows import CorruptRows
from sorters.core.records import order
from sorters.core.records.order import OutputRecords, no_records
from sorters.core.rows import pipeline, shared_pass
from sorters.cut import whole_cut as cuts
from sorters.cut import worker
from sorters.cut.raw_cut import RawCut
from sorters.cut.whole_cut import WholeCut, whole_cut
from sorters.cut.worker import CutCounts, FeedProgram
from sorters.spark.tasks.cut_answers import counts_as_json, sum_of_counts
from tests.support.recorded.ddl_jobs import PRIMARY, column, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

TABLES, FIRST_TS, ROWS = (TableId(112), TableId(113)), 445644800000000001, 40
FILTERS = {"filter": {"event-filters": [{"matcher": ["test.t2"], "ignore-event": ["delete"]}]}}


def program(config: dict[str, Any] | None = None, protocol: str = "canal-json") -> FeedProgram:
    columns = [column(1, "id", not_null=True, flag=PRIMARY), column(2, "c")]
    infos = [table_info(table, f"t{at}", columns=columns) for at, table in enumerate(TABLES, 1)]
    feed = compile_feed(load_changefeed(f"kafka://h:1/t?protocol={protocol}", config or {}), "default", {"t": 3})
    return FeedProgram(snapshot(("test", 1, infos)), feed)


def change(table: TableId, at: int) -> CommittedChange:
    """Return an insert, an update or a delete of a row, by its number."""
    old = encode_row_v2({2: b"\x02"}) if at % 3 else b""
    new = encode_row_v2({2: b"\x01"}) if at % 3 != 2 else b""
    return CommittedChange(FIRST_TS + at, FIRST_TS - 1, row_key(table, at), "put" if new else "delete", new, old, 0)


def raw_record(table: TableId, numbers: range) -> bytes:
    return raw_rows(table, [change(table, at) for at in numbers])


def raw_rows(table: TableId, changes: list[CommittedChange]) -> bytes:
    rows = row_changes(table, changes)
    return encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1)


RECORDS = [raw_record(table, range(at, at + 10)) for table in TABLES for at in range(0, ROWS, 10)]


def cut(*, may_repeat: bool = False, upto: int = ROWS) -> Cut:
    after_ts, upto_ts = Ts(FIRST_TS - 1), Ts(FIRST_TS + upto)
    return Cut(after_ts=after_ts, upto_ts=upto_ts, start=(0,), end=(9,), may_repeat=may_repeat, ddl_end=0)


def whole(records: list[bytes], by: FeedProgram, of: Cut) -> WholeCut:
    made = whole_cut(of, RawCut(records, 0), by, no_records(), 1, 1 << 30)
    assert made is not None
    return made


def test_books_of_a_cut_say_what_was_landed_and_written_of_each_table() -> None:
    flow = whole(RECORDS, program(), cut()).flow
    assert {table: each.count for table, each in flow.landed.items()} == dict.fromkeys(TABLES, ROWS)
    assert flow.landed == flow.ordered == flow.written
    assert flow.gathered == 2 * ROWS
    assert not (flow.repeats or flow.left_out or flow.split)


def test_books_name_what_filters_leave_out_and_the_ts_of_the_cut_bounds_them() -> None:
    flow = whole(RECORDS, program(FILTERS), cut(upto=20)).flow
    deletes = sum(at % 3 == 2 for at in range(21))
    assert {reason: {table: each.count for table, each in sums.items()} for reason, sums in flow.left_out.items()} == {
        "event_filter": {TABLES[1]: deletes}
    }
    assert total_of(flow.written).count == 2 * 21 - deletes
    only = {"filter": {"rules": ["test.t1"]}}
    assert whole(RECORDS, program(only), cut()).flow.landed.keys() == {TABLES[0]}


@pytest.mark.parametrize("config", [{}, FILTERS], ids=["tables alike", "each alone"])
def test_deletes_of_rows_that_were_not_there_are_told(config: dict[str, Any]) -> None:
    # What is left of a row that one transaction inserts and deletes.
    nothing = [
        CommittedChange(FIRST_TS + at, FIRST_TS - 1, row_key(TABLES[1], 100 + at), "delete", b"", b"", 0)
        for at in (7, 8)
    ]
    flow = whole([*RECORDS, raw_rows(TABLES[1], nothing)], program(config), cut()).flow
    without = whole(RECORDS, program(config), cut()).flow
    assert {table: each.count for table, each in flow.left_out["deletes_nothing"].items()} == {TABLES[1]: 2}
    assert flow.written == without.written
    assert "deletes_nothing" not in without.left_out


def test_rows_that_the_raw_log_holds_twice_are_written_once_and_alarm_nobody() -> None:
    again = [*RECORDS, RECORDS[1], raw_record(TABLES[1], range(5, 25))]
    made = whole(again, program(), cut(may_repeat=True))
    assert total_of(made.flow.repeats).count == 30
    assert made.flow.written == whole(RECORDS, program(), cut()).flow.written
    assert made.records.num_rows == 2 * ROWS


def test_split_updates_are_told_apart_from_rows_that_come_from_nowhere() -> None:
    uri = "kafka://h:1/t?protocol=canal-json"
    columns = [column(1, "id", not_null=True, flag=PRIMARY), column(2, "c", not_null=True)]
    index = {"id": 1, "idx_name": {"O": "u", "L": "u"}, "idx_cols": [{"name": {"O": "c", "L": "c"}, "offset": 1}],
             "is_unique": True, "is_primary": False, "state": 5}  # fmt: skip
    info = table_info(TABLES[0], "t1", columns=columns) | {"index_info": [index]}
    feed = compile_feed(load_changefeed(uri, {}), "default", {"t": 3})
    made = whole(RECORDS[:4], FeedProgram(snapshot(("test", 1, [info])), feed), cut())
    updates = sum(at % 3 == 1 for at in range(ROWS))
    assert total_of(made.flow.split).count == updates
    assert total_of(made.flow.written).count == ROWS + total_of(made.flow.split).count


def test_a_raw_record_twice_is_found_where_the_frontier_says_that_nothing_repeats() -> None:
    with pytest.raises(FlowBrokenError, match=r"come twice \(10\)") as caught:
        whole([*RECORDS, RECORDS[-1]], program(), cut())
    assert caught.value.fields["table_id"] == TABLES[1]


# -- planted faults ----------------------------------------------------------------------------------------------------


def losing_a_row(run: Callable[..., OutputRecords]) -> Callable[..., OutputRecords]:
    def losing(*args: Any, **more: Any) -> OutputRecords:
        records = run(*args, **more)
        return records.filter(pa.array(np.arange(records.num_rows) != 7))

    return losing


def swapping_a_position(run: Callable[..., OutputRecords]) -> Callable[..., OutputRecords]:
    def swapping(*args: Any, **more: Any) -> OutputRecords:
        records = run(*args, **more)
        columns = [records.column(name) for name in ("topic", "partition", "key", "value")]
        positions = records.column("position").to_pylist()
        positions[3] = positions[3][:-1] + bytes([positions[3][-1] ^ 0x55])
        made: OutputRecords = pa.table([*columns, pa.array(positions, pa.binary())], schema=no_records().schema)  # type: ignore[attr-defined]
        return made

    return swapping


def giving_twice(run: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def twice(*args: Any, **more: Any) -> Iterator[Any]:
        for number, item in enumerate(run(*args, **more)):
            yield item
            if number == 0:
                yield item

    return twice


def dropping_one(run: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def dropping(*args: Any, **more: Any) -> Iterator[Any]:
        for number, item in enumerate(run(*args, **more)):
            if number:
                yield item

    return dropping


def keeping_fewer(run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def fewer(*args: Any, **more: Any) -> list[Any]:
        return run(*args, **more)[1:]

    return fewer


def dropping_too_much(run: Callable[[OutputRecords], OutputRecords]) -> Callable[[OutputRecords], OutputRecords]:
    return lambda records: run(records).slice(1)


FAULTS = [
    pytest.param(
        shared_pass, "run_version", losing_a_row, "landed_to_ordered", "are lost (1)", id="row_lost_in_a_pass"
    ),
    pytest.param(
        pipeline, "route_pass", swapping_a_position, "landed_to_ordered", "are not the same", id="key_swapped"
    ),
    pytest.param(pipeline, "mount", None, "landed_to_ordered", "are lost", id="rows_lost_by_the_mounter"),
    pytest.param(
        worker, "gather_rows", dropping_one, "gathered_to_landed", "are lost", id="chunk_lost_before_the_pass"
    ),
    pytest.param(worker, "gather_rows", giving_twice, "repeats", "come twice", id="chunk_of_rows_twice"),
    pytest.param(shared_pass, "encodable", giving_twice, "landed_to_ordered", "are added", id="rows_encoded_twice"),
    pytest.param(cuts, "output_records", dropping_one, "landed_to_ordered", "are lost", id="records_lost"),
    pytest.param(order, "sort_records", losing_a_row, "landed_to_ordered", "are lost (1)", id="row_lost_in_sorting"),
    pytest.param(order, "drop_repeats", dropping_too_much, "ordered_to_written", "are lost (1)", id="dropped_too_much"),
]


@pytest.mark.parametrize(("module", "name", "fault", "stage", "said"), FAULTS)
@pytest.mark.parametrize("tables", [1, 2])
def test_planted_fault_is_found_and_named_by_stage_table_and_window(
    module: Any, name: str, fault: Any, stage: str, said: str, tables: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def part_lost(run: Callable[..., Any]) -> Callable[..., Any]:
        def losing(*args: Any, **more: Any) -> Any:
            mounted = run(*args, **more)
            return type(mounted)(table=mounted.table, count=mounted.count, parts=mounted.parts[1:])

        return losing

    monkeypatch.setattr(module, name, (fault or part_lost)(getattr(module, name)))
    records = RECORDS[: tables * ROWS // 10]
    of = cut(may_repeat=name == "drop_repeats")
    with pytest.raises(FlowBrokenError, match=r"sorter\.flow_broken") as caught:
        whole(records, program(), of)
    fields = caught.value.fields
    assert said in caught.value.message
    assert (fields["after_ts"], fields["upto_ts"], fields["is_written"]) == (of.after_ts, of.upto_ts, False)
    assert fields["stage"] in (stage, "gathered_to_landed", "landed_to_ordered")
    assert fields["table_id"] in (*TABLES[:tables], 0)


# -- books of tasks ----------------------------------------------------------------------------------------------------


def test_books_of_tasks_add_up_to_those_of_their_cut_through_their_answers() -> None:
    flow = whole([*RECORDS, RECORDS[0]], program(FILTERS), cut(may_repeat=True)).flow
    read = CutFlow(gathered=flow.gathered, landed=flow.landed, left_out=flow.left_out, split=flow.split)
    wrote = CutFlow(ordered=flow.ordered, repeats=flow.repeats, written=flow.written)
    answers = [
        counts_as_json(CutCounts(rows=1, raw_bytes=2, corrupt=CorruptRows(), flow=each)) for each in (read, wrote)
    ]
    total = sum_of_counts(answers)
    assert (total.flow, total.rows) == (flow, 2)
    check_flow(total.flow, Ts(1), Ts(2), may_repeat=True)
    with pytest.raises(FlowBrokenError, match="are lost"):
        check_flow(sum_of_counts(answers[:1]).flow, Ts(1), Ts(2), may_repeat=True, is_written=True)
    with pytest.raises(FlowBrokenError, match="come twice"):
        check_flow(total.flow, Ts(1), Ts(2), may_repeat=False)


def test_error_names_few_of_many_tables() -> None:
    landed = {TableId(at): FlowSum(1, at) for at in range(1, 9)}
    with pytest.raises(FlowBrokenError, match="1, 2, 3, 4, 5, …"):
        check_flow(CutFlow(gathered=8, landed=landed), Ts(1), Ts(2), may_repeat=False)
