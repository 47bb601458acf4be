"""What a real TiDB wrote, through the sorter into lake tables: at each tag they equal TiDB's own SELECT at its ts."""

from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from compose.stack.local import Addresses
from schemas.changes import Op
from schemas.nodes.changefeed import ChangefeedStatus
from tests.integration.lake.test_lake_sink import lake, nightly, patient, sorter
from tests.support.lakes.duckdb_lake import assert_duckdb_reads_the_same
from tests.support.lakes.lake import Lake
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import Change, RawLog
from tests.support.recorded.recorded_sink import checks_by_ts
from tests.support.recorded.recording import committed_changes, row_table_id
from tests.support.recorded.schema_feed import ddl_records
from tests.support.topics.materialise import NO_KEY, plain

__all__ = ["lake", "sorter"]

REFUSED = {
    "d1.t_part": "partitions that go, are exchanged or reorganised move rows with no row change",
    "d1.t_ex": "it is exchanged with one of them",
    "d1.t_hash": "its partitions are reorganised",
    "d1.t_ddl": "a column gets a type that Iceberg cannot widen to, and the table a new name",
    "d1.t_ddl_renamed": "the same table",
    "bank.acct_a": "an INT becomes a VARCHAR",
    "bank.transfer_log": "it is given another name, and another table its own",
    "bank.transfer_log_old": "the same table",
    "d2.t_pkadd": "it loses its key, which stops any changefeed",
    "d2.t_moved": "it is given another name",
}
"""Tables that an operator leaves out, and why."""
VECTOR_V1 = ("d1.t_v1", "c_vec")
"""TiCDC, and so we, decode a VECTOR of a row in the old format as an empty one (README of the recording)."""


def _points() -> dict[int, list[dict[str, Any]]]:
    """Return the checks of each quiet point by the ts of its last: nobody wrote between them."""
    named = [(ts, check) for ts, checks in checks_by_ts().items() for check in checks if check.get("point")]
    points = {}
    for _, group in groupby(named, key=lambda each: each[1]["point"]):
        checks = list(group)
        points[checks[-1][0]] = [check for _, check in checks]
    return points


def _write(log: RawLog, after_ts: int, upto_ts: int) -> None:
    """Land the rows of user tables within ``(after, upto]``; what a lossy DDL rewrote TiKV does not deliver."""
    by_table: dict[int, list[Change]] = {}
    for change in committed_changes():
        table = row_table_id(change.key)
        if table is not None and after_ts < change.commit_ts <= upto_ts and not change.txn_source >> 8:
            op = Op.PUT if change.op == "put" else Op.DELETE
            row = Change(change.commit_ts, change.key, change.value, change.old_value, change.start_ts, op)
            by_table.setdefault(table, []).append(row)
    for number, (table, changes) in enumerate(by_table.items()):
        log.rows(table, changes, number % log.partitions)
    log.advance(upto_ts)


def _cell(value: Any, kind: str) -> Any:
    if value is not None and kind.removeprefix("UNSIGNED ") in ("DATETIME", "TIMESTAMP", "DATE"):
        # A reader has moments; what no calendar has is NULL.
        text = str(value).removesuffix("+00:00").rstrip("0").rstrip(".") if "." in str(value) else str(value)
        text = text.removesuffix("+00:00")
        year, month, day = text[:10].split("-")
        return None if year == "0000" or "00" in (month, day) else text
    if isinstance(value, Decimal | int) and kind.endswith("BIT"):
        return int(value)
    return plain(value, kind)


def _differences(lake: Lake, name: str, result: dict[str, Any], ts: int) -> list[str]:
    schema, _, table = name.partition(".")
    if lake.metadata(schema, table) is None:
        return [] if not result["rows"] else [f"{name} is not there"]
    chosen = [
        (at, column, kind)
        for at, (column, kind) in enumerate(zip(result["columns"], result["types"], strict=True))
        if (name, column) != VECTOR_V1
    ]
    held = lake.rows(schema, table, ts)
    if held:
        chosen = [each for each in chosen if each[1] in held[0]]  # virtual columns are in no row
    have = Counter(tuple(_cell(row[column], kind) for _, column, kind in chosen) for row in held)
    want = Counter(tuple(_cell(row[at], kind) for at, _, kind in chosen) for row in result["rows"])
    return [f"{ts} {name}: {row} is missing" for row in want - have] + [f"{ts} {name}: {row} is" for row in have - want]


def _reached(ts: int, status: ChangefeedStatus) -> bool:
    return status.checkpoint_ts >= ts or status.state == "failed"


@nightly
@patient
def test_lake_tables_of_the_recording_equal_tidbs_select_at_each_tag(
    stack: Addresses, sorter: Sorter, lake: Lake, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    log = RawLog(stack.kafka, fresh_name("recording"))
    records = list(ddl_records(committed_changes()))
    for record in records:
        log.ddl(record)
    rules = ["*.*", *(f"!{name}" for name in REFUSED)]
    uri = f"iceberg://?warehouse=file://{lake.folder}&mode=upsert&commit-interval=1s"
    log.advance(1)
    sorter.create(log.upstream, uri, start_ts=1, config={"filter": {"rules": rules}})
    sorter.start()
    after_ts, compared, failures = 1, Counter[str](), list[str]()
    for ts, checks in _points().items():
        _write(log, after_ts, ts)
        status = sorter.wait(partial(_reached, ts), 900)
        assert status.checkpoint_ts >= ts, (status.error, failures[:10])
        after_ts = ts
        for check in checks:
            name = check["check"].replace("`", "")
            if name not in REFUSED and name not in NO_KEY:
                failures += _differences(lake, name, check["result"], ts)
                compared[name] += 1
    assert failures == []
    assert len(compared) > 20 and compared["bank.acct_b"] > 3, compared
    rows = 0
    for name in compared:
        schema, _, table = name.partition(".")
        if lake.metadata(schema, table) is not None:
            rows += assert_duckdb_reads_the_same(lake, schema, table, tmp_path)
    assert rows > 100
