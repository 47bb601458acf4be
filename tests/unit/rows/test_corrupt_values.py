"""A corrupt JSON or DECIMAL value stops the changefeed whoever would read it, in small and in large groups alike.

TiCDC decodes a row whole before it filters or encodes it. The columnar path decodes what the encoder asks for, and so
must look at the rest.
"""

from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.mount.mounter import SMALL_ROWS
from sorters.core.mount.scalar import CorruptRowError
from tests.support.rawlog.row_records import records_of
from tests.support.recorded.ddl_jobs import PRIMARY, column, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

TABLE_ID, BAD_HANDLE = TableId(112), 3
JSON_ID, DECIMAL_ID = 2, 3
COLUMNS = [
    column(1, "id", not_null=True, flag=PRIMARY),
    column(JSON_ID, "doc", tp=245),
    column(DECIMAL_ID, "price", tp=246, flen=12, decimal=2),
]
# One-digit integer group 0x80^digit and a fraction group of two digits in one byte: 200 is no two-digit number.
SOUND = {JSON_ID: b"\x04\x01", DECIMAL_ID: b"\x03\x02\x81\x05"}
CORRUPT = {
    "json": {JSON_ID: b"\x01\xff\xff\xff\xff\xff\xff\xff\xff", DECIMAL_ID: SOUND[DECIMAL_ID]},
    "decimal": {JSON_ID: SOUND[JSON_ID], DECIMAL_ID: b"\x03\x02\x81\xc8"},
}
AVRO = "protocol=avro&schema-registry=http://r:1"
HANDLE_ONLY = "protocol=canal-json&partition-num=3"
"""A changefeed whose deletes hold handle keys only; the setting is in :func:`compiled`."""


def store() -> SchemaStore:
    columns = [spec | {"offset": offset} for offset, spec in enumerate(COLUMNS)]
    return snapshot(("d", 1, [table_info(TABLE_ID, "t", columns=columns)]))


def compiled(protocol: str, config: dict[str, Any] | None = None) -> CompiledFeed:
    if protocol == HANDLE_ONLY:
        config = {"sink": {"delete-only-output-handle-key-columns": True}}
    feed = compile_feed(load_changefeed(f"kafka://h:1/t?{protocol}", config or {}), "default", {"t": 3})
    table = next(store().tables_at(Ts(10)))
    ids = {text.key: 1 for text in feed.encoder.schemas(table, "t")}
    feed.schema_ids.update(ids)  # type: ignore[attr-defined] # a dict, made by this call alone
    return feed


def changes(count: int, op: str, side: str, corrupt: dict[int, bytes]) -> list[CommittedChange]:
    """Return rows of which one has a corrupt value on one side."""

    def row(handle: int, of: str) -> bytes:
        if (of, op) in (("new", "delete"), ("old", "insert")):
            return b""
        return encode_row_v2(corrupt if handle == BAD_HANDLE and of == side else SOUND)

    kind = "delete" if op == "delete" else "put"
    return [
        CommittedChange(100 + n, 99 + n, row_key(TABLE_ID, n), kind, row(n, "new"), row(n, "old"), 0)  # type: ignore[arg-type]
        for n in range(BAD_HANDLE, BAD_HANDLE + count)
    ]


@pytest.mark.parametrize("count", [1, 3 * SMALL_ROWS], ids=["scalar", "columnar"])
@pytest.mark.parametrize("name", CORRUPT)
@pytest.mark.parametrize(
    ("protocol", "op", "side"),
    [
        (AVRO, "insert", "new"),
        (AVRO, "update", "new"),
        (AVRO, "update", "old"),
        (AVRO, "delete", "old"),
        ("protocol=canal-json", "update", "old"),
        (HANDLE_ONLY, "delete", "old"),
    ],
)
def test_corrupt_value_that_the_protocol_may_not_write_names_the_row(
    protocol: str, op: str, side: str, name: str, count: int
) -> None:
    rows = row_changes(TABLE_ID, changes(count, op, side, CORRUPT[name]))
    with pytest.raises(CorruptRowError) as caught:
        records_of(rows, store(), compiled(protocol), encoded_at_ms=1)
    fields = caught.value.fields
    assert (fields["table"], fields["key"], fields["commit_ts"]) == (
        "d.t",
        row_key(TABLE_ID, BAD_HANDLE).hex(),
        100 + BAD_HANDLE,
    )


@pytest.mark.parametrize("count", [1, 3 * SMALL_ROWS], ids=["scalar", "columnar"])
def test_corrupt_value_of_an_event_that_the_filter_drops_is_an_error_too(count: int) -> None:
    drop_deletes = {"filter": {"event-filters": [{"matcher": ["*.*"], "ignore-event": ["delete"]}]}}
    rows = row_changes(TABLE_ID, changes(count, "delete", "old", CORRUPT["json"]))
    with pytest.raises(CorruptRowError):
        records_of(rows, store(), compiled("protocol=canal-json", drop_deletes), encoded_at_ms=1)


@pytest.mark.parametrize("count", [1, 3 * SMALL_ROWS], ids=["scalar", "columnar"])
@pytest.mark.parametrize("name", CORRUPT)
def test_corrupt_value_of_a_column_that_a_selector_leaves_out_is_an_error_too(name: str, count: int) -> None:
    key_alone = {"sink": {"column-selectors": [{"matcher": ["*.*"], "columns": ["id"]}]}}
    for op, side in (("insert", "new"), ("update", "old"), ("delete", "old")):
        rows = row_changes(TABLE_ID, changes(count, op, side, CORRUPT[name]))
        with pytest.raises(CorruptRowError):
            records_of(rows, store(), compiled("protocol=canal-json", key_alone), encoded_at_ms=1)


@pytest.mark.parametrize("count", [1, 3 * SMALL_ROWS], ids=["scalar", "columnar"])
@pytest.mark.parametrize("op", ["insert", "update", "delete"])
def test_sound_values_pass_in_every_protocol(op: str, count: int) -> None:
    rows = row_changes(TABLE_ID, changes(count, op, "none", SOUND))
    for protocol in (AVRO, "protocol=canal-json"):
        assert records_of(rows, store(), compiled(protocol), encoded_at_ms=1).num_rows == count
