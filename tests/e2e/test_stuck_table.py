"""One table's region without a leader: the changefeed without that table goes on as before, the other stops at it.

``STUCK_S`` says how long the region has no leader; a nightly run takes the two minutes of a real outage.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_high

import pytest

from consumers.control.changefeeds.store import ChangefeedRequest
from consumers.control.core.changefeeds.errors import TABLE_HELD
from producers.region_server.core import chaos
from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.kv.store import ClusterStore
from schemas.ids import RegionId, StoreId, TableId, Ts, UpstreamId
from schemas.rawlog.frontier import FrontierRecord
from schemas.tidb.spans import TableSpan
from sorters.core.cut.cut import frontier_for
from tests.support.processes.bus import create_from_the_start, status, stored_upstream, topic_records, wait_checkpoint
from tests.support.processes.cluster import Cluster, cluster
from tests.support.topics.messages import decode_canal_json
from tests.support.topics.validator import UpstreamChange, Validator

STUCK_S = float(os.environ.get("STUCK_S", "20"))
HELD_LAG_S = 3.0
QUIET_RECORDS = 20
"""Of the frontier topic, before anything happens."""
SCHEMA, TABLES, ROWS_PER_S = "stuck", 4, 200.0
WITH, WITHOUT = "with-it", "without-it"
CATCH_UP_S = 480.0
FOREVER_MS = 3_600_000
pytestmark = pytest.mark.timeout(1800)


@dataclass
class Run:
    """A bus with two changefeeds of one upstream."""

    cluster: Cluster
    generator: Generator
    start_ts: Ts

    @property
    def stuck(self) -> TableId:
        return self.generator._tables[0].table_id

    def checkpoint(self, changefeed: str) -> int:
        now = status(self.cluster.bus, changefeed)
        return 0 if now is None else now.checkpoint_ts

    def state(self, changefeed: str) -> str:
        now = status(self.cluster.bus, changefeed)
        return "" if now is None else now.state

    def records(self, start: int = 0) -> list[FrontierRecord]:
        """Return where readers of the frontier topic stood after each of its records, from one on."""
        return self.cluster.places()[start:]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    arguments = ("--held-lag", f"{HELD_LAG_S:g}s")
    folder = tmp_path_factory.mktemp("stuck")
    with cluster(folder, UpstreamId("stuck"), names=("capture",), arguments=arguments) as running:
        options = GeneratorOptions(schema=SCHEMA, rows_per_s=ROWS_PER_S, tables=TABLES, seed=7)
        generator = Generator(running.server, options)
        starts = [
            _create(running, WITH, ["*.*"]),
            _create(running, WITHOUT, ["*.*", f"!{SCHEMA}.sbtest1_1"]),
        ]
        writing = running.server.spawn(generator.run())
        running.wait(lambda: generator.rows_committed > 500, "rows are written")
        yield Run(running, generator, Ts(max(starts)))
        generator.stop()
        with contextlib.suppress(Exception):
            writing.result(60)


def _create(running: Cluster, changefeed: str, rules: list[str]) -> int:
    uri = (
        f"kafka://{running.bus.addresses.kafka}/{changefeed}-ddl"
        "?protocol=canal-json&enable-tidb-extension=true&partition-num=2"
    )
    dispatch = {"matcher": ["*.*"], "topic": changefeed + "-{schema}", "partition": "index-value"}
    config = {"filter": {"rules": rules}, "sink": {"dispatchers": [dispatch]}}
    return create_from_the_start(
        running.bus,
        ChangefeedRequest(upstream=running.upstream, sink_uri=uri, config=config, changefeed_id=changefeed),
    )


def _region_of(table: TableId) -> Callable[[ClusterStore], RegionId]:
    start = TableSpan.of_table(table).start
    return lambda store: next(
        region.region_id for region in store.regions if region.start <= start and (not region.end or start < region.end)
    )


def test_stuck_table_holds_back_only_the_changefeed_that_contains_it(run: Run) -> None:
    cluster, server, stuck = run.cluster, run.cluster.server, run.stuck
    wait_checkpoint(cluster.bus, WITH, server.tso(), CATCH_UP_S)
    wait_checkpoint(cluster.bus, WITHOUT, server.tso(), CATCH_UP_S)
    quiet = len(run.records())
    cluster.wait(lambda: cluster.frontier.offsets()[1] >= quiet + QUIET_RECORDS, "the frontier moves")
    before = run.records(quiet)

    region = server.act(_region_of(stuck))
    lost_ts = server.tso()
    server.spawn(server.chaos.perform(chaos.LoseLeader(region, StoreId(0), FOREVER_MS))).result(30)
    began_at = time.monotonic()
    cluster.wait(lambda: cluster.status().get("tables_held") == 1, "the table is held")
    held_from, held_ts = len(run.records()), server.tso()

    # The one without the table passes what comes while the table is stuck, again and again; the other stands.
    stands: set[int] = set()
    while time.monotonic() < began_at + STUCK_S or not stands:
        wait_checkpoint(cluster.bus, WITHOUT, server.tso(), CATCH_UP_S)
        stands.add(run.checkpoint(WITH))
    assert run.checkpoint(WITHOUT) > held_ts
    assert max(stands) <= lost_ts
    assert server.act(lambda store: store.regions.get(region).leader) == chaos.NO_STORE  # type: ignore[union-attr]

    # Which table, and why: in the upstream's status, and the same for Prometheus. A machine that is slow for some
    # seconds lets others be held for as long.
    cluster.wait(lambda: _held(cluster) == [[stuck]], "the table alone is held")
    status = cluster.status()
    (ts,) = (held["ts"] for held in status["held"] if stuck in held["tables"])
    assert ts <= lost_ts
    stalls = status["stalls"]
    assert any(stall.startswith(f"table {stuck}: ") and "leader" in stall for stall in stalls), stalls

    # And in the changefeed's own status, as a warning; the other one has none.
    cluster.wait(lambda: run.state(WITH) == "warning", "the changefeed says that it waits")
    said = cluster.get(cluster.owner(), f"/api/v2/changefeeds/{WITH}/status")
    assert (said["state"], said["last_error"], said["last_warning"]["code"]) == ("warning", None, TABLE_HELD)
    assert all(part in said["last_warning"]["message"] for part in (f"{SCHEMA}.sbtest1_1", str(stuck), "leader")), said
    cluster.wait(
        lambda: cluster.get(cluster.owner(), f"/api/v2/changefeeds/{WITHOUT}/status")["last_warning"] is None,
        "the other has nothing to say",
    )

    # What a changefeed without the table would read again at each step is no more than before.
    during = run.records(held_from)
    assert _reread(during, stuck) <= max(2 * _reread(before, stuck), ROWS_PER_S)
    server.spawn(
        server.chaos.perform(chaos.TransferLeader(region, server.act(lambda store: store.regions.up[0])))
    ).result(30)
    wait_checkpoint(cluster.bus, WITH, server.tso(), CATCH_UP_S)
    cluster.wait(lambda: cluster.status().get("tables_held") == 0, "nothing is held")
    cluster.wait(lambda: run.state(WITH) == "normal", "the changefeed waits no more")


def _reread(records: list[FrontierRecord], stuck: TableId) -> int:
    """Return how many offsets a changefeed without the table reads between two records next to each other, mostly:
    after a moment in which the machine had no time it is more.
    """
    mine = [frontier_for(record, lambda table: table != stuck) for record in records]
    assert len(mine) > 5
    return median_high(
        sum(high - low for low, high in zip(earlier.low, later.high, strict=True)) for earlier, later in pairwise(mine)
    )


def _held(cluster: Cluster) -> list[list[int]]:
    return [list(held["tables"]) for held in cluster.status()["held"]]


def test_topics_of_both_hold_exactly_the_upstreams_history(run: Run) -> None:
    cluster, generator = run.cluster, run.generator
    generator.stop()
    rows = -1

    def is_quiet() -> bool:
        nonlocal rows
        before, rows = rows, generator.rows_committed
        return rows == before

    cluster.wait(is_quiet, "the generator has ended")
    last_ts = generator.last_commit_ts
    names = {table.table_id: f"{SCHEMA}.{table.shape.name}_{at}" for at, table in enumerate(generator._tables, 1)}
    for changefeed, tables in (
        (WITH, names),
        (WITHOUT, {table: name for table, name in names.items() if table != run.stuck}),
    ):
        wait_checkpoint(cluster.bus, changefeed, last_ts, CATCH_UP_S)
        upstream = _upstream(cluster, tables, run.start_ts)
        assert len(upstream) > 500
        validator = Validator(decode_canal_json, upstream)
        validator.note_all(topic_records(cluster.bus.addresses.kafka_access, f"{changefeed}-"))
        assert validator.finish(need_watermark=last_ts) == []


def _upstream(cluster: Cluster, tables: dict[TableId, str], start_ts: Ts) -> list[UpstreamChange]:
    stored = cluster.server.act(lambda store: stored_upstream(store, tables))
    return [change for change in stored if change.commit_ts > start_ts]
