"""Which tables an update of a changefeed brings in, and wants images of; and what the tables are called."""

from dataclasses import replace
from typing import Any

import pytest

from compose.capture.api import upstream_tables
from compose.capture.api.upstream_tables import UpstreamTables
from edges.kafka.access import KafkaAccess
from schemas.ddl.job import DdlType
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

NARROW = {"filter": {"rules": ["d.a"]}}
WIDE = {"filter": {"rules": ["d.*"]}}
SNAPSHOT = {"initial": "snapshot"}
WRONG = {"table-images": {"tables-at-once": 99}}
"""As a version that allowed more may have stored it."""
ALL_BUT_B: dict[str, Any] = {**SNAPSHOT, "initial-rules": [{"matcher": ["d.b"], "initial": "none"}]}


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> UpstreamTables:
    definitions = [{"id": number, "name": {"O": f"p{number}", "L": f"p{number}"}} for number in (51, 52)]
    parted = {**table_info(5, "p"), "partition": {"enable": True, "definitions": definitions}}
    keyless = table_info(8, "keyless", pk_is_handle=False)
    store = snapshot(("d", 1, [table_info(6, "a"), table_info(7, "b"), parted, keyless]))
    monkeypatch.setattr(upstream_tables, "upstream_tables", lambda *_: tuple(store.stored_at(Ts(100))))
    return UpstreamTables(KafkaAccess("h:1"))


def test_an_update_sees_a_table_that_was_renamed_since_the_api_listed_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    store, at = snapshot(("d", 1, [table_info(6, "a")]), ("staging", 2, [table_info(7, "b")])), [Ts(100)]
    monkeypatch.setattr(upstream_tables, "upstream_tables", lambda *_: tuple(store.stored_at(at[0])))
    tables = UpstreamTables(KafkaAccess("h:1"))
    info = ChangefeedInfo(
        changefeed_id="f",
        upstream=UpstreamId("u"),
        sink_uri="kafka://h:1/t?protocol=canal-json",
        config={**SNAPSHOT, **NARROW},
        start_ts=Ts(1),
    )
    assert [stored.table for stored in tables.contained(info)] == ["a"]
    store.apply(job(110, DdlType.RENAME_TABLE, schema_id=1, table_id=7, table_info=table_info(7, "b")))
    at[0] = Ts(110)
    assert tables.coming_in(info, replace(info, config={**SNAPSHOT, **WIDE})) == [7]


@pytest.mark.parametrize(
    ("before", "after", "imaged"),
    [
        ({**SNAPSHOT, **NARROW}, {**SNAPSHOT, **WIDE}, [7, 51, 52]),
        ({**ALL_BUT_B, **NARROW}, {**ALL_BUT_B, **WIDE}, [51, 52]),
        (NARROW, WIDE, []),
        ({**SNAPSHOT, **WIDE}, {**SNAPSHOT, **NARROW}, []),
        ({**SNAPSHOT, **WIDE}, {**SNAPSHOT, **WIDE, "force-replicate": True}, [8]),
        ({**SNAPSHOT, **NARROW, **WRONG}, {**SNAPSHOT, **WIDE}, [7, 51, 52]),
        ({**SNAPSHOT, "filter": {"rules": ["a%.b"]}}, {**SNAPSHOT, **WIDE}, [6, 7, 51, 52]),
    ],
    ids=["wider", "by rule", "no images", "narrower", "tables without a key", "not allowed", "filter not allowed"],
)
def test_what_comes_in_with_other_settings_is_imaged(
    tables: UpstreamTables, before: dict[str, Any], after: dict[str, Any], imaged: list[int]
) -> None:
    uri = "kafka://h:1/t?protocol=canal-json"
    info = ChangefeedInfo(changefeed_id="f", upstream=UpstreamId("u"), sink_uri=uri, config=before, start_ts=Ts(1))
    assert tables.coming_in(info, replace(info, config=after)) == imaged


def test_names_are_of_physical_tables_each_partition_with_its_own(tables: UpstreamTables) -> None:
    first = [
        {"id": 6, "name": "d.a", "partition": ""},
        {"id": 7, "name": "d.b", "partition": ""},
        {"id": 51, "name": "d.p", "partition": "p51"},
        {"id": 52, "name": "d.p", "partition": "p52"},
        {"id": 8, "name": "d.keyless", "partition": ""},
    ]
    assert tables.names(UpstreamId("u"), 2_000) == {"total": 5, "items": first}
    assert tables.names(UpstreamId("u"), 4) == {"total": 5, "items": first[:4]}
