"""Rows a CPU second from the raw log into an Iceberg table of mode upsert, beside a plain Spark MERGE of the same rows.

``python -m tests.bench.sinks.lake`` prints one JSON line. A table of sysbench's gets LAKE_ROWS rows (a million), then
every tenth is updated; both go by the sorter, whose Spark runs already. The plain job, a process of its own with the
same settings of Spark, has the rows decoded, in order and without repeats in two Parquet files: it merges the one, then
the other. Reading Kafka, decoding, ordering and tags are what the sorter has to do more. ``ratio`` is of CPU time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compose.stack.local import LocalStack
from compose.stack.spark_files import name_spark_files
from schemas.ids import RegionId
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from sorters.spark.session import create_session
from tests.bench.rig.bulk_rows import ROWS_PER_BATCH, bulk_rows, fill
from tests.bench.rig.process_meter import ProcessMeter
from tests.support.lakes.lake import Lake
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import START_TS, RawLog, recorded

ROWS = int(os.environ.get("LAKE_ROWS", "1000000"))
UPDATED_EACH = 10
PATIENCE_S = 900.0
LOOKS_S = 0.1
"""Between two looks at how far it is."""
KEY = "id"


def main() -> int:
    """Write the rows both ways; print the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain", type=Path, help="the folder in which the plain job finds its rows: for ourselves")
    plain = parser.parse_args().plain
    if plain is not None:
        _merge_plainly(plain)
        return 0
    name_spark_files()
    with tempfile.TemporaryDirectory() as name, LocalStack(data=Path(name) / "stack", say=_say) as stack:
        folder = Path(name)
        lake = Lake(folder / "lake")
        ours = _by_sorter(stack.addresses.kafka, stack.addresses.zookeeper, folder, lake)
    figure = {"bench": "lake", "rows": ROWS, "updated": ROWS // UPDATED_EACH, **ours}
    print(json.dumps(figure), flush=True)
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _by_sorter(kafka: str, zookeeper: str, folder: Path, lake: Lake) -> dict[str, Any]:
    info, _ = recorded("sbtest1")
    log = RawLog(kafka, "lake-bench")
    log.snapshot([info])
    sorter = Sorter(kafka, zookeeper, folder / "sorter", "lake-bench", longest_pause_s=LOOKS_S)
    uri = f"iceberg://?warehouse=file://{lake.folder}&mode=upsert&commit-interval=1s&compaction-interval=0"
    try:
        sorter.create(log.upstream, uri, start_ts=START_TS)
        fill(log, 0, 1, table_of=lambda _: info["id"], ts_of=lambda handles: START_TS + 1 + handles)
        log.advance(START_TS + 10)
        sorter.start()
        sorter.wait_checkpoint(START_TS + 10, PATIENCE_S)
        assert sorter.process is not None
        inserted_ts, updated_ts = START_TS + 100 + ROWS, START_TS + 200 + 2 * ROWS
        fill(log, 1, ROWS, table_of=lambda _: info["id"], ts_of=lambda handles: START_TS + 20 + handles)
        insert = _metered(log, sorter, inserted_ts)
        files_before = lake.data_files("sb", "sbtest1")
        inserted = lake.table("sb", "sbtest1").scan().to_arrow()
        _update(log, info["id"], inserted_ts + 1)
        update = _metered(log, sorter, updated_ts)
    finally:
        sorter.close()
    files = lake.data_files("sb", "sbtest1"), lake.delete_files("sb", "sbtest1")
    held = lake.table("sb", "sbtest1").scan().to_arrow()
    changed = held.filter(pa.array(np.isin(held.column(KEY).to_numpy(), np.arange(0, ROWS, UPDATED_EACH))))
    assert held.num_rows == inserted.num_rows == ROWS and changed.num_rows == ROWS // UPDATED_EACH
    pq.write_table(inserted, folder / "inserted.parquet")
    pq.write_table(changed, folder / "updated.parquet")
    plain = _plainly(folder)
    assert plain["rows"] == ROWS
    cpu_s = insert["cpu_s"] + update["cpu_s"]
    count = ROWS + ROWS // UPDATED_EACH
    return {
        "rows_per_cpu_s": round(count / cpu_s),
        "plain_rows_per_cpu_s": round(count / plain["cpu_s"]),
        "ratio": round(plain["cpu_s"] / cpu_s, 3),
        "insert_rows_per_s": round(ROWS / insert["took_s"]),
        "update_rows_per_s": round(ROWS / UPDATED_EACH / update["took_s"]),
        "insert_cpu_s": round(insert["cpu_s"], 1),
        "update_cpu_s": round(update["cpu_s"], 1),
        "plain_insert_cpu_s": round(plain["insert_cpu_s"], 1),
        "plain_update_cpu_s": round(plain["update_cpu_s"], 1),
        "peak_mb": round(max(insert["peak_mb"], update["peak_mb"])),
        "data_files_after_insert": files_before,
        "data_files": files[0],
        "delete_files": files[1],
        "plain_data_files": plain["data_files"],
        "plain_delete_files": plain["delete_files"],
        "load": round(os.getloadavg()[0], 2),
    }


def _metered(log: RawLog, sorter: Sorter, ts: int) -> dict[str, float]:
    assert sorter.process is not None
    with ProcessMeter(sorter.process.pid) as meter:
        began_at = time.monotonic()
        log.advance(ts)
        sorter.wait_checkpoint(ts, PATIENCE_S)
        took_s = time.monotonic() - began_at
    return {"cpu_s": meter.cpu_s, "took_s": took_s, "peak_mb": meter.peak_mb}


def _update(log: RawLog, table_id: int, first_ts: int) -> None:
    """Give every tenth row the values of its neighbour."""
    handles = np.arange(0, ROWS, UPDATED_EACH, dtype=np.int64)
    for number, at in enumerate(range(0, len(handles), ROWS_PER_BATCH)):
        part = handles[at : at + ROWS_PER_BATCH]
        before = bulk_rows(table_id, part, first_ts + part)
        after = bulk_rows(table_id, part + 1, first_ts + part)
        rows = replace(before, value=after.value, old_value=before.value)
        record = encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1)
        log.raw(record, number % log.partitions)


def _plainly(folder: Path) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.bench.sinks.lake", "--plain", str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    said: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return said


def _merge_plainly(folder: Path) -> None:
    name_spark_files()
    spark = create_session("local[2]", "plain", folder / "plain-spark").newSession()
    for key, value in {
        "spark.sql.catalog.plain": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.plain.type": "hadoop",
        "spark.sql.catalog.plain.warehouse": str(folder / "plain"),
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "true",
    }.items():
        spark.conf.set(key, value)
    modes = ", ".join(f"'write.{what}.mode'='merge-on-read'" for what in ("merge", "update", "delete"))
    source = spark.read.parquet(str(folder / "inserted.parquet"))
    source.createOrReplaceTempView("source")
    properties = f"TBLPROPERTIES ('format-version'='2', 'write.distribution-mode'='none', {modes})"
    spark.sql(f"CREATE TABLE plain.sb.t USING iceberg {properties} AS SELECT * FROM source LIMIT 0")
    spark.sql(_merge("(SELECT * FROM source LIMIT 1)"))  # as the sorter has merged a row before it is metered
    spent = {}
    for what in ("inserted", "updated"):
        spark.read.parquet(str(folder / f"{what}.parquet")).createOrReplaceTempView("source")
        with ProcessMeter() as meter:
            spark.sql(_merge("source"))
        spent[what] = meter.cpu_s
    count = spark.table("plain.sb.t").count()
    lake = Lake(folder / "plain")
    said = {"rows": count, "cpu_s": sum(spent.values())}
    said |= {"insert_cpu_s": spent["inserted"], "update_cpu_s": spent["updated"]}
    said |= {"data_files": lake.data_files("sb", "t"), "delete_files": lake.delete_files("sb", "t")}
    print(json.dumps(said), flush=True)
    spark.stop()


def _merge(source: str) -> str:
    return (
        f"MERGE INTO plain.sb.t AS t USING {source} AS s ON t.{KEY} = s.{KEY} "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


if __name__ == "__main__":
    sys.exit(main())
