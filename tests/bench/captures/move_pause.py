"""How long a table stands while it moves to another capture.

``python -m tests.bench.captures.move_pause`` starts captures as real processes over a region server in this process,
with rows coming into every table, and moves one table after the other through the API. The frontier cannot pass a table
that stands (and nothing is held back within seconds), so a table's pause is the longest time between two advances of
the frontier while it moves. It prints one JSON line: ``seconds`` is the median of the moves, ``worst_s`` the longest,
``usual_s`` the longest such time where nothing moves, ``moved_s`` the median from the order until its new capture alone
has the table.
"""

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from compose.stack.local import Addresses
from consumers.control.changefeeds.store import ChangefeedRequest
from producers.region_server.generator import Generator, GeneratorOptions
from schemas.ids import UpstreamId
from tests.bench.rig.frontier_trace import longest_pause_s, read_advances
from tests.support.processes.bus import create_from_the_start
from tests.support.processes.cluster import Cluster, cluster

UPSTREAM = UpstreamId("move")
FEED = "move"
SETTLE_S = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=6)
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--rows-per-s", type=float, default=1000.0)
    parser.add_argument("--kafka", default="", help="address; the default starts one here")
    parser.add_argument("--zookeeper", default="")
    parser.add_argument("--schema-registry", default="")
    options = parser.parse_args(argv)
    given = Addresses(kafka=options.kafka, zookeeper=options.zookeeper, schema_registry=options.schema_registry)
    names = ("capture", "capture 2")
    with (
        tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder,
        cluster(Path(folder), UPSTREAM, names=names, given=given, arguments=("--sorter-master", "none")) as running,
    ):
        figure = measure(running, options.moves, options.tables, options.rows_per_s)
    print(json.dumps(figure), flush=True)
    return 0


def measure(running: Cluster, moves: int, tables: int, rows_per_s: float) -> dict[str, object]:
    """Move tables while rows come; return the figures."""
    uri = f"kafka://{running.bus.addresses.kafka}/move?protocol=canal-json"
    create_from_the_start(
        running.bus, ChangefeedRequest(upstream=UPSTREAM, sink_uri=uri, config={}, changefeed_id=FEED)
    )
    generator = Generator(running.server, GeneratorOptions(schema="load", rows_per_s=rows_per_s, tables=tables))
    writing = running.server.spawn(generator.run())
    running.wait_sharing(tables)
    running.wait_moving("all share")
    calm_from = time.time()
    running.watch_for(2 * SETTLE_S)
    calm_to = time.time()
    orders: list[tuple[float, float]] = []
    for number in range(moves):
        table = generator._tables[number % tables].table_id
        began_at = time.time()
        target = _elsewhere(running, table)
        _post(running, f"/api/v1/changefeeds/{FEED}/tables/move_table", {"capture_id": target, "table_id": table})
        running.wait(lambda table=table, target=target: _holders(running, table) == {target}, "table moves")  # type: ignore[misc]
        orders.append((began_at, time.time()))
        running.watch_for(SETTLE_S)
    generator.stop()
    writing.result(60)
    advances = read_advances(running.bus.addresses.kafka, UPSTREAM)
    pauses = [longest_pause_s(advances, began_at, ended_at + SETTLE_S / 2) for began_at, ended_at in orders]
    return {
        "bench": "move_pause",
        "seconds": round(statistics.median(pauses), 2),
        "worst_s": round(max(pauses), 2),
        "usual_s": round(longest_pause_s(advances, calm_from, calm_to), 2),
        "moved_s": round(statistics.median(ended_at - began_at for began_at, ended_at in orders), 2),
        "moves": moves,
        "tables": tables,
        "rows_per_s": rows_per_s,
    }


def _holders(running: Cluster, table: int) -> set[str]:
    """Return the captures that pull a table."""
    return {
        info.capture_id
        for info in running.captures().values()
        if table in _ask(running, "GET", f"/api/v2/processors/{FEED}/{info.capture_id}").get("table_ids", ())
    }


def _elsewhere(running: Cluster, table: int) -> str:
    holders = _holders(running, table)
    return next(info.capture_id for info in running.captures().values() if info.capture_id not in holders)


def _post(running: Cluster, path: str, body: dict[str, object]) -> None:
    _ask(running, "POST", path, body)


def _ask(running: Cluster, method: str, path: str, body: dict[str, object] | None = None) -> dict[str, list[int]]:
    connection = http.client.HTTPConnection(running.addresses[running.owner()], timeout=30)
    try:
        connection.request(method, path, json.dumps(body or {}).encode(), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said: dict[str, list[int]] = json.load(answer)
    finally:
        connection.close()
    if answer.status >= 300:
        raise SystemExit(f"{method} {path}: {said}")
    return said


if __name__ == "__main__":
    sys.exit(main())
