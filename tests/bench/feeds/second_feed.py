"""What a further changefeed costs beside the first: ``python -m tests.bench.feeds.second_feed`` prints one JSON line.

The bus of :mod:`tests.bench.rig.feeds_bus` with 1,000 rows/s over 50 tables, and changefeeds that all take all tables,
in one protocol. ``ratio`` is what each further one costs by what the first one does, puller and owner included: (CPU of
ten − CPU of one) ÷ 9 ÷ CPU of one. CPU is the capture's and its sorter service's, by ``seconds`` of steady work.
"""

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench.rig.feeds_bus import Arrivals, FeedsBus, await_all, feeds_bus, percentiles
from tests.bench.rig.upstream import upstream

TABLES, ROWS_PER_S = 50, 1_000.0
MORE = 9
BEHIND_S, CAUGHT_UP_S = 3.0, 120.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warm-up", type=float, default=10.0)
    parser.add_argument("--protocol", default="canal-json")
    options = parser.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder,
        upstream() as source,
        feeds_bus(Path(folder), source, TABLES, warm=False) as running,
        contextlib.closing(Arrivals(running.bus.addresses.kafka)) as arrivals,
    ):
        source.write(ROWS_PER_S, TABLES)
        first_cores, first_lags = _measure(options, running, arrivals, 1)
        all_cores, all_lags = _measure(options, running, arrivals, MORE)
    figures = {
        "bench": "second_feed",
        "ratio": round((all_cores - first_cores) / MORE / first_cores, 3),
        "one_cores": round(first_cores, 3),
        "ten_cores": round(all_cores, 3),
        **{f"one_{name}": value for name, value in percentiles(first_lags).items()},
        **{f"ten_{name}": value for name, value in percentiles(all_lags).items()},
    }
    print(json.dumps(figures), flush=True)
    return 0


def _measure(
    options: argparse.Namespace, running: FeedsBus, arrivals: Arrivals, more: int
) -> tuple[float, dict[str, list[float]]]:
    """Run so many more changefeeds; return the cores of all, and lags."""
    running.create(more, protocol=options.protocol)
    if not await_all(running, arrivals, BEHIND_S, CAUGHT_UP_S):
        raise TimeoutError("changefeeds did not catch up")
    arrivals.take(options.warm_up)
    before = running.usage()
    lags = arrivals.take(options.seconds)
    return running.usage().cores_since(before), lags


if __name__ == "__main__":
    sys.exit(main())
