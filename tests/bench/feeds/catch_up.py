"""How a changefeed catches up after a stop: ``python -m tests.bench.feeds.catch_up`` prints a JSON line for each way.

A bus with one canal-json changefeed runs, is stopped, the upstream commits 500,000 rows, and it starts again. ``cold``:
everything was stopped in order, and starts anew, the JVM included. ``warm``: the capture was killed by SIGKILL, and the
sorter service, started by hand, lived on with its JVM. ``seconds`` are from the capture's start until a consumer of the
topic has as many messages as there are rows; ``rows_per_cpu_s`` counts the CPU time of captures, services and JVMs
since then; ``spark_share`` is the part of the rows that Spark's tasks ran.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from compose.stack.children import Child
from tests.bench.rig.feeds_bus import CAPTURE, SORTERS, Arrivals, await_all, feeds_bus, say, start_sorters
from tests.bench.rig.upstream import LATE_SCHEMA, Upstream, upstream

TABLES, MASTER = 4, "local[2]"
BEFORE_ROWS_PER_S = 100.0
DEADLINE_S = 300.0


def measure(options: argparse.Namespace, source: Upstream, folder: Path, *, warm: bool) -> dict[str, object]:
    """Let it catch up one way; return the figures."""
    with (
        feeds_bus(folder, source, TABLES, warm=False, master=MASTER, sorters=False) as running,
        contextlib.closing(Arrivals(running.bus.addresses.kafka)) as arrivals,
    ):
        bus = running.bus
        start_sorters(bus, folder, MASTER)
        source.write(BEFORE_ROWS_PER_S, TABLES)
        running.create(1, protocol="canal-json", rules=["*.*"])
        if not await_all(running, arrivals, 3.0, DEADLINE_S):
            raise TimeoutError("the changefeed does not run")
        source.stop()
        arrivals.take(5.0)
        _end(bus.processes[CAPTURE], now=warm)
        if not warm:
            _end(bus.processes[SORTERS], now=False)
        source.add(options.rows, TABLES)
        before, spark_before = running.usage(), running.rows().by_spark
        began = time.monotonic()
        bus.processes[CAPTURE].start()
        if not warm:
            bus.processes[SORTERS].start()
        rows = 0
        while rows < options.rows:
            bus.tick()
            rows += sum(map(len, arrivals.take(0.5).values()))
            say(f"{rows} rows after {time.monotonic() - began:.1f} s")
            if time.monotonic() > began + DEADLINE_S:
                raise TimeoutError(f"it has not caught up: {rows} rows")
        seconds = time.monotonic() - began
        cpu_s = running.usage().cpu_s_since(before)
        time.sleep(2.0)  # for the entry's next write
        spark_share = (running.rows().by_spark - spark_before) / options.rows
    return {
        "bench": "catch_up",
        "how": "warm" if warm else "cold",
        "rows_per_cpu_s": round(options.rows / cpu_s),
        "seconds": round(seconds, 1),
        "cpu_s": round(cpu_s, 1),
        "spark_share": round(spark_share, 2),
        "rows": options.rows,
    }


def _end(child: Child, *, now: bool) -> None:
    if now:
        child.kill()
    else:
        child.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--how", nargs="+", choices=["cold", "warm"], default=["cold", "warm"])
    options = parser.parse_args(argv)
    for how in options.how:
        with tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder, upstream() as source:
            say(f"{how}: {options.rows} rows in {LATE_SCHEMA}")
            print(json.dumps(measure(options, source, Path(folder), warm=how == "warm")), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
