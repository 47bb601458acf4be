"""Of which tables a part can be imaged by itself, and what raw keys it comes to."""

from typing import Any

import pytest

from compose.capture.api.key_range_rules import raw_keys
from consumers.control.changefeeds.image_requests import ImageRefusedError
from schemas.ddl.schema_change import StoredTable
from schemas.ids import TableId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.rawlog.images import ImageMode, KeyRange
from schemas.tidb.keys import row_key, table_span
from tests.support.control.changefeed_config import CANAL
from tests.support.recorded.ddl_jobs import PRIMARY, column, index, snapshot, table_info

BACKFILL, RESYNC = ImageMode.BACKFILL, ImageMode.RESYNC
DATABASE = "mysql://h:1/"
ELEVEN = TableId(11)
UNSIGNED = 32
"""Flag of a column."""
BY_BOTH = index(1, "PRIMARY", [0, 1], unique=True, primary=True)
PARTITION = {"type": 1, "expr": "`id`", "enable": True, "definitions": [{"id": 21, "name": {"O": "p", "L": "p"}}]}


def info(uri: str) -> ChangefeedInfo:
    return ChangefeedInfo(changefeed_id="f", upstream=UpstreamId("u"), sink_uri=uri, config={}, start_ts=Ts(1))


def stored(**more: Any) -> StoredTable:
    (table,) = snapshot(("d", 1, [{**table_info(11, "one"), **more}])).stored_at(Ts(10))
    return table


def test_a_part_of_a_table_is_what_its_integer_key_says() -> None:
    for table in (stored(), stored(pk_is_handle=False)):
        keys = raw_keys(info(CANAL), BACKFILL, table, "-5:7")
        assert keys == (KeyRange(row_key(ELEVEN, -5), row_key(ELEVEN, 7)),)
    assert raw_keys(info(DATABASE), RESYNC, stored(), "7:")[0].start == row_key(ELEVEN, 7)
    columns = [column(1, "id", not_null=True, flag=PRIMARY | UNSIGNED), column(2, "v")]
    upper, lower = raw_keys(info(CANAL), BACKFILL, stored(cols=columns), "7:")
    assert (upper.start, upper.end, lower.start) == (
        row_key(ELEVEN, -(1 << 63)),
        row_key(ELEVEN, 0),
        row_key(ELEVEN, 7),
    )
    assert lower.end < table_span(ELEVEN)[1]


@pytest.mark.parametrize(
    ("uri", "mode", "table", "text", "why"),
    [
        (CANAL, BACKFILL, stored(partition=PARTITION), "1:2", "partitioned"),
        (
            CANAL,
            BACKFILL,
            stored(pk_is_handle=False, is_common_handle=True, index_info=[BY_BOTH]),
            "1:2",
            "not one whole number",
        ),
        (CANAL, RESYNC, stored(), "1:2", "empties the whole table"),
        (CANAL, BACKFILL, stored(), "1:2'; DROP TABLE", "START:END"),
        (CANAL, BACKFILL, stored(), "2:1", "the range is empty"),
        (CANAL, BACKFILL, stored(), f"{1 << 64}:", "is no value of a signed"),
    ],
)
def test_a_part_that_cannot_be_told_is_refused_by_name(
    uri: str, mode: ImageMode, table: StoredTable, text: str, why: str
) -> None:
    with pytest.raises(ImageRefusedError) as caught:
        raw_keys(info(uri), mode, table, text)
    assert why in str(caught.value.fields["reason"])
    assert (caught.value.fields["changefeed"], caught.value.fields["table"]) == ("f", "d.one")
