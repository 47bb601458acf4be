"""Tables with SOFTDELETE or ACTIVE_ACTIVE: the cases of TiCDC's ``pkg/common/event/active_active_test.go``, with
``enable-active-active`` off, and those of its dispatchers' ``basic_dispatcher_active_active_test.go``.
"""

import json
from typing import Any

import numpy as np
import pytest

from schemas.config.changefeed import load_changefeed
from schemas.flow.flow_sum import total_of
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.tidb.keys import row_key
from schemas.tidb.packed_time import pack_time
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import compile_feed
from sorters.core.filter.soft_deletes import SoftDeleteTableError, sent_parts, soft_delete_time
from sorters.core.mount import mount
from sorters.core.mount.checksums import RowChecksums
from sorters.core.mount.mounted import MountedPart, RowKind
from sorters.core.records.order import no_records
from sorters.core.rows.table_plans import TablePlans
from sorters.core.source.feed_filter import FeedFilter
from sorters.cut.raw_cut import RawCut
from sorters.cut.whole_cut import WholeCut, whole_cut
from sorters.cut.worker import FeedProgram
from tests.support.recorded.ddl_jobs import NOT_NULL, PRIMARY, column, index, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

TABLE, FIRST_TS = TableId(112), 445644800000000001
EARLIER, LATER = (pack_time(2025, 3, 10, hour).to_bytes(8, "little") for hour in (4, 5))
SOFT = {"softdelete_info": {"retention": "7d", "job_enable": True, "job_interval": "1h"}}
"""As TiDB's TableInfo has it."""
ACTIVE = {"is_active_active": True}
FORMS = pytest.mark.parametrize("small_rows", [0, 10**9], ids=["columns", "values"])
MARKS = pytest.mark.parametrize("marks", [SOFT, ACTIVE, SOFT | ACTIVE], ids=["soft", "active", "both"])
TIMESTAMP = 7


def info(marks: dict[str, Any], *, with_time: bool = True, unique: bool = False) -> dict[str, Any]:
    columns = [column(1, "id", not_null=True, flag=PRIMARY), column(3, "v", flag=NOT_NULL if unique else 0)]
    if with_time:
        columns.insert(1, column(2, "_tidb_softdelete_time", tp=TIMESTAMP, flen=26, decimal=6))
    indexes = [index(1, "u", [len(columns) - 1], unique=True)] if unique else None
    return table_info(TABLE, "t", columns=columns, indexes=indexes) | marks


def table(marks: dict[str, Any], **more: bool) -> TableVersion:
    return table_version(info(marks, **more), schema_id=1, schema="test", version=Ts(1))


def row(time: bytes | None, value: int = 1) -> bytes:
    return encode_row_v2({2: time, 3: bytes([value])})


def change(at: int, old: bytes, new: bytes) -> CommittedChange:
    return CommittedChange(FIRST_TS + at, FIRST_TS - 1, row_key(TABLE, at), "put" if new else "delete", new, old, 0)


def parts(version: TableVersion, changes: list[CommittedChange], small_rows: int) -> tuple[MountedPart, ...]:
    return mount(version, row_changes(TABLE, changes), small_rows=small_rows).parts


def sent(marks: dict[str, Any], changes: list[CommittedChange], small_rows: int) -> list[tuple[str, int]]:
    """Return kind and number of each row that goes out."""
    version = table(marks)
    out = sent_parts(parts(version, changes, small_rows), soft_delete_time(version, is_sql=False))
    return sorted(((part.kind.name, int(at)) for part in out for at in part.rows), key=lambda each: each[1])


def whole(changes: list[CommittedChange], marks: dict[str, Any], uri: str, **more: bool) -> WholeCut:
    feed = compile_feed(load_changefeed(uri, {}), "default", {"t": 1, "tidebus.sink.default..": 1})
    rows = RegionBatch(region_id=RegionId(1), may_repeat=False, rows=row_changes(TABLE, changes))
    cut = Cut(after_ts=Ts(FIRST_TS - 1), upto_ts=Ts(FIRST_TS + 99), start=(0,), end=(9,), may_repeat=False, ddl_end=0)
    program = FeedProgram(snapshot(("test", 1, [info(marks, **more)])), feed)
    made = whole_cut(cut, RawCut([encode_region_batch(rows, 1)], 0), program, no_records(), 1, 1 << 30)
    assert made is not None
    return made


DELETE, INSERT = change(1, row(None), b""), change(2, b"", row(None))
PUTS_TIME = change(3, row(None), row(LATER))
KAFKA = "kafka://h:1/t?protocol=canal-json"


@FORMS
@MARKS
def test_deletes_are_left_out_and_what_follows_goes_out(marks: dict[str, Any], small_rows: int) -> None:
    assert sent(marks, [DELETE, PUTS_TIME, INSERT], small_rows) == [("DELETE", 1), ("INSERT", 2)]
    assert sent(marks, [DELETE], small_rows) == []
    assert sent(marks, [change(1, row(LATER), b"")], small_rows) == []


@FORMS
@MARKS
@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (None, LATER, "DELETE"),
        (EARLIER, LATER, "UPDATE"),
        (EARLIER, None, "UPDATE"),
        (None, None, "UPDATE"),
    ],
    ids=["null to time", "time to time", "time to null", "null to null"],
)
def test_only_a_time_where_there_was_none_deletes(
    marks: dict[str, Any], before: bytes | None, after: bytes | None, kind: str, small_rows: int
) -> None:
    assert sent(marks, [change(1, row(before), row(after, 2))], small_rows) == [(kind, 0)]


@FORMS
def test_an_insert_that_has_a_time_stays_an_insert(small_rows: int) -> None:
    assert sent(SOFT, [change(1, b"", row(LATER))], small_rows) == [("INSERT", 0)]


@FORMS
def test_the_delete_holds_the_row_as_it_was(small_rows: int) -> None:
    version = table(SOFT)
    (gone,) = sent_parts(parts(version, [PUTS_TIME], small_rows), 1)
    assert gone.kind is RowKind.DELETE
    assert [each.text.to_pylist() for each in gone.old_columns()] == [[b"3"], [None], [b"1"]]


def test_the_delete_keeps_the_checksum_of_the_row_as_it_was_alone() -> None:
    (update,) = parts(table(SOFT), [PUTS_TIME], 0)
    current, previous = np.array([1], np.uint32), np.array([2], np.uint32)
    sums = RowChecksums(
        present=np.array([True]),
        current=current,
        previous=previous,
        version=np.zeros(1, np.int8),
        corrupted=np.array([False]),
    )
    object.__setattr__(update, "checksums", sums)
    (gone,) = sent_parts([update], 1)
    assert gone.checksums is not None
    assert (gone.checksums.current.tolist(), gone.checksums.previous.tolist()) == ([0], [2])


def test_messages_are_deletes_and_the_books_agree() -> None:
    made = whole([DELETE, INSERT, PUTS_TIME, change(4, row(EARLIER), row(LATER, 2))], SOFT, KAFKA)
    messages = [json.loads(value) for value in made.records.column("value").to_pylist()]
    assert [(each["type"], each["data"][0]["id"]) for each in messages] == [
        ("INSERT", "2"),
        ("DELETE", "3"),
        ("UPDATE", "4"),
    ]
    left = {reason: total_of(sums).count for reason, sums in made.flow.left_out.items()}
    assert left == {"hard_delete": 1, "soft_delete": 1}
    assert (total_of(made.flow.split).count, total_of(made.flow.written).count) == (1, 3)


def test_the_delete_half_of_an_update_of_a_key_is_left_out_too() -> None:
    made = whole(
        [change(1, row(None, 1), row(None, 2)), change(2, row(None, 3), row(LATER, 4))], SOFT, KAFKA, unique=True
    )
    messages = [json.loads(value) for value in made.records.column("value").to_pylist()]
    assert [(each["type"], each["data"][0]["v"]) for each in messages] == [("INSERT", "2"), ("INSERT", "4")]
    assert not (made.flow.left_out or made.flow.split)


def test_a_table_without_marks_is_not_concerned_whatever_its_columns_are_called() -> None:
    made = whole([DELETE, PUTS_TIME], {"is_active_active": False, "softdelete_info": None}, KAFKA)
    messages = [json.loads(value) for value in made.records.column("value").to_pylist()]
    assert [each["type"] for each in messages] == ["DELETE", "UPDATE"]


@MARKS
def test_a_database_gets_no_row_of_such_a_table(marks: dict[str, Any]) -> None:
    with pytest.raises(SoftDeleteTableError, match="into no database") as caught:
        whole([INSERT], marks, "mysql://u@h:1/")
    assert (caught.value.code, caught.value.fields["table"]) == ("sorter.soft_delete_table", "test.t")


def test_a_table_with_marks_but_no_column_for_the_time_stops() -> None:
    with pytest.raises(SoftDeleteTableError, match="no column") as caught:
        whole([change(1, b"", encode_row_v2({3: b"\x01"}))], SOFT, KAFKA, with_time=False)
    assert caught.value.fields["column"] == "_tidb_softdelete_time"


def test_a_query_of_a_changefeed_sees_what_the_changefeed_sends() -> None:
    by_feed = FeedFilter.of(load_changefeed(KAFKA, {}))
    version = table(SOFT)
    kinds = [part.kind.name for part in by_feed.rows(version, parts(version, [DELETE, PUTS_TIME, INSERT], 0))]
    assert sorted(kinds) == ["DELETE", "INSERT"]


def test_such_tables_share_no_pass_with_others() -> None:
    feed = compile_feed(load_changefeed(KAFKA, {}), "default", {"t": 1})
    assert TablePlans().plan(table(SOFT), feed) is None
    assert TablePlans().plan(table({}), feed) is not None
