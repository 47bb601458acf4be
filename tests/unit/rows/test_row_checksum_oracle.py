"""Messages with the row checksum on, of all recorded rows that carry one, against TiCDC's own."""

import base64
import io
import json
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
import zstandard

from schemas.tidb.row_v2 import is_row_v2, row_v2_checksum
from sorters.core.encode.avro.encoder import AvroEncoder
from sorters.core.encode.canal.json import CanalJsonEncoder
from sorters.core.encode.simple.avro import SimpleAvroEncoder
from sorters.core.encode.simple.json import SimpleJsonEncoder
from sorters.core.encode.wire.protocol import EncodedRows
from sorters.core.mount import MountedColumns, mount
from tests.support.recorded.mounting import Batch, OracleMessage, RowId, mounted_oracle, recorded_batches
from tests.support.recorded.recording import TIDB_DATA, oracle
from tests.unit.formats.test_simple_oracle import read_avro

PATHS = pytest.mark.parametrize("small_rows", [pytest.param(0, id="columnar"), pytest.param(10**9, id="scalar")])
ROWS = 404
AVRO = AvroEncoder(
    enable_tidb_extension=True,
    row_checksum=True,
    avro_decimal_handling_mode="string",
    avro_bigint_unsigned_handling_mode="string",
)


def raw(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@cache
def expected(name: str) -> dict[RowId, OracleMessage]:
    """Return TiCDC's messages by row; its lines stand in the order of the mounted rows that carry a checksum."""
    lines = [line for line in oracle(f"encoded/{name}") if line["op"] in {"insert", "update", "delete"}]
    messages = {}
    for line, row in zip(lines, (row for row in mounted_oracle() if "checksum" in row), strict=True):
        row_id = row["commit_ts"], row["start_ts"], row["table_id"], row["key"]
        assert (line["commit_ts"], line["start_ts"], line["table_id"], line["op"]) == (*row_id[:3], row["op"])
        messages[row_id] = OracleMessage(line["op"], raw(line["key"]), raw(line["value"]), None)
    assert len(messages) == ROWS
    return messages


def carries(batch: Batch, row: int) -> bool:
    value = batch.rows.value[row].as_py()
    return bool(value) and is_row_v2(value) and row_v2_checksum(value) is not None


def with_checksums(small_rows: int) -> list[tuple[Batch, MountedColumns]]:
    """Return the rows that carry a checksum, mounted among all those of their batch."""
    messages = []
    for batch in recorded_batches():
        chosen = [row for row in range(len(batch.rows)) if carries(batch, row)]
        if not chosen:
            continue
        mounted = mount(batch.table, batch.rows, with_checksum=True, small_rows=small_rows)
        parts = [part.take(np.flatnonzero(np.isin(part.rows, chosen))) for part in mounted.parts]
        messages.append(
            (batch, MountedColumns(table=batch.table, count=mounted.count, parts=tuple(p for p in parts if len(p))))
        )
    return messages


def compare(name: str, batch: Batch, encoded: EncodedRows, mask: str) -> int:
    for row, key, value in zip(
        encoded.rows.tolist(), encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True
    ):
        message = expected(name)[batch.row_id(row)]
        assert (key, masked(value, mask)) == (message.key, masked(message.value, mask)), batch.row_id(row)
    return len(encoded.rows)


def masked(value: bytes | None, mask: str) -> Any:
    """Cut out the time of encoding, and bring canal-json's ``mysqlType`` into one order."""
    assert value is not None
    if mask == "simple":
        return re.sub(rb'"buildTs":\d+', b'"buildTs":?', value, count=1)
    if mask == "canal":
        kinds = re.search(rb'"mysqlType":(\{.*?\}),"old"', value)
        assert kinds is not None
        body = value.replace(kinds[1], b"?", 1)
        return re.sub(rb'"ts":\d+', b'"ts":?', body, count=1), json.loads(kinds[1])
    return value


@PATHS
def test_simple_json_with_row_checksum_of_all_rows_that_carry_one_equals_ticdc(small_rows: int) -> None:
    seen = 0
    for batch, mounted in with_checksums(small_rows):
        encoded = SimpleJsonEncoder().encode_rows(mounted, encoded_at_ms=1)
        seen += compare("simple-json-checksum", batch, encoded, "simple")
    assert seen == ROWS


@PATHS
def test_simple_avro_with_row_checksum_says_what_ticdc_mounted(small_rows: int) -> None:
    sums = {(row["commit_ts"], row["key"]): row["checksum"] for row in mounted_oracle() if "checksum" in row}
    seen = 0
    for batch, mounted in with_checksums(small_rows):
        encoded = SimpleAvroEncoder().encode_rows(mounted, encoded_at_ms=1)
        for row, value in zip(encoded.rows.tolist(), encoded.values.to_pylist(), strict=True):
            commit_ts, _, _, key = batch.row_id(row)
            name, checksum = read_avro(value)[1]["payload"][1]["checksum"]
            assert (name, checksum) == ("com.pingcap.simple.avro.Checksum", sums[commit_ts, key])
            seen += 1
    assert seen == ROWS


@PATHS
def test_canal_json_with_row_checksum_of_all_rows_that_carry_one_equals_ticdc(small_rows: int) -> None:
    seen = 0
    for batch, mounted in with_checksums(small_rows):
        encoded = CanalJsonEncoder(enable_tidb_extension=True).encode_rows(mounted, encoded_at_ms=1)
        seen += compare("canal-json-checksum", batch, encoded, "canal")
    assert seen == ROWS


@cache
def registered() -> dict[tuple[str, str], int]:
    """Return the stand-in registry's ids by subject and exact schema text."""
    ids = {}
    with (TIDB_DATA / "encoded" / "avro-checksum.jsonl.zst").open("rb") as file:
        for line in io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), "utf-8"):
            if line.startswith('{"op":"avro_schema"'):
                text = line.removeprefix('{"op":"avro_schema","schema":').rpartition(',"schema_id"')[0]
                fields = json.loads(line)
                ids[fields["subject"], text] = fields["schema_id"]
    return ids


@PATHS
def test_avro_with_row_checksum_of_all_rows_that_carry_one_equals_ticdc(small_rows: int) -> None:
    seen, texts = 0, set()
    for batch, mounted in with_checksums(small_rows):
        topic = f"{batch.table.schema}_{batch.table.table}"
        schemas = AVRO.schemas(batch.table, topic)
        texts |= {(schema.subject, schema.text) for schema in schemas}
        ids = {schema.key: registered()[schema.subject, schema.text] for schema in schemas}
        seen += compare("avro-checksum", batch, AVRO.encode_rows(mounted, topic=topic, schema_ids=ids), "")
    assert seen == ROWS
    assert texts == set(registered())
