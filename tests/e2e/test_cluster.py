"""Three captures that come and go while rows keep coming: no row is lost, none is invented, no transfer seen by half.

Everything is real but the upstream, a region server in this process: what its store holds is the truth. Each test does
something to the cluster and sees that the frontier goes on; the last one reads all topics.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import pytest

from consumers.control.changefeeds.store import ChangefeedRequest
from producers.region_server.generator import Generator, GeneratorOptions
from schemas.ids import UpstreamId
from tests.support.database.bank import Bank, BankReader
from tests.support.processes.bus import create_from_the_start, stored_upstream, topic_records, wait_checkpoint
from tests.support.processes.cluster import Cluster, cluster
from tests.support.rawlog.bank_log import BankLog
from tests.support.topics.messages import decode_canal_json
from tests.support.topics.validator import Validator

FEED, TOPIC, SCHEMA = "cluster", "cluster_", "load"
TABLES, ROWS_PER_S = 200, 100.0
ZOMBIE_S = 30.0
CATCH_UP_S = 600.0
"""A sorter that begins anew at each change of owner has little time of its own before."""
ROWS_MIN, TRANSFERS_MIN, PLACES_MIN = 3_000, 300, 300
"""What is written, and how often the frontier moves, before all is compared: a minute's, less than the kills take."""


@dataclass
class Loaded:
    """A cluster with a changefeed of everything, and who writes."""

    cluster: Cluster
    generator: Generator
    bank: Bank
    writing: "list[Future[None]]"
    start_ts: int


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    with cluster(tmp_path_factory.mktemp("cluster"), UpstreamId("cluster")) as running:
        bus, server = running.bus, running.server
        uri = f"kafka://{bus.addresses.kafka}/{TOPIC}ddl?protocol=canal-json&enable-tidb-extension=true&partition-num=2"
        dispatch = {"matcher": ["*.*"], "topic": TOPIC + "{schema}", "partition": "index-value"}
        request = ChangefeedRequest(
            upstream=running.upstream, sink_uri=uri, config={"sink": {"dispatchers": [dispatch]}}, changefeed_id=FEED
        )
        start_ts = create_from_the_start(bus, request)
        options = GeneratorOptions(schema=SCHEMA, rows_per_s=ROWS_PER_S, tables=TABLES, seed=1)
        generator, bank = Generator(server, options), Bank(server, pause_s=0.05)
        writing = [server.spawn(generator.run()), server.spawn(bank.run())]
        running.wait_sharing(TABLES)
        yield Loaded(running, generator, bank, writing, start_ts)
        print("\n".join(running.notes))


def test_owner_that_is_killed_has_a_successor(loaded: Loaded) -> None:
    cluster = loaded.cluster
    before = cluster.status()["owner_rev"]
    cluster.child(cluster.owner()).kill()
    cluster.wait_moving("owner killed")
    cluster.wait(lambda: cluster.status().get("owner_rev", 0) > before, "the successor tells of itself")
    cluster.wait_sharing(TABLES)


def test_capture_that_is_killed_loses_its_spans_to_others(loaded: Loaded) -> None:
    cluster = loaded.cluster
    killed = cluster.other()
    cluster.child(killed).kill()
    cluster.wait_moving("capture killed")
    cluster.wait_sharing(TABLES)


def test_capture_that_is_stopped_and_goes_on_starts_anew(loaded: Loaded) -> None:
    cluster = loaded.cluster
    zombie, standby = cluster.owner(), cluster.other()
    before = cluster.capture_id(zombie)
    with cluster.stopped(zombie):
        # Who asks for what only owners do hears soon that there is none; a successor answers it, or has just begun.
        status, said = cluster.answer(standby, "POST", f"/api/v1/changefeeds/{FEED}/tables/rebalance_table")
        assert status < 300 or said["error_code"] in ("CDC:ErrOwnerNotFound", "CDC:ErrServerIsNotReady"), said
        cluster.wait_moving("owner stopped")
        cluster.watch_for(ZOMBIE_S)
    cluster.wait(lambda: cluster.capture_id(zombie) not in ("", before), "it is back, as another capture")
    cluster.wait_moving("stopped owner is back")


def test_zookeeper_that_restarts_ends_nobody_whose_lease_outlasts_it(loaded: Loaded) -> None:
    cluster = loaded.cluster
    cluster.wait_registered()
    before, began_at = cluster.captures(), time.monotonic()
    read_from = {name: cluster.child(name).log.stat().st_size for name in before}
    cluster.bus.part("zookeeper").kill()
    cluster.bus.restart_part("zookeeper")
    cluster.wait_moving(f"ZooKeeper restarted in {time.monotonic() - began_at:.1f} s")
    # How long each was without an answer hangs on the machine, and only it can know. So: whoever ended says why, and
    # there is one reason to.

    def ends(name: str) -> list[str]:
        said = cluster.child(name).log.read_bytes()[read_from[name] :].decode()
        return [line for line in said.splitlines() if "capture starts anew" in line or "capture ends" in line]

    def settled() -> bool:
        captures = cluster.captures()
        return captures.keys() == before.keys() and all(
            (captures[name] == before[name]) is not bool(ends(name)) for name in captures
        )

    cluster.wait(settled, "those that ended are back, the others are who they were")
    reasons = [ends(name)[0] for name in before if ends(name)]
    assert all("code=zookeeper.lease_lost" in reason for reason in reasons), reasons


def test_capture_that_is_drained_has_no_spans(loaded: Loaded) -> None:
    cluster = loaded.cluster
    cluster.wait_sharing(TABLES)
    drained, spans = cluster.drain()
    assert spans > 0
    cluster.wait(lambda: cluster.spans().get(drained) == 0, "it has no spans")
    cluster.wait_moving("capture drained")


def test_captures_that_restart_one_after_the_other_hand_over(loaded: Loaded) -> None:
    cluster = loaded.cluster
    for name in cluster.addresses:
        before = cluster.capture_id(name)
        cluster.child(name).terminate()
        cluster.wait(lambda name=name: not cluster.child(name).is_running(), f"{name} has left")  # type: ignore[misc]
        assert cluster.child(name).exit_status() == 0
        cluster.wait_moving(f"{name} has left")
        cluster.wait(
            lambda name=name, before=before: cluster.capture_id(name) not in ("", before),  # type: ignore[misc]
            f"{name} is back",
        )
    cluster.wait_sharing(TABLES)


def test_topics_hold_exactly_the_upstreams_history_and_the_bank_adds_up(loaded: Loaded) -> None:
    cluster, generator, bank = loaded.cluster, loaded.generator, loaded.bank
    cluster.wait(lambda: generator.rows_committed > ROWS_MIN and bank.transfers > TRANSFERS_MIN, "enough is written")
    cluster.wait(lambda: cluster.frontier.offsets()[1] > PLACES_MIN, "the frontier has moved often")
    generator.stop()
    bank.stop()
    for written in loaded.writing:
        written.result(60)
    last_ts = max(generator.last_commit_ts, bank.last_commit_ts)
    wait_checkpoint(cluster.bus, FEED, last_ts, CATCH_UP_S)
    names = {
        table.table_id: f"{SCHEMA}.{table.shape.name}_{number}" for number, table in enumerate(generator._tables, 1)
    }
    upstream = cluster.server.act(lambda store: stored_upstream(store, names | bank.names))
    upstream = [change for change in upstream if change.commit_ts > loaded.start_ts]
    assert len(upstream) > ROWS_MIN
    validator = Validator(decode_canal_json, upstream)
    records = list(topic_records(cluster.bus.addresses.kafka_access, TOPIC))
    validator.note_all(records)
    assert validator.finish(need_watermark=last_ts) == []
    reader, patient = BankReader(decode_canal_json, bank.total), BankReader(decode_canal_json, bank.total)
    reader.read(record for record in records if record.topic == TOPIC + "bank")
    assert reader.broken == []
    # A watermark a batch; a sorter that is behind takes all that it can in one. So it is added up at each commit, too,
    # and in the log itself at every ts at which a changefeed could stand.
    assert reader.sums >= 2
    patient.read_each_commit(record for record in records if record.topic == TOPIC + "bank")
    assert patient.broken == []
    assert patient.sums == bank.transfers + 1
    log = BankLog(frozenset(bank.tables), bank.total)
    log.take(cluster.bus.addresses.kafka, cluster.upstream)
    log.read(cluster.places())
    assert log.broken == []
    assert log.sums > PLACES_MIN / 3  # where the frontier stands still it is said again
    cluster.notes.append(
        f"the bank adds up at {reader.sums} watermarks, {patient.sums} commits and {log.sums} places of the log"
    )
