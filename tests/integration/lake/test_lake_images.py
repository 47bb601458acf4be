"""Lake tables that begin with the rows that TiDB's tables have: images go in by chunk, at each tag all tables are the
upstream, also where the sorter was killed among them.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.image_batch import ScanName
from schemas.rawlog.images import (
    IdRange,
    ImageBarrier,
    ImageChunk,
    ImageFeed,
    ImageScan,
    ImageState,
    KeyRange,
    TableImage,
    image_feed,
)
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
from tests.support.lakes.lake_bank import ACCOUNTS, TABLES, LakeBank, row
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import START_TS, row_key

__all__ = ["bank", "lake", "sorter"]

DEBIT, CREDIT = map(TableId, TABLES)
HALF = ACCOUNTS // 2
LOWER = KeyRange(KeyRange.of_table(DEBIT).start, row_key(DEBIT, HALF))
UPPER = KeyRange(row_key(DEBIT, HALF), KeyRange.of_table(DEBIT).end)
WHOLE = KeyRange.of_table(CREDIT)


@dataclass
class ImagedBank:
    """The bank's tables as a changefeed gets them that begins when they have rows: by two barriers."""

    bank: LakeBank
    feed: str
    image: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """At which ts an account's row went out in an image, and the balance then; of one without: the ts alone counts."""
    barriers: list[int] = field(default_factory=list)
    _said: int = 0

    def advance(self, after: int = 100, **images: Any) -> None:
        """Publish what is there, with what the owner says of images."""
        self._said += 1
        self.bank.advance(after, ImageState(version=(1, self._said), **images))

    def waits(self) -> tuple[ImageFeed, ...]:
        """Return the changefeed as it waits for both tables."""
        return (ImageFeed(feed=self.feed, initial=(IdRange(DEBIT, CREDIT),)),)

    def imaged(self, ranges: tuple[KeyRange, ...], **images: Any) -> tuple[ImageChunk, ...]:
        """Open a barrier some transfers ahead, let the frontier pass it, and land chunks as of it."""
        ts = self.bank.ts + 500
        self.barriers.append(ts)
        scans = tuple(
            ImageScan(
                number=number,
                capture=CaptureId("c"),
                table_id=_physical(keys),
                feeds=(self.feed,),
                keys=keys,
                bytes_max=1 << 24,
            )
            for number, keys in enumerate(ranges)
        )
        low = tuple(self.bank.log.ends)
        barriers = (ImageBarrier(ts=Ts(ts), feeds=(self.feed,), scans=scans, low=low),)
        self.advance(barriers=barriers, **images)
        self.bank.transfer((ts - self.bank.ts) // 10)
        assert self.bank.ts == ts
        landed = []
        for number, keys in enumerate(ranges):
            table = self._table_of(keys)
            within = [account for account in range(ACCOUNTS) if keys.start <= self._key(table, account) < keys.end]
            balances = {
                account: self.bank.balances[table][account]
                for account in within
                if account in self.bank.balances[table]
            }
            self.image |= {(table, account): (ts, balances.get(account, 0)) for account in within}
            rows = {self._key(table, account): row(balance) for account, balance in balances.items()}
            landed.append((number, keys, rows, {(table, account) for account in balances}))
        self.rows |= set().union(*(there for *_, there in landed))
        self.bank.transfer(10)
        self.advance(barriers=barriers, **images)
        log = self.bank.log
        return tuple(
            log.image(ScanName(Ts(ts), number, 0), keys, rows, feeds=(self.feed,)) for number, keys, rows, _ in landed
        )

    def _key(self, table: int, account: int) -> bytes:
        return row_key(self.bank.physical(table, account), account)

    def _table_of(self, keys: KeyRange) -> int:
        return next(table for table in TABLES if _physical(keys) in self.bank.partitions.get(table, (table,)))

    rows: set[tuple[int, int]] = field(default_factory=set)
    """Accounts that an image had a row of."""

    def write(self) -> None:
        """Write all of it, transfers going on."""
        bank = self.bank
        bank.open(is_landed=False)
        bank.transfer(5)
        bank.advance()
        self.advance(feeds=self.waits())
        bank.transfer(5)
        chunks = self.imaged((LOWER,), feeds=self.waits())
        self.advance(feeds=self.waits(), chunks=chunks)
        bank.transfer(10)
        lower = (TableImage(table_id=DEBIT, feeds=(self.feed,), done=(LOWER,)),)
        chunks = self.imaged((UPPER, WHOLE), feeds=self.waits(), tables=lower)
        self.advance(feeds=self.waits(), tables=lower, chunks=chunks)
        bank.transfer(10)
        self.advance(feeds=(ImageFeed(feed=self.feed),))

    def expected(self) -> list[tuple[int, str, int, int, int | None]]:
        """Return the rows that mode append is to have, in no particular order: the image's, and changes above it."""
        rows = [(self.image[name][0], "I", *name, self.image[name][1]) for name in self.rows]
        return rows + [change for change in self.bank.history if change[0] > self.image[change[2], change[3]][0]]


def _physical(keys: KeyRange) -> TableId:
    return TableId(int.from_bytes(keys.start[1:9], "big") - (1 << 63))


def feed_name(sorter: Sorter) -> str:
    path = sorter.paths.changefeed_info("default", sorter.changefeed_id)
    return image_feed("default", sorter.changefeed_id, int(sorter.client.exists(path).czxid))


@nightly
@patient
@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize(
    ("method", "calls", "before"), [("publish", 2, True), ("publish", 2, False), ("tag", 1, False)]
)
def test_lake_tables_with_images_killed_anywhere_have_each_row_once_and_no_tag_before_they_are_whole(
    bank: LakeBank, sorter: Sorter, lake: Lake, tmp_path: Path, mode: str, method: str, calls: int, before: bool
) -> None:
    uri = f"iceberg://?warehouse=file://{lake.folder}&mode={mode}&commit-interval=1s"
    sorter.create(bank.log.upstream, uri, start_ts=START_TS, config={"initial": "snapshot"})
    imaged = ImagedBank(bank, feed_name(sorter))
    imaged.write()
    sorter.trouble = DIES.format(method=method, calls=calls, before=before)
    sorter.start()
    sorter.wait_for_trouble()
    sorter.start()
    sorter.wait_checkpoint(bank.ts, 500)
    bank.transfer(10)
    imaged.advance(feeds=(ImageFeed(feed=imaged.feed),))
    sorter.wait_checkpoint(bank.ts, 500)
    assert sorter.stop() == 0
    tags = lake.tags("bank", "debit")
    assert tags == lake.tags("bank", "credit") and min(tags) > max(imaged.barriers)
    if mode == "upsert":
        assert_each_tag_is_the_upstream(lake, bank)
        assert all(assert_duckdb_reads_the_same(lake, "bank", name, tmp_path) for name in TABLES.values())
        return
    numbers = {name: number for number, name in TABLES.items()}
    rows = [(name, each) for name in numbers for each in lake.rows("bank", name)]
    seen = [(each["_tidb_commit_ts"], each["_tidb_op"], numbers[name], each["id"], each["v"]) for name, each in rows]
    assert sorted(seen) == sorted(imaged.expected())
