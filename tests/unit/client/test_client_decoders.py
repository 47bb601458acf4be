"""Messages that TiCDC itself wrote, read by the client library and, on its own, by tests/support/topics/messages.py."""

import io
import json
import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from consumers.client.avro import AvroDecoder
from consumers.client.canal_json import CanalJsonDecoder
from consumers.client.changes import Ddl, Row
from consumers.client.core.partition import PartitionKey, StreamRecord
from consumers.client.errors import MessageError
from schemas.ids import Ts
from schemas.sink.image_note import ImageNote
from schemas.sink.position import Position, PositionClass, RowOp
from tests.support.recorded.recording import oracle
from tests.support.topics.materialise import message_of, plain
from tests.support.topics.messages import AvroDecoder as OracleAvro
from tests.support.topics.messages import Message, TopicRecord, decode_canal_json

PLACE = PartitionKey("t", 3)
OPS = {"insert": RowOp.INSERT, "update": RowOp.UPDATE, "delete": RowOp.DELETE}


def record_of(line: dict[str, Any]) -> tuple[StreamRecord, Position, TopicRecord]:
    key, value = message_of(line)
    ts, start_ts = Ts(line["commit_ts"]), Ts(line["start_ts"])
    if line["op"] == "ddl":
        position = Position(ts, PositionClass.DDL, start_ts)
    else:
        position = Position(ts, PositionClass.ROW, start_ts, OPS[line["op"]])
    return StreamRecord(PLACE, 7, key, value, position.encode()), position, TopicRecord("t", 3, 7, key, value)


def check(change: Row | Ddl, said: Message, position: Position) -> None:
    assert (change.schema, change.table, change.commit_ts, change.start_ts) == (
        said.schema,
        said.table,
        position.commit_ts,
        position.start_ts,
    )
    if isinstance(change, Ddl):
        assert change.query == said.query
        return
    assert change.op == said.op
    assert change.key_names == said.pk
    types = said.types or {}
    for mine, theirs in ((change.columns, said.columns), (change.old, said.old)):
        assert (mine is None) == (theirs is None)
        for name, value in (mine or {}).items():
            assert theirs is not None
            kind = types.get(name, "").split("(")[0].split(" ")[0].upper()
            kind = "BLOB" if kind.endswith("BLOB") else kind
            if (types.get(name) or change.types.get(name, "")).lower() == "bigint unsigned":
                kind = "UNSIGNED BIGINT"  # in Avro's mode long the message has the 64 bits with a sign
                assert value is None or 0 <= value < 1 << 64
            assert plain(value, kind) == plain(theirs[name], kind), (name, kind)
        assert set(mine or {}) == set(theirs or {})


def lines(name: str) -> list[dict[str, Any]]:
    return [
        line
        for line in oracle(f"encoded/{name}")
        if line.get("op") in {*OPS, "ddl"} and (line.get("key") or line.get("value"))
    ]


def test_canal_json_decoder_of_all_recorded_messages_says_what_the_message_says() -> None:
    decoder, recorded = CanalJsonDecoder(), lines("canal-json")
    assert len(recorded) > 1_000
    for line in recorded:
        record, position, topic_record = record_of(line)
        check(decoder(record, position), decode_canal_json(topic_record), position)


def test_canal_json_decoder_gives_values_the_types_of_their_columns() -> None:
    value = (
        b'{"database":"d","table":"t","pkNames":["id"],"isDdl":false,"type":"INSERT","old":null,'
        b'"mysqlType":{"id":"bigint(20) unsigned","f":"double","d":"decimal(10,2)","b":"varbinary(4)","s":"varchar(9)",'
        b'"n":"int"},'
        b'"data":[{"id":"18446744073709551615","f":"1.5","d":"0.10","b":"\\u00ff\\u0000","s":"\\u00fc","n":null}]}'
    )
    position = Position(Ts(9), PositionClass.ROW, Ts(5), RowOp.INSERT, b"k")
    row = CanalJsonDecoder()(StreamRecord(PLACE, 1, None, value, position.encode()), position)
    assert isinstance(row, Row)
    assert row.columns == {
        "id": 18446744073709551615,
        "f": 1.5,
        "d": Decimal("0.10"),
        "b": b"\xff\x00",
        "s": "ü",
        "n": None,
    }
    assert row.key == (18446744073709551615,)


KEY_ALONE = (
    b'{"database":"d","table":"t","pkNames":["id"],"isDdl":false,"type":"%s","old":%s,"mysqlType":{"id":"int"},'
    b'"data":[{"id":"1"}],"_tidb":{"commitTs":9%s}}'
)
MARK = b',"onlyHandleKey":true'


@pytest.mark.parametrize(("op", "old"), [(b"INSERT", b"null"), (b"UPDATE", b'[{"id":"1"}]')])
def test_canal_json_decoder_of_a_row_whose_message_has_the_key_alone_refuses_it(op: bytes, old: bytes) -> None:
    position = Position(Ts(9), PositionClass.ROW, Ts(5), RowOp.INSERT, b"k")
    record = StreamRecord(PLACE, 1, None, KEY_ALONE % (op, old, MARK), position.encode())
    with pytest.raises(MessageError, match=r"key alone.*\(table=d.t, topic=t, partition=3, offset=1\)"):
        CanalJsonDecoder()(record, position)


@pytest.mark.parametrize("mark", [b"", MARK], ids=["delete-only-output-handle-key-columns", "too large"])
def test_canal_json_decoder_of_a_delete_needs_the_key_alone(mark: bytes) -> None:
    position = Position(Ts(9), PositionClass.ROW, Ts(5), RowOp.DELETE, b"k")
    record = StreamRecord(PLACE, 1, None, KEY_ALONE % (b"DELETE", b"null", mark), position.encode())
    row = CanalJsonDecoder()(record, position)
    assert isinstance(row, Row)
    assert (row.op, row.key) == ("delete", (1,))


@pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b'{"database":1', None])
def test_canal_json_decoder_with_something_else_names_the_record(value: bytes | None) -> None:
    position = Position(Ts(9), PositionClass.ROW, Ts(5), RowOp.INSERT, b"k")
    with pytest.raises(MessageError, match=r"topic=t, partition=3, offset=1"):
        CanalJsonDecoder()(StreamRecord(PLACE, 1, None, value, position.encode()), position)


def test_avro_decoder_of_all_recorded_messages_says_what_the_message_says() -> None:
    texts = {
        line["schema_id"]: json.dumps(line["schema"]) for line in oracle("encoded/avro") if line["op"] == "avro_schema"
    }
    decoder, theirs = AvroDecoder(texts.__getitem__), OracleAvro(texts.__getitem__)
    recorded = lines("avro")
    assert len(recorded) > 1_000
    for line in recorded:
        record, position, topic_record = record_of(line)
        check(decoder(record, position), theirs(topic_record), position)


def test_avro_decoder_reads_a_whole_number_as_the_default_of_a_double() -> None:
    """TiCDC registers ``DOUBLE NOT NULL DEFAULT 0`` so."""
    fields: list[dict[str, Any]] = [
        {"name": "id", "type": {"type": "int", "connect.parameters": {"tidb_type": "INT"}}},
        {"name": "v", "default": 0, "type": {"type": "double", "connect.parameters": {"tidb_type": "DOUBLE"}}},
    ]
    row = {"type": "record", "name": "t", "namespace": "default.d", "fields": fields}
    texts = {1: json.dumps({**row, "fields": fields[:1]}), 2: json.dumps(row)}
    key, value = b"\x00\x00\x00\x00\x01\x02", b"\x00\x00\x00\x00\x02\x02" + struct.pack("<d", 2.5)
    position = Position(Ts(9), PositionClass.ROW, Ts(5), RowOp.INSERT, b"k")
    change = AvroDecoder(texts.__getitem__)(StreamRecord(PLACE, 1, key, value, position.encode()), position)
    assert isinstance(change, Row)
    assert change.columns == {"id": 1, "v": 2.5}


def test_avro_decoder_of_a_ddl_and_of_a_note_of_images_names_tables_as_rows_do() -> None:
    decoder = AvroDecoder(dict[int, str]().__getitem__)
    value = b'\x01{"query":"TRUNCATE TABLE `1-o`","type":11,"schema":"my.shop","table":"1-o","commitTs":9}'
    position = Position(Ts(9), PositionClass.DDL, Ts(8))
    ddl = decoder(StreamRecord(PLACE, 1, None, value, position.encode()), position)
    assert ddl == Ddl(schema="my_shop", table="_1_o", query="TRUNCATE TABLE `1-o`", commit_ts=Ts(9), start_ts=Ts(8))
    note = ImageNote(2, (("d", "a-b"), ("d", "c-d")), (("d", "a_b"), ("d", "e f")))
    # Two tables go by a_b, and of one rows are still to come.
    assert decoder.images(note) == ImageNote(2, (("d", "c_d"),), (("d", "a_b"), ("d", "e_f")))
    assert decoder.images(ImageNote(300, (("d", "ü"),))) == ImageNote(300, (("d", "_"),))


@pytest.mark.parametrize("key", [b"", b"\x01abcd", b"\x00\x00\x00\x00\x09rest"])
def test_avro_decoder_with_something_else_names_the_record(key: bytes) -> None:
    position = Position(Ts(9), PositionClass.ROW, Ts(5), RowOp.DELETE, b"k")
    with pytest.raises(MessageError, match=r"topic=t, partition=3, offset=1"):
        AvroDecoder(dict[int, str]().__getitem__)(StreamRecord(PLACE, 1, key, None, position.encode()), position)


ID = {"name": "id", "type": {"type": "long", "connect.parameters": {"tidb_type": "BIGINT UNSIGNED"}}}


def avro_row(
    op: RowOp, key: Mapping[str, Any], value: Mapping[str, Any] | None = None, *fields: Mapping[str, Any]
) -> Row:
    """Read a row of ``d.t`` out of a message with a schema like those that TiCDC registers."""
    schema = {"type": "record", "name": "t", "namespace": "default.d"}
    schemas = [{**schema, "fields": [ID]}, {**schema, "fields": list(fields)}]

    def datum(schema_id: int, content: Mapping[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schemas[schema_id]), dict(content))
        return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()

    position = Position(Ts(9), PositionClass.ROW, Ts(5), op, b"k")
    record = StreamRecord(PLACE, 1, datum(0, key), None if value is None else datum(1, value), position.encode())
    row = AvroDecoder(lambda schema_id: json.dumps(schemas[schema_id]))(record, position)
    assert isinstance(row, Row)
    return row


@pytest.mark.parametrize(
    ("avro_type", "written", "number"),
    [
        ("long", -1, 18446744073709551615),
        ("long", -9223372036854775808, 9223372036854775808),
        ("long", 9223372036854775807, 9223372036854775807),
        ("string", "18446744073709551615", 18446744073709551615),
        ("string", "7", 7),
        ("long", None, None),
    ],
)
def test_avro_decoder_of_an_unsigned_bigint_gives_its_number_in_both_modes(
    avro_type: str, written: int | str | None, number: int | None
) -> None:
    kind = {"type": avro_type, "connect.parameters": {"tidb_type": "BIGINT UNSIGNED"}}
    field = {"name": "u", "type": ["null", kind], "default": None}
    signed = {"name": "s", "type": {"type": "long", "connect.parameters": {"tidb_type": "BIGINT"}}}
    row = avro_row(RowOp.INSERT, {"id": -2}, {"id": -2, "u": written, "s": -3}, ID, field, signed)
    assert row.columns == {"id": 18446744073709551614, "u": number, "s": -3}
    assert row.key == (18446744073709551614,)


def test_avro_decoder_of_a_delete_gives_the_number_of_an_unsigned_key() -> None:
    row = avro_row(RowOp.DELETE, {"id": -2})
    assert (row.op, row.key) == ("delete", (18446744073709551614,))


@pytest.mark.parametrize(
    ("op", "before", "old"),
    [
        (RowOp.INSERT, None, None),
        (RowOp.UPDATE, {"id": 1, "u": -2}, {"id": 1, "u": 18446744073709551614}),
        (RowOp.DELETE, {"id": 1, "u": -1}, None),
    ],
)
def test_avro_decoder_of_a_row_with_the_one_before_gives_it_as_old_of_an_update(
    op: RowOp, before: Mapping[str, Any] | None, old: Mapping[str, Any] | None
) -> None:
    fields = [ID, {**ID, "name": "u"}]
    record = {"type": "record", "name": "t_before", "namespace": "default.d", "fields": fields}
    before_field = {"name": "_ticdc_before", "type": ["null", record], "default": None}
    value = {"id": 1, "u": -1, "_ticdc_before": before}
    row = avro_row(op, {"id": 1}, value, *fields, before_field)
    assert row.op == op.name.lower()
    assert row.columns == {"id": 1, "u": 18446744073709551615}
    assert row.old == old
    assert row.types == {"id": "BIGINT UNSIGNED", "u": "BIGINT UNSIGNED"}
