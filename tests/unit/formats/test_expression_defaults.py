"""Every kind of DEFAULT that TiDB allows, in every protocol: what is no value of the type stops nothing."""

import json
from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version
from sorters.core.encode.avro.encoder import AvroEncoder
from sorters.core.encode.debezium.encoder import DebeziumEncoder
from sorters.core.feed.explain import explain
from sorters.core.feed.feed import compile_feed
from sorters.core.mount import mount
from tests.support.recorded.ddl_jobs import NOT_NULL, PRIMARY, column, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

TEXT = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
NEXT = "nextval(`d`.`folge`)"
# Type, further members of the column, the text that TiDB keeps, and whether it is marked as an expression (TiDB's
# documentation, "Data Type Default Values"; pingcap/tidb `pkg/ddl/add_column.go`, `getFuncCallDefaultValue`).
KINDS: dict[str, tuple[int, dict[str, Any], str, bool]] = {
    **{f"sequence of type {tp}": (tp, {}, NEXT, True) for tp in (1, 2, 3, 4, 5, 8, 9, 13, 246)},
    "sequence of a bit": (16, {"flen": 8}, NEXT.replace("folge", "序"), True),
    "sequence of a text": (15, TEXT, NEXT, True),
    "sequence of a datetime": (12, {}, NEXT, True),
    "sequence of an enum": (247, {**TEXT, "elems": ["a"]}, NEXT, True),
    "sequence of a set": (248, {**TEXT, "elems": ["a"]}, NEXT, True),
    "sequence of a time": (11, {}, NEXT, True),
    "rand": (5, {}, "rand()", True),
    "uuid": (15, TEXT, "uuid()", True),
    "uuid_to_bin": (254, {"flen": 16}, "uuid_to_bin(uuid())", True),
    "date_format": (15, TEXT, "date_format(now(), _utf8mb4'%Y-%m-%d')", True),
    "date_format of a date": (10, {}, "date_format(now(), _utf8mb4'%Y-%m-%d')", True),
    "str_to_date": (12, {}, "str_to_date(_utf8mb4'2024-01-01', _utf8mb4'%Y-%m-%d')", True),
    "json_object": (245, TEXT, "json_object(_utf8mb4'a', 1)", True),
    "vec_from_text": (225, {}, "vec_from_text(_utf8mb4'[1,2]')", True),
    "current_date": (10, {}, "CURRENT_DATE", False),
    "current_timestamp": (12, {"decimal": 3}, "CURRENT_TIMESTAMP", False),
    "current_timestamp of a timestamp": (7, {}, "CURRENT_TIMESTAMP", False),
    "zero date": (10, {}, "0000-00-00", False),
    "zero datetime": (12, {}, "0000-00-00 00:00:00", False),
}
PROTOCOLS = [
    *("kafka://h:1/t?protocol=" + name for name in ("canal-json", "open-protocol", "avro", "debezium", "simple")),
    "kafka://h:1/t?protocol=canal",
    "kafka://h:1/t?protocol=simple&encoding-format=avro",
    "file:///tmp/x?protocol=csv",
    "file:///tmp/x?protocol=canal-json",
    "mysql://u:p@h:1/",
]
# A row that holds only its key: the column is NULL, or its type's zero value.
KEY = b"t" + (7 + (1 << 63)).to_bytes(8, "big") + b"_r" + (1 + (1 << 63)).to_bytes(8, "big")
EMPTY_ROW = bytes([128, 0, 0, 0, 0, 0])


def info_of(kind: str, *, nullable: bool = True) -> dict[str, Any]:
    tp, members, default, is_expression = KINDS[kind]
    spec = column(2, "v", tp=tp, flag=0 if nullable else NOT_NULL, not_null=not nullable, **members)
    spec |= {"default": default, "default_is_expr": is_expression, "offset": 1}
    columns = [column(1, "id", not_null=True, flag=PRIMARY), spec]
    return table_info(7, "t", columns=columns)


def table_of(kind: str, *, nullable: bool = True) -> TableVersion:
    return table_version(info_of(kind, nullable=nullable), schema_id=1, schema="d", version=Ts(1))


def encoded(encoder: Any, table: TableVersion) -> bytes:
    """Return the message of a row."""
    ids = {schema.key: 1 for schema in encoder.schemas(table, "t")}
    rows = row_changes(7, [CommittedChange(9, 8, KEY, "put", EMPTY_ROW, b"", 0)])
    messages = encoder.encode_rows(mount(table, rows), topic="t", encoded_at_ms=1, schema_ids=ids)
    (message,) = messages.values.to_pylist()
    assert isinstance(message, bytes)
    return message


@pytest.mark.parametrize("nullable", [True, False], ids=["null", "zero"])
@pytest.mark.parametrize("uri", PROTOCOLS)
def test_no_default_stops_a_protocol(uri: str, nullable: bool) -> None:
    settings = {"sink": {"schema-registry": "http://h:1"}} if "protocol=avro" in uri else {}
    encoder = compile_feed(load_changefeed(uri, settings), "default").encoder
    for kind in KINDS:
        table = table_of(kind, nullable=nullable)
        assert encoded(encoder, table), kind
        if hasattr(encoder, "encode_bootstrap"):
            assert encoder.encode_bootstrap(table, encoded_at_ms=1).value, kind


@pytest.mark.parametrize("uri", [uri for uri in PROTOCOLS if uri.startswith("kafka")])
def test_explain_takes_every_default(uri: str) -> None:
    config = load_changefeed(uri, {"sink": {"schema-registry": "http://h:1"}} if "protocol=avro" in uri else {})
    tables = [info_of(kind) | {"id": 7 + at, "name": {"O": f"t{at}", "L": f"t{at}"}} for at, kind in enumerate(KINDS)]
    explanation = explain(snapshot(("d", 1, tables)), Ts(10), config, compile_feed(config, "default"), None)
    shown = [table for table in explanation.tables if table.largest_message_bytes]
    assert len(shown) == len(KINDS)


def field_of(kind: str, *, nullable: bool) -> dict[str, Any]:
    *_, value = AvroEncoder().schemas(table_of(kind, nullable=nullable), "t")
    field: dict[str, Any] = json.loads(value.text)["fields"][1]
    return field


@pytest.mark.parametrize("kind", [kind for kind, (*_, is_expression) in KINDS.items() if is_expression])
def test_avro_schemas_leave_an_expression_out(kind: str) -> None:
    assert "default" not in field_of(kind, nullable=False)
    field = field_of(kind, nullable=True)
    assert (field["default"], field["type"][0]) == (None, "null")
    # Magic, schema id 1, id = 0 or 1; branch 0 of the union is null.
    assert encoded(AvroEncoder(), table_of(kind))[:5] == bytes.fromhex("00 00000001")
    assert encoded(AvroEncoder(), table_of(kind))[6:] == b"\0"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind][3] or kind == "current_date"])
def test_debezium_writes_null_for_null_where_the_default_is_an_expression(kind: str) -> None:
    message = json.loads(encoded(DebeziumEncoder(), table_of(kind)))
    assert message["payload"]["after"]["v"] is None
    if KINDS[kind][3]:
        (after,) = [part for part in message["schema"]["fields"] if part["field"] == "after"]
        (field,) = [part for part in after["fields"] if part["field"] == "v"]
        assert "default" not in field
