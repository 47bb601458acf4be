"""canal against TiCDC's canal-json messages of the whole recording: both say the same of each row and DDL.

There is no recording of TiCDC's protobuf. What its packets hold is what its canal-json messages hold, but for fields of
their own (pingcap/tiflow ``pkg/sink/codec/canal/canal_entry.go``); these stand here as literals. Bytes are held against
the protobuf library's: it must read them, and write them again as they were.
"""

import base64
import json
from typing import Any

import pytest

from schemas.ids import Ts
from schemas.proto import canal_pb2 as pb
from sorters.core.encode.canal.protobuf import CanalEncoder
from sorters.core.encode.wire.protocol import Partitions
from sorters.core.mount import mount
from tests.support.recorded.mounting import encoded_oracle, recorded_batches
from tests.support.recorded.recording import oracle

PATHS = [pytest.param(0, id="columnar"), pytest.param(10**9, id="scalar")]
ENCODER = CanalEncoder()
HEADER = {"version": 1, "serverenCode": "UTF-8", "sourceType": pb.MYSQL}


def entries(packet: bytes) -> list[tuple[pb.Header, pb.RowChange]]:
    """Read a packet, and see that the library would have written it so."""
    outer = pb.Packet.FromString(packet)
    assert (outer.version, outer.type) == (1, pb.MESSAGES)
    messages = pb.Messages.FromString(outer.body)
    assert (outer.SerializeToString(), messages.SerializeToString()) == (packet, outer.body)
    changes = []
    for text in messages.messages:
        entry = pb.Entry.FromString(text)
        change = pb.RowChange.FromString(entry.storeValue)
        assert entry.entryType == pb.ROWDATA
        assert (entry.SerializeToString(), change.SerializeToString()) == (text, entry.storeValue)
        assert {name: getattr(entry.header, name) for name in HEADER} == HEADER
        changes.append((entry.header, change))
    return changes


def said_of(columns: Any) -> tuple[dict[str, Any], ...]:
    """Return values, types and keys, each by column, as canal-json has them."""
    for column in columns:
        assert column.HasField("isNull")
        assert not (column.isNull and column.value)
    return (
        {column.name: None if column.isNull else column.value for column in columns},
        {column.name: column.sqlType for column in columns},
        {column.name: column.mysqlType for column in columns},
    )


@pytest.mark.parametrize("small_rows", PATHS)
def test_canal_of_all_recorded_rows_says_what_ticdcs_canal_json_says(small_rows: int) -> None:
    expected, seen = encoded_oracle("canal-json"), 0
    for batch in recorded_batches():
        encoded = ENCODER.encode_rows(mount(batch.table, batch.rows, small_rows=small_rows))
        assert encoded.keys.null_count == len(encoded.keys)
        for row, value in zip(encoded.rows.tolist(), encoded.values.to_pylist(), strict=True):
            ((header, change),) = entries(value)
            wanted = json.loads(expected[batch.row_id(row)].value or b"")
            assert (header.schemaName, header.tableName) == (wanted["database"], wanted["table"])
            assert [(prop.key, prop.value) for prop in header.props] == [("rowsCount", "1")]
            assert header.executeTime == wanted["es"]
            assert pb.EventType.Name(header.eventType) == wanted["type"]
            assert (change.eventType, change.isDdl, change.HasField("isDdl")) == (header.eventType, False, True)
            (data,) = change.rowDatas
            deleted = wanted["type"] == "DELETE"
            filled, unfilled = (data.beforeColumns, data.afterColumns) if deleted else (data.afterColumns, [])
            assert len(unfilled) == 0
            assert said_of(filled) == (wanted["data"][0], wanted["sqlType"], wanted["mysqlType"])
            assert [column.name for column in filled if column.isKey] == wanted["pkNames"]
            assert {column.updated for column in (*data.beforeColumns, *data.afterColumns)} == {not deleted}
            if not deleted:
                assert said_of(data.beforeColumns)[0] == (wanted["old"] or [{}])[0]
            seen += 1
    assert seen == len(expected) == 17_651


def test_canal_ddl_says_what_ticdcs_canal_json_says_and_there_are_no_watermarks() -> None:
    queries = {
        (line["commit_ts"], event["seq"]): event for line in oracle("ddl_events") for event in line.get("events") or []
    }

    class Recorded:
        pre = post = None

        def __init__(self, commit_ts: int, seq: int) -> None:
            event = queries[commit_ts, seq]
            self.schema, self.table, self.query = event["schema"], event["table"], event["restored_query"]
            self.ddl_type, self.commit_ts = event["type_id"], Ts(commit_ts)

    seen = 0
    for line in oracle("encoded/canal-json"):
        if line["op"] != "ddl":
            continue
        seen += 1
        wanted = json.loads(base64.b64decode(line["value"]))
        message = ENCODER.encode_ddl(Recorded(line["commit_ts"], line["seq"]))
        assert message.key is None
        ((header, change),) = entries(message.value)
        assert (header.schemaName, header.tableName) == (wanted["database"], wanted["table"])
        assert (header.executeTime, len(header.props)) == (wanted["es"], 0)
        assert pb.EventType.Name(header.eventType) == pb.EventType.Name(change.eventType) == wanted["type"]
        assert (change.isDdl, change.sql, change.ddlSchemaName) == (True, wanted["sql"], wanted["database"])
        assert len(change.rowDatas) == 0
    assert seen == 97
    assert (ENCODER.ddl_partitions, ENCODER.watermark_partitions) == (Partitions.FIRST, Partitions.NONE)
