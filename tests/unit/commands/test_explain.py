"""What a changefeed would do with each table, against messages written by hand and those that TiCDC made."""

import base64
import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest

from compose.cli import run_cli
from compose.foresight import explain as explains
from compose.foresight.explain import as_lines, explained, recorded_schemas
from compose.stack import spark_files
from schemas.config.changefeed import load_changefeed
from schemas.config.client_options import librdkafka_options
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from sorters.core.feed.explain import ExplainedTable, Explanation, explain
from sorters.core.feed.feed import compile_feed
from sorters.core.feed.widest_row import ROW_BYTES_MAX, widest_message
from sorters.log.topic_admin import SinkTopicLimits
from sorters.run import remount as remounts
from sorters.run.remount import Remount, Remounted
from tests.support.recorded.ddl_jobs import PRIMARY, column, index, snapshot, table_info
from tests.support.recorded.mounting import recorded_store
from tests.support.recorded.recording import TIDB_DATA, oracle

OVERHEAD = 36
TEXT: dict[str, Any] = {"tp": 15, "charset": "utf8mb4", "collation": "utf8mb4_bin"}
ID = column(1, "id", not_null=True, flag=PRIMARY)
EXTENDED = "canal-json&enable-tidb-extension=true"


def store(*more: dict[str, Any], indexes: list[dict[str, Any]] | None = None, name: str = "t1") -> SchemaStore:
    columns = [spec | {"offset": offset} for offset, spec in enumerate([ID, *more])]
    keyless = [spec | {"offset": offset} for offset, spec in enumerate([column(1, "a"), *more])]
    tables = [
        table_info(112, name, columns=columns, indexes=indexes),
        table_info(113, "no_key", columns=keyless, pk_is_handle=False),
    ]
    return snapshot(("test", 1, tables))


def explanation_of(
    protocol: str,
    schemas: SchemaStore,
    *,
    sink: dict[str, Any] | None = None,
    topics: dict[str, SinkTopicLimits] | None = None,
    uri: str = "",
) -> Explanation:
    config = load_changefeed(f"kafka://h:1/t?protocol={protocol}{uri}", {"sink": sink or {}})
    return explain(schemas, Ts(10), config, compile_feed(config, "default"), topics)


def table_of(explanation: Explanation) -> ExplainedTable:
    return next(table for table in explanation.tables if table.table == "test.t1")


def test_largest_canal_json_message_is_an_update_of_the_longest_values() -> None:
    table = table_of(explanation_of(EXTENDED, store(column(2, "val", flen=32, **TEXT))))
    row = '{"id":"-2147483648","val":"' + "x" * 128 + '"}'
    message = (
        '{"id":0,"database":"test","table":"t1","pkNames":["id"],"isDdl":false,"type":"UPDATE","es":1716613769531,'
        '"ts":1700000000000,"sql":"","sqlType":{"id":4,"val":12},"mysqlType":{"id":"int","val":"varchar"},'
        f'"old":[{row}],"data":[{row}],"_tidb":{{"commitTs":450000000000000000}}}}'
    )
    assert table.largest_message_bytes == len(message) + OVERHEAD
    assert (table.limit_bytes, table.row_capped, table.trouble) == (10485760, False, ())


@pytest.mark.parametrize(
    ("protocol", "name"),
    [(EXTENDED, "canal-json"), ("open-protocol", "open-protocol"), ("simple", "simple-json"),
     ("debezium", "debezium"), ("avro&enable-tidb-extension=true&schema-registry=http://h:1", "avro")],
)  # fmt: skip
def test_no_message_that_ticdc_made_is_larger_than_what_was_said_of_its_table(protocol: str, name: str) -> None:
    config = load_changefeed(f"kafka://h:1/t?protocol={protocol}")
    encoder = compile_feed(config, "default").encoder
    largest: dict[tuple[int, int], int] = defaultdict(int)
    for line in oracle(f"encoded/{name}"):
        if line["op"] in ("insert", "update", "delete") and "error" not in line:
            size = sum(len(base64.b64decode(line[side] or "")) for side in ("key", "value"))
            table = recorded_store().table_at(TableId(line["table_id"]), Ts(line["commit_ts"]))
            assert table is not None
            largest[line["table_id"], table.version] = max(largest[line["table_id"], table.version], size)
    assert len(largest) > 30
    for (table_id, version), size in largest.items():
        table = recorded_store().table_at(TableId(table_id), Ts(version + 1))
        assert table is not None
        assert widest_message(table, encoder, "t").bytes >= size, table.name


def test_row_of_large_texts_is_told_by_how_it_grows_and_stops_at_tidbs_own_limit() -> None:
    long = [column(at, f"c{at}", tp=252, flen=65535, charset="utf8mb4", collation="utf8mb4_bin") for at in (2, 3)]
    grown = table_of(explanation_of(EXTENDED, store(*long)))
    # Four texts of 65,535 bytes (two of the row before), and some 600 bytes around them.
    assert grown.largest_message_bytes is not None
    assert 0 < grown.largest_message_bytes - 4 * 65535 < 1000
    assert not grown.row_capped
    endless = column(2, "c", tp=251, flen=-1, charset="utf8mb4", collation="utf8mb4_bin")
    capped = table_of(explanation_of(EXTENDED, store(endless)))
    assert capped.row_capped
    assert capped.largest_message_bytes is not None
    assert 0 < capped.largest_message_bytes - 2 * ROW_BYTES_MAX < 1000
    (trouble,) = capped.trouble
    assert "may become a message of some 1258" in trouble
    assert capped.if_too_large == "the changefeed stops"


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("protocol", [EXTENDED, "open-protocol"])
def test_largest_message_is_told_before_compression(protocol: str, compression: str) -> None:
    large = {"kafka-config": {"large-message-handle": {"large-message-handle-compression": compression}}}
    plain, compressed = (
        table_of(explanation_of(protocol, store(column(2, "v", flen=500, **TEXT)), sink=s)) for s in ({}, large)
    )
    assert plain.largest_message_bytes == compressed.largest_message_bytes


def test_topic_partition_key_and_subjects_are_told_of_each_table() -> None:
    sink = {"dispatchers": [{"matcher": ["*.t1"], "topic": "{schema}_{table}", "partition": "index-value"}]}
    explanation = explanation_of(
        "avro&schema-registry=http://h:1",
        store(column(2, "v")),
        sink=sink,
        topics={"test_t1": SinkTopicLimits(partitions=7, message_bytes_max=100)},
    )
    table = table_of(explanation)
    assert (table.topic, table.topic_exists, table.partitions) == ("test_t1", True, 7)
    assert (table.partition_by, table.message_key, table.columns) == ("table, id", "id", 2)
    assert table.subjects == ("test_t1-key", "test_t1-value")
    assert table.limit_bytes == 100
    keyless = next(table for table in explanation.tables if table.table == "test.no_key")
    assert not keyless.replicated
    assert "no primary key" in keyless.trouble[0]
    rights = {acl.name: acl.operations for acl in explanation.acls}
    assert rights == {
        "test_t1": ("Describe", "DescribeConfigs", "Write"),
        "t": ("Describe", "DescribeConfigs", "Write", "Create"),
        "kafka-cluster": ("DescribeConfigs", "IdempotentWrite"),
    }


def test_settings_that_do_not_fit_a_table_are_told_and_the_others_go_on() -> None:
    sink = {"dispatchers": [{"matcher": ["*.t1"], "partition": "index-value", "index": "nope"}]}
    explanation = explanation_of("canal-json", store(indexes=[index(1, "u", [0], unique=True)]), sink=sink)
    assert "has no index `nope`" in table_of(explanation).trouble[0]
    topics = {"t": SinkTopicLimits(partitions=2, message_bytes_max=100)}
    few = table_of(explanation_of("canal-json", store(), uri="&partition-num=3", topics=topics))
    assert few.trouble[0] == "partition-num is 3, and the topic has 2"
    assert "100 are allowed" in few.trouble[1]


def test_explain_of_tables_that_share_subjects_notes_it() -> None:
    config = load_changefeed("kafka://h:1/t?protocol=avro&schema-registry=http://h:1")
    schemas, at = recorded_schemas(TIDB_DATA, None)
    explanation = explained(config, schemas, at, login=None)
    assert any("tables share its subjects" in note for note in explanation.notes)
    lines = list(as_lines(explanation))
    assert " ".join(lines[0].split()) == "table topic partitions partition by message key columns largest message limit"
    assert any(line.startswith("d1.t_all") and "(6 MiB row)" in line for line in lines)
    assert any(line.startswith("needs: topic t: Describe, ") for line in lines)


def test_explain_command_prints_json_without_asking_anybody(capsys: pytest.CaptureFixture[str]) -> None:
    uri = "kafka://h:1/t?protocol=canal-json"
    assert run_cli(["explain", "--recording", str(TIDB_DATA), "--offline", "--json", "--sink-uri", uri]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {"table", "topic", "largest_message_bytes", "subjects", "trouble"} <= shown["tables"][0].keys()
    assert run_cli(["explain", "--recording", str(TIDB_DATA)]) == 2
    assert "give either --sink-uri or --changefeed-id" in capsys.readouterr().err


SECRET_URI = "kafka://h:1/t?protocol=canal-json&sasl-mechanism=plain&sasl-user=u&sasl-password=${env:TIDEBUS_SECRET_X}"


def test_explain_command_logs_in_with_the_secret_that_a_reference_stands_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logins: list[Mapping[str, object]] = []

    class Admin:
        def __init__(self, login: Mapping[str, object], **_: object) -> None:
            logins.append(login)

        def existing(self, _: object) -> dict[str, SinkTopicLimits]:
            return {}

    monkeypatch.setattr(explains, "TopicAdmin", Admin)
    command = ["explain", "--recording", str(TIDB_DATA), "--sink-uri", SECRET_URI]
    assert run_cli(command) == 0
    assert "a secret that a reference stands for is not here" in capsys.readouterr().err
    monkeypatch.setenv("TIDEBUS_SECRET_X", "hunter2")
    assert run_cli(command) == 0
    assert [login["sasl.password"] for login in logins] == ["hunter2"]
    assert "hunter2" not in "".join(capsys.readouterr())


def test_remount_command_logs_in_with_the_secret_that_a_reference_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[Remount] = []

    def remount(order: Remount, *_: object) -> Remounted:
        orders.append(order)
        return Remounted(rows=0, cuts=0, corrupt_rows=0)

    monkeypatch.setattr(remounts, "remount_alone", remount)
    monkeypatch.setattr(spark_files, "name_spark_files", lambda: None)
    monkeypatch.setenv("TIDEBUS_SECRET_X", "hunter2")
    assert run_cli(["remount", "--from-ts", "3", "--to-ts", "5", "--sink-uri", SECRET_URI, "--kafka", "h:9"]) == 0
    assert librdkafka_options(orders[0].config)["sasl.password"] == "hunter2"


def test_remount_command_refuses_an_empty_interval_before_it_starts_anything(
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri = "kafka://h:1/t?protocol=canal-json"
    arguments = ["remount", "--kafka", "h:1", "--from-ts", "5", "--to-ts", "5", "--sink-uri", uri]
    assert run_cli(arguments) == 2
    assert "--from-ts must be below --to-ts" in capsys.readouterr().err


def test_explain_of_a_database_says_what_flashback_needs_there() -> None:
    config = load_changefeed("mysql://root@h:1/")
    notes = explain(store(), Ts(10), config, compile_feed(config, "default")).notes
    assert any("FLASHBACK DATABASE" in note and "apply.recover_refused" in note for note in notes)
    assert not any("FLASHBACK" in note for note in explanation_of(EXTENDED, store()).notes)
