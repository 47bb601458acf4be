"""Which tables' rows and DDL go on: without a key, renamed out of the filter and into it, named in another case."""

import json
from dataclasses import replace
from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import ConfigError
from schemas.ids import TableId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.position import RowOp
from schemas.sink.sql_rows import decode_form, decode_rows
from schemas.sink.topic import sink_topic, sorter_config
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from sorters.core.feed.companions import ddl_records
from sorters.core.feed.ddl_filter import RenameIntoFilterError
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.records.order import OutputRecords, sort_records
from tests.support.rawlog.row_records import records_of
from tests.support.recorded.ddl_jobs import column, job, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

TABLE, FIRST_TS, RENAME_TS = TableId(112), 445644800000000001, 445644800000000011


def feed(protocol: str, config: dict[str, Any] | None = None, topics: tuple[str, ...] = ("t",)) -> CompiledFeed:
    settings = {"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value"}]}} | (config or {})
    loaded = load_changefeed(f"kafka://h:1/t?protocol={protocol}", settings)
    return compile_feed(loaded, "default", dict.fromkeys(topics, 3))


def keyless() -> SchemaStore:
    columns = [spec | {"offset": offset} for offset, spec in enumerate([column(1, "a"), column(2, "b")])]
    return snapshot(("test", 1, [table_info(TABLE, "t1", columns=columns, pk_is_handle=False)]))


def update(commit_ts: int = FIRST_TS) -> CommittedChange:
    new, old = encode_row_v2({1: b"\x01", 2: b"\x03"}), encode_row_v2({1: b"\x01", 2: b"\x02"})
    return CommittedChange(commit_ts, commit_ts - 1, row_key(TABLE, 7), "put", new, old, 0)


def rows(compiled: CompiledFeed, schemas: SchemaStore, *changes: CommittedChange) -> OutputRecords:
    return records_of(row_changes(TABLE, list(changes)), schemas, compiled, encoded_at_ms=1)


@pytest.mark.parametrize("protocol", ["canal-json", "canal", "open-protocol", "simple", "debezium"])
def test_table_without_key_goes_on_only_with_force_replicate_all_in_one_partition(protocol: str) -> None:
    assert rows(feed(protocol), keyless(), update()).num_rows == 0
    sent = rows(feed(protocol, {"force-replicate": True}), keyless(), update(), update(FIRST_TS + 1))
    # Without key columns an index-value rule hashes the table's name alone: crc32(b"testt1") % 3.
    assert sent["partition"].to_pylist() == [0, 0]
    assert sent.num_rows == 2
    for key, value in zip(sent["key"].to_pylist(), sent["value"].to_pylist(), strict=True):
        assert b'"h":true' not in value
        assert (key is None) is (protocol in ("canal-json", "canal", "simple"))
        if protocol == "debezium":
            assert json.loads(key)["payload"] == {}
        if protocol == "canal-json":
            said = json.loads(value)
            assert (said["pkNames"], said["old"], said["data"]) == (
                [], [{"a": "1", "b": "2"}], [{"a": "1", "b": "3"}],
            )  # fmt: skip


def test_update_without_key_goes_to_a_database_as_a_delete_by_all_columns_and_an_insert() -> None:
    uri = "mysql://root@unused/"
    info = ChangefeedInfo(changefeed_id="f", upstream=UpstreamId("u"), sink_uri=uri, start_ts=Ts(0))
    config = sorter_config(load_changefeed(uri, {"force-replicate": True}), info, "unused:1")
    compiled = compile_feed(config, "default", {sink_topic(info): 16})
    assert rows(replace(compiled, force_replicate=False), keyless(), update()).num_rows == 0
    sent = sort_records(rows(compiled, keyless(), update(), update(FIRST_TS + 1))).to_pylist()
    name = row_key(TABLE, 7).hex().encode()
    deleted, inserted = b"(`a`<=>1 AND `b`<=>2)/*%s*/" % name, b"/*%s*/" % name
    said = [decode_rows(record["value"]).row(0, decode_form(record["key"])) for record in sent]
    assert [(row.op, row.key, row.row) for row in said] == 2 * [
        (RowOp.DELETE, deleted, b""),
        (RowOp.INSERT, inserted, b"(1,3)"),
    ]
    assert {decode_form(record["key"]).is_keyless for record in sent} == {True}
    assert len({record["partition"] for record in sent}) == 1
    assert len({record["position"] for record in sent}) == 4


def test_avro_refuses_force_replicate() -> None:
    with pytest.raises(ConfigError, match="not allowed with protocol avro"):
        feed("avro&schema-registry=http://h:1", {"force-replicate": True})


def renamed(old: str, new: str) -> SchemaStore:
    schemas = snapshot(("test", 1, [table_info(TABLE, old)]))
    query = f"RENAME TABLE {old} TO {new}"
    schemas.apply(
        job(RENAME_TS, DdlType.RENAME_TABLE, schema_id=1, table_id=TABLE, schema="test", query=query,
            table_info=table_info(TABLE, new), raw_args=[1, {"O": new, "L": new}, "test", 1])
    )  # fmt: skip
    return schemas


def test_table_renamed_out_of_the_filter_sends_the_rename_to_its_old_topic_and_then_nothing() -> None:
    config = {
        "filter": {"rules": ["test.t1"]},
        "sink": {"dispatchers": [{"matcher": ["test.t1"], "topic": "old"}, {"matcher": ["*.*"], "topic": "new"}]},
    }
    compiled, schemas = feed("canal-json", config, ("t", "old", "new")), renamed("t1", "t2")
    # At the DDL's own ts a row is of the table before it.
    sent = rows(compiled, schemas, update(RENAME_TS - 1), update(RENAME_TS), update(RENAME_TS + 1))
    assert [json.loads(value)["es"] for value in sent["value"].to_pylist()] == [RENAME_TS >> 18] * 2
    assert sent["topic"].to_pylist() == ["old", "old"]
    (ddl,) = ddl_records(schemas, Ts(FIRST_TS), Ts(RENAME_TS), compiled, 1).to_pylist()
    said = json.loads(ddl["value"])
    assert (ddl["topic"], ddl["partition"], said["type"], said["table"]) == ("old", 0, "RENAME", "t2")


def test_table_renamed_into_the_filter_stops_the_changefeed() -> None:
    compiled, schemas = feed("canal-json", {"filter": {"rules": ["test.t2"]}}), renamed("t1", "t2")
    assert rows(compiled, schemas, update(RENAME_TS)).num_rows == 0
    with pytest.raises(RenameIntoFilterError, match=r"new_table=test\.t2"):
        ddl_records(schemas, Ts(FIRST_TS), Ts(RENAME_TS), compiled, 1)


@pytest.mark.parametrize(("sensitive", "sent"), [(False, 1), (True, 0)])
def test_filter_in_another_case_matches_unless_the_changefeed_is_case_sensitive(sensitive: bool, sent: int) -> None:
    schemas = snapshot(("test", 1, [table_info(TABLE, "t1")]))
    compiled = feed("canal-json", {"filter": {"rules": ["TEST.T1"]}, "case-sensitive": sensitive})
    assert rows(compiled, schemas, update()).num_rows == sent
