"""The bank that a real TiDB has recorded, in lake tables: balances at tags between its transfers, a column that becomes
another field, and a table that is renamed, at which the changefeed stops and goes on without it.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compose.stack.local import Addresses
from schemas.nodes.changefeed import ChangefeedStatus
from tests.integration.lake.test_lake_sink import lake, nightly, patient, sorter
from tests.support.lakes.duckdb_lake import assert_duckdb_reads_the_same
from tests.support.lakes.lake import Lake, Row
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import RawLog
from tests.support.recorded.recorded_lake import differences, land, quiet_points
from tests.support.recorded.recording import committed_changes, oracle
from tests.support.recorded.schema_feed import ddl_records

__all__ = ["lake", "sorter"]

TRUNCATE_TS, RENAME_TS, RETYPE_TS = 470615986449940484, 470615986469339136, 470615986681675776
"""transfer_log is emptied, and given another name; acct_a.grade, an INT, becomes a VARCHAR."""
TOTAL = 200_000
ASIDE = f"grade_until_{RETYPE_TS}"


def _sums() -> set[int]:
    """Return when the recording's own reader has seen the sum of all balances."""
    results = (line["result"] for line in oracle("sql") if line.get("phase") == "bank" and line.get("result"))
    rows = (result["rows"][0] for result in results if result["columns"] == ["total", "read_ts"])
    return {int(read_ts) for total, read_ts in rows if int(total) == TOTAL}


def _ended(ts: int, status: ChangefeedStatus) -> bool:
    return status.checkpoint_ts >= ts or status.state == "failed"


def _newest(rows: list[Row], mode: str) -> dict[int, Row]:
    """Return the rows of a table by key; in mode ``append`` by the newest change of each."""
    if mode == "upsert":
        return {row["id"]: row for row in rows}
    newest = dict[int, Row]()
    for row in sorted(rows, key=lambda row: (row["_tidb_commit_ts"], row["_tidb_op"] != "D")):
        newest.pop(row["id"], None)
        if row["_tidb_op"] != "D":
            newest[row["id"]] = row
    return newest


def _transfers(ts: int) -> set[tuple[Any, ...]]:
    """Return transfer_log at a ts before it was renamed, by what TiCDC mounted."""
    rows = dict[str, tuple[Any, ...]]()
    for line in oracle("mounted"):
        if (line["schema"], line["table"]) == ("bank", "transfer_log") and line["commit_ts"] <= ts:
            rows.pop(line["key"], None)
            if line["op"] != "delete" and (line["commit_ts"] > TRUNCATE_TS or ts <= TRUNCATE_TS):
                row = {column["name"]: column["value"] for column in line["columns"]}
                rows[line["key"]] = (int(row["id"]), row["src"], row["dst"], int(row["amount"]))
    return set(rows.values())


def _assert_sums_and_transfers(lake: Lake, mode: str, ts: int) -> None:
    accounts = [_newest(lake.rows("bank", table, ts), mode) for table in ("acct_a", "acct_b")]
    assert [len(each) for each in accounts] == [100, 100]
    assert sum(row["balance"] for each in accounts for row in each.values()) == TOTAL
    if ts < RENAME_TS:
        rows = lake.rows("bank", "transfer_log", ts)
        if mode == "append" and ts > TRUNCATE_TS:
            rows = [row for row in rows if row["_tidb_commit_ts"] > TRUNCATE_TS]
        held = {(row["id"], row["src"], row["dst"], row["amount"]) for row in _newest(rows, mode).values()}
        assert held == _transfers(ts)


def _assert_grades(lake: Lake, mode: str, result: dict[str, Any], ts: int) -> tuple[int, int]:
    """Hold each grade against TiDB's, in the field of before where its row has not changed since; count the rows of
    both kinds.
    """
    at = {name: number for number, name in enumerate(result["columns"])}
    want = {int(row[at["id"]]): row[at["grade"]] for row in result["rows"]}
    last_ts = dict[int, int]()
    for line in oracle("mounted"):
        if (line["schema"], line["table"]) != ("bank", "acct_a") or line["commit_ts"] > ts:
            continue
        if not line.get("txn_source", 0) >> 8:  # what the DDL rewrote, TiKV does not deliver
            last_ts[int(line["handle"]["value"])] = line["commit_ts"]
    kept = changed = 0
    for key, row in _newest(lake.rows("bank", "acct_a", ts), mode).items():
        if last_ts[key] > RETYPE_TS:
            changed += 1
            assert row["grade"] == want[key]
        else:
            kept += 1
            assert row["grade"] is None and str(row[ASIDE]) == want[key]
    return kept, changed


@nightly
@patient
@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_recorded_bank_keeps_its_sum_at_each_tag_through_a_new_type_and_a_new_name(
    stack: Addresses, sorter: Sorter, lake: Lake, fresh_name: Callable[[str], str], tmp_path: Path, mode: str
) -> None:
    log, checks = RawLog(stack.kafka, fresh_name("recording")), quiet_points()
    for record in ddl_records(committed_changes()):
        log.ddl(record)
    uri = f"iceberg://?warehouse=file://{lake.folder}&mode={mode}&commit-interval=1s&type-change=new-column"
    rules = ["bank.*"]
    log.advance(1)
    sorter.create(log.upstream, uri, start_ts=1, config={"filter": {"rules": rules}})
    sorter.start()
    points = [ts for ts, each in checks.items() if any("bank" in check["check"] for check in each)]
    tags = sorted({*(ts for ts in _sums() if ts > points[0]), RENAME_TS - 1, *points})
    assert len(tags) > 12
    after_ts, stops = 1, list[tuple[str, int]]()
    for ts in tags:
        land(log, after_ts, ts)
        status = sorter.wait(partial(_ended, ts), 900)
        if status.state == "failed":
            assert status.error is not None
            stops.append((status.error.code, after_ts))
            ddl = status.error.ddl
            assert ddl is not None and (ddl.table, ddl.commit_ts) == ("bank.transfer_log_old", RENAME_TS)
            rules += re.findall(r'"(!.+?)"', ddl.what_helps)
            assert rules == ["bank.*", "!bank.transfer_log_old"]
            sorter.create(log.upstream, uri, start_ts=1, config={"filter": {"rules": rules}})
            status = sorter.wait(partial(_ended, ts), 900)
        assert status.checkpoint_ts >= ts, status.error
        after_ts = ts
        _assert_sums_and_transfers(lake, mode, ts)
        for check in checks.get(ts, ()):
            name = check["check"].replace("`", "")
            if name in ("bank.acct_b", "bank.extra"):
                assert differences(lake, name, check["result"], ts, append=mode == "append") == []
            if name == "bank.acct_a" and ts > RETYPE_TS:
                kept, changed = _assert_grades(lake, mode, check["result"], ts)
                assert kept and changed
    assert stops == [("lake.schema_refused", RENAME_TS - 1)]
    for table in ("acct_a", "acct_b", "transfer_log"):
        assert assert_duckdb_reads_the_same(lake, "bank", table, tmp_path)
