"""`make bench`: runs the benches one after the other, keeps their figures in bench-out/ and draws them.

Each bench is a module in a room beside this one, and prints JSON lines on standard output, ``{"bench": name, …}``;
what else it has to say goes to standard error. They run as processes of their own, so that one's memory and JVM are not
another's. A bench that fails leaves no figures, is named at the end, and makes the exit status 1.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from compose.stack.jars import spark_jars
from sorters.spark.connector import SPARK_JARS_ENV
from tests.bench.plot import draw

BENCHES = {
    "mount_encode": "rows/s of mount and encode on one core, three shapes, all protocols, beside a scalar loop: 1 min",
    "proofs": "CPU that flow proofs add to a row of a cut, in pairs, three shapes and three sizes: 1 min",
    "puller": "rows/s from EventFeed's bytes to acknowledged raw records, with and without a broker: 1 min",
    "image_scan": "rows a CPU second of a table image's scan, from KvScan's bytes to acknowledged records: 1 min",
    "snapshot": "a table image by the whole bus: rows a CPU second, own lag and a neighbour's (SNAPSHOT_ROWS): 2.5 min",
    "sorter_vs_copy": "the sorter's job against a plain Spark copy of the same 2 million rows: 1.5 min",
    "spark_source": "a table as a DataFrame, beside its canal-json topic that Spark parses: 8 min",
    "spark_floor": "what a Spark job costs whose Python tasks do nothing, our session beside plain pyspark: 2 min",
    "whole_bus": "rows a CPU second of puller and sorter together, from EventFeed's bytes to acknowledged rows: 2 min",
    "backlog": "rows/s and memory from earliest, 1 and 3 million rows (BACKLOG_ROWS=20000000 for more): 1 min",
    "big_transaction_batch": "one transaction of 2 million rows through the sorter (BIG_TRANSACTION_ROWS): 1 min",
    "many_tables_batch": "time, memory and broadcast size with 100,000 tables in one changefeed: 3 min",
    "lag": "p50 and p99 from commit_ts to a consumer of the topic, at 1,000 and at 250 rows/s (LAG_SECONDS): 1.5 min",
    "lag_spark": "the same at 1,000 rows/s with every cut by Spark on local[1]: 1 min",
    "lag_cluster": "the same with every cut by executors of a standalone cluster, started here: 1.5 min",
    "lag_high": "the same at 5,000 and at 20,000 rows/s: 1.5 min",
    "big_transaction": "memory and rows/s of a puller at one transaction of 2 GiB: 2 min, 6 GiB of disk",
    "storage_write": "MB/s of a storage sink from its topic to files, beside a plain write of the same bytes: 0.5 min",
    "lake": "rows a CPU second into an Iceberg table by upsert, beside a plain Spark MERGE (LAKE_ROWS): 3 min",
    "lake_tables": "a commit into one of 10, 100 and 300 Iceberg tables, which tags them all: 4 min",
    "mysql_apply": "rows/s from a topic into MariaDB beside a bare REPLACE loop, and the lag at 1,000 rows/s: 1.5 min",
    "verify": "rows/s of `tidebus verify` over a million rows of a MariaDB, and with keys to name: 1 min",
    "failover": "how long the frontier stands when the owner is killed, and when it resigns: 1.5 min",
    "move_pause": "how long a table stands while it moves to another capture: 1 min",
    "many_tables": "100,000 tables: the first full assignment, idle CPU, bytes between captures: 1.5 min",
    "idle_regions": "CPU and memory of a client whose 10,000 and 100,000 regions are idle: 1.5 min",
    "many_feeds": "lag, memory, CPU and requests to ZooKeeper of 1 to 300 changefeeds of one upstream: 10 min",
    "second_feed": "what each further changefeed costs by what the first one does: 2 min",
    "catch_up": "500,000 rows after a stop, everything started anew and with the service alive: 3 min",
    "lag_during_backlog": "a changefeed's lag while another one replays 5 million rows (LAG_BACKLOG_ROWS): 10 min",
    "idle_bus": "CPU of a capture, a warm sorter service and a changefeed that have nothing to do: 2.5 min",
    "zookeeper_requests": "requests a second at ZooKeeper by 1 to 300 changefeeds, at rest and moving: 2 min",
}
"""What each shows, and takes on two idle cores."""
OUT = Path("bench-out")
MACHINE = OUT / "machine.json"
"""On what the figures were made, by the last run."""


def main() -> int:
    """Run all benches, or those that were chosen; return 1 if one failed."""
    listed = "\n".join(f"  {name:16} {text}" for name, text in BENCHES.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{listed}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=BENCHES, help="these, in this order")
    chosen = parser.parse_args().only or list(BENCHES)
    OUT.mkdir(exist_ok=True)
    MACHINE.write_text(json.dumps(machine_facts(), indent=1))
    failed = [name for name in chosen if not run_bench(name)]
    earlier = [name for name in BENCHES if name not in chosen and _path(name).exists()]
    draw([figure for name in BENCHES for figure in read_figures(name)], OUT / "bench.png")
    print(f"figures and plot are in {OUT}/", file=sys.stderr)
    if earlier:
        print(f"drawn from an earlier run: {', '.join(earlier)}", file=sys.stderr)
    for name in failed:
        print(f"bench {name} failed", file=sys.stderr)
    return 1 if failed else 0


def run_bench(name: str) -> bool:
    """Run one bench, showing and keeping its figures; tell whether it ended well."""
    _path(name).unlink(missing_ok=True)
    print(f"{name}: {BENCHES[name]}", file=sys.stderr)
    began_at, facts = time.monotonic(), run_facts()
    # Else each Spark would ask Ivy, which has a lot to say.
    jars = ",".join(str(jar) for jar in spark_jars())
    process = subprocess.Popen(
        [sys.executable, "-m", module_of(name)],
        stdout=subprocess.PIPE,
        text=True,
        env={SPARK_JARS_ENV: jars, **os.environ},
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        if line.startswith("{"):
            print(line, end="", flush=True)
            lines.append(line)
    if process.wait() != 0 or not lines:
        return False
    took_s = round(time.monotonic() - began_at)
    print(f"{name} took {took_s} s", file=sys.stderr)
    _path(name).write_text("".join(lines))
    _facts_path(name).write_text(json.dumps({**facts, "took_s": took_s}))
    return True


def module_of(name: str) -> str:
    """Return the module of a bench, by the room that it stands in."""
    (file,) = Path(__file__).parent.glob(f"*/{name}.py")
    return f"tests.bench.{file.parent.name}.{name}"


def _path(name: str) -> Path:
    return OUT / f"{name}.jsonl"


def _facts_path(name: str) -> Path:
    return OUT / f"{name}.run.json"


def read_figures(name: str) -> list[dict[str, Any]]:
    """Return what a bench has said when it last ran well."""
    path = _path(name)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_run(name: str) -> dict[str, Any]:
    """Return the :func:`run_facts` of a bench's last figures, and how long it took (``took_s``); {} if unknown."""
    path = _facts_path(name)
    return dict(json.loads(path.read_text())) if path.exists() else {}


def run_facts() -> dict[str, object]:
    """Return what differs from one bench to the next: the day, the commit, what else the machine has just done."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit.stdout.strip() or "unknown",
        "load_before": round(os.getloadavg()[0], 2),
    }


def machine_facts() -> dict[str, object]:
    """Return what the figures depend on, all alike."""
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return {
        "processor": f"{model.split(':', 1)[-1].strip()}, {os.cpu_count()} cores",
        "memory_GiB": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "python": platform.python_version(),
        **{name: version(name) for name in ("pyspark", "pyarrow", "numpy", "confluent-kafka", "grpcio", "protobuf")},
    }


if __name__ == "__main__":
    sys.exit(main())
