"""100,000 tables in one changefeed, rows in 1,000 of them per batch: what do tables cost that have nothing to say?

``python -m tests.bench.spark.many_tables_batch`` prints one JSON line. All tables go to one topic (a dispatcher with a
fixed ``topic``), so that nothing is made per table. ``start_s`` is from the start of the changefeed to its first
checkpoint: the schemas are read and a first batch is written. ``batch_s`` is the median time of batches of 20 rows in
each of 1,000 tables, which the driver does itself; ``ddl_batch_s`` that of batches with an ALTER among them.
``task_batch_s`` is a batch of 300 rows in each, done by Spark tasks: the first, for which the schemas are broadcast,
and the one after an ALTER. ``few_tables_…`` are the same rows with no tables but the 1,000. ``…_cpu_s`` is the driver's
CPU for a batch that it does itself: what stays the same on a busy machine.

Where the CPU of a small batch goes, for each of its 1,000 tables (20 rows, canal-json; measured without a broker): 0.06
ms to take its raw record apart, 0.05 to find version, filter, route and form, and 0.04 for its rows in a pass that is
shared with the tables that look alike (:mod:`sorters.core.rows.shared_pass`); alone, its rows took 0.9. A table that
has nothing to say costs at the start, when its schema is read, packed and held against the dispatcher rules (0.15 ms),
and once in each task's process, which unpickles all schemas for its first batch (4 µs, with Python's collector 26).
"""

import argparse
import json
import os
import pickle
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compose.stack.local import Addresses, LocalStack
from compose.stack.spark_files import name_spark_files
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord
from sorters.spark.session import create_session
from tests.bench.rig.bulk_rows import fill
from tests.bench.rig.changefeed_run import ChangefeedRun
from tests.bench.rig.process_meter import ProcessMeter
from tests.support.rawlog.raw_log import START_TS, RawLog, recorded
from tests.support.recorded.ddl_jobs import job

TABLES_DEFAULT = 100_000
BUSY_TABLES = 1_000
FIRST_TABLE = 1_000
RAW_PARTITIONS = 8
SMALL_ROWS, LARGE_ROWS = 20, 300
"""Of a table in one batch."""
SMALL_BATCHES = 9
ADD_COLUMN = 5
CONFIG = {"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value", "topic": "all-tables"}]}}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=int(os.environ.get("MANY_TABLES", TABLES_DEFAULT)))
    parser.add_argument("--protocol", default="canal-json")
    parser.add_argument("--kafka", default="", help="address; the default starts one here")
    parser.add_argument("--zookeeper", default="-")
    parser.add_argument("--schema-registry", default="-")
    options = parser.parse_args(argv)
    given = Addresses(kafka=options.kafka, zookeeper=options.zookeeper, schema_registry=options.schema_registry)
    with (
        tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder,
        LocalStack(data=Path(folder) / "stack", given=given, say=_say) as stack,
    ):
        name_spark_files()
        spark = create_session("local[2]", "many-tables-batch", Path(folder))
        try:
            few = Run(spark, stack.addresses, Path(folder), options.protocol, BUSY_TABLES).measure()
            many = Run(spark, stack.addresses, Path(folder), options.protocol, options.tables).measure()
        finally:
            spark.stop()
    names = ("batch_s", "batch_cpu_s", "task_batch_s")
    figure = {"bench": "many_tables_batch", **many, **{f"few_tables_{name}": few[name] for name in names}}
    print(json.dumps(figure), flush=True)
    return 0


class Run:
    """One changefeed over so many tables."""

    def __init__(self, spark: Any, addresses: Addresses, folder: Path, protocol: str, tables: int) -> None:
        self._tables, self._protocol = tables, protocol
        self._info, _ = recorded("sbtest1")
        self._name = uuid.uuid4().hex[:8]
        self._log = RawLog(addresses.kafka, f"many-{self._name}", RAW_PARTITIONS)
        self._log.snapshot([self._table(number) for number in range(tables)])
        self._ts, self._rows = int(START_TS), 0
        self._cpu_s = list[float]()
        self._feed = ChangefeedRun(
            spark,
            addresses,
            upstream=self._log.upstream,
            data_dir=folder / self._name,
            name=self._name,
            protocol=protocol,
            config=CONFIG,
        )

    def _table(self, number: int) -> dict[str, Any]:
        name = f"t{number}"
        return {**self._info, "id": FIRST_TABLE + number, "name": {"O": name, "L": name}}

    def measure(self) -> dict[str, Any]:
        """Return the figures."""
        try:
            with ProcessMeter() as meter:
                started = time.monotonic()
                self._feed.run.start()
                self._batch(SMALL_ROWS)
                start_s = time.monotonic() - started
                small = [self._batch(SMALL_ROWS) for _ in range(SMALL_BATCHES)]
                with_ddl = [self._batch(SMALL_ROWS, ddl=number) for number in range(3)]
                large = [self._batch(LARGE_ROWS), self._batch(LARGE_ROWS, ddl=10)]
        finally:
            self._feed.close()
        schemas = self._feed.run._parts.preparation.program.schemas
        return {
            "tables": self._tables,
            "busy_tables": BUSY_TABLES,
            "batch_rows": SMALL_ROWS * BUSY_TABLES,
            "batch_s": round(statistics.median(small), 3),
            "batch_cpu_s": round(statistics.median(self._cpu_s[1 : 1 + SMALL_BATCHES]), 3),
            "ddl_batch_s": round(statistics.median(with_ddl), 3),
            "ddl_batch_cpu_s": round(statistics.median(self._cpu_s[1 + SMALL_BATCHES :][:3]), 3),
            "task_batch_rows": LARGE_ROWS * BUSY_TABLES,
            "task_batch_s": [round(large_s, 2) for large_s in large],
            "start_s": round(start_s, 1),
            "broadcast_mb": round(len(pickle.dumps(schemas)) / 1e6, 1),
            "peak_rss_mb": round(meter.peak_mb),
            "protocol": self._protocol,
        }

    def _batch(self, rows: int, ddl: int | None = None) -> float:
        """Write one batch of rows, and a DDL among them; return how long the sorter takes for it."""
        if ddl is not None:
            self._ts += 1
            info = self._table(ddl)
            record = job(self._ts, ADD_COLUMN, schema_id=1, table_id=info["id"], schema="sb", table_info=info)
            self._log.ddl(DdlRecord(kind="job", ts=Ts(self._ts), start_ts=Ts(self._ts - 1), payload=record.payload))
        first_ts, start, cuts = self._ts + 1, self._rows, len(self._feed.cuts)
        self._ts, self._rows = self._ts + rows * BUSY_TABLES, start + rows * BUSY_TABLES
        fill(
            self._log,
            start,
            self._rows,
            table_of=lambda number: FIRST_TABLE + number,
            ts_of=lambda handles: first_ts + handles - start,
            rows_per_batch=rows,
        )
        before_s = time.process_time()
        self._log.advance(self._ts)
        self._feed.wait(self._ts)
        self._cpu_s.append(time.process_time() - before_s)
        mine = self._feed.cuts[cuts:]
        assert sum(cut.rows for cut in mine) == rows * BUSY_TABLES
        return sum(cut.cut_s for cut in mine)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
