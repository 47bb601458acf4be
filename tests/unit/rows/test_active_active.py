"""``enable-active-active`` into files: the cases of TiCDC's ``pkg/common/event/active_active_test.go`` with it on, and
what its dispatchers ask of tables (``basic_dispatcher_active_active_test.go``).
"""

from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.flow.flow_sum import total_of
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.sink.storage_rows import decode_storage_rows
from schemas.tidb.keys import row_key
from schemas.tidb.packed_time import pack_time
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table_info import table_version
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import compile_feed
from sorters.core.filter.soft_deletes import ActiveActiveTableError
from sorters.core.mount import mount
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
MARKS = {"is_active_active": True, "softdelete_info": {"retention": "7d", "job_enable": True, "job_interval": "1h"}}
"""As TiDB's TableInfo has them."""
TIMESTAMP, BIGINT = 7, 8
TIME = column(2, "_tidb_softdelete_time", tp=TIMESTAMP, flen=26, decimal=6)
ORIGIN = column(4, "_tidb_origin_ts", tp=BIGINT)
CSV = "file:///data?protocol=csv"
ON = "enable-active-active = true"


def info(marks: dict[str, Any], *hidden: dict[str, Any], unique: bool = False) -> dict[str, Any]:
    columns = [column(1, "id", not_null=True, flag=PRIMARY), column(3, "v", flag=NOT_NULL if unique else 0), *hidden]
    columns = [spec | {"offset": offset} for offset, spec in enumerate(columns)]
    indexes = [index(1, "u", [1], unique=True)] if unique else None
    return table_info(TABLE, "t", columns=columns, indexes=indexes) | marks


ACTIVE = info(MARKS, TIME, ORIGIN)


def row(time: bytes | None, value: int = 1) -> bytes:
    return encode_row_v2({2: time, 3: bytes([value]), 4: None})


def change(at: int, old: bytes, new: bytes) -> CommittedChange:
    return CommittedChange(FIRST_TS + at, FIRST_TS - 1, row_key(TABLE, at), "put" if new else "delete", new, old, 0)


def made(table: dict[str, Any], changes: list[CommittedChange]) -> WholeCut:
    feed = compile_feed(load_changefeed(CSV, ON), "default", {"": 1})
    rows = RegionBatch(region_id=RegionId(1), may_repeat=False, rows=row_changes(TABLE, changes))
    cut = Cut(after_ts=Ts(FIRST_TS - 1), upto_ts=Ts(FIRST_TS + 99), start=(0,), end=(9,), may_repeat=False, ddl_end=0)
    program = FeedProgram(snapshot(("test", 1, [table])), feed)
    whole = whole_cut(cut, RawCut([encode_region_batch(rows, 1)], 0), program, no_records(), 1, 1 << 30)
    assert whole is not None
    return whole


def ops(whole: WholeCut) -> list[tuple[str, str]]:
    """Return the op and the key of each line of csv that goes out."""
    values = whole.records.column("value").to_pylist()
    lines = b"".join(bytes(decode_storage_rows(value).lines()) for value in values).decode().splitlines()
    return [(op.strip('"'), key) for op, _, _, key, *_ in (line.split(",") for line in lines)]


def test_only_deletes_are_left_out_and_an_update_that_puts_a_time_stays_one() -> None:
    whole = made(
        ACTIVE,
        [
            change(1, row(None), b""),
            change(2, b"", row(None)),
            change(3, row(None), row(LATER)),
            change(4, row(EARLIER), row(LATER, 2)),
            change(5, row(LATER), row(None)),
            change(6, row(LATER), b""),
            change(7, b"", row(LATER)),
        ],
    )
    assert ops(whole) == [("I", "2"), ("U", "3"), ("U", "4"), ("U", "5"), ("I", "7")]
    left = {reason: total_of(sums).count for reason, sums in whole.flow.left_out.items()}
    assert left == {"hard_delete": 2}
    assert total_of(whole.flow.written).count == 5


def test_the_delete_half_of_an_update_of_a_key_is_left_out_too() -> None:
    table = info(MARKS, TIME, ORIGIN, unique=True)
    assert ops(made(table, [change(1, row(None, 1), row(LATER, 2))])) == [("I", "1")]


@pytest.mark.parametrize(
    ("table", "what"),
    [
        (info({}, TIME, ORIGIN), "this one is none"),
        (info({"softdelete_info": MARKS["softdelete_info"]}, TIME, ORIGIN), "this one is none"),
        (info(MARKS, TIME), "lacks a column"),
        (info(MARKS, ORIGIN), "lacks a column"),
        (info(MARKS, TIME | {"type": column(2, "x", tp=12)["type"]}, ORIGIN), r"no TIMESTAMP\(6\)"),
        (
            info(MARKS, column(2, "_tidb_softdelete_time", tp=TIMESTAMP, flen=19, decimal=0), ORIGIN),
            r"no TIMESTAMP\(6\)",
        ),
        (
            info(MARKS, column(2, "_tidb_softdelete_time", tp=TIMESTAMP, flen=26, decimal=6, flag=NOT_NULL), ORIGIN),
            r"no TIMESTAMP\(6\)",
        ),
    ],
    ids=["unmarked", "soft", "no origin", "no time", "datetime", "seconds", "not null"],
)
def test_a_table_of_another_kind_stops_the_changefeed_by_name(table: dict[str, Any], what: str) -> None:
    with pytest.raises(ActiveActiveTableError, match=what) as caught:
        made(table, [change(2, b"", row(EARLIER))])
    assert (caught.value.code, caught.value.fields["table"]) == ("sorter.active_active_table", "test.t")


def test_a_query_of_a_changefeed_sees_what_the_changefeed_sends() -> None:
    by_feed = FeedFilter.of(load_changefeed(CSV, ON))
    version = table_version(ACTIVE, schema_id=1, schema="test", version=Ts(1))
    changes = [change(1, row(None), b""), change(2, b"", row(None)), change(3, row(None), row(LATER))]
    parts = mount(version, row_changes(TABLE, changes), small_rows=0).parts
    assert sorted(part.kind.name for part in by_feed.rows(version, parts)) == ["INSERT", "UPDATE"]


def test_no_table_shares_a_pass_so_that_each_is_looked_at() -> None:
    feed = compile_feed(load_changefeed(CSV, ON), "default", {"": 1})
    plain = table_version(info({}), schema_id=1, schema="test", version=Ts(1))
    assert TablePlans().plan(plain, feed) is None
