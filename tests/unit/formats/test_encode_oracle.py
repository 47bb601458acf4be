"""canal-json and Avro against TiCDC's own messages of the whole recording, byte for byte.

Masked, and why: canal-json's ``ts`` is the wall time of encoding; the order inside its ``mysqlType`` is that of a Go
map, so the members are compared instead. Nothing else is. The one row that TiCDC's Avro encoder refuses must be
refused here.
"""

import base64
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import zstandard

from schemas.ids import Ts
from sorters.core.encode.avro.encoder import AvroEncoder
from sorters.core.encode.canal.json import CanalJsonEncoder
from sorters.core.encode.wire.protocol import (
    EncodedMessage,
    EncodeRefusedError,
    Partitions,
    SchemaKey,
    SchemaMissingError,
)
from sorters.core.mount import MountedColumns, mount
from tests.support.recorded.mounting import Batch, encoded_oracle, recorded_batches
from tests.support.recorded.recording import TIDB_DATA, oracle

ENCODED_AT_MS = 1_700_000_000_100
PATHS = [pytest.param(0, id="columnar"), pytest.param(10**9, id="scalar")]
CANAL = {
    "canal-json": CanalJsonEncoder(enable_tidb_extension=True),
    "canal-json-noext": CanalJsonEncoder(),
}
AVRO = {
    "avro": AvroEncoder(enable_tidb_extension=True, avro_enable_watermark=True),
    "avro-string": AvroEncoder(
        enable_tidb_extension=True,
        avro_decimal_handling_mode="string",
        avro_bigint_unsigned_handling_mode="string",
    ),
}


def masked(message: bytes) -> tuple[bytes, dict[str, str] | None]:
    """Return a canal-json message with its encode time and type map cut out, and the type map."""
    body = re.sub(rb'"ts":\d+', b'"ts":?', message, count=1)
    return re.sub(rb'"mysqlType":\{.*?\},"old"', b'"mysqlType":?,"old"', body, count=1), json.loads(message)[
        "mysqlType"
    ]


@pytest.mark.parametrize("name", CANAL)
@pytest.mark.parametrize("small_rows", PATHS)
def test_canal_json_of_all_recorded_rows_equals_ticdc(name: str, small_rows: int) -> None:
    expected, seen = encoded_oracle(name), 0
    for batch in recorded_batches():
        encoded = CANAL[name].encode_rows(
            mount(batch.table, batch.rows, small_rows=small_rows), encoded_at_ms=ENCODED_AT_MS
        )
        assert encoded.keys.null_count == len(encoded.keys)
        for row, value in zip(encoded.rows.tolist(), encoded.values.to_pylist(), strict=True):
            message = expected[batch.row_id(row)]
            assert message.value is not None
            assert masked(value) == masked(message.value), batch.row_id(row)
            seen += 1
    assert seen == len(expected) == 17_651


@pytest.mark.parametrize("small_rows", PATHS)
def test_canal_json_type_map_stands_in_column_order(small_rows: int) -> None:
    batch = next(batch for batch in recorded_batches() if batch.table.name == "d1.t_all")
    encoded = CANAL["canal-json"].encode_rows(mount(batch.table, batch.rows, small_rows=small_rows), encoded_at_ms=1)
    for value in encoded.values.to_pylist():
        message = json.loads(value)
        assert list(message["mysqlType"]) == list(message["sqlType"]) == [column.name for column in batch.table.columns]
        assert message["ts"] == 1


def registry(name: str) -> dict[tuple[str, str], int]:
    """Return the stand-in registry's ids by subject and exact schema text."""
    ids = {}
    path = TIDB_DATA / "encoded" / f"{name}.jsonl.zst"
    with path.open("rb") as file:
        for line in io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), "utf-8"):
            if line.startswith('{"op":"avro_schema"'):
                text = line.removeprefix('{"op":"avro_schema","schema":').rpartition(',"schema_id"')[0]
                fields = json.loads(line)
                ids[fields["subject"], text] = fields["schema_id"]
    return ids


def topic_of(batch: Batch) -> str:
    return f"{batch.table.schema}_{batch.table.table}"


def avro_ids(name: str, batch: Batch) -> dict[SchemaKey, int]:
    """Return the ids of a table version's schemas; a text that TiCDC did not register is a KeyError."""
    known = registry_of(name)
    texts = AVRO[name].schemas(batch.table, topic_of(batch))
    return {text.key: known[text.subject, text.text] for text in texts}


_registries: dict[str, dict[tuple[str, str], int]] = {}


def registry_of(name: str) -> dict[tuple[str, str], int]:
    if name not in _registries:
        _registries[name] = registry(name)
    return _registries[name]


def rows_but(mounted: MountedColumns, refused: list[int]) -> MountedColumns:
    """Leave rows out of a mounted batch."""
    parts = [part.take(np.flatnonzero(~np.isin(part.rows, refused))) for part in mounted.parts]
    return MountedColumns(table=mounted.table, count=mounted.count, parts=tuple(part for part in parts if len(part)))


@pytest.mark.parametrize("name", AVRO)
@pytest.mark.parametrize("small_rows", PATHS)
def test_avro_of_all_recorded_rows_equals_ticdc(name: str, small_rows: int) -> None:
    expected, seen, errors = encoded_oracle(name), 0, []
    for batch in recorded_batches():
        mounted = mount(batch.table, batch.rows, small_rows=small_rows)
        refused = [row for row in range(len(batch.rows)) if (m := expected.get(batch.row_id(row))) and m.error]
        encode = partial(AVRO[name].encode_rows, topic=topic_of(batch), schema_ids=avro_ids(name, batch))
        if refused:
            with pytest.raises(EncodeRefusedError) as caught:
                encode(mounted)
            errors.append((caught.value.fields, batch.row_id(refused[0])))
            mounted = rows_but(mounted, refused)
        encoded = encode(mounted)
        for row, key, value in zip(
            encoded.rows.tolist(), encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True
        ):
            message = expected[batch.row_id(row)]
            assert (key, value) == (message.key, message.value), batch.row_id(row)
            seen += 1
    assert seen == len(expected) - 1 == 17_650
    # The one refused row: ENUM 0, MySQL's error value, has no name.
    ((fields, row_id),) = errors
    assert fields == {"table": "d1.t_all", "key": row_id[3], "commit_ts": row_id[0], "column": "c_enum"}


@pytest.mark.parametrize("name", AVRO)
def test_avro_schemas_of_all_versions_with_rows_are_those_that_ticdc_registered(name: str) -> None:
    made = {
        (text.subject, text.text)
        for batch in recorded_batches()
        for text in AVRO[name].schemas(batch.table, topic_of(batch))
    }
    assert made == set(registry_of(name))


def test_avro_rows_without_registered_schema_say_which() -> None:
    batch = recorded_batches()[0]
    with pytest.raises(SchemaMissingError) as caught:
        AVRO["avro"].encode_rows(mount(batch.table, batch.rows), topic="x", schema_ids={})
    assert caught.value.fields["subject"] == "x-key"


@dataclass(frozen=True)
class RecordedDdl:
    """A DDL event of the recording, as encoders read it."""

    schema: str
    table: str
    query: str
    ddl_type: int
    commit_ts: Ts
    pre: None = None
    post: None = None


def ddl_lines(name: str) -> Iterator[tuple[RecordedDdl, bytes]]:
    """Pair DDL events with TiCDC's messages."""
    events = {
        (line["commit_ts"], event["seq"]): RecordedDdl(
            event["schema"], event["table"], event["restored_query"], event["type_id"], Ts(line["commit_ts"])
        )
        for line in oracle("ddl_events")
        for event in line.get("events") or []
    }
    for line in oracle(f"encoded/{name}"):
        if line["op"] == "ddl":
            yield events[line["commit_ts"], line["seq"]], base64.b64decode(line["value"])


def watermark_lines(name: str) -> list[dict[str, Any]]:
    return [line for line in oracle(f"encoded/{name}") if line["op"] == "watermark"]


@pytest.mark.parametrize("name", CANAL)
def test_canal_json_ddl_and_watermarks_equal_ticdc(name: str) -> None:
    encoder, seen = CANAL[name], 0
    for event, message in ddl_lines(name):
        assert masked(encoder.encode_ddl(event, encoded_at_ms=ENCODED_AT_MS).value) == masked(message)
        seen += 1
    assert seen == 97
    for line in watermark_lines(name):
        watermark = encoder.encode_watermark(Ts(line["commit_ts"]), encoded_at_ms=ENCODED_AT_MS)
        assert watermark is not None
        assert watermark.key is None
        assert masked(watermark.value) == masked(base64.b64decode(line["value"]))
    has_watermarks = name == "canal-json"
    assert len(watermark_lines(name)) == (10 if has_watermarks else 0)
    assert encoder.watermark_partitions is (Partitions.ALL if has_watermarks else Partitions.NONE)
    assert (encoder.encode_watermark(Ts(1), encoded_at_ms=1) is not None) == has_watermarks


def test_avro_test_mode_ddl_and_watermarks_equal_ticdc() -> None:
    seen = 0
    for event, message in ddl_lines("avro"):
        assert AVRO["avro"].encode_ddl(event) == EncodedMessage(None, message)
        seen += 1
    assert seen == 97
    lines = watermark_lines("avro")
    assert len(lines) == 10
    for line in lines:
        watermark = AVRO["avro"].encode_watermark(Ts(line["commit_ts"]))
        assert watermark == EncodedMessage(None, base64.b64decode(line["value"]))


def test_avro_outside_the_test_mode_has_no_ddl_and_no_watermarks() -> None:
    event, _ = next(ddl_lines("avro"))
    encoder = AVRO["avro-string"]
    assert encoder.encode_ddl(event) is None
    assert encoder.encode_watermark(Ts(1)) is None
    assert encoder.ddl_partitions is encoder.watermark_partitions is Partitions.NONE
