"""Lake tables whose rows come anew: by resync, by backfill, and where a table comes back that had left."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compose.stack.local import Addresses
from schemas.ids import TableId
from schemas.rawlog.images import IdRange, ImageFeed, KeyRange, TableImage, merge_keys, opening_of
from tests.integration.lake.test_lake_images import CREDIT, DEBIT, HALF, LOWER, UPPER, WHOLE, ImagedBank, feed_name
from tests.integration.lake.test_lake_sink import (
    DIES,
    assert_each_tag_is_the_upstream,
    bank,
    lake,
    nightly,
    patient,
    sorter,
)
from tests.support.lakes.duckdb_lake import assert_duckdb_reads_the_same
from tests.support.lakes.lake import Lake
from tests.support.lakes.lake_bank import TABLES, TOTAL, LakeBank
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import START_TS, RawLog, row_key
from tests.support.recorded.ddl_jobs import job, table_info

__all__ = ["bank", "lake", "sorter"]

RENAME = 14
BOTH = (IdRange(DEBIT, CREDIT),)


def _held(lake: Lake) -> dict[int, dict[int, int]]:
    return {number: {row["id"]: row["v"] for row in lake.rows("bank", name)} for number, name in TABLES.items()}


def _rename(bank: LakeBank, name: str, query: str) -> int:
    bank.ts += 10
    bank.log.ddl(
        job(
            bank.ts, RENAME, schema_id=1, table_id=DEBIT, schema="bank", query=query, table_info=table_info(DEBIT, name)
        )
    )
    return bank.ts


@nightly
@patient
@pytest.mark.parametrize(("calls", "before"), [(3, True), (5, False)])
def test_lake_tables_that_are_resynced_have_the_upstreams_rows_and_no_others_also_after_a_kill(
    bank: LakeBank, sorter: Sorter, lake: Lake, tmp_path: Path, calls: int, before: bool
) -> None:
    uri = f"iceberg://?warehouse=file://{lake.folder}&mode=upsert&commit-interval=1s&compaction-interval=1s"
    sorter.create(bank.log.upstream, uri, start_ts=START_TS)
    imaged = ImagedBank(bank, feed_name(sorter))
    bank.open()
    bank.transfer(5)
    bank.advance()
    bank.transfer(60)
    bank.lose()
    sorter.start()
    sorter.wait_checkpoint(bank.advance(), 500)
    sorter.kill()
    assert any(_held(lake)[table].keys() - bank.balances[table].keys() for table in TABLES), "more than there is"

    waits = (ImageFeed(feed=imaged.feed, resync=BOTH),)
    openings = (opening_of(DEBIT), opening_of(CREDIT))
    imaged.advance(feeds=waits)
    done: dict[TableId, tuple[KeyRange, ...]] = {DEBIT: (), CREDIT: ()}
    for ranges in (openings, (LOWER, WHOLE), (UPPER,)):
        tables = tuple(
            TableImage(table_id=table, feeds=(imaged.feed,), done=keys) for table, keys in done.items() if keys
        )
        chunks = imaged.imaged(ranges, feeds=waits, tables=tables)
        imaged.advance(feeds=waits, tables=tables, chunks=chunks)
        for chunk in chunks:
            done[chunk.table_id] = (*done[chunk.table_id], chunk.keys)
        bank.transfer(10)
    imaged.advance(feeds=(ImageFeed(feed=imaged.feed),))

    sorter.trouble = DIES.format(method="publish", calls=calls, before=before)
    sorter.start()
    sorter.wait_for_trouble()
    sorter.start()
    sorter.wait_checkpoint(bank.ts, 500)
    assert sorter.stop() == 0
    held = _held(lake)
    assert held == bank.at[bank.ts]
    assert sum(sum(accounts.values()) for accounts in held.values()) == TOTAL
    for name in TABLES.values():
        assert "tidebus.resync" not in lake.table("bank", name).properties
        assert assert_duckdb_reads_the_same(lake, "bank", name, tmp_path)


LEFT, RIGHT, MOVED = (TableId(each) for each in (211, 212, 213))
REORGANIZE_PARTITION = 64


def parted(*partitions: int) -> dict[str, Any]:
    definitions = [{"id": each, "name": {"O": f"p{each}", "L": f"p{each}"}} for each in partitions]
    return {**table_info(DEBIT, "debit"), "partition": {"enable": True, "definitions": definitions}}


@pytest.fixture
def parted_bank(stack: Addresses, fresh_name: Callable[[str], str]) -> LakeBank:
    """A bank of which one table is partitioned."""
    log = RawLog(stack.kafka, fresh_name("up"))
    log.snapshot([parted(LEFT, RIGHT), table_info(CREDIT, "credit")], schema="bank")
    return LakeBank(log, START_TS, partitions={DEBIT: (LEFT, RIGHT)})


@nightly
@patient
@pytest.mark.parametrize(("calls", "before"), [(4, True), (9, False)])
def test_lake_table_with_partitions_is_resynced_as_one_through_a_reorganization_and_a_kill(
    parted_bank: LakeBank, sorter: Sorter, lake: Lake, tmp_path: Path, calls: int, before: bool
) -> None:
    bank = parted_bank
    uri = f"iceberg://?warehouse=file://{lake.folder}&mode=upsert&commit-interval=1s&compaction-interval=1s"
    sorter.create(bank.log.upstream, uri, start_ts=START_TS)
    imaged = ImagedBank(bank, feed_name(sorter))
    bank.open()
    bank.transfer(5)
    bank.advance()
    bank.transfer(60)
    bank.lose()
    sorter.start()
    sorter.wait_checkpoint(bank.advance(), 500)
    sorter.kill()
    stale = {table: _held(lake)[table].keys() - bank.balances[table].keys() for table in TABLES}
    assert all(stale.values()), "more than there is"

    waiting, done = [CREDIT, LEFT, RIGHT], dict[TableId, tuple[KeyRange, ...]]()

    def image(*ranges: KeyRange) -> None:
        """Let a barrier image ranges as the owner does; what is whole leaves the record behind it."""
        feeds = (ImageFeed(feed=imaged.feed, resync=tuple(IdRange(each, each) for each in waiting)),)
        tables = tuple(TableImage(table_id=table, feeds=(imaged.feed,), done=done[table]) for table in sorted(done))
        chunks = imaged.imaged(ranges, feeds=feeds, tables=tables)
        imaged.advance(feeds=feeds, tables=tables, chunks=chunks)
        bank.transfer(10)
        for chunk in chunks:
            done[chunk.table_id] = merge_keys([*done.get(chunk.table_id, ()), chunk.keys])
            if done[chunk.table_id] == (KeyRange.of_table(chunk.table_id),):
                waiting.remove(chunk.table_id)
                del done[chunk.table_id]

    every = KeyRange.of_table(RIGHT)
    half = row_key(RIGHT, HALF)
    image(opening_of(CREDIT), opening_of(LEFT))
    image(KeyRange.of_table(LEFT), opening_of(RIGHT))
    bank.ts += 10
    bank.partitions[DEBIT] = MOVED, RIGHT  # of what is whole: nothing of it is read again
    bank.log.ddl(
        job(bank.ts, REORGANIZE_PARTITION, schema_id=1, table_id=DEBIT, schema="bank", table_info=parted(MOVED, RIGHT))
    )
    image(KeyRange(every.start, half), KeyRange.of_table(CREDIT))
    image(KeyRange(half, every.end))
    assert not waiting
    imaged.advance(feeds=(ImageFeed(feed=imaged.feed),))

    sorter.trouble = DIES.format(method="publish", calls=calls, before=before)
    sorter.start()
    sorter.wait_for_trouble()
    sorter.start()
    sorter.wait_checkpoint(bank.ts, 500)
    assert sorter.stop() == 0
    assert _held(lake) == bank.at[bank.ts]
    for name in TABLES.values():
        assert "tidebus.resync" not in lake.table("bank", name).properties
        assert assert_duckdb_reads_the_same(lake, "bank", name, tmp_path)


@nightly
@patient
def test_lake_backfill_of_mode_append_is_each_row_once_more_at_the_images_ts(
    bank: LakeBank, sorter: Sorter, lake: Lake
) -> None:
    uri = f"iceberg://?warehouse=file://{lake.folder}&mode=append&commit-interval=1s"
    sorter.create(bank.log.upstream, uri, start_ts=START_TS)
    imaged = ImagedBank(bank, feed_name(sorter))
    bank.open(is_landed=False)
    waits = (ImageFeed(feed=imaged.feed, backfill=(IdRange(CREDIT, CREDIT),)),)
    imaged.advance(feeds=waits)
    chunks = imaged.imaged((WHOLE,), feeds=waits)
    imaged.advance(feeds=waits, chunks=chunks)
    bank.transfer(10)
    imaged.advance(feeds=(ImageFeed(feed=imaged.feed),))
    sorter.start()
    sorter.wait_checkpoint(bank.ts, 500)
    assert sorter.stop() == 0
    numbers = {name: number for number, name in TABLES.items()}
    rows = [(name, row) for name in numbers for row in lake.rows("bank", name)]
    seen = [(row["_tidb_commit_ts"], row["_tidb_op"], numbers[name], row["id"], row["v"]) for name, row in rows]
    again = [(imaged.image[each][0], "I", *each, imaged.image[each][1]) for each in imaged.rows]
    assert len(again) > 5
    assert sorted(seen) == sorted([*bank.history, *again])


@nightly
@patient
def test_lake_table_that_left_the_changefeed_and_comes_back_with_an_image_has_no_row_of_before(
    bank: LakeBank, sorter: Sorter, lake: Lake
) -> None:
    left_ts, back_ts = START_TS + 20_000, START_TS + 30_000
    uri = f"iceberg://?warehouse=file://{lake.folder}&mode=upsert&commit-interval=1s"
    rules = {"rules": ["bank.debit", "bank.credit"]}
    sorter.create(bank.log.upstream, uri, start_ts=START_TS, config={"initial": "snapshot", "filter": rules})
    imaged = ImagedBank(bank, feed_name(sorter))
    imaged.write()
    sorter.start()
    sorter.wait_checkpoint(bank.ts, 500)
    first = _held(lake)[DEBIT].keys()

    bank.ts = left_ts - 10
    assert _rename(bank, "away", "RENAME TABLE debit TO away") == left_ts
    bank.transfer(60)
    imaged.advance(feeds=(ImageFeed(feed=imaged.feed),))
    sorter.wait_checkpoint(bank.ts, 500)
    bank.ts = back_ts - 10
    assert _rename(bank, "debit", "RENAME TABLE away TO debit") == back_ts
    assert first - bank.balances[DEBIT].keys(), "rows have gone meanwhile"
    waits = (ImageFeed(feed=imaged.feed, initial=(IdRange(DEBIT, DEBIT),)),)
    imaged.advance(feeds=waits)
    bank.transfer(10)
    chunks = imaged.imaged((KeyRange.of_table(DEBIT),), feeds=waits)
    imaged.advance(feeds=waits, chunks=chunks)
    bank.transfer(10)
    imaged.advance(feeds=(ImageFeed(feed=imaged.feed),))
    sorter.wait_checkpoint(bank.ts, 500)
    assert sorter.stop() == 0
    assert _held(lake) == bank.at[bank.ts]
    assert_each_tag_is_the_upstream(lake, bank)
    tags = lake.tags("bank", "credit")
    assert not {ts for ts in tags if back_ts <= ts < imaged.barriers[-1]}, "none while the image is to come"
    assert lake.tags("bank", "debit") == {ts for ts in tags if not left_ts <= ts < back_ts}


@nightly
@patient
def test_lake_tables_whose_resync_ended_early_are_compacted_though_they_get_no_more_rows(
    bank: LakeBank, sorter: Sorter, lake: Lake
) -> None:
    uri = f"iceberg://?warehouse=file://{lake.folder}&mode=upsert&commit-interval=1s&compaction-interval=1s"
    sorter.create(bank.log.upstream, uri, start_ts=START_TS)
    imaged = ImagedBank(bank, feed_name(sorter))
    bank.open()
    sorter.start()
    waits, openings = (ImageFeed(feed=imaged.feed, resync=BOTH),), (opening_of(DEBIT), opening_of(CREDIT))
    imaged.advance(feeds=waits)
    chunks = imaged.imaged(openings, feeds=waits)
    imaged.advance(feeds=waits, chunks=chunks)
    begun = tuple(
        TableImage(table_id=table, feeds=(imaged.feed,), done=(keys,))
        for table, keys in zip((DEBIT, CREDIT), openings, strict=True)
    )
    sorter.wait_checkpoint(bank.ts, 500)
    for _ in range(6):  # files enough to be worth it
        bank.transfer(10)
        imaged.advance(feeds=waits, tables=begun)
        sorter.wait_checkpoint(bank.ts, 500)
    for name in TABLES.values():
        assert "tidebus.resync" in lake.table("bank", name).properties
    files = {name: lake.data_files("bank", name) for name in TABLES.values()}
    assert min(files.values()) >= 5, "none was compacted"

    def is_compacted(name: str) -> bool:
        return lake.data_files("bank", name) < files[name]

    deadline = time.monotonic() + 300
    while not all(map(is_compacted, TABLES.values())):
        assert time.monotonic() < deadline, sorter.log()[-2000:]
        imaged.advance(feeds=(ImageFeed(feed=imaged.feed),))
        sorter.wait_checkpoint(bank.ts, 500)
    assert sorter.stop() == 0
    log = (sorter.data_dir / "sorter.log").read_text()
    assert log.count("lake table is backfilled from here on") == len(TABLES)
    for name in TABLES.values():
        assert "tidebus.resync" not in lake.table("bank", name).properties
    assert _held(lake) == bank.at[bank.ts]
