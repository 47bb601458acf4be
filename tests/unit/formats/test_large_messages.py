"""Rows whose message is too large for its topic, from the changefeed's settings to the bytes.

Source: reference of the Kafka protocols, "handle-key-only" and the field orders of each protocol, table ``test.t1 (id
int primary key clustered, val varchar(5000))``; nothing here is taken from what the encoders said.
"""

import io
import json
from typing import Any

import fastavro
import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.topic import sorter_config
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.feed.large_messages import SinkMessageTooLargeError
from sorters.core.mount.mounter import SMALL_ROWS
from sorters.core.records.order import OutputRecords, sort_records
from sorters.core.route.column_selector import ColumnSelectorError
from tests.support.rawlog.row_records import records_of
from tests.support.recorded.ddl_jobs import PRIMARY, column, index, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import TIDB_DATA, CommittedChange

TABLE_ID, UPDATE_TS, ENCODED_AT_MS = TableId(112), 445644700000000000, 1_700_000_000_100
COMMIT_TS = 445644800000000001
"""Of the first row; the others follow one by one."""
TEXT: dict[str, Any] = {"tp": 15, "flen": 5000, "charset": "utf8mb4", "collation": "utf8mb4_bin"}
LIMIT = 1000
LARGE, SMALL = b"x" * 2000, b"aa"
ROWS = pytest.mark.parametrize("count", [3, 3 * SMALL_ROWS], ids=["scalar", "columnar"])


def store(columns: list[dict[str, Any]] | None = None, **more: Any) -> SchemaStore:
    columns = columns or [column(1, "id", not_null=True, flag=PRIMARY), column(2, "val", **TEXT)]
    placed = [spec | {"offset": offset} for offset, spec in enumerate(columns)]
    info = table_info(TABLE_ID, "t1", columns=placed, **more) | {"update_timestamp": UPDATE_TS}
    return snapshot(("test", 1, [info]))


def feed(
    protocol: str, option: str = "handle-key-only", limit: int = LIMIT, sink: dict[str, Any] | None = None
) -> CompiledFeed:
    uri = f"kafka://h:1/t?protocol={protocol}&max-message-bytes={limit}"
    uri += "&enable-tidb-extension=true" if protocol == "canal-json" else ""
    settings = {"kafka-config": {"large-message-handle": {"large-message-handle-option": option}}} | (sink or {})
    return compile_feed(load_changefeed(uri, {"sink": settings}), "default", {"t": 1})


def changes(count: int, op: str, large: int) -> list[CommittedChange]:
    """Return ``count`` changes, of the rows with id 0, 1, …; ``val`` of row ``large`` is too large."""

    def side(handle: int, there: bool) -> bytes:
        return encode_row_v2({2: LARGE if handle == large else SMALL}) if there else b""

    return [
        CommittedChange(
            COMMIT_TS + n,
            COMMIT_TS - 1,
            row_key(TABLE_ID, n),
            "delete" if op == "delete" else "put",
            side(n, op != "delete"),
            side(n, op != "insert"),
            0,
        )
        for n in range(count)
    ]


def sent(compiled: CompiledFeed, rows: list[CommittedChange], schemas: SchemaStore | None = None) -> OutputRecords:
    records = records_of(row_changes(TABLE_ID, rows), schemas or store(), compiled, encoded_at_ms=ENCODED_AT_MS)
    return sort_records(records)


def pairs(records: OutputRecords) -> list[tuple[bytes | None, bytes]]:
    return list(zip(records["key"].to_pylist(), records["value"].to_pylist(), strict=True))


def framed(text: bytes) -> bytes:
    return len(text).to_bytes(8, "big") + text


CANAL_HEAD = b'{"id":0,"database":"test","table":"t1","pkNames":["id"],"isDdl":false,"type":"%s","es":1700000000000,'
CANAL_HEAD += b'"ts":1700000000100,"sql":"","sqlType":{"id":4},"mysqlType":{"id":"int"},'
CANAL_TAIL = b',"_tidb":{"commitTs":445644800000000002,"onlyHandleKey":true}}'
SIMPLE_HEAD = b'{"version":1,"database":"test","table":"t1","tableID":112,"type":"%s","commitTs":445644800000000002,'
SIMPLE_HEAD += b'"buildTs":1700000000100,"schemaVersion":445644700000000000,"handleKeyOnly":true,'
OPEN_KEY = bytes(7) + b"\x01" + framed(b'{"ts":445644800000000002,"scm":"test","tbl":"t1","rid":1,"t":1,"ohk":true}')
OPEN_ID = b'{"id":{"t":3,"h":true,"f":11,"v":1}}'
EXPECTED: dict[tuple[str, str], tuple[bytes | None, bytes]] = {
    ("canal-json", "insert"): (None, CANAL_HEAD % b"INSERT" + b'"old":null,"data":[{"id":"1"}]' + CANAL_TAIL),
    ("canal-json", "update"): (None, CANAL_HEAD % b"UPDATE" + b'"old":[{"id":"1"}],"data":[{"id":"1"}]' + CANAL_TAIL),
    ("canal-json", "delete"): (None, CANAL_HEAD % b"DELETE" + b'"old":null,"data":[{"id":"1"}]' + CANAL_TAIL),
    ("open-protocol", "insert"): (OPEN_KEY, framed(b'{"u":%s}' % OPEN_ID)),
    ("open-protocol", "update"): (OPEN_KEY, framed(b'{"u":%s,"p":%s}' % (OPEN_ID, OPEN_ID))),
    ("open-protocol", "delete"): (OPEN_KEY, framed(b'{"d":%s}' % OPEN_ID)),
    ("default", "insert"): (OPEN_KEY, framed(b'{"u":%s}' % OPEN_ID)),
    ("simple", "insert"): (None, SIMPLE_HEAD % b"INSERT" + b'"data":{"id":"1"}}'),
    ("simple", "update"): (None, SIMPLE_HEAD % b"UPDATE" + b'"data":{"id":"1"},"old":{"id":"1"}}'),
    ("simple", "delete"): (None, SIMPLE_HEAD % b"DELETE" + b'"old":{"id":"1"}}'),
}


@ROWS
@pytest.mark.parametrize(("protocol", "op"), EXPECTED)
def test_handle_key_only_row_that_is_too_large_says_its_key_and_the_others_stay(
    protocol: str, op: str, count: int
) -> None:
    said, whole = (sent(feed(protocol, limit=limit), changes(count, op, large=1)) for limit in (LIMIT, 10_000))
    assert pairs(said)[1] == EXPECTED[protocol, op]
    assert pairs(said)[:1] + pairs(said)[2:] == pairs(whole)[:1] + pairs(whole)[2:]
    rest = ["topic", "partition", "position"]
    assert said.select(rest) == whole.select(rest)


@ROWS
def test_handle_key_only_of_many_rows_of_all_kinds_keeps_their_order(count: int) -> None:
    mixed = [changes(count, op, large=n)[n] for n, op in enumerate(["insert", "update", "delete"] * (count // 3))]
    said = [json.loads(value) for _, value in pairs(sent(feed("canal-json"), mixed))]
    assert [message["type"] for message in said] == ["INSERT", "UPDATE", "DELETE"] * (count // 3)
    assert [message["data"] for message in said] == [[{"id": str(n)}] for n in range(count)]
    assert all(message["_tidb"] == {"commitTs": COMMIT_TS + n, "onlyHandleKey": True} for n, message in enumerate(said))


@ROWS
def test_handle_key_only_of_a_not_null_unique_key_holds_its_columns(count: int) -> None:
    columns = [column(1, "a"), column(2, "val", **TEXT), column(3, "c", not_null=True), column(4, "b", not_null=True)]
    keyed = store(columns, indexes=[index(1, "uk", [3, 2], unique=True)], pk_is_handle=False)
    row = encode_row_v2({1: b"\x01", 2: LARGE, 3: b"\x03", 4: b"\x04"})
    rows = [CommittedChange(COMMIT_TS + n, 1, row_key(TABLE_ID, n + 1), "put", row, b"", 0) for n in range(count)]
    for _, value in pairs(sent(feed("canal-json"), rows, keyed)):
        assert b'"sqlType":{"c":4,"b":4},"mysqlType":{"c":"int","b":"int"},' in value
        assert b'"old":null,"data":[{"c":"3","b":"4"}],' in value
    for _, value in pairs(sent(feed("simple"), rows, keyed)):
        assert value.endswith(b',"handleKeyOnly":true,"data":{"b":"4","c":"3"}}')


@ROWS
def test_handle_key_only_in_avro_is_read_by_ticdcs_schema_with_the_mark_and_the_key(count: int) -> None:
    compiled = feed("simple", sink={"kafka-config": _avro_settings()})
    schema = _avro_schema()
    payloads = [_payload(value, schema) for _, value in pairs(sent(compiled, changes(count, "update", 1)))]
    assert [payload["handleKeyOnly"] for payload in payloads] == [None, True, *([None] * (count - 2))]
    assert (payloads[1]["data"], payloads[1]["old"]) == ({"id": 1}, {"id": 1})
    assert (payloads[0]["data"], payloads[0]["old"]) == ({"id": 0, "val": "aa"}, {"id": 0, "val": "aa"})
    assert {payload["claimCheckLocation"] for payload in payloads} == {None}
    assert [payload["commitTs"] for payload in payloads] == [COMMIT_TS + n for n in range(count)]


def _avro_settings() -> dict[str, Any]:
    return {
        "large-message-handle": {"large-message-handle-option": "handle-key-only"},
        "codec-config": {"encoding-format": "avro"},
    }


def _payload(message: bytes, schema: Any) -> dict[str, Any]:
    stream = io.BytesIO(message)
    read: Any = fastavro.schemaless_reader(stream, schema, None)
    assert stream.read() == b""
    payload: dict[str, Any] = read["payload"]
    return payload


def _avro_schema() -> Any:
    """Return TiCDC's schema without the defaults that stand inside of its maps, which no reader takes."""
    named = json.loads((TIDB_DATA / "encoded" / "simple-avro.avsc").read_text())
    for record in named:
        for field in record["fields"]:
            for branch in field["type"] if isinstance(field["type"], list) else []:
                if isinstance(branch, dict):
                    branch.pop("default", None)
    return fastavro.parse_schema(named)


@pytest.mark.parametrize("protocol", ["canal-json", "open-protocol", "simple"])
@pytest.mark.parametrize(("beyond", "handled"), [(0, False), (1, True)])
def test_handle_key_only_message_of_exactly_the_limit_is_sent_whole(protocol: str, beyond: int, handled: bool) -> None:
    key, value = pairs(sent(feed(protocol, limit=10_000), changes(2, "insert", 1)))[1]
    # Counted are key, value and 36 bytes.
    limit = len(key or b"") + len(value) + 36 - beyond
    assert (pairs(sent(feed(protocol, limit=limit), changes(2, "insert", 1)))[1] != (key, value)) is handled


@ROWS
@pytest.mark.parametrize("protocol", ["canal-json", "open-protocol", "simple"])
def test_handle_key_only_message_that_is_still_too_large_stops_the_changefeed(protocol: str, count: int) -> None:
    columns = [column(1, "id"), column(2, "val", **TEXT, not_null=True)]
    keyed = store(columns, indexes=[index(1, "uk", [1], unique=True)], pk_is_handle=False)
    with pytest.raises(
        SinkMessageTooLargeError, match="message with the handle key alone is larger than allowed"
    ) as caught:
        sent(feed(protocol), changes(count, "insert", large=1), keyed)
    fields = caught.value.fields
    assert (fields["table"], fields["key"], fields["commit_ts"]) == (
        "test.t1",
        row_key(TABLE_ID, 1).hex(),
        COMMIT_TS + 1,
    )
    assert fields["bytes_max"] == LIMIT


def test_handle_key_only_is_held_against_what_the_topic_takes() -> None:
    compiled = feed("canal-json", limit=10_000)
    compiled.topic_message_bytes.update({"t": LIMIT})  # type: ignore[attr-defined] # a dict, made by this call alone
    assert pairs(sent(compiled, changes(3, "insert", 1)))[1] == EXPECTED["canal-json", "insert"]


@pytest.mark.parametrize("protocol", ["canal-json", "open-protocol", "simple"])
def test_message_that_is_too_large_without_a_handling_stops_the_changefeed(protocol: str) -> None:
    with pytest.raises(SinkMessageTooLargeError, match="message is larger than allowed") as caught:
        sent(feed(protocol, "none"), changes(3, "insert", 1))
    assert "sink.kafka-config.large-message-handle" in str(caught.value.fields["what_helps"])


@pytest.mark.parametrize("uri", ["mysql://u:p@h:3306/", "file:///tmp/out?protocol=csv"])
def test_message_that_is_too_large_before_a_processor_names_no_setting_of_kafka(uri: str) -> None:
    info = ChangefeedInfo(changefeed_id="f", upstream=UpstreamId("u"), sink_uri=uri, config={}, start_ts=Ts(1))
    config = sorter_config(load_changefeed(uri, {}), info, "h:1")
    assert compile_feed(config, "default").what_helps_large_rows.startswith("filter.rules")


def test_handle_key_only_row_keeps_only_updated_columns_of_its_key() -> None:
    compiled = feed("canal-json", sink={"only-output-updated-columns": True})
    _, value = pairs(sent(compiled, changes(3, "update", 1)))[1]
    assert b'"old":[{}],"data":[{"id":"1"}]' in value


SELECTED = [column(1, "a", not_null=True), column(2, "val", **TEXT), column(3, "b", not_null=True, tp=8)]
"""With the not-null unique keys (a), the handle key, and (b)."""


def _selected(columns: list[str], option: str = "handle-key-only") -> CompiledFeed:
    return feed("canal-json", option, sink={"column-selectors": [{"matcher": ["*.*"], "columns": columns}]})


def _two_keys(count: int) -> tuple[list[CommittedChange], SchemaStore]:
    indexes = [index(1, "a", [0], unique=True), index(2, "b", [2], unique=True)]
    row = encode_row_v2({1: b"\x01", 2: LARGE, 3: b"\x03"})
    rows = [CommittedChange(COMMIT_TS + n, 1, row_key(TABLE_ID, n + 1), "put", row, b"", 0) for n in range(count)]
    return rows, store(SELECTED, indexes=indexes, pk_is_handle=False)


@ROWS
def test_handle_key_only_holds_the_handle_key_of_what_a_column_selector_leaves(count: int) -> None:
    for _, value in pairs(sent(_selected(["*", "!b"]), *_two_keys(count))):
        assert b'"sqlType":{"a":4},"mysqlType":{"a":"int"},"old":null,"data":[{"a":"1"}],' in value


@ROWS
def test_handle_key_only_without_the_handle_key_stops_the_changefeed_before_any_row_is_too_large(count: int) -> None:
    with pytest.raises(ColumnSelectorError, match="leaves out column `a`, which is of the handle key"):
        sent(_selected(["*", "!a"]), *_two_keys(count))
