"""The books of a cut over the whole recording of a real TiDB: whatever a changefeed asks for, they come out even."""

from collections import defaultdict
from functools import cache
from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.flow.flow_sum import total_of
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import compile_feed
from sorters.core.records.order import no_records
from sorters.cut.raw_cut import RawCut
from sorters.cut.whole_cut import whole_cut
from sorters.cut.worker import FeedProgram
from tests.support.recorded.mounting import recorded_store, row_changes
from tests.support.recorded.recording import CommittedChange, committed_changes, row_table_id

KAFKA = "kafka://h:1/t?protocol="
RULES = {
    "bdr-mode": True,
    "filter": {
        "event-filters": [
            {"matcher": ["bank.*"], "ignore-event": ["update"]},
            {"matcher": ["sb.*"], "ignore-delete-value-expr": "id > 500", "ignore-event": ["insert"]},
        ]
    },
}
FORCE = {"force-replicate": True}


@cache
def records() -> tuple[bytes, ...]:
    """Return the rows of the recording as raw records, one a table."""
    tables = defaultdict[TableId, list[CommittedChange]](list)
    for change in committed_changes():
        table = row_table_id(change.key)
        if table is not None:
            tables[TableId(table)].append(change)
    return tuple(
        encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=row_changes(table, changes)), 1)
        for table, changes in tables.items()
    )


@pytest.mark.parametrize(
    ("uri", "config", "reasons"),
    [
        (f"{KAFKA}canal-json", {}, set()),
        (f"{KAFKA}open-protocol", FORCE, set()),
        (f"{KAFKA}simple", RULES, {"event_filter", "event_expression", "bdr_mode"}),
        ("mysql://u@h:1/", {}, set()),
        ("file:///folder?protocol=csv", RULES, {"event_filter", "event_expression", "bdr_mode"}),
    ],
)
def test_books_of_the_whole_recording_come_out_even(uri: str, config: dict[str, Any], reasons: set[str]) -> None:
    feed = compile_feed(load_changefeed(uri, config), "default", {"t": 3, "": 3})
    last_ts = max(change.commit_ts for change in committed_changes())
    cut = Cut(after_ts=Ts(0), upto_ts=Ts(last_ts), start=(0,), end=(9,), may_repeat=False, ddl_end=0)
    made = whole_cut(cut, RawCut(list(records()), 0), FeedProgram(recorded_store(), feed), no_records(), 1, 1 << 40)
    assert made is not None
    left = {reason: total_of(sums).count for reason, sums in made.flow.left_out.items()}
    assert left["deletes_nothing"] == 11
    assert reasons <= left.keys()
    landed, split = total_of(made.flow.landed).count, total_of(made.flow.split).count
    assert total_of(made.flow.written).count == landed + split - sum(left.values()) > 0
