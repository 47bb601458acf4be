"""Records that anybody may have written, of the raw log and of sink topics: coded errors come out, and nothing grows.

Each decoder gets noise, valid records that were bent, and JSON of any shape.
"""

import json
import re
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.processors.core.apply.partition import PartitionQueue, start_position
from consumers.processors.core.apply.statements import StatementSettings, statements
from consumers.processors.core.storage.partition import NotedEnd, PartitionLines
from schemas.changes import RowChanges
from schemas.errors import CorruptDataError
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord, decode_ddl_record, encode_ddl_record
from schemas.rawlog.frontier import decode_frontier
from schemas.rawlog.region_batch import RegionBatch, decode_region_batch, encode_region_batch, read_batch_head
from schemas.rawlog.row_parts import PartJoiner, cut_record
from schemas.sink.parts import MessageJoiner, cut_message
from schemas.sink.position import Position, PositionClass, RowOp, decode_position
from schemas.sink.sql_rows import (
    SqlDdl,
    SqlRow,
    TableForm,
    decode_ddl,
    decode_form,
    decode_rows,
    encode_ddl,
    encode_form,
    encode_rows,
)
from schemas.sink.storage_rows import (
    HEADS,
    FolderForm,
    SchemaFile,
    decode_folder,
    decode_schema_file,
    decode_storage_rows,
    encode_folder,
    encode_schema_file,
)
from tests.support.sources.hostile import NOT_JSON, VALUES, bent, only_coded

ROWS = RowChanges(
    table_id=TableId(7),
    commit_ts=np.array([5, 6], np.int64),
    start_ts=np.array([4, 5], np.int64),
    op=np.array([1, 2], np.int8),
    key=pa.array([b"k1", b"k2"], pa.binary()),
    value=pa.array([b"v1", b""], pa.binary()),
    old_value=pa.array([b"", b"o2"], pa.binary()),
    txn_source=np.zeros(2, np.int64),
)
BATCH = encode_region_batch(RegionBatch(region_id=RegionId(3), may_repeat=False, rows=ROWS), 1)
PART = next(iter(cut_record(BATCH + bytes(400), 300, 9)))
FORM = encode_form(TableForm(schema="d", table="t", version=Ts(3), columns=("id", "v"), key=("id",)))
SQL_ROWS = encode_rows(
    decode_form(FORM), [SqlRow(5, 4, RowOp.INSERT, b"1", b"(1,2)"), SqlRow(6, 5, RowOp.DELETE, b"2")]
)
DDL = encode_ddl(
    SqlDdl(commit_ts=Ts(5), ddl_type=3, schema="d", table="t", pre_schema="", pre_table="", query="CREATE TABLE `t`")
)
FOLDER = encode_folder(FolderForm("d", "t", Ts(3), 8, "id\r\n"))
FILE = encode_schema_file(SchemaFile("d/t/meta/schema_3_0000000001.json", "{}", is_ddl=True))
_HEADS = np.zeros(2, HEADS)
_HEADS["commit_ts"], _HEADS["op"], _HEADS["key"], _HEADS["line"] = [5, 6], RowOp.INSERT, [2, 2], [3, 4]
STORAGE_ROWS = _HEADS.tobytes() + b"k1k2" + b"ab\nabc\n"
POSITION = Position(Ts(5), PositionClass.ROW, Ts(4), RowOp.INSERT, b"k").encode()
PART_KEY, _PART = next(iter(cut_message(b"key", bytes(400), 200)))
PART_VALUE = bytes(_PART)
DDL_RECORD = encode_ddl_record(DdlRecord(kind="job", ts=Ts(5), start_ts=Ts(4), schema_id=1, payload={"id": 1}))
FRONTIER = json.dumps(
    {"owner_rev": 1, "resolved_ts": 5, "high": [1], "low": [0], "ddl_high": 1, "repeat_high": [0]}
    | {"held": [{"tables": [1], "ts": 4, "low": [0]}]}
).encode()

DECODERS: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "region batch": (BATCH, decode_region_batch),
    "batch head": (BATCH, read_batch_head),
    "raw part": (PART, lambda value: PartJoiner().take(0, value)),
    "ddl record": (DDL_RECORD, decode_ddl_record),
    "frontier": (FRONTIER, decode_frontier),
    "position": (POSITION, decode_position),
    "sql form": (FORM, decode_form),
    "sql rows": (SQL_ROWS, decode_rows),
    "sql ddl": (DDL, decode_ddl),
    "folder": (FOLDER, decode_folder),
    "storage rows": (STORAGE_ROWS, lambda value: list(decode_storage_rows(value).positions())),
    "schema file": (FILE, decode_schema_file),
    "message part": (PART_KEY, lambda key: MessageJoiner().take(POSITION, 0, key, PART_VALUE)),
}
JSON_DECODERS = ["ddl record", "frontier", "sql form", "sql ddl", "folder", "schema file"]


@pytest.mark.parametrize("name", DECODERS)
def test_valid_record_decodes(name: str) -> None:
    valid, decode = DECODERS[name]
    decode(valid)


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=100)
@given(data=st.data())
def test_bent_record_is_refused_by_a_code(name: str, data: st.DataObject) -> None:
    valid, decode = DECODERS[name]
    only_coded(decode, data.draw(bent(valid) | st.binary(max_size=200)))


@pytest.mark.parametrize("name", JSON_DECODERS)
@settings(max_examples=100)
@given(data=st.data())
def test_json_of_any_shape_is_refused_by_a_code(name: str, data: st.DataObject) -> None:
    valid, decode = DECODERS[name]
    whole = json.loads(valid)
    places = list(whole) if isinstance(whole, dict) else list(range(len(whole)))
    for key in data.draw(st.lists(st.sampled_from(places), max_size=3)):
        whole[key] = data.draw(VALUES)
    only_coded(decode, json.dumps(data.draw(st.just(whole) | VALUES)).encode())


@pytest.mark.parametrize("name", JSON_DECODERS)
def test_number_that_is_none_is_refused_by_a_code(name: str) -> None:
    valid, decode = DECODERS[name]
    for match in re.finditer(rb"(?<![\w\"])[0-9]+(?![\w\"])", valid):
        for number in (b"1e999", b"NaN", b"-Infinity", b"9" * 5000, b"[]", b"{}", b"null"):
            only_coded(decode, valid[: match.start()] + number + valid[match.end() :])


@pytest.mark.parametrize("name", JSON_DECODERS)
@pytest.mark.parametrize("text", NOT_JSON)
def test_json_that_exhausts_a_parser_is_refused_by_a_code(name: str, text: str) -> None:
    with pytest.raises(CorruptDataError):
        DECODERS[name][1](text.encode())


def _take(lines: PartitionLines, offset: int, key: bytes | None, position: bytes, value: bytes) -> None:
    lines.take(offset, key, value, position)


def _feed(queue: PartitionQueue, offset: int, key: bytes | None, position: bytes, value: bytes) -> None:
    queue.feed(position=position, offset=offset, key=key, value=value)


@settings(max_examples=100)
@given(st.data())
def test_sink_records_of_any_kind_leave_a_processors_partition_with_a_code(data: st.DataObject) -> None:
    lines, queue = PartitionLines.at(NotedEnd()), PartitionQueue(0, start_position(Ts(1)), 0)
    keys = st.none() | bent(FORM) | bent(FOLDER) | bent(PART_KEY) | st.binary(max_size=20)
    values = bent(SQL_ROWS) | bent(STORAGE_ROWS) | bent(DDL) | bent(FILE) | st.binary(max_size=60)
    positions = bent(POSITION) | st.builds(
        lambda ts, kind: Position(Ts(ts), kind, Ts(1)).encode(), st.integers(0, 9), st.sampled_from(PositionClass)
    )
    for offset in range(data.draw(st.integers(1, 4))):
        key, value, position = data.draw(keys), data.draw(values), data.draw(positions)
        only_coded(partial(_take, lines, offset, key, position), value)
        only_coded(partial(_feed, queue, offset, key, position), value)

    def claimed(_: bytes) -> None:
        claim = queue.claim(100, bytes_max=1 << 20)
        if claim is not None:
            list(statements(claim.rows, StatementSettings()))

    only_coded(claimed, b"")


@pytest.mark.parametrize("name", ["region batch", "sql rows", "storage rows", "raw part", "message part"])
@pytest.mark.parametrize("claim", [b"\xfe\xff\xff\xff\x0f", b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\xff" * 4])
def test_length_that_a_record_claims_allocates_nothing(name: str, claim: bytes) -> None:
    valid, decode = DECODERS[name]
    tracemalloc.start()
    try:
        for at in range(0, len(valid), 1 if len(valid) < 100 else 3):
            only_coded(decode, valid[:at] + claim + valid[at + len(claim) :])
            only_coded(decode, valid[:at] + claim + valid[at:])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
