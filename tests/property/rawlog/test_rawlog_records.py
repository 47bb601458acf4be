"""Records of the raw log come back as they went in, and bytes that are not one are refused."""

import io
import json

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.changes import Op, RowChanges
from schemas.errors import CorruptDataError
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord, decode_ddl_record, encode_ddl_record
from schemas.rawlog.frontier import FrontierRecord, HeldTables, decode_frontier, encode_frontier
from schemas.rawlog.region_batch import (
    REGION_BATCH_SCHEMA,
    RegionBatch,
    decode_region_batch,
    encode_part,
    encode_region_batch,
    read_batch_head,
)

TS = st.integers(0, 2**63 - 1)
ROW = st.tuples(TS, TS, st.sampled_from(Op), st.binary(max_size=40), st.binary(), st.binary(), st.integers(0, 2**20))
Row = tuple[int, int, Op, bytes, bytes, bytes, int]
VECTOR = st.lists(st.integers(0, 2**40), min_size=1, max_size=8).map(tuple)


@st.composite
def batches(draw: st.DrawFn) -> tuple[RegionBatch, list[Row]]:
    rows = draw(st.lists(ROW, min_size=1, max_size=30))
    skipped = draw(st.integers(0, len(rows) - 1))  # a sliced Arrow array has an offset, which packing must respect
    columns = list(zip(*rows, strict=True))
    changes = RowChanges(
        table_id=TableId(draw(st.integers(1, 2**48))),
        commit_ts=np.array(columns[0][skipped:], np.int64),
        start_ts=np.array(columns[1][skipped:], np.int64),
        op=np.array(columns[2][skipped:], np.int8),
        key=pa.array(columns[3], pa.binary())[skipped:],
        value=pa.array(columns[4], pa.binary())[skipped:],
        old_value=pa.array(columns[5], pa.binary())[skipped:],
        txn_source=np.array(columns[6][skipped:], np.int64),
    )
    region = RegionId(draw(st.integers(1, 2**40)))
    return RegionBatch(region_id=region, may_repeat=draw(st.booleans()), rows=changes), rows[skipped:]


@given(batches(), st.integers(0, 2**32 - 1))
def test_region_batch_encoded_then_decoded_is_the_same(drawn: tuple[RegionBatch, list[Row]], schema_id: int) -> None:
    batch, rows = drawn
    record = encode_region_batch(batch, schema_id)
    assert record[:5] == b"\0" + schema_id.to_bytes(4, "big")
    head = read_batch_head(record)
    assert (head.table_id, head.region_id, head.count) == (batch.rows.table_id, batch.region_id, len(rows))
    assert head.may_repeat is batch.may_repeat
    assert (head.min_commit_ts, head.max_commit_ts) == (min(row[0] for row in rows), max(row[0] for row in rows))
    back = decode_region_batch(record)
    got = zip(
        back.rows.commit_ts.tolist(),
        back.rows.start_ts.tolist(),
        back.rows.op.tolist(),
        back.rows.key.to_pylist(),
        back.rows.value.to_pylist(),
        back.rows.old_value.to_pylist(),
        back.rows.txn_source.tolist(),
        strict=True,
    )
    assert list(got) == rows


def joined(items: list[bytes]) -> bytes:
    ends, end = [], 0
    for item in items:
        end += len(item)
        ends.append(end)
    return np.array(ends, "<i4").tobytes() + b"".join(items)


@given(batches(), st.binary(max_size=200))
def test_region_batch_read_by_a_library_then_it_is_avro_of_its_schema(
    drawn: tuple[RegionBatch, list[Row]], part: bytes
) -> None:
    batch, rows = drawn
    commit_ts, start_ts, ops, keys, values, old_values, sources = map(list, zip(*rows, strict=True))
    wanted = {
        "table_id": batch.rows.table_id,
        "region_id": batch.region_id,
        "count": len(rows),
        "min_commit_ts": min(commit_ts),
        "max_commit_ts": max(commit_ts),
        "may_repeat": batch.may_repeat,
        "commit_ts": np.array(commit_ts, "<i8").tobytes(),
        "start_ts": np.array(start_ts, "<i8").tobytes(),
        "op": bytes(ops),
        "key": joined(keys),
        "value": joined(values),
        "old_value": joined(old_values),
        "txn_source": np.array(sources, "<i8").tobytes() if any(sources) else b"",
        "part": b"",
    }
    record = encode_region_batch(batch, 1)
    assert read_by_library(record) == wanted
    of_part = encode_part(read_batch_head(record), record[:5], part)
    columns = {name: b"" for name, value in wanted.items() if isinstance(value, bytes)}
    assert read_by_library(of_part) == wanted | columns | {"count": 0, "part": part}


def read_by_library(record: bytes) -> object:
    stream = io.BytesIO(record[5:])
    datum = fastavro.schemaless_reader(stream, fastavro.parse_schema(REGION_BATCH_SCHEMA), None)
    assert not stream.read(), "bytes follow the record"
    return datum


@given(batches(), st.data())
def test_region_batch_when_cut_short_is_refused(drawn: tuple[RegionBatch, list[Row]], data: st.DataObject) -> None:
    record = encode_region_batch(drawn[0], 1)
    with pytest.raises(CorruptDataError):
        decode_region_batch(record[: data.draw(st.integers(0, len(record) - 1))])


def test_region_batch_when_not_avro_names_the_reason() -> None:
    with pytest.raises(CorruptDataError, match="not a region batch"):
        read_batch_head(b"\1\0\0\0\1")


@given(TS, VECTOR, VECTOR, st.integers(0, 99), st.lists(st.integers(1, 10), max_size=3).map(tuple))
def test_frontier_record_encoded_then_decoded_is_the_same(
    ts: int, high: tuple[int, ...], low: tuple[int, ...], rev: int, held: tuple[int, ...]
) -> None:
    record = FrontierRecord(
        owner_rev=rev,
        resolved_ts=Ts(ts),
        high=high,
        low=low,
        ddl_high=3,
        repeat_high=low,
        held=(HeldTables(tables=tuple(map(TableId, held)), ts=Ts(ts), low=low),) if held else (),
    )
    assert decode_frontier(encode_frontier(record)) == record


@pytest.mark.parametrize("value", [b"", b"[]", b'{"owner_rev":1}', b'{"owner_rev":"x"}', b"\xff"])
def test_frontier_record_when_malformed_is_refused_with_its_bytes(value: bytes) -> None:
    with pytest.raises(CorruptDataError) as caught:
        decode_frontier(value)
    assert caught.value.fields["value"] == value


def test_ddl_record_encoded_then_decoded_is_the_same() -> None:
    row = DdlRecord(kind="undecodable", ts=Ts(9), start_ts=Ts(8), payload={"key": "6b", "value": "80", "cols": []})
    assert decode_ddl_record(encode_ddl_record(row)) == row
    record = DdlRecord(kind="job", ts=Ts(9), start_ts=Ts(8), schema_id=2, payload={"query": "CREATE TABLE `名` …"})
    assert decode_ddl_record(encode_ddl_record(record)) == record


@pytest.mark.parametrize("kind", ["", "drop", None])
def test_ddl_record_of_unknown_kind_is_refused(kind: str | None) -> None:
    value = json.dumps({"kind": kind, "ts": 1, "start_ts": 0, "schema_id": 0, "payload": {}}).encode()
    with pytest.raises(CorruptDataError, match="kind"):
        decode_ddl_record(value)
