"""Very many tables through all of the bus but the sorters: ``python -m tests.bench.captures.many_tables --real``.

A region server of this process with a region for each table, ZooKeeper, Kafka and captures as real processes: schema
snapshot, PD, registration of every region, landing, scheduling and frontier. The region server is Python, too, and
takes its share of the machine; ``server_cores`` says how much.

``assign_s`` is from the start of the captures' processes until the owner says that every table is pulled, and
``assign_cpu_s`` the CPU time of all captures for it; ``moving_s`` until the frontier has passed a ts from then on;
``drain_s`` from the order to drain a capture until it has no table; ``idle_cores`` is the CPU time of all captures by
wall time while nothing but resolved ts happens.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from producers.region_server.core.store import ddl_writes
from producers.region_server.core.store.transactions import ServerTransaction
from producers.region_server.generator import Generator, GeneratorOptions, _template
from producers.region_server.kv.store import ClusterStore
from producers.region_server.server import RegionServer, RegionServerOptions
from schemas.ids import TableId, UpstreamId
from schemas.tidb.keys import table_span
from tests.support.processes.cluster import NAMES, Cluster, cluster

UPSTREAM = UpstreamId("many")
SCHEMA_ID, FIRST_TABLE = 50, 1_000
TABLES_A_TRANSACTION = 1_000
DEADLINE_S = 1_200.0
FIGURE = "many_tables_real"
"""No bench of `make bench`: it takes the machine for ten minutes."""


def measure_real(tables: int, seconds: float, captures: int) -> dict[str, object]:
    """Pull so many tables, then be idle, then drain a capture; return the figures."""
    with (
        tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder,
        _server(tables) as server,
        cluster(
            Path(folder),
            UPSTREAM,
            names=NAMES[:captures],
            server=server,
            arguments=("--sorter-master", "none"),
            frontier_s=DEADLINE_S,
        ) as running,
    ):
        return _measured(running, tables, seconds)


def _measured(running: Cluster, tables: int, seconds: float) -> dict[str, object]:
    def pulled() -> bool:
        status = running.status()
        return status.get("regions_initialized", 0) >= tables and all(running.spans().values())

    running.wait(pulled, "all tables are pulled", DEADLINE_S)
    assign_s = time.monotonic() - running.captures_began_at_s
    processes = [psutil.Process(running.child(name).pid) for name in running.addresses]
    me, assign_cpu_s = psutil.Process(), sum(map(_cpu_s, processes))
    running.wait_moving("all tables are pulled", DEADLINE_S)
    moving_s = time.monotonic() - running.captures_began_at_s
    running.wait(lambda: running.status().get("scans_waiting", 1) == 0, "it is idle", DEADLINE_S)
    wall = time.monotonic()
    spent, own, resolved_ts = list(map(_cpu_s, processes)), _cpu_s(me), running.resolved_ts()
    running.watch_for(seconds)
    wall = time.monotonic() - wall
    cores = [(_cpu_s(process) - before) / wall for process, before in zip(processes, spent, strict=True)]
    moved_s = ((running.resolved_ts() >> 18) - (resolved_ts >> 18)) / 1000
    figure: dict[str, object] = {
        "bench": FIGURE,
        "tables": tables,
        "captures": len(processes),
        "assign_s": round(assign_s, 1),
        "assign_cpu_s": round(assign_cpu_s, 1),
        "moving_s": round(moving_s, 1),
        "idle_cores": round(sum(cores), 3),
        "server_cores": round((_cpu_s(me) - own) / wall, 3),
        "frontier_s_a_s": round(moved_s / wall, 2),
        "rss_mb": [process.memory_info().rss >> 20 for process in processes],
    }
    if len(processes) > 1:
        figure["drain_s"] = round(_drain(running), 1)
    return figure


def _drain(running: Cluster) -> float:
    began_at = time.monotonic()
    drained, _ = running.drain()
    running.wait(lambda: running.spans()[drained] == 0, "it is drained", DEADLINE_S)
    return time.monotonic() - began_at


@contextmanager
def _server(tables: int) -> Iterator[RegionServer]:
    """Yield a region server that has the tables before anybody looks."""
    with RegionServer(RegionServerOptions()) as server:
        server.spawn(Generator(server, GeneratorOptions(schema="boot", tables=1, rows_max=1)).run()).result(60)
        info = _template("sbtest1")["table_info"]
        for start in range(FIRST_TABLE, FIRST_TABLE + tables, TABLES_A_TRANSACTION):
            ids = [TableId(number) for number in range(start, min(start + TABLES_A_TRANSACTION, FIRST_TABLE + tables))]
            server.act(lambda store, ids=ids: _create(server, store, info, ids))  # type: ignore[misc]
        yield server


def _create(server: RegionServer, store: ClusterStore, info: dict[str, Any], ids: list[TableId]) -> None:
    mutations = [ddl_writes.schema_mutation(SCHEMA_ID, "many")]
    for table_id in ids:
        name = f"t{table_id}"
        mutations.append(ddl_writes.table_mutation(SCHEMA_ID, {**info, "id": table_id, "name": {"O": name, "L": name}}))
    mutations.append(ddl_writes.number_mutation(ddl_writes.NEXT_GLOBAL_ID_KEY, ids[-1] + 1))
    ServerTransaction(store, server.oracle.tso, mutations).commit_at_once()
    for table_id in ids:
        store.split(table_span(table_id)[0][: -len("_r")])


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def print_real(tables: int, seconds: float, captures: int) -> None:
    """Print the line."""
    print(json.dumps(measure_real(tables, seconds, captures)), flush=True)
