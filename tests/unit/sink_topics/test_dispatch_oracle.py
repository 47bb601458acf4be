"""Partitions of all recorded rows, against zlib over the value texts of TiCDC's mounter; both mount paths.

Each batch is routed by its handle key, and by all of its columns, so that the text of every type counts.
"""

import zlib
from typing import Any

import numpy as np
import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from sorters.core.mount import mount
from sorters.core.mount.mounted import MountedPart, RowKind
from sorters.core.route.dispatch import Dispatcher, PartitionRule, Route
from sorters.core.route.split_update import split_columns, split_mask
from sorters.core.rows.pipeline import partitions_of
from tests.support.recorded.mounting import mounted_oracle, recorded_batches
from tests.support.topics.split_rule import must_split

PARTITIONS = 1009
"""A prime, so that a wrong hash hardly ever gives the right partition."""
HANDLE_KEY = 2
INDEX_VALUE = Dispatcher(
    load_changefeed(
        "kafka://h:1/t?protocol=canal-json",
        {"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value"}]}},
    )
)


def all_columns(table: TableVersion) -> Route:
    return Route(
        schema=table.schema,
        table=table.table,
        topic="t",
        rule=PartitionRule.COLUMNS,
        column_offsets=tuple(column.offset for column in table.columns),
        column_names=tuple(column.name for column in table.columns),
    )


def text_of(column: dict[str, Any]) -> bytes:
    value = column["value"]
    if value is None:
        return b"null"
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value.encode()


def expected_partition(row: dict[str, Any], handle_only: bool) -> int:
    state = zlib.crc32((row["schema"] + row["table"]).encode())
    for column in row["pre_columns"] if row["op"] == "delete" else row["columns"]:
        if not handle_only or column["flag"] & HANDLE_KEY:
            state ^= zlib.crc32(column["name"].encode() + text_of(column))
    return state % PARTITIONS


def partitions(part: MountedPart, route: Route) -> list[int]:
    columns = part.old_columns() if part.kind is RowKind.DELETE else part.new_columns()
    texts = [columns[offset].text for offset in route.column_offsets]
    columnar: list[int] = route.partitions(texts, part.commit_ts, PARTITIONS).tolist()
    rows = zip(*(text.to_pylist() for text in texts), strict=True) if texts else ((),) * len(part)
    assert [route.partition(row, Ts(0), PARTITIONS) for row in rows] == columnar
    assert partitions_of(part, route, PARTITIONS).tolist() == columnar
    return columnar


@pytest.mark.parametrize("small_rows", [pytest.param(0, id="columnar"), pytest.param(10**9, id="scalar")])
@pytest.mark.parametrize("handle_only", [True, False])
def test_route_every_recorded_row_goes_where_the_hash_of_ticdcs_texts_says(handle_only: bool, small_rows: int) -> None:
    expected = {
        (row["commit_ts"], row["start_ts"], row["table_id"], row["key"]): expected_partition(row, handle_only)
        for row in mounted_oracle()
    }
    seen = 0
    for batch in recorded_batches():
        route = INDEX_VALUE.route(batch.table) if handle_only else all_columns(batch.table)
        for part in mount(batch.table, batch.rows, small_rows=small_rows).parts:
            for row, partition in zip(part.rows.tolist(), partitions(part, route), strict=True):
                assert partition == expected[batch.row_id(row)], batch.row_id(row)
                seen += 1
    assert seen == len(expected) == 17_651


def test_split_mask_every_recorded_update_is_split_as_ticdc_did() -> None:
    expected = {
        (row["commit_ts"], row["start_ts"], row["table_id"], row["key"])
        for row in mounted_oracle()
        if row.get("split_update")
    }
    split, updates = set(), 0
    for batch in recorded_batches():
        offsets = split_columns(batch.table)
        for part in mount(batch.table, batch.rows, small_rows=0).parts:
            if part.kind is not RowKind.UPDATE:
                continue
            old, new = part.old_columns(), part.new_columns()
            before, after = [old[at].text for at in offsets], [new[at].text for at in offsets]
            mask = split_mask(before, after, np.ones(len(part), np.bool_))
            split |= {batch.row_id(part.rows[row]) for row in np.flatnonzero(mask).tolist()}
            updates += len(part)
            sides = zip(zip(*map(list, before), strict=True), zip(*map(list, after), strict=True), strict=True)
            scalar = [
                must_split([a.as_py() for a in old_texts], [b.as_py() for b in new_texts])
                for old_texts, new_texts in sides
            ]
            assert scalar == mask.tolist()
    assert split == expected
    assert (len(split), updates) == (2, 6841)
