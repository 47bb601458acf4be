"""Options of canal-json and Avro, from the changefeed's settings to the bytes; expected messages are PingCAP's own.

Source: reference of the Kafka protocols, table ``test.t1 (id int primary key clustered, val varchar(32))`` and the
watermark of ts 415508856908021766; nothing here is taken from what the encoders said.
"""

import json
from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version
from sorters.core.encode.wire.protocol import EncodedMessage, Partitions
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.mount import mount
from tests.support.recorded.ddl_jobs import PRIMARY, column, index, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

COMMIT_TS = 445644800000000001
ENCODED_AT_MS = 1_700_000_000_100
TEXT = {"tp": 15, "flen": 32, "charset": "utf8mb4", "collation": "utf8mb4_bin"}
INT_KEY = column(1, "id", not_null=True, flag=PRIMARY)
T1 = table_version(
    table_info(112, "t1", columns=[INT_KEY, column(2, "val", **TEXT) | {"offset": 1}]),  # type: ignore[arg-type]
    schema_id=1,
    schema="test",
    version=Ts(1),
)
PATHS = pytest.mark.parametrize("small_rows", [0, 10**9], ids=["columnar", "scalar"])


def feed(protocol: str = "canal-json", **sink: Any) -> CompiledFeed:
    uri = f"kafka://h:1/t?protocol={protocol}&enable-tidb-extension=true&schema-registry=http://r:1"
    options = {name.replace("_", "-"): value for name, value in sink.items()}
    return compile_feed(load_changefeed(uri, {"sink": options}), "default")


def message_of(
    compiled: CompiledFeed,
    new: dict[int, bytes | None] | None,
    old: dict[int, bytes | None] | None,
    small_rows: int,
    table: TableVersion = T1,
) -> str:
    """Return the message of one row change; rows are column id to value bytes."""
    value, before = (b"" if row is None else encode_row_v2(row) for row in (new, old))
    key = row_key(table.table_id, 1)
    change = CommittedChange(COMMIT_TS, COMMIT_TS - 1, key, "delete" if new is None else "put", value, before, 0)
    mounted = mount(table, row_changes(table.table_id, [change]), small_rows=small_rows)
    encoded = compiled.encoder.encode_rows(mounted, topic="t", encoded_at_ms=ENCODED_AT_MS, schema_ids={})
    (message,) = encoded.values.to_pylist()
    return str(message.decode())


HEAD = '{"id":0,"database":"test","table":"t1","pkNames":["id"],"isDdl":false,"type":"%s","es":1700000000000,'
HEAD += '"ts":1700000000100,"sql":"",'
TYPES = '"sqlType":{"id":4,"val":12},"mysqlType":{"id":"int","val":"varchar"},'
TAIL = ',"_tidb":{"commitTs":445644800000000001}}'


@PATHS
def test_only_output_updated_columns_update_equals_the_documented_message(small_rows: int) -> None:
    said = message_of(feed(only_output_updated_columns=True), {2: b"bb"}, {2: b"aa"}, small_rows)
    assert said == HEAD % "UPDATE" + TYPES + '"old":[{"val":"aa"}],"data":[{"id":"1","val":"bb"}]' + TAIL


@PATHS
def test_content_compatible_update_equals_the_documented_message(small_rows: int) -> None:
    said = message_of(feed(content_compatible=True), {2: b"bb"}, {2: b"aa"}, small_rows)
    types = '"sqlType":{"id":4,"val":12},"mysqlType":{"id":"int(11)","val":"varchar(32)"},'
    assert said == HEAD % "UPDATE" + types + '"old":[{"val":"aa"}],"data":[{"id":"1","val":"bb"}]' + TAIL


@PATHS
def test_delete_only_output_handle_key_columns_leaves_the_handle_key_and_no_marker(small_rows: int) -> None:
    compiled = feed(delete_only_output_handle_key_columns=True)
    said = message_of(compiled, None, {2: b"bb"}, small_rows)
    # `onlyHandleKey` in `_tidb` is for messages that were too large, not for this option.
    types = '"sqlType":{"id":4},"mysqlType":{"id":"int"},'
    assert said == HEAD % "DELETE" + types + '"old":null,"data":[{"id":"1"}]' + TAIL
    assert '"data":[{"id":"1","val":"aa"}]' in message_of(compiled, {2: b"aa"}, None, small_rows)
    assert '"old":[{"id":"1","val":"aa"}],' in message_of(compiled, {2: b"bb"}, {2: b"aa"}, small_rows)


@PATHS
@pytest.mark.parametrize(
    ("new", "old", "said"),
    [
        ({2: None}, {2: b"aa"}, '"old":[{"val":"aa"}],"data":[{"id":"1","val":null}]'),
        ({2: b"aa"}, {2: None}, '"old":[{"val":null}],"data":[{"id":"1","val":"aa"}]'),
        ({2: None}, {2: None}, '"old":[{}],"data":[{"id":"1","val":null}]'),
        ({2: b""}, {2: None}, '"old":[{"val":null}],"data":[{"id":"1","val":""}]'),
        ({2: b"null"}, {2: None}, '"old":[{"val":null}],"data":[{"id":"1","val":"null"}]'),
        ({2: b"A"}, {2: b"a"}, '"old":[{"val":"a"}],"data":[{"id":"1","val":"A"}]'),
    ],
)
def test_only_output_updated_columns_null_differs_from_every_text(
    new: dict[int, bytes | None], old: dict[int, bytes | None], said: str, small_rows: int
) -> None:
    assert said in message_of(feed(only_output_updated_columns=True), new, old, small_rows)


@PATHS
def test_delete_with_handle_keys_only_of_a_not_null_unique_key_holds_its_columns_in_table_order(
    small_rows: int,
) -> None:
    columns = [column(1, "a"), column(2, "b", not_null=True, tp=8), column(3, "c", not_null=True)]
    info = table_info(
        113,
        "t2",
        columns=[spec | {"offset": offset} for offset, spec in enumerate(columns)],
        indexes=[index(1, "uk", [2, 1], unique=True)],
        pk_is_handle=False,
    )
    table = table_version(info, schema_id=1, schema="test", version=Ts(1))
    said = message_of(
        feed(delete_only_output_handle_key_columns=True),
        None,
        {1: b"\x01", 2: b"\x02", 3: b"\x03"},
        small_rows,
        table,
    )
    assert '"pkNames":[],' in said
    assert '"sqlType":{"b":-5,"c":4},"mysqlType":{"b":"bigint","c":"int"},"old":null,"data":[{"b":"2","c":"3"}]' in said


class CreateTable:
    """A DDL event as encoders read it."""

    schema, table, query, ddl_type, commit_ts = "test", "t<1>", 'CREATE TABLE `t<1>` (a INT COMMENT "x")', 3, Ts(7)
    pre = post = None


def test_avro_enable_watermark_messages_are_the_documented_bytes() -> None:
    encoder = feed("avro", kafka_config={"codec-config": {"avro-enable-watermark": True}}).encoder
    assert encoder.ddl_partitions is encoder.watermark_partitions is Partitions.ALL
    watermark = encoder.encode_watermark(Ts(415508856908021766), encoded_at_ms=1)
    assert watermark == EncodedMessage(None, bytes.fromhex("02 05 c4 2f 1a 99 08 00 06"))
    message = encoder.encode_ddl(CreateTable(), encoded_at_ms=1)
    assert message is not None
    ddl = message.value
    assert (message.key, ddl[:1]) == (None, b"\x01")
    assert list(json.loads(ddl[1:]).items()) == [
        ("query", CreateTable.query),
        ("type", 3),
        ("schema", "test"),
        ("table", "t<1>"),
        ("commitTs", 7),
    ]
    assert b"t\\u003c1\\u003e" in ddl, "Go's encoding/json escapes angle brackets"


def test_avro_without_the_test_mode_sends_neither_ddl_nor_watermarks() -> None:
    encoder = feed("avro").encoder
    assert encoder.ddl_partitions is encoder.watermark_partitions is Partitions.NONE
    assert encoder.encode_watermark(Ts(1), encoded_at_ms=1) is None
    assert encoder.encode_ddl(CreateTable(), encoded_at_ms=1) is None
