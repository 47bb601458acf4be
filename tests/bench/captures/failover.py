"""How long the frontier stands when the owner is killed: from SIGKILL until its successor moves it.

``python -m tests.bench.captures.failover`` starts captures as real processes over a region server in this process, with
rows coming in, and kills the owner again and again. It prints one JSON line: ``seconds`` is the median time without a
moving frontier, of which ``session_timeout_s`` is how long ZooKeeper keeps a dead session, and ``beyond_session_s``
what we add; ``whole_s`` is the median until no table is held back any more, the killed capture's being begun anew
elsewhere. ``resign_s`` is the same pause where an operator lets the owner resign.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from compose.stack.local import Addresses
from edges.zookeeper.session import SESSION_TIMEOUT_S
from producers.region_server.generator import Generator, GeneratorOptions
from schemas.ids import UpstreamId
from tests.bench.rig.frontier_trace import Advance, longest_pause_s, read_advances
from tests.support.processes.cluster import Cluster, cluster

UPSTREAM = UpstreamId("failover")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--rows-per-s", type=float, default=500.0)
    parser.add_argument("--kafka", default="", help="address; the default starts one here")
    parser.add_argument("--zookeeper", default="")
    parser.add_argument("--schema-registry", default="")
    options = parser.parse_args(argv)
    given = Addresses(kafka=options.kafka, zookeeper=options.zookeeper, schema_registry=options.schema_registry)
    with (
        tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder,
        cluster(Path(folder), UPSTREAM, given=given, arguments=("--sorter-master", "none")) as running,
    ):
        figure = measure(running, options.kills, options.tables, options.rows_per_s)
    print(json.dumps(figure), flush=True)
    return 0


def measure(running: Cluster, kills: int, tables: int, rows_per_s: float) -> dict[str, object]:
    """Kill owners and let one resign, while rows come; return the figures."""
    options = GeneratorOptions(schema="load", rows_per_s=rows_per_s, tables=tables)
    generator = Generator(running.server, options)
    writing = running.server.spawn(generator.run())
    killed_at: list[float] = []
    running.wait_sharing(tables)
    for _ in range(kills):
        running.wait_registered()
        running.wait_moving("all are there")
        running.watch_for(2.0)
        owner = running.owner()
        killed_at.append(time.time())
        running.child(owner).kill()
        running.wait_moving("owner killed")
    running.wait_registered()
    running.wait_moving("all are there")
    resigned_at = time.time()
    running.post(running.owner(), "/api/v2/owner/resign")
    running.wait_moving("owner resigned")
    running.watch_for(2.0)
    generator.stop()
    writing.result(60)
    advances = read_advances(running.bus.addresses.kafka, UPSTREAM)
    stood = [_first(advances, at, whole=False) for at in killed_at]
    seconds = statistics.median(stood)
    return {
        "bench": "failover",
        "seconds": round(seconds, 2),
        "session_timeout_s": SESSION_TIMEOUT_S,
        "beyond_session_s": round(seconds - SESSION_TIMEOUT_S, 2),
        "worst_s": round(max(stood), 2),
        "whole_s": round(statistics.median(_first(advances, at, whole=True) for at in killed_at), 2),
        "resign_s": round(longest_pause_s(advances, resigned_at, resigned_at + 5.0), 2),
        "tables": tables,
        "captures": len(running.addresses),
        "kills": kills,
    }


def _first(advances: list[Advance], killed_at: float, *, whole: bool) -> float:
    """Return how long after ``killed_at`` another owner moved the frontier, and with ``whole`` held nothing back."""
    revision = max(advance.owner_rev for advance in advances if advance.at_s <= killed_at)
    return next(
        advance.at_s - killed_at
        for advance in advances
        if advance.owner_rev > revision and not (whole and advance.held)
    )


if __name__ == "__main__":
    sys.exit(main())
