"""``bdr-mode``: what another replication wrote stays here, and only the primary cluster's DDL is sent on."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from compose.foresight.dry_run import prepare
from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import SchemaChange
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError
from schemas.ids import TableId
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from sorters.core.feed.ddl_filter import events_to_send
from sorters.core.feed.feed import compile_feed
from tests.support.rawlog.row_records import records_of
from tests.support.recorded.ddl_jobs import PRIMARY, column, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import TIDB_DATA, CommittedChange, committed_changes, oracle
from tests.support.recorded.schema_feed import ddl_records

URI = "kafka://h:1/t?protocol=canal-json&partition-num=1"
BDR = {"bdr-mode": True}


def recorded(config: dict[str, Any]) -> tuple[Counter[tuple[int, int, str]], Counter[str]]:
    """Return the recording's row messages by what tells them apart, and all messages by kind."""
    refused: list[BusError] = []
    rows, kinds = Counter[tuple[int, int, str]](), Counter[str]()
    for line in prepare(TIDB_DATA, load_changefeed(URI, config), refused=refused.append).records():
        kinds[line["op"]] += 1
        if line["op"] not in ("ddl", "watermark"):
            rows[line["commit_ts"], line["start_ts"], line["op"]] += 1
    return rows, kinds


def test_bdr_mode_leaves_out_the_recorded_row_of_another_replication_and_ddl_without_role() -> None:
    (foreign,) = (row for row in oracle("mounted") if row.get("txn_source", 0) & 0xFF)
    (whole, _), (own, kinds) = recorded({}), recorded(BDR)
    # Rows of tables that such DDL made or changed are there: it has changed the schema all the same.
    assert whole - own == {(foreign["commit_ts"], foreign["start_ts"], foreign["op"]): 1}
    assert not own - whole
    assert kinds["ddl"] == 0


@pytest.mark.parametrize(
    ("source", "bdr", "sent"),
    [(0, True, True), (1, True, False), (15, True, False), (1, False, True), (256, True, True)],
)
def test_bdr_mode_looks_at_the_write_source_alone(source: int, bdr: bool, sent: bool) -> None:
    columns = [column(1, "id", not_null=True, flag=PRIMARY), column(2, "val")]
    info = table_info(112, "t1", columns=[spec | {"offset": offset} for offset, spec in enumerate(columns)])
    change = CommittedChange(
        1 << 50, 1 << 49, row_key(TableId(112), 1), "put", encode_row_v2({2: b"\x01"}), b"", source
    )
    feed = compile_feed(load_changefeed(URI, {"bdr-mode": bdr}), "default", {"t": 1})
    records = records_of(row_changes(112, [change]), snapshot(("test", 1, [info])), feed, encoded_at_ms=0)
    assert records.num_rows == sent


@pytest.mark.parametrize(("role", "sent"), [("primary", True), ("secondary", False), ("", False)])
def test_bdr_mode_sends_ddl_of_the_primary_cluster_alone(role: str, sent: bool) -> None:
    store = SchemaStore.empty()
    applied = (store.apply(record) for record in ddl_records(committed_changes()))
    change = next(change for change in applied if change is not None and change.job.type is DdlType.CREATE_TABLE)
    with_role: SchemaChange = replace(change, job=replace(change.job, bdr_role=role))
    assert bool(events_to_send(with_role, compile_feed(load_changefeed(URI, BDR), "default"))) is sent
    assert events_to_send(with_role, compile_feed(load_changefeed(URI), "default"))
