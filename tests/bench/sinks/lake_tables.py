"""What a commit costs where a changefeed has many lake tables, and one of them has rows.

``python -m tests.bench.sinks.lake_tables`` prints a JSON line for each number of tables. Each table has a row of its
own, then each commit brings one row of one table. ``first_s`` is how long it took until all were made and tagged;
``created_s`` is the part of it between the first table being there and all. ``commit_s`` and ``commit_cpu_s`` are the
least of some commits: the row, and the tag of its watermark on every table.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from compose.stack.local import LocalStack
from compose.stack.spark_files import name_spark_files
from schemas.ids import RegionId
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from tests.bench.rig.bulk_rows import bulk_rows
from tests.bench.rig.process_meter import ProcessMeter
from tests.support.lakes.lake import Lake
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import START_TS, RawLog, recorded

TABLES = (10, 100, 300)
COMMITS = 4
FIRST_TABLE_ID = 1_000
PATIENCE_S = 1_800.0
LOOKS_S = 0.05
"""Between two looks at which tables are there."""


def main() -> int:
    """Measure each number of tables; print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, nargs="+", default=TABLES)
    counts = parser.parse_args().tables
    name_spark_files()
    with tempfile.TemporaryDirectory() as name, LocalStack(data=Path(name) / "stack", say=_say) as stack:
        for tables in counts:
            figure = _measure(stack.addresses.kafka, stack.addresses.zookeeper, Path(name) / str(tables), tables)
            print(json.dumps({"bench": "lake_tables", "tables": tables, **figure}), flush=True)
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _measure(kafka: str, zookeeper: str, folder: Path, tables: int) -> dict[str, Any]:
    name = f"lake-tables-{tables}"
    info, _ = recorded("sbtest1")
    log, lake = RawLog(kafka, name), Lake(folder / "lake")
    ids = range(FIRST_TABLE_ID, FIRST_TABLE_ID + tables)
    log.snapshot([{**info, "id": each, "name": {"O": f"t{each}", "L": f"t{each}"}} for each in ids])
    sorter = Sorter(kafka, zookeeper, folder / "sorter", name, longest_pause_s=LOOKS_S)
    uri = f"iceberg://?warehouse=file://{lake.folder}&mode=append&commit-interval=1s&compaction-interval=0"
    try:
        sorter.create(log.upstream, uri, start_ts=START_TS)
        sorter.start()
        began_at = time.monotonic()
        _land(log, list(ids), START_TS + 10)
        created_s = _created_s(lake, tables)
        sorter.wait_checkpoint(START_TS + 10, PATIENCE_S)
        first_s = time.monotonic() - began_at
        commits = [_commit(log, sorter, START_TS + 100 * number) for number in range(1, COMMITS + 1)]
    finally:
        sorter.close()
    last_ts = START_TS + 100 * COMMITS
    assert all(last_ts in lake.tags("sb", f"t{each}") for each in ids), "every table has the tag of the last commit"
    return {
        "first_s": round(first_s, 1),
        "created_s": round(created_s, 1),
        "commit_s": round(min(took_s for took_s, _ in commits), 2),
        "commit_cpu_s": round(min(cpu_s for _, cpu_s in commits), 2),
        "load": round(os.getloadavg()[0], 2),
    }


def _created_s(lake: Lake, tables: int) -> float:
    """Wait until so many tables are there; return the seconds from the first of them to the last."""
    began_at, deadline = None, time.monotonic() + PATIENCE_S
    while (made := len(list(lake.folder.glob("*/*/metadata/v1.metadata.json")))) < tables:
        assert time.monotonic() < deadline, f"{made} of {tables} tables are there"
        if made and began_at is None:
            began_at = time.monotonic()
        time.sleep(LOOKS_S)
    return 0.0 if began_at is None else time.monotonic() - began_at


def _commit(log: RawLog, sorter: Sorter, ts: int) -> tuple[float, float]:
    """Land a row of one table; return how long its commit took, and the CPU seconds of the sorter and its JVM."""
    assert sorter.process is not None
    with ProcessMeter(sorter.process.pid) as meter:
        began_at = time.monotonic()
        _land(log, [FIRST_TABLE_ID], ts)
        sorter.wait_checkpoint(ts, PATIENCE_S)
        took_s = time.monotonic() - began_at
    return took_s, meter.cpu_s


def _land(log: RawLog, table_ids: list[int], ts: int) -> None:
    """Write a row of each table, and the frontier that covers them."""
    for number, table_id in enumerate(table_ids):
        rows = bulk_rows(table_id, np.array([ts - START_TS], np.int64), np.array([ts], np.int64))
        record = encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1)
        log.raw(record, number % log.partitions)
    log.advance(ts)


if __name__ == "__main__":
    sys.exit(main())
