"""Lake tables of a REST catalog move by one transaction: no reader sees some of them moved, and whatever is lost on the
way, a sorter killed or an answer, nothing is written twice.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.lake.test_lake_sink import (
    ADD_COLUMN,
    assert_each_tag_is_the_upstream,
    assert_every_change_is_there_once,
    bank,
    nightly,
    patient,
    sorter,
)
from tests.support.lakes.catalog_door import CatalogDoor, Change, LostError, catalog_door, is_of_tags
from tests.support.lakes.duckdb_lake import duckdb_polls
from tests.support.lakes.lake_bank import TABLES, TOTAL, LakeBank
from tests.support.lakes.lake_catalogs import RestLake, rest_server
from tests.support.lakes.lake_kinds import NAME as KINDS
from tests.support.lakes.lake_kinds import TABLE_ID as KINDS_ID
from tests.support.lakes.lake_kinds import kinds_changes
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import START_TS
from tests.support.recorded.ddl_jobs import column, job, table_info

__all__ = ["bank", "sorter"]

ONE_BY_ONE = """
import time
from sorters.run.lake import catalog, table
real, init = table.LakeTable.publish, catalog.LakeCatalog.__init__
def one_by_one(self, *args):
    init(self, *args)
    self.transacts = False
def publish(self, *args, **more):
    if self.name.table == "credit":
        time.sleep(0.5)
    real(self, *args, **more)
catalog.LakeCatalog.__init__, table.LakeTable.publish = one_by_one, publish
"""
"""Planted: tables move one by one, and one of them later."""


@pytest.fixture
def door(tmp_path: Path) -> Iterator[tuple[RestLake, CatalogDoor]]:
    with rest_server(tmp_path / "lake") as lake, catalog_door(lake.address) as door:
        yield replace(lake, address=door.address), door


def _uri(door: CatalogDoor, mode: str) -> str:
    return f"iceberg://?catalog=rest&catalog-uri={door.address}&mode={mode}&commit-interval=1s&compaction-interval=0"


def _assert_nothing_is_twice(lake: RestLake, bank: LakeBank, mode: str, filled_ts: int = 0) -> None:
    """``filled_ts``: where a column's default was written into rows of before, at the watermark that the table had."""
    assert lake.tags("bank", "debit") == lake.tags("bank", "credit")
    if mode == "append":
        assert_every_change_is_there_once(lake, bank)
    else:
        assert_each_tag_is_the_upstream(lake, bank)
    for name in TABLES.values():
        watermarks = [ts for ts in lake.watermarks("bank", name) if ts != filled_ts]
        assert watermarks == sorted(set(watermarks))


def _add_column(bank: LakeBank) -> None:
    """Let a DDL stand at the very end of what is committed, so that tags come after it."""
    bank.ts += 10
    added = table_info(201, TABLES[201])
    added["cols"].append(column(3, "branch", not_null=True, origin_default="7"))
    bank.log.ddl(job(bank.ts, ADD_COLUMN, schema_id=1, table_id=201, schema="bank", table_info=added))


@patient
def test_lake_transaction_whose_answer_is_lost_or_that_is_overtaken_moves_all_tables_once(
    bank: LakeBank, sorter: Sorter, door: tuple[RestLake, CatalogDoor]
) -> None:
    lake, way = door
    sorter.create(bank.log.upstream, f"{_uri(way, 'upsert')}&tags-kept=3", start_ts=START_TS)
    bank.open()
    bank.log.rows(KINDS_ID, kinds_changes(bank.ts))
    sorter.start()
    sorter.wait_checkpoint(bank.advance(), 500)

    def lose(changes: list[Change]) -> None:
        way.after = lambda _: None
        raise LostError

    way.after, asked = lose, len(way.asked)
    bank.transfer(20)
    sorter.wait_checkpoint(bank.advance(), 500)
    assert len(way.asked) == asked + 1, "what the tables say is believed, and nothing is asked again"
    assert {change["identifier"]["name"] for change in way.asked[-1]} == {"debit", "credit", KINDS}

    def overtake(changes: list[Change]) -> None:
        way.before = lambda _: None
        lake.touch("bank", "credit")

    way.before, asked = overtake, len(way.asked)
    bank.transfer(20)
    sorter.wait_checkpoint(bank.advance(), 500)
    assert len(way.asked) == asked + 2
    sorter.wait_checkpoint(bank.advance(), 500)
    bank.transfer(20)
    sorter.wait_checkpoint(bank.advance(), 500)
    assert sorter.stop() == 0
    assert "lake.overtaken" not in sorter.log()
    assert lake.tags("bank", KINDS) == lake.tags("bank", "debit") == set(sorted(bank.at)[-3:])
    _assert_nothing_is_twice(lake, bank, "upsert")


@nightly
@patient
@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("moment", ["before", "after", "tags"])
def test_lake_sorter_killed_about_a_transaction_writes_nothing_twice_and_tags_all_tables(
    bank: LakeBank, sorter: Sorter, door: tuple[RestLake, CatalogDoor], mode: str, moment: str
) -> None:
    lake, way = door
    sorter.create(bank.log.upstream, _uri(way, mode), start_ts=START_TS)
    bank.open()
    sorter.start()
    sorter.wait_checkpoint(bank.advance(), 500)

    def kill(changes: list[Change]) -> None:
        if is_of_tags(changes) == (moment == "tags"):
            way.before = way.after = lambda _: None
            sorter.kill()
            raise LostError

    if moment == "after":
        way.after = kill
    else:
        way.before = kill
    bank.transfer(40)
    if moment == "tags":
        _add_column(bank)
    killed_ts = bank.advance(0 if moment == "tags" else 1_000)
    assert sorter.process is not None
    sorter.process.wait(500)
    killed_at = len(way.asked)
    assert not way.asked[-1] or is_of_tags(way.asked[-1]) == (moment == "tags")
    if moment == "after":
        assert lake.watermarks("bank", "debit")[-1] == lake.watermarks("bank", "credit")[-1] == bank.ts
        assert bank.ts in lake.tags("bank", "debit") & lake.tags("bank", "credit"), "in the same step"
    sorter.start()
    sorter.wait_checkpoint(bank.ts, 500)
    assert len(way.asked) == killed_at + (moment != "after")
    bank.transfer(40)
    sorter.wait_checkpoint(bank.advance(), 500)
    assert sorter.stop() == 0
    _assert_nothing_is_twice(lake, bank, mode, killed_ts if moment == "tags" else 0)


@nightly
@patient
def test_lake_tables_of_a_catalog_without_transactions_move_one_by_one(
    bank: LakeBank, sorter: Sorter, door: tuple[RestLake, CatalogDoor]
) -> None:
    lake, way = door
    way.is_offered = False
    sorter.create(bank.log.upstream, _uri(way, "upsert"), start_ts=START_TS)
    bank.open()
    sorter.start()
    for _ in range(3):
        sorter.wait_checkpoint(bank.advance(), 500)
        bank.transfer(20)
    sorter.wait_checkpoint(bank.advance(), 500)
    assert sorter.stop() == 0
    assert not way.asked
    assert sorter.log().count("catalog moves no tables together") == 1
    _assert_nothing_is_twice(lake, bank, "upsert")


@nightly
@patient
@pytest.mark.parametrize("is_planted", [False, True])
def test_lake_readers_of_main_see_all_tables_at_one_watermark_at_every_moment(
    bank: LakeBank, sorter: Sorter, door: tuple[RestLake, CatalogDoor], tmp_path: Path, is_planted: bool
) -> None:
    lake, way = door
    sorter.create(bank.log.upstream, _uri(way, "upsert"), start_ts=START_TS)
    sorter.trouble = ONE_BY_ONE if is_planted else ""
    bank.open()
    sorter.start()
    sorter.wait_checkpoint(bank.advance(), 500)
    polls = duckdb_polls(lake.address, "bank", list(TABLES.values()), "v", tmp_path)
    with _reading(lake) as seen, polls as seen_by_duckdb:
        for _ in range(12):
            bank.transfer(20)
            sorter.wait_checkpoint(bank.advance(), 500)
        moments = seen_by_duckdb()
    assert sorter.stop() == 0
    by_duckdb = [(moment.main, moment.total, moment.has_same_tags) for moment in moments]
    for by_reader in (seen, by_duckdb):
        mixed = [moment for moment in by_reader if moment[1:] != (TOTAL, True)]
        assert len({moment[0] for moment in by_reader}) > 6, "the reader saw tables move"
        assert bool(mixed) == is_planted
    assert {moment.total_at_tag for moment in moments} == {TOTAL}
    _assert_nothing_is_twice(lake, bank, "upsert")


@contextmanager
def _reading(lake: RestLake) -> Iterator[list[tuple[int, int, bool]]]:
    """Read both tables again and again; of each moment, list its snapshot of one, the sum over both, and whether both
    have the same tags.
    """
    seen, ends = list[tuple[int, int, bool]](), threading.Event()

    def read() -> None:
        while not ends.is_set():
            first = lake.table("bank", "debit")
            second = lake.table("bank", "credit")
            if lake.metadata("bank", "debit") != Path(first.metadata_location.removeprefix("file:")):
                continue  # it moved between the two: this was no moment
            held = [table.scan(snapshot_id=table.refs()["main"].snapshot_id).to_arrow() for table in (first, second)]
            total = sum(sum(rows.column("v").to_pylist()) for rows in held)
            tags = [{name for name in table.refs() if name.startswith("wm_")} for table in (first, second)]
            seen.append((first.refs()["main"].snapshot_id, total, tags[0] == tags[1]))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield seen
    finally:
        ends.set()
        thread.join()
