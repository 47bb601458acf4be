"""A DDL that makes rows of a partition come or go stops a lake changefeed; passed by, and the table resynced, it goes
on with the upstream's rows and no others. One by which a table gets another id may be followed twice.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from schemas.ddl.job import DdlType
from schemas.ids import TableId
from schemas.rawlog.images import IdRange, ImageFeed, KeyRange, TableImage, merge_ids, opening_of
from tests.integration.lake.test_lake_images import CREDIT, DEBIT, ImagedBank, feed_name
from tests.integration.lake.test_lake_resync import LEFT, MOVED, parted, parted_bank
from tests.integration.lake.test_lake_sink import (
    DIES,
    assert_every_change_is_there_once,
    bank,
    lake,
    nightly,
    patient,
    sorter,
)
from tests.support.lakes.duckdb_lake import assert_duckdb_reads_the_same
from tests.support.lakes.lake import Lake
from tests.support.lakes.lake_bank import TABLES, LakeBank
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import START_TS
from tests.support.recorded.ddl_jobs import job, table_info

__all__ = ["bank", "lake", "parted_bank", "sorter"]


@dataclass
class _Feed:
    """A changefeed into a lake, and who operates it."""

    bank: LakeBank
    sorter: Sorter
    lake: Lake
    imaged: ImagedBank = field(init=False)
    passed: list[int] = field(default_factory=list)
    """start_ts of DDL."""

    def __post_init__(self) -> None:
        self._create()
        self.imaged = ImagedBank(self.bank, feed_name(self.sorter))

    def _create(self) -> None:
        uri = f"iceberg://?warehouse=file://{self.lake.folder}&mode=upsert&commit-interval=1s"
        config = {"filter": {"ignore-txn-start-ts": self.passed}}
        self.sorter.create(self.bank.log.upstream, uri, start_ts=START_TS, config=config)

    def held(self) -> dict[int, dict[int, int]]:
        return {
            number: {row["id"]: row["v"] for row in self.lake.rows("bank", name)} for number, name in TABLES.items()
        }

    def pass_by(self, type_: DdlType, table: TableId, *partitions: TableId) -> None:
        """Let a DDL stop it, after which the table has these partitions; do what its error says."""
        self.bank.ts += 10
        self.bank.partitions[DEBIT] = partitions
        info = parted(*partitions)
        self.bank.log.ddl(job(self.bank.ts, type_, schema_id=1, table_id=table, schema="bank", table_info=info))
        ddl_ts = self.bank.ts
        self.bank.transfer(30)
        self.bank.advance()
        stopped = self.sorter.wait(lambda status: status.state == "failed", 500)
        assert stopped.error is not None and stopped.error.ddl is not None
        assert (stopped.error.ddl.commit_ts, stopped.checkpoint_ts < ddl_ts) == (ddl_ts, True)
        self.passed.append(stopped.error.ddl.start_ts)
        self._create()
        self.wait()

    def wait(self) -> None:
        """Wait until it is where the bank is."""
        status = self.sorter.wait(lambda status: status.checkpoint_ts >= self.bank.ts or status.state == "failed", 500)
        assert status.state == "normal", status.error

    def resync(self, *tables: TableId) -> None:
        """Let the owner image physical tables anew, as by `tidebus table resync`."""
        imaged, feed = self.imaged, self.imaged.feed
        waits = (ImageFeed(feed=feed, resync=merge_ids(IdRange(each, each) for each in tables)),)
        imaged.advance(feeds=waits)
        openings = {each: opening_of(each) for each in sorted(tables)}
        chunks = imaged.imaged(tuple(openings.values()), feeds=waits)
        imaged.advance(feeds=waits, chunks=chunks)
        begun = tuple(TableImage(table_id=each, feeds=(feed,), done=(keys,)) for each, keys in openings.items())
        chunks = imaged.imaged(tuple(map(KeyRange.of_table, openings)), feeds=waits, tables=begun)
        imaged.advance(feeds=waits, tables=begun, chunks=chunks)
        self.bank.transfer(10)
        imaged.advance(feeds=(ImageFeed(feed=feed),))
        self.wait()


@nightly
@patient
def test_lake_partition_ddl_that_is_passed_by_is_mended_by_a_resync(
    parted_bank: LakeBank, sorter: Sorter, lake: Lake, tmp_path: Path
) -> None:
    bank, feed = parted_bank, _Feed(parted_bank, sorter, lake)
    bank.open()
    bank.transfer(20)
    sorter.start()
    sorter.wait_checkpoint(bank.advance(), 500)

    bank.take(DEBIT, 1)
    feed.pass_by(DdlType.TRUNCATE_PARTITION, DEBIT, LEFT, MOVED)
    assert feed.held() != bank.at[bank.ts], "more than there is"
    feed.resync(LEFT, MOVED)
    assert feed.held() == bank.at[bank.ts]

    for account in [each for each in bank.balances[CREDIT] if each % 2 == 0]:  # of the other partition
        bank.close(CREDIT, account)
    came, went = bank.take(CREDIT, 1), bank.take(DEBIT, 1)
    bank.balances[DEBIT] |= came
    bank.balances[CREDIT] |= went
    bank.partitions[CREDIT] = (MOVED,)
    feed.pass_by(DdlType.EXCHANGE_PARTITION, CREDIT, LEFT, CREDIT)
    assert feed.held() != bank.at[bank.ts]
    feed.resync(LEFT, CREDIT, MOVED)
    assert feed.held() == bank.at[bank.ts]

    bank.take(DEBIT, 1)
    feed.pass_by(DdlType.DROP_PARTITION, DEBIT, LEFT)
    assert feed.held() != bank.at[bank.ts]
    feed.resync(LEFT)
    assert feed.held() == bank.at[bank.ts]
    assert sorter.stop() == 0
    for name in TABLES.values():
        assert "tidebus.resync" not in lake.table("bank", name).properties
        assert assert_duckdb_reads_the_same(lake, "bank", name, tmp_path)


@nightly
@patient
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_lake_sorter_killed_when_a_table_has_been_truncated_reads_rows_of_before_again(
    bank: LakeBank, sorter: Sorter, lake: Lake, mode: str
) -> None:
    uri = f"iceberg://?warehouse=file://{lake.folder}&mode={mode}&commit-interval=1s"
    sorter.create(bank.log.upstream, uri, start_ts=START_TS)
    sorter.trouble = DIES.format(method="evolve", calls=1, before=False)
    bank.open()
    sorter.start()
    sorter.wait_checkpoint(bank.advance(), 500)
    bank.transfer(20)
    bank.ts += 10
    bank.take(DEBIT, 0)
    bank.take(DEBIT, 1)
    bank.partitions[DEBIT] = (MOVED,)
    truncated = job(
        bank.ts,
        DdlType.TRUNCATE_TABLE,
        schema_id=1,
        table_id=DEBIT,
        schema="bank",
        table_info=table_info(MOVED, "debit"),
    )
    bank.log.ddl(truncated)
    for account in range(4):
        bank.put(DEBIT, account, account)
    bank.transfer(20)
    bank.advance()
    sorter.wait_for_trouble()
    sorter.start()
    status = sorter.wait(lambda status: status.checkpoint_ts >= bank.ts or status.state == "failed", 500)
    assert status.state == "normal", status.error
    if mode == "append":
        assert_every_change_is_there_once(lake, bank)
    else:
        assert {row["id"]: row["v"] for row in lake.rows("bank", "debit", bank.ts)} == bank.at[bank.ts][DEBIT]
