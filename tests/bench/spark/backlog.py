"""A backlog from earliest: does the sorter go as fast at its end as at its start, and in the same memory?

``python -m tests.bench.spark.backlog`` prints two JSON lines: the first million rows of a raw log, and then all of it,
each by a changefeed of its own from the log's start on, in one Spark session. The first million is run once before, for
what processes pay once (code that the JVM compiles, memory that is touched first: some seconds of CPU). ``rows_per_s``
counts from where the first cut begins to the last acknowledgement, what lies between cuts included; until then the
changefeed starts (reads the ddl topic, finds its place in the frontier's, starts the query), which takes ``start_s``
however many rows there are. ``cpu_us_per_row`` is the CPU of driver, JVM and Python workers from the start on,
``peak_rss_mb`` their greatest size at one moment, ``peak_private_mb`` the same without what is mapped of files (run
files, libraries). ``--rows`` or ``$BACKLOG_ROWS`` sets the size.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compose.stack.local import Addresses, LocalStack
from compose.stack.spark_files import name_spark_files
from sorters.spark.session import create_session
from tests.bench.rig.bulk_rows import fill
from tests.bench.rig.changefeed_run import ChangefeedRun
from tests.bench.rig.process_meter import ProcessMeter
from tests.support.rawlog.raw_log import START_TS, RawLog, recorded

ROWS_DEFAULT = 3_000_000
SHORT_ROWS = 1_000_000
RAW_PARTITIONS = 8
BATCHES_A_FRONTIER = 40
"""Some 50,000 rows between two frontier records."""
TABLE = 114
MASTER = "local[2]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=int(os.environ.get("BACKLOG_ROWS", ROWS_DEFAULT)))
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
        _measure(options, stack.addresses, Path(folder))
    return 0


def _measure(options: argparse.Namespace, addresses: Addresses, folder: Path) -> None:
    name_spark_files()
    spark = create_session(MASTER, "backlog", folder)
    try:
        log, short = _log(addresses, options.rows), min(SHORT_ROWS, options.rows)
        _run(spark, addresses, log, short, options.protocol, folder)
        for rows in (short, options.rows):
            print(json.dumps(_run(spark, addresses, log, rows, options.protocol, folder)), flush=True)
    finally:
        spark.stop()


def _log(addresses: Addresses, rows: int) -> RawLog:
    log = RawLog(addresses.kafka, f"backlog-{uuid.uuid4().hex[:8]}", RAW_PARTITIONS)
    log.snapshot([recorded("sbtest1")[0]])
    fill(
        log,
        0,
        rows,
        table_of=lambda _: TABLE,
        ts_of=lambda handles: START_TS + 1 + handles,
        publish_every=BATCHES_A_FRONTIER,
    )
    log.advance(START_TS + rows)
    return log


def _run(spark: Any, addresses: Addresses, log: RawLog, rows: int, protocol: str, folder: Path) -> dict[str, object]:
    """Run a changefeed that ends after ``rows``."""
    name = uuid.uuid4().hex[:8]
    feed = ChangefeedRun(
        spark,
        addresses,
        upstream=log.upstream,
        data_dir=folder / name,
        name=name,
        protocol=protocol,
        target_ts=START_TS + rows,
    )
    try:
        with ProcessMeter() as meter:
            started = time.monotonic()
            feed.run.start()
            feed.wait(START_TS + rows)
    finally:
        feed.close()
    first_cut_at = feed.done_at[0] - feed.cuts[0].cut_s
    assert feed.rows == rows, f"{feed.rows} rows of {rows}"
    return {
        "bench": "backlog",
        "rows": rows,
        "rows_per_s": round(rows / (feed.done_at[-1] - first_cut_at)),
        "start_s": round(first_cut_at - started, 2),
        "peak_rss_mb": round(meter.peak_mb),
        "peak_private_mb": round(meter.peak_private_mb),
        "cpu_us_per_row": round(1e6 * meter.cpu_s / rows, 2),
        "protocol": protocol,
        "cuts": len(feed.cuts),
        "cut_rows_per_s": [round(cut.rows / cut.cut_s) for cut in feed.cuts],
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
