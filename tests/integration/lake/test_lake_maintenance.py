"""Lake tables are compacted and their snapshots expire, by sorter and by hand: no change is lost or written twice."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from compose.stack.local import Addresses
from schemas.rawlog.images import IdRange, ImageFeed, TableImage, opening_of
from tests.integration.lake.test_lake_images import DEBIT, ImagedBank, feed_name
from tests.integration.lake.test_lake_sink import (
    assert_every_change_is_there_once,
    bank,
    lake,
    nightly,
    patient,
    sorter,
)
from tests.support.lakes.lake import Lake
from tests.support.lakes.lake_bank import TABLES, LakeBank
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import START_TS

__all__ = ["bank", "lake", "sorter"]

ROUNDS = 8
DIES_COMPACTING = """
import os, signal
from sorters.run.lake import maintenance
real = maintenance.compact
def compact(table, session):
    done = real(table, session)
    if done.files_before:
        os.killpg(0, signal.SIGKILL)
    return done
maintenance.compact = compact
"""

OVERTAKEN = """
from sorters.run.lake.table import LakeTable
left, real = 2, LakeTable.is_overtaken
def is_overtaken(table):
    global left
    left -= 1
    if left >= 0:
        table.java.newAppend().commit()
    return real(table)
LakeTable.is_overtaken = is_overtaken
"""
"""Two commits find that somebody, who says no watermark, has moved main meanwhile."""


def _uri(lake: Lake, mode: str, interval: str) -> str:
    layout = "partitioning=bucket(2,id)&sort-order=id" if mode == "append" else "partitioning="
    settings = f"mode={mode}&commit-interval=1s&tags-kept=2&compaction-interval={interval}&{layout}"
    return f"iceberg://?warehouse=file://{lake.folder}&{settings}"


def _verb(stack: Addresses, sorter: Sorter, folder: Path, *verb: str, status: int = 0) -> list[dict[str, Any]]:
    name = sorter.changefeed_id
    command = [sys.executable, "-m", "compose.cli", "lake", *verb, "-c", name, "--cluster", name]
    command += ["--zookeeper", stack.zookeeper, "--data-dir", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == status, ran.stderr[-3000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


def _rounds(bank: LakeBank, sorter: Sorter) -> None:
    for _ in range(ROUNDS):
        bank.transfer(10)
        sorter.wait_checkpoint(bank.advance(), 500)


@nightly
@patient
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_lake_sorter_compacts_and_when_killed_at_it_writes_nothing_twice(
    bank: LakeBank, sorter: Sorter, lake: Lake, mode: str
) -> None:
    sorter.create(bank.log.upstream, _uri(lake, mode, "1s"), start_ts=START_TS)
    sorter.trouble = DIES_COMPACTING
    bank.open()
    sorter.start()
    assert sorter.process is not None
    while sorter.process.poll() is None:
        bank.transfer(10)
        bank.advance()
        try:
            sorter.process.wait(2)
        except subprocess.TimeoutExpired:
            continue
    sorter.kill()
    sorter.trouble = ""
    sorter.start()
    _rounds(bank, sorter)
    assert sorter.stop() == 0
    files = sum(lake.data_files("bank", name) for name in TABLES.values())
    assert files < ROUNDS * len(TABLES)
    assert len(lake.tags("bank", "debit")) == 2
    assert "replace" in lake.operations("bank", "debit")
    if mode == "append":
        assert_every_change_is_there_once(lake, bank)
        assert lake.partition_fields("bank", "debit") == ["bucket[2]"]
    else:
        held = {number: {row["id"]: row["v"] for row in lake.rows("bank", name)} for number, name in TABLES.items()}
        assert held == bank.at[bank.ts]


@nightly
@patient
def test_lake_verbs_compact_and_expire_and_the_next_run_goes_on_where_the_tables_are(
    stack: Addresses, bank: LakeBank, sorter: Sorter, lake: Lake, tmp_path: Path
) -> None:
    sorter.create(bank.log.upstream, _uri(lake, "append", "0s"), start_ts=START_TS)
    bank.open()
    sorter.start()
    _rounds(bank, sorter)
    assert sorter.stop() == 0
    before = lake.data_files("bank", "debit")
    compacted = _verb(stack, sorter, tmp_path / "verb", "compact")
    assert {line["table"] for line in compacted} == {"bank.debit", "bank.credit"}
    assert lake.data_files("bank", "debit") < before
    snapshots = len(lake.table("bank", "debit").snapshots())
    expired = _verb(stack, sorter, tmp_path / "verb", "expire", "--older-than", "0s")
    counts = {str(line["table"]): line["snapshots_expired"] for line in expired}
    assert len(lake.table("bank", "debit").snapshots()) == snapshots - int(str(counts["bank.debit"])) < snapshots
    assert_every_change_is_there_once(lake, bank)
    for ts in lake.tags("bank", "debit"):
        assert lake.rows("bank", "debit", ts)
    sorter.start()
    _rounds(bank, sorter)
    assert_every_change_is_there_once(lake, bank)


@nightly
@patient
def test_lake_verb_leaves_a_table_that_is_resynced_and_says_so_until_the_sorter_finds_that_it_is_over(
    stack: Addresses, bank: LakeBank, sorter: Sorter, lake: Lake, tmp_path: Path
) -> None:
    uri = f"iceberg://?warehouse=file://{lake.folder}&mode=upsert&commit-interval=1s&compaction-interval=0s"
    sorter.create(bank.log.upstream, uri, start_ts=START_TS)
    sorter.trouble = "from sorters.run import lake_run; lake_run.SETTLED_S = 1.0"
    imaged = ImagedBank(bank, feed_name(sorter))
    bank.open()
    sorter.start()
    waits = (ImageFeed(feed=imaged.feed, resync=(IdRange(DEBIT, DEBIT),)),)
    imaged.advance(feeds=waits)
    imaged.advance(feeds=waits, chunks=imaged.imaged((opening_of(DEBIT),), feeds=waits))
    begun = (TableImage(table_id=DEBIT, feeds=(imaged.feed,), done=(opening_of(DEBIT),)),)
    for _ in range(6):  # files enough to be worth it
        bank.transfer(10)
        imaged.advance(feeds=waits, tables=begun)
        sorter.wait_checkpoint(bank.ts, 500)
    files = {name: lake.data_files("bank", name) for name in TABLES.values()}
    said = {line["table"]: line for line in _verb(stack, sorter, tmp_path / "verb", "compact", status=1)}
    assert said["bank.credit"]["files_before"] and lake.data_files("bank", "credit") < files["credit"]
    assert "left" not in said["bank.credit"]
    assert lake.data_files("bank", "debit") == files["debit"]
    left = said["bank.debit"]["left"]
    assert START_TS < left["since_ts"] < bank.ts and "resync" in left["why"] and left["since"] and left["what_helps"]

    deadline = time.monotonic() + 300
    while "tidebus.resync" in lake.table("bank", "debit").properties:
        assert time.monotonic() < deadline, sorter.log()[-2000:]
        imaged.advance(feeds=(ImageFeed(feed=imaged.feed),))
        sorter.wait_checkpoint(bank.ts, 500)
    assert lake.data_files("bank", "debit") == files["debit"], "the sorter compacts nothing"
    assert all("left" not in line for line in _verb(stack, sorter, tmp_path / "verb", "compact"))
    assert lake.data_files("bank", "debit") < files["debit"]
    held = {number: {row["id"]: row["v"] for row in lake.rows("bank", name)} for number, name in TABLES.items()}
    assert held == bank.at[bank.ts]


@nightly
@patient
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_lake_commit_that_a_compaction_overtakes_is_written_again_and_once(
    bank: LakeBank, sorter: Sorter, lake: Lake, mode: str
) -> None:
    sorter.create(bank.log.upstream, _uri(lake, mode, "0s"), start_ts=START_TS)
    sorter.trouble = OVERTAKEN
    bank.open()
    sorter.start()
    for _ in range(2):
        bank.transfer(10)
        sorter.wait_checkpoint(bank.advance(), 500)
    assert "written again" in sorter.log()
    if mode == "append":
        assert_every_change_is_there_once(lake, bank)
    else:
        held = {number: {row["id"]: row["v"] for row in lake.rows("bank", name)} for number, name in TABLES.items()}
        assert held == bank.at[bank.ts]
    assert len(lake.tags("bank", "debit")) == 2
