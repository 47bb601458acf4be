"""simple in both encodings against TiCDC's own messages of the whole recording.

JSON: byte for byte. Masked is ``buildTs``, the wall time of encoding, and nothing else. Avro: read by ``fastavro`` with
TiCDC's schema and compared field by field, and in which bytes there are how often, since Go writes a map's entries in
random order; messages without rows byte for byte. A row's message has the ``buildTs`` of TiCDC's put in there.
"""

import base64
import io
import json
import re
from functools import cache
from typing import Any

import fastavro
import pytest

from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from sorters.core.encode.simple.avro import SimpleAvroEncoder
from sorters.core.encode.simple.json import SimpleJsonEncoder
from sorters.core.encode.wire.protocol import EncodedMessage, Partitions
from sorters.core.mount import mount
from sorters.core.sql.ddl_event import DdlEvent, ddl_events
from tests.support.recorded.mounting import RowId, encoded_oracle, recorded_batches
from tests.support.recorded.recording import TIDB_DATA, committed_changes, oracle
from tests.support.recorded.schema_feed import ddl_records

PATHS = pytest.mark.parametrize("small_rows", [pytest.param(0, id="columnar"), pytest.param(10**9, id="scalar")])
ROWS = 17_651
JSON, AVRO = SimpleJsonEncoder(), SimpleAvroEncoder()
BUILD_TS = 1_600_000_000_000
"""Before TiCDC's, and of as many bytes in Avro."""


def masked(message: bytes) -> bytes:
    return re.sub(rb'"buildTs":\d+', b'"buildTs":?', message, count=1)


@PATHS
def test_simple_json_of_all_recorded_rows_equals_ticdc(small_rows: int) -> None:
    expected, seen = encoded_oracle("simple-json"), 0
    for batch in recorded_batches():
        encoded = JSON.encode_rows(mount(batch.table, batch.rows, small_rows=small_rows), encoded_at_ms=5)
        assert encoded.keys.null_count == len(encoded.keys)
        for row, value in zip(encoded.rows.tolist(), encoded.values.to_pylist(), strict=True):
            message = expected[batch.row_id(row)]
            assert message.value is not None
            assert masked(value) == masked(message.value), batch.row_id(row)
            assert b'"buildTs":5,' in value
            seen += 1
    assert seen == len(expected) == ROWS


@cache
def avro_schema() -> Any:
    """Return TiCDC's schema without the defaults that stand inside of its maps, which no reader takes."""
    named = json.loads((TIDB_DATA / "encoded" / "simple-avro.avsc").read_text())
    for record in named:
        for field in record["fields"]:
            for branch in field["type"] if isinstance(field["type"], list) else []:
                if isinstance(branch, dict) and branch["type"] == "map":
                    del branch["default"]
    return fastavro.parse_schema(named)


def read_avro(message: bytes) -> Any:
    """Return a message with the names of all union branches; it holds nothing behind it."""
    stream = io.BytesIO(message)
    read = fastavro.schemaless_reader(stream, avro_schema(), None, return_record_name=True, return_named_type=True)
    assert stream.read() == b""
    return read


def avro_long(number: int) -> bytes:
    """Return a long of Avro's that is not negative: zigzag, seven bits a byte, the lowest first."""
    rest, out = number << 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def payload(message: bytes) -> dict[str, Any]:
    payload: dict[str, Any] = read_avro(message)[1]["payload"][1]
    return payload


@cache
def said_by_ticdc() -> dict[RowId, tuple[bytes, Any]]:
    """Return TiCDC's message of each row, and what it says."""
    messages = {row_id: message.value for row_id, message in encoded_oracle("simple-avro").items()}
    return {row_id: (value, read_avro(value)) for row_id, value in messages.items() if value is not None}


@PATHS
def test_simple_avro_of_all_recorded_rows_says_what_ticdc_said(small_rows: int) -> None:
    expected, seen = said_by_ticdc(), 0
    for batch in recorded_batches():
        mounted = mount(batch.table, batch.rows, small_rows=small_rows)
        encoded = AVRO.encode_rows(mounted, encoded_at_ms=BUILD_TS)
        assert encoded.keys.null_count == len(encoded.keys)
        for row, made in zip(encoded.rows.tolist(), encoded.values.to_pylist(), strict=True):
            message, said = expected[batch.row_id(row)]
            assert made.count(avro_long(BUILD_TS)) == 1
            value = made.replace(avro_long(BUILD_TS), avro_long(said[1]["payload"][1]["buildTs"]))
            assert sorted(value) == sorted(message), batch.row_id(row)
            assert read_avro(value) == said, batch.row_id(row)
            seen += 1
    assert seen == len(expected) == ROWS


def test_simple_avro_map_stands_in_column_order() -> None:
    for batch in recorded_batches()[:5]:
        for small_rows in (0, 10**9):
            encoded = AVRO.encode_rows(mount(batch.table, batch.rows, small_rows=small_rows), encoded_at_ms=1)
            said = payload(encoded.values[0].as_py())
            assert list(said["data"] or said["old"]) == [column.name for column in batch.table.columns]


@cache
def recorded_events() -> dict[tuple[int, int], DdlEvent]:
    """Return each DDL event of the recording by commit_ts and seq."""
    store = SchemaStore.empty()
    changes = (store.apply(record) for record in ddl_records(committed_changes()))
    return {(event.commit_ts, event.seq): event for change in changes if change for event in ddl_events(change)}


@cache
def tables() -> dict[tuple[str, int], TableVersion]:
    """Return every version of a table that has rows."""
    return {(batch.table.name, batch.table.version): batch.table for batch in recorded_batches()}


def made_like(encoder: SimpleJsonEncoder | SimpleAvroEncoder, line: dict[str, Any], build_ts: int) -> EncodedMessage:
    """Encode what a line of the oracle says that TiCDC encoded."""
    if line["op"] == "ddl":
        return encoder.encode_ddl(recorded_events()[line["commit_ts"], line["seq"]], encoded_at_ms=build_ts)
    if line["op"] == "bootstrap":
        return encoder.encode_bootstrap(tables()[line["table"], line["table_version"]], encoded_at_ms=build_ts)
    return encoder.encode_watermark(Ts(line["commit_ts"]), encoded_at_ms=build_ts)


@pytest.mark.parametrize("name", ["simple-json", "simple-avro"])
def test_simple_ddl_bootstrap_and_watermarks_equal_ticdc_byte_for_byte(name: str) -> None:
    seen = {"ddl": 0, "bootstrap": 0, "watermark": 0}
    for line in oracle(f"encoded/{name}"):
        if line["op"] not in seen:
            continue
        seen[line["op"]] += 1
        wanted = base64.b64decode(line["value"])
        is_json = name == "simple-json"
        build_ts = json.loads(wanted)["buildTs"] if is_json else payload(wanted)["buildTs"]
        encoder = JSON if is_json else AVRO
        assert made_like(encoder, line, build_ts) == EncodedMessage(None, wanted), line["commit_ts"]
    assert seen == {"ddl": 97, "bootstrap": 66, "watermark": 10}


def test_simple_goes_to_all_partitions() -> None:
    for encoder in (JSON, AVRO):
        assert encoder.ddl_partitions is encoder.watermark_partitions is Partitions.ALL
        assert encoder.joiner is None
        assert encoder.schemas(recorded_batches()[0].table, "t") == ()
