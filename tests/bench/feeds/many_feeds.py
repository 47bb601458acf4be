"""What changefeeds cost by their number: ``python -m tests.bench.feeds.many_feeds`` prints a JSON line for each number.

A whole bus by real processes (:mod:`tests.bench.rig.feeds_bus`), 1,000 rows/s over 50 tables, and 1 to 300
changefeeds: a fifth take all tables, the others a tenth of them. One consumer reads a third of each changefeed's
partitions, as reading all of them takes a quarter of a core, and asks for messages ten times a second: ``p50_s`` and
``p99_s`` are from commit_ts to it over ``sampled`` rows, ``worst_p99_s`` the p99 of the changefeed whose is the
worst. 100 changefeeds are due 28,000 rows a second (``rows_per_s``); a message of open-protocol holds several, the
more the longer its changefeed waits, so that ``messages_per_s`` is less (``--open-batch-rows 1``: one each).
``cores`` are the capture's and its sorter service's (too few where ``ended`` of these have ended meanwhile),
``idle_cores`` theirs once nothing is written any more; ``memory_mb`` is the proportional size of all processes of the
bus but Kafka; ``zookeeper_requests_per_s`` all packets that the server has.

Upstream, Kafka and the consumer share the machine: lag is that of a machine that has to do all of it.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.rig.feeds_bus import Arrivals, await_all, feeds_bus, percentiles, say
from tests.bench.rig.upstream import Upstream, upstream

FEEDS = (1, 10, 30, 100, 300)
TABLES, ROWS_PER_S = 50, 1_000.0
BEHIND_S, CAUGHT_UP_S = 3.0, 120.0
SETTLE_S = 10.0
SAMPLED_EVERY = 3


def measure(options: argparse.Namespace, source: Upstream, folder: Path, feeds: int) -> dict[str, object]:
    """Run so many changefeeds; return the figures."""
    with feeds_bus(folder, source, TABLES, warm=options.spark == "warm") as running:
        running.create(feeds, open_batch_rows=options.open_batch_rows)
        with contextlib.closing(Arrivals(running.bus.addresses.kafka, every=SAMPLED_EVERY)) as arrivals:
            caught_up = await_all(running, arrivals, BEHIND_S, CAUGHT_UP_S)
            # Asked before the warm-up and after all: while the bench asks, it takes nothing that has arrived.
            counted_at, messages, rows = time.monotonic(), running.messages(), running.rows().written
            arrivals.take(options.warm_up)
            before = running.usage()
            lags = arrivals.take(options.seconds)
            after = running.usage()
            counted_s, messages = time.monotonic() - counted_at, running.messages() - messages
            messages_per_s, rows_per_s = messages / counted_s, (running.rows().written - rows) / counted_s
            memory = running.memory_mb()
            source.stop()
            arrivals.take(SETTLE_S)
        idle_from = running.usage()
        time.sleep(options.seconds / 2)
        idle_to = running.usage()
    return {
        "bench": "many_feeds",
        "feeds": feeds,
        **percentiles(lags),
        "caught_up": caught_up,
        "sampled": sum(map(len, lags.values())),
        "messages_per_s": round(messages_per_s),
        "rows_per_s": round(rows_per_s),
        "ended": after.ended_since(before),
        "cores": round(after.cores_since(before), 2),
        "cpu_us_per_message": round(1e6 * after.cores_since(before) / messages_per_s, 1),
        "idle_cores": round(idle_to.cores_since(idle_from), 3),
        **memory,
        "zookeeper_requests_per_s": round(after.packets_per_s_since(before), 1),
        "spark": options.spark,
        "open_batch_rows": options.open_batch_rows,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--feeds", type=int, nargs="+", default=FEEDS)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument(
        "--warm-up", type=float, default=10.0, help="seconds that do not count, once all have caught up"
    )
    parser.add_argument("--open-batch-rows", type=int, default=0, help="a message of open-protocol holds at the most")
    parser.add_argument("--spark", choices=["warm", "demand"], default="warm", help="when a service starts Spark")
    options = parser.parse_args(argv)
    for feeds in options.feeds:
        with tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder, upstream() as source:
            source.write(ROWS_PER_S, TABLES)
            say(f"{feeds} changefeeds")
            print(json.dumps(measure(options, source, Path(folder), feeds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
