"""Many lake tables are made at once when a changefeed begins, whatever the catalog, also by a run after one that was
killed at it.
"""

from collections.abc import Callable

import pytest

from compose.stack.local import Addresses
from tests.integration.lake.test_lake_catalogs import catalog
from tests.integration.lake.test_lake_sink import nightly, patient, sorter
from tests.support.lakes.lake import Lake
from tests.support.lakes.lake_bank import row
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import START_TS, Change, RawLog, row_key
from tests.support.recorded.ddl_jobs import table_info
from tests.support.storages.aws import aws

__all__ = ["aws", "catalog", "sorter"]

TABLES, MADE = range(301, 325), 11
DIES_CREATING = f"""
import os, signal, threading
from sorters.run.lake.catalog import LakeCatalog
left, lock, real = {MADE}, threading.Lock(), LakeCatalog.create
def create(*args, **more):
    global left
    table = real(*args, **more)
    with lock:
        left -= 1
        if left == 0:
            os.killpg(0, signal.SIGKILL)
    return table
LakeCatalog.create = create
"""


@nightly
@patient
@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("catalog", ["hadoop", "jdbc", "rest"], indirect=True)
def test_lake_sorter_killed_as_it_makes_many_tables_has_told_of_none_and_goes_on_with_the_rest(
    stack: Addresses, sorter: Sorter, catalog: tuple[Lake, str], fresh_name: Callable[[str], str], mode: str
) -> None:
    lake, said = catalog
    log = RawLog(stack.kafka, fresh_name("up"))
    log.snapshot([table_info(number, f"t{number}") for number in TABLES], schema="many")
    uri = f"iceberg://?{said}&mode={mode}&commit-interval=1s&compaction-interval=0"
    sorter.create(log.upstream, uri, start_ts=START_TS)
    sorter.trouble = DIES_CREATING
    for number in TABLES:
        log.rows(number, [Change(START_TS + 10, row_key(number, 1), row(number))])
    log.advance(START_TS + 100)
    sorter.start()
    sorter.wait_for_trouble()
    assert sorter.wait(lambda _: True).checkpoint_ts == START_TS, "no progress is told of before all tables have it"
    files = list(lake.folder.glob("**/*.parquet"))
    assert not files, "no table has rows before all are made"

    sorter.start()
    sorter.wait_checkpoint(START_TS + 100, 500)
    assert sorter.stop() == 0
    for number in TABLES:
        table = f"t{number}"
        assert [(held["id"], held["v"]) for held in lake.rows("many", table)] == [(1, number)]
        assert lake.tags("many", table) == {START_TS + 100}
        assert lake.watermarks("many", table) == [START_TS, START_TS + 100]
