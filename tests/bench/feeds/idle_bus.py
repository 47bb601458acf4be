"""What a bus costs that has nothing to do: ``python -m tests.bench.feeds.idle_bus`` prints one JSON line.

15 tables that nobody writes to, with resolved ts each 200 ms. ``capture_cores`` is the capture alone, without a
changefeed; ``service_cores`` its sorter service with a warm JVM and one changefeed, less what ten more changefeeds show
that one costs (``feed_cores``).
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.bench.rig.feeds_bus import CAPTURE, FeedsBus, cpu_s_of, feeds_bus
from tests.bench.rig.upstream import upstream

TABLES, MORE = 15, 10
SETTLE_S = 20.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder,
        upstream() as source,
        feeds_bus(Path(folder), source, TABLES, warm=True) as running,
    ):
        source.write(1.0, TABLES)
        source.stop()
        capture_cores, none_cores = _cores(running, options.seconds)
        running.create(1, protocol="canal-json")
        _, one_cores = _cores(running, options.seconds)
        running.create(MORE, protocol="canal-json")
        _, many_cores = _cores(running, options.seconds)
    feed_cores = (many_cores - one_cores) / MORE
    figures = {
        "bench": "idle_bus",
        "capture_cores": round(capture_cores, 4),
        "cold_service_cores": round(none_cores, 4),
        "service_cores": round(one_cores - feed_cores, 4),
        "feed_cores": round(feed_cores, 4),
        "tables": TABLES,
    }
    print(json.dumps(figures), flush=True)
    return 0


def _cores(running: FeedsBus, seconds: float) -> tuple[float, float]:
    """Return the cores of the capture's own process, and of all that it has started, once they have settled."""
    time.sleep(SETTLE_S)
    capture = psutil.Process(running.bus.processes[CAPTURE].pid)
    own, all_ = cpu_s_of(capture), running.usage()
    time.sleep(seconds)
    after = running.usage()
    own_cores = (cpu_s_of(capture) - own) / (after.at_s - all_.at_s)
    return own_cores, after.cores_since(all_) - own_cores


if __name__ == "__main__":
    sys.exit(main())
