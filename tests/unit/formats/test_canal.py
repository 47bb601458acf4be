"""canal's packets: options, values that protobuf leaves out, and how rows of one packet are joined."""

from typing import Any

import pyarrow as pa
import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ids import TableId, Ts
from schemas.proto import canal_pb2 as pb
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version
from sorters.core.encode.canal.protobuf import CanalEncoder
from sorters.core.feed.companions import ddl_records
from sorters.core.feed.feed import compile_feed
from sorters.core.mount import mount
from sorters.core.records.order import join_records, sort_records
from tests.support.rawlog.row_records import records_of
from tests.support.recorded.ddl_jobs import PRIMARY, column, job, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

COMMIT_TS = 445644800000000001
PATHS = pytest.mark.parametrize("small_rows", [0, 10**9], ids=["columnar", "scalar"])
VAL = column(2, "val", tp=15, flen=32, charset="utf8mb4", collation="utf8mb4_bin")
# By hand from the .proto files. Header: version, "UTF-8", ms, MYSQL, "test", "t1", INSERT, rowsCount=1. Column `id`:
# sqlType 4, name, isKey, updated, isNull=false, "1", "int"; `val`: sqlType 12, name, updated, isNull=false, "aa".
HEADER = bytes.fromhex(
    "0801 2a055554462d38 3080d095ffbc31 3802 420474657374 4a027431 5801 620e 0a09726f7773436f756e74 120131"
)
ID = bytes.fromhex("1004 1a026964 2001 2801 3000 420131 5203696e74")
AA = bytes.fromhex("100c 1a0376616c 2801 3000 42026161 520776617263686172")


def field(tag: int, body: bytes) -> bytes:
    assert len(body) < 0x80
    return bytes([tag, len(body)]) + body


def table_of(*more: dict[str, Any]) -> TableVersion:
    columns = [column(1, "id", not_null=True, flag=PRIMARY), *more]
    raw = table_info(112, "t1", columns=[spec | {"offset": offset} for offset, spec in enumerate(columns)])
    return table_version(raw, schema_id=1, schema="test", version=Ts(1))


def encode(rows: list[tuple[Any, Any]], small_rows: int, *, table: TableVersion | None = None, **options: Any) -> Any:
    """Encode rows given as (new, old) values of their columns, by column id."""
    table = table or table_of(VAL)
    changes = []
    for number, sides in enumerate(rows, 1):
        value, old = (b"" if side is None else encode_row_v2(side) for side in sides)
        key = row_key(TableId(112), number)
        gone = sides[0] is None
        changes.append(CommittedChange(COMMIT_TS, COMMIT_TS - 1, key, "delete" if gone else "put", value, old, 0))
    return CanalEncoder(**options).encode_rows(mount(table, row_changes(112, changes), small_rows=small_rows))


def columns_of(packet: bytes) -> tuple[list[pb.Column], list[pb.Column]]:
    (message,) = pb.Messages.FromString(pb.Packet.FromString(packet).body).messages
    (row,) = pb.RowChange.FromString(pb.Entry.FromString(message).storeValue).rowDatas
    return list(row.beforeColumns), list(row.afterColumns)


@PATHS
def test_canal_insert_equals_the_bytes_of_the_proto_files(small_rows: int) -> None:
    encoded = encode([({2: b"aa"}, None)], small_rows)
    row = field(0x62, field(0x12, ID) + field(0x12, AA))
    entry = field(0x0A, HEADER) + bytes.fromhex("1002") + field(0x1A, bytes.fromhex("1001 5000") + row)
    packet = bytes.fromhex("1001 1807") + field(0x2A, field(0x12, entry))
    assert encoded.values[0].as_py() == packet
    assert encoded.keys[0].as_py() is None


@PATHS
def test_canal_null_and_empty_values_are_told_apart_and_both_have_no_text(small_rows: int) -> None:
    encoded = encode([({2: b""}, None), ({2: None}, None), ({2: b"x"}, None)], small_rows)
    columns = [columns_of(packet)[1][1] for packet in encoded.values.to_pylist()]
    assert [(said.isNull, said.value) for said in columns] == [(False, ""), (True, ""), (False, "x")]
    assert all(said.HasField("isNull") for said in columns)


@PATHS
def test_canal_binary_values_are_iso_8859_1_and_large_unsigned_ones_have_the_next_type(small_rows: int) -> None:
    table = table_of(column(2, "b", tp=252, flen=9), column(3, "u", tp=1, flag=32))
    encoded = encode([({2: b"a\xff\x00", 3: b"\x80"}, None), ({2: b"a", 3: b"\x7f"}, None)], small_rows, table=table)
    columns = [columns_of(packet)[1][1:] for packet in encoded.values.to_pylist()]
    assert [[(said.sqlType, said.value) for said in row] for row in columns] == [
        [(2004, "a\xff\x00"), (5, "128")],
        [(2004, "a"), (-6, "127")],
    ]
    assert [said.mysqlType for said in columns[0]] == ["blob", "tinyint unsigned"]


@PATHS
def test_canal_deletes_with_handle_keys_alone_leave_other_rows_whole(small_rows: int) -> None:
    rows = [(None, {2: b"aa"}), ({2: b"bb"}, {2: b"aa"})]
    whole = [columns_of(packet) for packet in encode(rows, small_rows).values.to_pylist()]
    keys = encode(rows, small_rows, delete_only_output_handle_key_columns=True).values.to_pylist()
    bare = [columns_of(packet) for packet in keys]
    assert [[[said.name for said in side] for side in row] for row in whole] == [
        [["id", "val"], []],
        [["id", "val"], ["id", "val"]],
    ]
    assert [said.name for said in bare[0][0]] == ["id"]
    assert bare[1] == whole[1]


@pytest.mark.parametrize("rows", [1, 3, 200])
def test_canal_joined_packet_holds_the_entries_of_its_rows_in_order(rows: int) -> None:
    encoded = encode([({2: b"v" * number}, None) for number in range(rows)], 0)
    joiner = CanalEncoder().joiner
    offsets = pa.array([0, rows], pa.int32())
    keys, values = joiner.join(*(pa.ListArray.from_arrays(offsets, side) for side in (encoded.keys, encoded.values)))
    assert keys.to_pylist() == [None]
    packet = pb.Packet.FromString(values[0].as_py())
    assert packet.SerializeToString() == values[0].as_py()
    each = [
        pb.Messages.FromString(pb.Packet.FromString(packet).body).messages[0] for packet in encoded.values.to_pylist()
    ]
    assert list(pb.Messages.FromString(packet.body).messages) == each
    added = joiner.added_bytes(encoded.keys, encoded.values)
    assert len(packet.body) == added.sum()
    assert len(values[0].as_py()) <= joiner.head_bytes + added.sum()


def test_canal_changefeed_takes_its_option_and_passes_over_those_of_canal_json() -> None:
    uri = "kafka://h:1/t?protocol=canal"
    feed = compile_feed(load_changefeed(uri, {"sink": {"delete-only-output-handle-key-columns": True}}), "default")
    assert feed.encoder == CanalEncoder(delete_only_output_handle_key_columns=True)
    assert feed.row_join is not None
    for option in ("content-compatible", "only-output-updated-columns"):
        config = load_changefeed(uri, {"sink": {option: True}})
        assert config.notes == (f"sink.{option} has no effect: protocol canal does not read it",)
        assert compile_feed(config, "default").encoder == CanalEncoder()


@pytest.mark.parametrize("limit", [10**6, 1500])
def test_canal_rows_of_a_cut_are_joined_between_ddl_within_the_limit_whole_or_in_a_stream(limit: int) -> None:
    config = load_changefeed(f"kafka://h:1/t?protocol=canal&max-message-bytes={limit}")
    feed = compile_feed(config, "default", {"t": 2})
    columns = [column(1, "id", not_null=True, flag=PRIMARY), VAL]
    info = table_info(112, "t1", columns=[spec | {"offset": offset} for offset, spec in enumerate(columns)])
    more = [spec | {"offset": offset} for offset, spec in enumerate([*columns, column(3, "w")])]
    store = snapshot(("test", 1, [info]))
    ddl_ts = COMMIT_TS + 30
    store.apply(job(ddl_ts, 5, schema_id=1, table_id=112, schema="test", query="ALTER TABLE t1 …",
                    table_info=table_info(112, "t1", columns=more)))  # fmt: skip
    changes = []
    for at in range(60):
        key, value = row_key(TableId(112), at), encode_row_v2({2: b"v" * at})
        changes.append(CommittedChange(COMMIT_TS + at, COMMIT_TS - 1, key, "put", value, b"", 0))
    rows = records_of(row_changes(112, changes), store, feed, encoded_at_ms=1)
    ddl = ddl_records(store, Ts(COMMIT_TS), Ts(COMMIT_TS + 60), feed, 1)
    cut = sort_records(join_records([rows, ddl]))
    assert feed.row_join is not None
    whole = feed.row_join.whole(cut)
    streamed = join_records(list(feed.row_join.stream(cut.slice(at, 7) for at in range(0, cut.num_rows, 7))))
    assert sort_records(streamed).equals(whole)
    assert all(len(value) + 36 <= limit for value in whole["value"].to_pylist())
    packets: dict[int, list[str]] = {}
    for record in whole.to_pylist():
        assert record["key"] is None
        for message in pb.Messages.FromString(pb.Packet.FromString(record["value"]).body).messages:
            change = pb.RowChange.FromString(pb.Entry.FromString(message).storeValue)
            said = change.sql or next(c.value for c in change.rowDatas[0].afterColumns if c.name == "id")
            packets.setdefault(record["partition"], []).append(said)
    # All rows of the table are in one partition; the DDL stands in the first, between those before and after it.
    (home,) = set(rows["partition"].to_pylist())
    ids = [str(at) for at in range(60)]
    wanted = {home: ids, 0: ["ALTER TABLE t1 …"]} if home else {0: [*ids[:31], "ALTER TABLE t1 …", *ids[31:]]}
    assert packets == wanted
    assert (whole.num_rows <= 3) is (limit == 10**6)
