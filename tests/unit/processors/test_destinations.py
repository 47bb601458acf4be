"""What a changefeed would do with each table where its sink is no Kafka, by hand and over a recording of a TiDB."""

import json
from dataclasses import replace
from typing import Any

import pytest

from compose.capture.api import lake_refusals
from compose.capture.api.lake_refusals import KnownRefusals
from compose.cli import run_cli
from compose.foresight import destinations
from compose.foresight.destinations import DestinedTable, LakeRefusals, as_lines, destined
from compose.foresight.explain import recorded_schemas
from compose.foresight.first_messages import messages_of
from compose.foresight.recorded import read_recorded_log
from schemas.config.changefeed import load_changefeed
from schemas.config.settings import ChangefeedConfig
from schemas.config.sink.iceberg import LakeMode
from schemas.ddl.schema_change import StoredTable, stored_table
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.tidb.table import TableVersion
from sorters.core.lake.columns import fits_unread
from tests.support.recorded.ddl_jobs import PRIMARY, column, snapshot, table_info
from tests.support.recorded.mounting import recorded_store
from tests.support.recorded.recording import TIDB_DATA

ID = column(1, "id", not_null=True, flag=PRIMARY)
STORE = snapshot(
    (
        "shop",
        1,
        [
            table_info(112, "items", columns=[ID, column(2, "price", tp=8) | {"offset": 1}]),
            table_info(113, "no_key", columns=[column(1, "a")], pk_is_handle=False),
            table_info(114, "odd:name", columns=[ID]),
        ],
    )
)
ROUTE = {"sink": {"dispatchers": [{"matcher": ["shop.items"], "target-schema": "copy", "target-table": "things"}]}}


def tables(uri: str, config: dict[str, Any] | None = None) -> dict[str, DestinedTable]:
    return {table.table: table for table in destined(load_changefeed(uri, config), STORE, Ts(10)).tables}


def test_table_of_a_database_goes_to_its_routed_name_by_its_key() -> None:
    shown = tables("mysql://root@127.0.0.1:3306/", ROUTE)
    items = shown["shop.items"]
    assert (items.target, items.key, items.columns, items.trouble) == ("copy.things", "id", 2, ())
    assert not shown["shop.no_key"].replicated and "no primary key" in shown["shop.no_key"].trouble[0]


@pytest.mark.parametrize(
    ("parameters", "separator", "folder"),
    [
        ("protocol=csv", "day", "shop/items/VERSION/DATE/"),
        ("protocol=canal-json", "none", "shop/items/VERSION/"),
        ("protocol=csv&use-table-id-as-path=true", "year", "112/VERSION/YEAR/"),
    ],
)
def test_table_of_files_goes_to_its_folder(parameters: str, separator: str, folder: str) -> None:
    shown = tables(f"file:///w?{parameters}", {"sink": {"date-separator": separator}})
    assert shown["shop.items"].target == folder


def test_lake_table_has_iceberg_types_and_what_cannot_be_one_says_why() -> None:
    uri = "iceberg://?warehouse=file:///w&mode=upsert&namespace=lake&partitioning=bucket(4,id)"
    shown = tables(uri, {"sink": {"iceberg-config": {"sort-order": "price desc"}}})
    items = shown["shop.items"]
    assert (items.target, items.key) == ("lake.shop.items", "id")
    assert [(each.name, each.type) for each in items.types] == [("id", "int"), ("price", "long")]
    assert items.layout == "partitioned by bucket(4, id), ordered by price descending"
    assert "without `/`" in shown["shop.odd:name"].trouble[0]
    appended = tables("iceberg://?warehouse=file:///w")["shop.items"]
    assert [each.name for each in appended.types][2:] == ["_tidb_op", "_tidb_commit_ts", "_tidb_commit_time"]
    assert appended.key == "none: each change is a row"
    bare = tables("iceberg://?warehouse=file:///w&emit-metadata-columns=false")["shop.items"]
    assert [each.name for each in bare.types] == ["id", "price"]


@pytest.mark.parametrize(
    ("uri", "config", "refused"),
    [
        (
            "iceberg://?warehouse=file:///w&mode=upsert",
            {},
            [
                ("shop.no_key", "changefeed.table_ineligible", "force-replicate is off"),
                ("shop.odd:name", "lake.schema_refused", "without `/`"),
            ],
        ),
        ("iceberg://?warehouse=file:///w", {"force-replicate": True, "filter": {"rules": ["shop.no_key"]}}, []),
    ],
)
def test_lake_says_which_tables_it_refuses_or_passes_over_and_why(
    uri: str, config: dict[str, Any], refused: list[tuple[str, str, str]]
) -> None:
    shown = LakeRefusals(load_changefeed(uri, config)).among(STORE.stored_at(Ts(10)))
    assert [(each.table, each.code) for each in shown] == [(table, code) for table, code, _ in refused]
    assert all(why in each.reason for each, (*_, why) in zip(shown, refused, strict=True))
    helps = {each.table: each.what_helps for each in shown}
    assert "primary key" in helps.get("shop.no_key", "primary key")
    odd = helps.get("shop.odd:name", "target-table !shop.`odd:name`")
    assert "target-table" in odd and "!shop.`odd:name`" in odd


def test_routes_that_meet_in_one_name_are_a_note() -> None:
    config = {"sink": {"dispatchers": [{"matcher": ["shop.*"], "target-table": "one"}]}}
    destination = destined(
        load_changefeed("mysql://root@127.0.0.1:3306/", config | {"force-replicate": False}), STORE, Ts(10)
    )
    assert any(note.startswith("it would stop: [sorter.table_route_conflict]") for note in destination.notes)
    assert any(line.startswith("note: it would stop") for line in as_lines(destination))


def test_command_explains_each_kind_of_sink_over_the_recording(capsys: pytest.CaptureFixture[str]) -> None:
    schemas, at = recorded_schemas(TIDB_DATA, None)
    wanted = {table.table for table in destined(load_changefeed("iceberg://?warehouse=file:///w"), schemas, at).tables}
    assert len(wanted) > 20
    for uri, kind in (("iceberg://?warehouse=file:///w", "lake"), ("file:///w?protocol=csv", "files")):
        assert run_cli(["explain", "--recording", str(TIDB_DATA), "--sink-uri", uri, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["kind"] == kind
        assert {table["table"] for table in shown["tables"]} == wanted


@pytest.mark.parametrize(
    "uri", ["mysql://root@127.0.0.1:3306/", "file:///w?protocol=csv", "iceberg://?warehouse=file:///w&mode=upsert"]
)
def test_first_rows_of_a_sink_without_messages_are_those_that_tidb_wrote(uri: str) -> None:
    config = load_changefeed(uri, {"filter": {"rules": ["bank.acct_a"]}, **ROUTE})
    rows, refused = messages_of(read_recorded_log(TIDB_DATA), recorded_store(), config)
    assert refused == [] and len(rows) > 50
    assert {row["table"] for row in rows} == {"bank.acct_a"}
    assert {row["op"] for row in rows} == {"insert", "update"}
    assert all(set(json.loads(row["value"]["text"])) >= {"id"} for row in rows)
    assert [row["commit_ts"] for row in rows] == sorted(row["commit_ts"] for row in rows)


def test_lake_looks_once_at_each_version_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = list[str]()

    def noted(stored: StoredTable, mode: LakeMode) -> bool:
        looked_at.append(stored.table)
        return fits_unread(stored, mode)

    monkeypatch.setattr(destinations, "fits_unread", noted)
    config = {"force-replicate": True, "filter": {"rules": ["shop.*", "!shop.no_key"]}}
    refusals = LakeRefusals(load_changefeed("iceberg://?warehouse=file:///w", config))
    items, _, odd = sorted(STORE.stored_at(Ts(10)), key=lambda stored: stored.table_id)
    assert [each.table for each in refusals.among([odd, items])] == ["shop.odd:name"]
    assert [each.table for each in refusals.among([items, odd])] == ["shop.odd:name"]
    assert sorted(looked_at) == ["items", "odd:name"]
    clash = [ID, column(2, "_tidb_op") | {"offset": 1}]
    changed = stored_table(table_info(112, "items", columns=clash), schema_id=1, schema="shop", version=Ts(20))
    assert [each.table for each in refusals.among([changed])] == ["shop.items"]
    assert refusals.among([items]) == [], "as it was before the ddl"
    assert looked_at[2:] == ["items", "items"], "what was not asked for last is forgotten"


def test_lake_decodes_only_tables_that_something_speaks_against(monkeypatch: pytest.MonkeyPatch) -> None:
    real, decoded = StoredTable.decode, list[str]()

    def decode(stored: StoredTable) -> TableVersion:
        decoded.append(stored.table)
        return real(stored)

    monkeypatch.setattr(StoredTable, "decode", decode)
    sink = {"dispatchers": [{"matcher": ["shop.`odd:name`"], "target-table": "plain"}]}
    for config, refused, read in (
        ({}, ["shop.odd:name"], ["odd:name"]),
        ({"sink": sink}, [], []),
    ):
        refusals = LakeRefusals(load_changefeed("iceberg://?warehouse=file:///w", {"force-replicate": True, **config}))
        assert [each.table for each in refusals.among(STORE.stored_at(Ts(10)))] == refused
        assert decoded == read
        decoded.clear()


def test_refusals_of_a_lake_are_kept_by_its_settings_and_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ChangefeedConfig] = []

    class Made(LakeRefusals):
        def __init__(self, config: ChangefeedConfig) -> None:
            made.append(config)
            super().__init__(config)

    monkeypatch.setattr(lake_refusals, "LakeRefusals", Made)
    monkeypatch.setattr(lake_refusals, "FEEDS_KEPT", 2)
    known, stored = KnownRefusals(), list(STORE.stored_at(Ts(10)))
    append = ChangefeedInfo(
        changefeed_id="a", upstream=UpstreamId("u"), sink_uri="iceberg://?warehouse=file:///w",
        config={"force-replicate": True}, start_ts=Ts(1),
    )  # fmt: skip
    upsert = replace(append, config={}, sink_uri="iceberg://?warehouse=file:///w&mode=upsert")
    elsewhere = replace(append, upstream=UpstreamId("v"))
    for info, refused, count in (
        (append, ["shop.odd:name"], 1),
        (replace(append, changefeed_id="b", start_ts=Ts(5)), ["shop.odd:name"], 1),
        (upsert, ["shop.no_key", "shop.odd:name"], 2),
        (append, ["shop.odd:name"], 2),
        (elsewhere, ["shop.odd:name"], 3),
        (append, ["shop.odd:name"], 3),
        (upsert, ["shop.no_key", "shop.odd:name"], 4),
    ):
        assert [each.table for each in known.among(info, stored)] == refused
        assert len(made) == count
