"""Lake tables written by a sorter process and read by pyiceberg: at each tag all tables are the upstream's, also where
the process was killed within a commit.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from compose.stack.local import Addresses
from tests.support.lakes.duckdb_lake import duckdb_polls
from tests.support.lakes.lake import Lake, Row
from tests.support.lakes.lake_bank import TABLES, TOTAL, LakeBank
from tests.support.lakes.lake_kinds import NAME as KINDS
from tests.support.lakes.lake_kinds import (
    TABLE_ID,
    evolved_change,
    evolved_rows,
    evolved_table,
    kinds_changes,
    kinds_rows,
    kinds_table,
)
from tests.support.processes.sorter_process import Sorter
from tests.support.processes.sorter_service import ServiceCluster
from tests.support.rawlog.raw_log import START_TS, RawLog
from tests.support.recorded.ddl_jobs import PRIMARY, column, job, table_info

DROP_SCHEMA, DROP_TABLE, ADD_COLUMN, MODIFY_COLUMN, RECOVER_TABLE, MULTI_SCHEMA_CHANGE, RECOVER_SCHEMA = (
    *(2, 4, 5, 12, 25),
    *(61, 63),
)
nightly = pytest.mark.skipif(
    "NIGHTLY_LAKE" not in os.environ, reason="takes minutes: NIGHTLY_LAKE=1, as `make nightly`"
)

patient = pytest.mark.timeout(1800)
"""Nothing here is measured: a machine that runs much else may take its time."""


@pytest.fixture
def bank(stack: Addresses, fresh_name: Callable[[str], str]) -> LakeBank:
    log = RawLog(stack.kafka, fresh_name("up"))
    log.snapshot([*(table_info(number, name) for number, name in TABLES.items()), kinds_table()], schema="bank")
    return LakeBank(log, START_TS)


@pytest.fixture
def sorter(stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path) -> Iterator[Sorter]:
    sorter = Sorter(stack.kafka, stack.zookeeper, tmp_path / "sorter", fresh_name("feed"))
    yield sorter
    sorter.close()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def _uri(lake: Lake, mode: str) -> str:
    return f"iceberg://?warehouse=file://{lake.folder}&mode={mode}&commit-interval=1s"


def assert_each_tag_is_the_upstream(lake: Lake, bank: LakeBank) -> None:
    tags = {ts for ts in lake.tags("bank", "debit") & lake.tags("bank", "credit") if ts in bank.at}
    assert bank.ts in tags
    for ts in tags:
        held = {number: {row["id"]: row["v"] for row in lake.rows("bank", name, ts)} for number, name in TABLES.items()}
        assert held == bank.at[ts]
        assert sum(sum(accounts.values()) for accounts in held.values()) == TOTAL


def assert_every_change_is_there_once(lake: Lake, bank: LakeBank) -> None:
    numbers = {name: number for number, name in TABLES.items()}
    rows = [(name, row) for name in numbers for row in lake.rows("bank", name)]
    seen = [(row["_tidb_commit_ts"], row["_tidb_op"], numbers[name], row["id"], row["v"]) for name, row in rows]
    assert sorted(seen) == sorted(bank.history)


def _add_column(bank: LakeBank, table: int) -> None:
    """Add a column whose default rows of before hold from then on."""
    bank.ts += 10
    added = table_info(table, TABLES[table])
    added["cols"].append(column(3, "branch office", not_null=True, origin_default="7"))
    record = job(bank.ts, ADD_COLUMN, schema_id=1, table_id=table, schema="bank", table_info=added)
    bank.log.ddl(record)


def _put_kinds(bank: LakeBank) -> None:
    bank.ts += 10
    bank.log.rows(TABLE_ID, kinds_changes(bank.ts))


def _evolve_kinds(bank: LakeBank) -> None:
    """Drop, rename and widen columns in one statement, and insert a row that needs it."""
    bank.ts += 10
    bank.log.ddl(
        job(bank.ts, MULTI_SCHEMA_CHANGE, schema_id=1, table_id=TABLE_ID, schema="bank", table_info=evolved_table())
    )
    bank.ts += 10
    bank.log.rows(TABLE_ID, [evolved_change(bank.ts)])


def _start(bank: LakeBank, sorter: Sorter, lake: Lake) -> None:
    """Have a changefeed of mode upsert write what there is in the beginning."""
    sorter.create(bank.log.upstream, _uri(lake, "upsert"), start_ts=START_TS)
    bank.open()
    bank.transfer(10)
    sorter.start()
    sorter.wait_checkpoint(bank.advance(), 500)


def _by_id(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(row["id"]))


@patient
def test_lake_tables_at_each_tag_are_the_upstream_also_after_ddl(bank: LakeBank, sorter: Sorter, lake: Lake) -> None:
    sorter.create(bank.log.upstream, _uri(lake, "upsert"), start_ts=START_TS, time_zone="Asia/Shanghai")
    bank.open()
    bank.transfer(30)
    _put_kinds(bank)
    sorter.start()
    first_ts = bank.advance()
    sorter.wait_checkpoint(first_ts, 500)
    _add_column(bank, 201)
    _evolve_kinds(bank)
    bank.transfer(30)
    last_ts = bank.advance()
    sorter.wait_checkpoint(last_ts, 500)
    assert lake.tags("bank", "debit") & set(bank.at) == {first_ts, last_ts}
    assert_each_tag_is_the_upstream(lake, bank)
    assert {row["branch office"] for row in lake.rows("bank", "debit")} == {7}
    assert lake.branches("bank", "debit") == {"main"}
    assert _by_id(lake.rows("bank", KINDS, first_ts)) == kinds_rows()
    assert _by_id(lake.rows("bank", KINDS, last_ts)) == evolved_rows()


@patient
def test_lake_tables_of_a_database_that_flashback_brings_back_go_on_and_a_renamed_one_stops(
    bank: LakeBank, sorter: Sorter, lake: Lake
) -> None:
    _start(bank, sorter, lake)
    database, args = {"id": 1, "db_name": {"O": "bank", "L": "bank"}}, {"recover_info": {"LoadTablesOnExecute": True}}
    query = "flashback database bank"
    bank.log.ddl(job(bank.ts + 10, DROP_SCHEMA, schema_id=1, schema="bank", query="drop database bank"))
    bank.log.ddl(job(bank.ts + 20, RECOVER_SCHEMA, schema="", query=query, db_info=database, raw_args=args))
    bank.ts += 20
    bank.transfer(10)
    sorter.wait_checkpoint(bank.advance(), 500)
    assert_each_tag_is_the_upstream(lake, bank)
    bank.log.ddl(job(bank.ts + 10, DROP_TABLE, schema_id=1, table_id=201, schema="bank", query="drop table debit"))
    back, query = table_info(201, "debit_back"), "flashback table debit to debit_back"
    bank.ts += 20
    bank.log.ddl(job(bank.ts, RECOVER_TABLE, schema_id=1, table_id=201, schema="bank", query=query, table_info=back))
    bank.advance()
    stopped = sorter.wait(lambda status: status.error is not None, 500)
    assert stopped.error is not None
    assert (stopped.error.code, "tidebus table backfill" in stopped.error.message) == ("lake.schema_refused", True)
    ddl = stopped.error.ddl
    assert ddl is not None and (ddl.table, ddl.query, ddl.commit_ts) == ("bank.debit_back", query, bank.ts - 1000)


@patient
def test_lake_changefeed_that_a_ddl_stops_names_it_and_goes_on_by_the_setting_that_helps(
    bank: LakeBank, sorter: Sorter, lake: Lake
) -> None:
    _start(bank, sorter, lake)
    before_ts, query = bank.ts, "alter table debit modify v text"
    bank.ts += 10
    text = column(2, "v", tp=15, charset="utf8mb4", collation="utf8mb4_bin")
    info = table_info(201, "debit", columns=[column(1, "id", not_null=True, flag=PRIMARY), text])
    bank.log.ddl(job(bank.ts, MODIFY_COLUMN, schema_id=1, table_id=201, schema="bank", query=query, table_info=info))
    ddl_ts = bank.ts
    bank.advance()
    status = sorter.wait(lambda status: status.state == "failed", 500)
    assert status.error is not None and status.error.ddl is not None
    ddl = status.error.ddl
    assert (ddl.table, ddl.query, ddl.commit_ts, ddl.start_ts) == ("bank.debit", query, ddl_ts, ddl_ts - 1)
    assert ddl.reason == "Iceberg cannot make string of int" and status.error.code == "lake.schema_refused"
    assert "type-change=new-column" in ddl.what_helps and '"!bank.debit"' in ddl.what_helps
    assert before_ts <= status.checkpoint_ts < ddl_ts
    sorter.create(bank.log.upstream, f"{_uri(lake, 'upsert')}&type-change=new-column", start_ts=START_TS)
    sorter.wait_checkpoint(ddl_ts, 500)
    fields = [each.name for each in lake.table("bank", "debit").schema().fields]
    assert fields == ["id", f"v_until_{ddl_ts}", "v"]


@nightly
@patient
def test_lake_table_that_somebody_has_turned_back_stops_the_changefeed_and_says_what_helps(
    bank: LakeBank, sorter: Sorter, lake: Lake
) -> None:
    _start(bank, sorter, lake)
    bank.transfer(10)
    sorter.wait_checkpoint(bank.advance(), 500)
    sorter.kill()
    lake.turn_back("bank", "debit")
    bank.transfer(10)
    bank.advance()
    sorter.start()
    stopped = sorter.wait(lambda status: status.error is not None, 500)
    assert stopped.error is not None and stopped.error.code == "lake.watermark_lost"
    assert "bank.debit" in stopped.error.message and "let main show the tag's snapshot again" in stopped.error.message


@nightly
@patient
def test_lake_changefeeds_of_a_sorter_service_are_written_in_one_session(
    stack: Addresses, bank: LakeBank, lake: Lake, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    log = Lake(tmp_path / "log")
    cluster = ServiceCluster(stack.kafka, stack.zookeeper, fresh_name("services"), tmp_path / "services")
    with closing(cluster):
        cluster.create("upsert", bank.log.upstream, _uri(lake, "upsert"), start_ts=START_TS)
        cluster.create("append", bank.log.upstream, _uri(log, "append"), start_ts=START_TS)
        cluster.assign({"one": [cluster.assigned("upsert"), cluster.assigned("append")]})
        cluster.start("one")
        bank.open()
        bank.transfer(30)
        cluster.wait_checkpoints(["upsert", "append"], bank.advance(), 500)
        cluster.kill("one")
        bank.transfer(30)
        cluster.start("one")
        cluster.wait_checkpoints(["upsert", "append"], bank.advance(), 500)
    assert_each_tag_is_the_upstream(lake, bank)
    assert_every_change_is_there_once(log, bank)


@nightly
@patient
def test_lake_log_without_metadata_columns_has_the_row_of_each_change_once_also_after_a_kill_and_ddl(
    bank: LakeBank, sorter: Sorter, lake: Lake
) -> None:
    sorter.create(bank.log.upstream, f"{_uri(lake, 'append')}&emit-metadata-columns=false", start_ts=START_TS)
    sorter.trouble = DIES.format(method="publish", calls=4, before=False)
    bank.open()
    bank.transfer(20)
    sorter.start()
    sorter.wait_checkpoint(bank.advance(), 500)
    bank.transfer(40)
    bank.advance()
    sorter.wait_for_trouble()
    sorter.start()
    before_ddl = len(bank.history)
    sorter.wait_checkpoint(bank.ts, 500)
    _add_column(bank, 201)
    bank.transfer(20)
    sorter.wait_checkpoint(bank.advance(), 500)
    assert sorter.stop() == 0
    for number, name in TABLES.items():
        rows = lake.rows("bank", name)
        assert {*rows[0]} == {"id", "v"} | ({"branch office"} if number == 201 else set())
        changes = [(account, balance) for _, _, table, account, balance in bank.history if table == number]
        assert sorted((row["id"], row["v"]) for row in rows) == sorted(changes)
    later = sum(table == 201 for _, _, table, *_ in bank.history[before_ddl:])
    branches = [row["branch office"] for row in lake.rows("bank", "debit")]
    assert (branches.count(7), branches.count(None)) == (later, len(branches) - later)
    assert lake.tags("bank", "debit") == lake.tags("bank", "credit")


TINY_MEMORY = """
from sorters.run import lake_run
from sorters.run.lake import held_changes
lake_run.RAW_BYTES_MAX, held_changes.HELD_BYTES_MAX, held_changes.GROUP_BYTES = 1_000, 2_000, 2_000
"""


@nightly
@patient
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_lake_commit_that_does_not_fit_in_memory_is_the_upstream_and_published_at_once(
    bank: LakeBank, sorter: Sorter, lake: Lake, mode: str
) -> None:
    sorter.create(bank.log.upstream, _uri(lake, mode), start_ts=START_TS)
    sorter.trouble = TINY_MEMORY
    bank.open()
    sorter.start()
    sorter.wait_checkpoint(bank.advance(), 500)
    before = lake.data_files("bank", "debit")
    bank.transfer(60)
    sorter.wait_checkpoint(bank.advance(), 500)
    assert sorter.stop() == 0
    assert "cut is too large to hold" in sorter.log()
    assert lake.data_files("bank", "debit") > before + 1, "one commit, and several files"
    assert len(lake.watermarks("bank", "debit")) == len(set(lake.watermarks("bank", "debit")))
    if mode == "append":
        assert_every_change_is_there_once(lake, bank)
    else:
        assert_each_tag_is_the_upstream(lake, bank)


DIES = """
import os, signal
from sorters.run.lake.table import LakeTable
left = {calls}
def dying(method):
    def call(*args, **more):
        global left
        left -= 1
        if left <= 0 and {before}:
            os.killpg(0, signal.SIGKILL)
        done = method(*args, **more)
        if left <= 0:
            os.killpg(0, signal.SIGKILL)
        return done
    return call
LakeTable.{method} = dying(LakeTable.{method})
"""


@nightly
@patient
@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize(
    ("method", "calls", "before"),
    [("publish", 3, True), ("publish", 3, False), ("tag", 3, False), ("begin", 4, False), ("publish", 4, False)],
)
def test_lake_sorter_killed_within_a_commit_writes_nothing_twice_and_tags_all_tables(
    bank: LakeBank, sorter: Sorter, lake: Lake, mode: str, method: str, calls: int, before: bool
) -> None:
    sorter.create(bank.log.upstream, _uri(lake, mode), start_ts=START_TS)
    sorter.trouble = DIES.format(method=method, calls=calls, before=before)
    bank.open()
    sorter.start()
    sorter.wait_checkpoint(bank.advance(), 500)
    bank.transfer(40)
    bank.advance()
    sorter.wait_for_trouble()
    bank.transfer(40)
    bank.advance()
    sorter.start()
    sorter.wait_checkpoint(bank.ts, 500)
    assert sorter.stop() == 0
    assert lake.tags("bank", "debit") == lake.tags("bank", "credit")
    if mode == "append":
        assert_every_change_is_there_once(lake, bank)
    else:
        assert_each_tag_is_the_upstream(lake, bank)
    for name in TABLES.values():
        watermarks = lake.watermarks("bank", name)
        assert watermarks == sorted(set(watermarks))


LATER = """
import time
from sorters.run.lake.table import LakeTable
real = LakeTable.publish
def publish(self, *args, **more):
    if self.name.table == "credit":
        time.sleep(0.5)
    real(self, *args, **more)
LakeTable.publish = publish
"""


@nightly
@patient
def test_lake_reader_that_polls_a_catalog_of_files_sees_all_tables_at_one_ts_by_tags_and_not_by_main(
    bank: LakeBank, sorter: Sorter, lake: Lake, tmp_path: Path
) -> None:
    sorter.create(bank.log.upstream, _uri(lake, "upsert"), start_ts=START_TS)
    sorter.trouble = LATER
    bank.open()
    sorter.start()
    sorter.wait_checkpoint(bank.advance(), 500)
    with duckdb_polls(str(lake.folder), "bank", list(TABLES.values()), "v", tmp_path) as seen:
        for _ in range(10):
            bank.transfer(20)
            sorter.wait_checkpoint(bank.advance(), 500)
        moments = seen()
    assert sorter.stop() == 0
    assert len({moment.tag for moment in moments}) > 6, "the reader saw tables move"
    assert {moment.total_at_tag for moment in moments} == {TOTAL}
    assert {moment.total for moment in moments} > {TOTAL}, "some moments were between two tables"
