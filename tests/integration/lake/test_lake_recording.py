"""What a real TiDB wrote, through the sorter into lake tables: at each tag they equal TiDB's own SELECT at its ts."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from compose.stack.local import Addresses
from schemas.nodes.changefeed import ChangefeedStatus
from tests.integration.lake.test_lake_sink import lake, nightly, patient, sorter
from tests.support.lakes.duckdb_lake import assert_duckdb_reads_the_same
from tests.support.lakes.lake import Lake
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import RawLog
from tests.support.recorded.recorded_lake import differences, land, quiet_points
from tests.support.recorded.recording import committed_changes
from tests.support.recorded.schema_feed import ddl_records
from tests.support.topics.materialise import NO_KEY

__all__ = ["lake", "sorter"]

REFUSED = {
    "d1.t_part": "partitions that go, are exchanged or reorganised move rows with no row change",
    "d1.t_ex": "it is exchanged with one of them",
    "d1.t_hash": "its partitions are reorganised",
    "d1.t_ddl": "a column gets a type that Iceberg cannot widen to, and the table a new name",
    "d1.t_ddl_renamed": "the same table",
    "bank.acct_a": "an INT becomes a VARCHAR (tests/integration/lake/test_lake_bank_recording.py)",
    "bank.transfer_log": "it is given another name, and another table its own (there, too)",
    "bank.transfer_log_old": "the same table",
    "d2.t_pkadd": "it loses its key, which stops any changefeed",
    "d2.t_moved": "it is given another name",
}
"""Tables that an operator leaves out, and why."""


def _reached(ts: int, status: ChangefeedStatus) -> bool:
    return status.checkpoint_ts >= ts or status.state == "failed"


@nightly
@patient
@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_lake_tables_of_the_recording_equal_tidbs_select_at_each_tag(
    stack: Addresses, sorter: Sorter, lake: Lake, fresh_name: Callable[[str], str], tmp_path: Path, mode: str
) -> None:
    log = RawLog(stack.kafka, fresh_name("recording"))
    records = list(ddl_records(committed_changes()))
    for record in records:
        log.ddl(record)
    rules = ["*.*", *(f"!{name}" for name in REFUSED)]
    uri = f"iceberg://?warehouse=file://{lake.folder}&mode={mode}&commit-interval=1s"
    log.advance(1)
    sorter.create(log.upstream, uri, start_ts=1, config={"filter": {"rules": rules}})
    sorter.start()
    after_ts, compared, failures = 1, Counter[str](), list[str]()
    for ts, checks in quiet_points().items():
        land(log, after_ts, ts)
        status = sorter.wait(partial(_reached, ts), 900)
        assert status.checkpoint_ts >= ts, (status.error, failures[:10])
        after_ts = ts
        for check in checks:
            name = check["check"].replace("`", "")
            if name not in REFUSED and name not in NO_KEY:
                failures += differences(lake, name, check["result"], ts, append=mode == "append")
                compared[name] += 1
    assert failures == []
    assert len(compared) > 20 and compared["bank.acct_b"] > 3, compared
    rows = 0
    for name in compared:
        schema, _, table = name.partition(".")
        if lake.metadata(schema, table) is not None:
            rows += assert_duckdb_reads_the_same(lake, schema, table, tmp_path)
    assert rows > 100
