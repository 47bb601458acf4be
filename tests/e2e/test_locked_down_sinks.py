"""A locked-down bus into a real MariaDB, into files and lake tables, while a capture and a processor are killed.

Captures prove to each other that they know ``--cluster-secret-file``; the other locked-down runs do it by certificates.
All else is as ``tidebus run --secure`` has it: TLS and users everywhere, least rights, settings sealed in ZooKeeper.
"""

import csv
import http.client
import os
import secrets
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from compose.cli import run_cli
from compose.local.bus import BusOptions, LocalBus
from compose.operator.verify import partition_of
from compose.stack.children import Nursery
from compose.stack.mariadb import LocalMariaDb
from compose.stack.secure.certificates import write_private
from compose.stack.secure.folder import StackSecrets
from consumers.control.changefeeds.store import ChangefeedRequest
from consumers.control.cluster.capture_registry import list_captures
from consumers.verify.border import snapshot
from consumers.verify.core.outcome import Verdict
from consumers.verify.table_check import TablePair
from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.server import RegionServer, RegionServerOptions
from schemas.ids import TableId, Ts, UpstreamId
from tests.parity.dashboards import read_panels
from tests.parity.events import labels_of
from tests.support.control.lasting_session import lasting_session
from tests.support.database.apply import rows, run_sql
from tests.support.database.bank import Bank
from tests.support.database.mariadb import started_or_skip
from tests.support.database.verify import MariaDbSource, connector, table_check
from tests.support.lakes.lake import Lake
from tests.support.processes.bus import create_from_the_start, wait_checkpoint, wait_until
from tests.support.processes.secure_bus import region_server_tls, with_parameters
from tests.support.processes.source_driver import SourceDriver
from tests.support.processes.spark_cluster import make_bare_python, spark_cluster
from tests.support.topics.imaged_topics import wait_whole
from tests.support.upstream.upstream_rows import Rows, upstream_at
from tidebus.spark import TideBusDataSource

UPSTREAM = UpstreamId("locked")
DATABASE, STORAGE = "database", "storage"
CATCH_UP_S = 600.0
TRANSFERS_MIN = 200
VERIFICATIONS = 2


@dataclass
class Locked:
    """The bus, its upstream in this process, the database and the folder."""

    bus: LocalBus
    server: RegionServer
    mariadb: LocalMariaDb
    files: Path
    bank: Bank
    writing: "list[Future[None]]" = field(default_factory=list)

    def processors(self, changefeed: str) -> list[int]:
        """Return the processes that apply a changefeed."""
        address = self.bus.addresses.zookeeper
        commands = [(process.pid, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
        return [pid for pid, words in commands if {"processor", changefeed, address} <= set(words)]

    def wait_moving(self, changefeeds: Iterable[str] = (DATABASE, STORAGE)) -> None:
        """Wait until destinations hold what is written by now."""
        now_ts = self.server.tso()
        for changefeed in changefeeds:
            wait_checkpoint(self.bus, changefeed, now_ts, CATCH_UP_S)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    folder = tmp_path_factory.mktemp("locked")
    made = StackSecrets.make(folder / "secrets")
    cluster_secret = folder / "secrets" / "cluster-secret"
    write_private(cluster_secret, f"{secrets.token_urlsafe(32)}\n".encode())
    tls = region_server_tls(made, asks_clients=False)
    server = RegionServer(RegionServerOptions(min_ts_interval_ms=200, tls=tls))
    with started_or_skip(LocalMariaDb(data=folder / "mariadb")) as mariadb, server:
        server.spawn(Generator(server, GeneratorOptions(schema="boot", tables=1, rows_max=1)).run()).result(60)
        options = BusOptions(
            data_dir=folder / "bus",
            pd=server.pd_address,
            upstream=UPSTREAM,
            secrets=made,
            cluster_secret_file=cluster_secret,
            capture_arguments=("--sorter-spark-on-demand",),
        )
        with LocalBus(options) as bus:
            bus.start_capture("capture 2")
            of = Locked(bus, server, mariadb, folder / "files", Bank(server, pause_s=0.02))
            uris = {
                DATABASE: mariadb.uri("worker-count=4"),
                STORAGE: f"file://{of.files}?protocol=csv&flush-interval=2s",
                # What a sorter counts of its messages, and its producer of its requests.
                "topics": with_parameters(
                    f"kafka://{bus.addresses.kafka}/locked-topic?protocol=canal-json&compression=gzip",
                    bus.sink_parameters,
                ),
            }
            for changefeed, uri in uris.items():
                config = {"filter": {"rules": ["bank.*"]}}
                create_from_the_start(
                    bus, ChangefeedRequest(upstream=UPSTREAM, sink_uri=uri, config=config, changefeed_id=changefeed)
                )
            of.writing.append(server.spawn(of.bank.run()))
            of.wait_moving()
            yield of


AT_REST: Final = frozenset(
    {
        *("process_start_time_seconds", "ticdc_coordinator_changefeed_state", "ticdc_event_store_subscription_num"),
        *("ticdc_kvclient_event_feed_count", "ticdc_kvclient_event_feed_error_count", "ticdc_owner_status"),
        *("ticdc_owner_changefeed_downstream_info", "ticdc_scheduler_table_count"),
        *("ticdc_processor_exit_with_error_count", "ticdc_sink_execution_error"),
        *("ticdc_sink_ddl_exec_count", "ticdc_sink_ddl_exec_duration_bucket"),
        *("ticdc_sink_ddl_exec_duration_count", "ticdc_sink_ddl_exec_duration_sum"),
        *("ticdc_processor_num_of_tables", "ticdc_scheduler_capture_table"),
        *("ticdc_scheduler_span_count", "ticdc_scheduler_table", "ticdc_scheduler_table_replication_state"),
        *("ticdc_scheduler_task", "ticdc_scheduler_task_running", "ticdc_schema_store_register_table_num"),
        *("ticdc_sink_kafka_producer_err_count", "ticdc_sink_kafka_producer_in_flight_requests"),
        *("ticdc_sink_kafka_producer_retry_count", "ticdc_sink_kafka_producer_throttle_time"),
        *("ticdc_subscription_client_requested_region_count", "ticdc_subscription_client_subscribed_region_count"),
    }
)
"""What says nothing new of a bus on which nothing fails, and whose tables and captures stay what they are."""
Samples = dict[tuple[str, str, frozenset[tuple[str, str]]], float]
"""By address, name and labels."""


def scraped(locked: Locked) -> Samples:
    """Return what all captures' pages of metrics say now."""
    with lasting_session(locked.bus.addresses.zookeeper_access) as session:
        addresses = [capture.address for capture in list_captures(session, locked.bus.zk_paths)]
    samples: Samples = {}
    for address in addresses:
        # Captures that know a secret of their cluster have no certificate to show.
        with closing(http.client.HTTPConnection(address, timeout=CATCH_UP_S)) as connection:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            text = answer.read().decode()
        assert answer.status == 200, text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples[address, sample.name, frozenset(sample.labels.items())] = sample.value
    return samples


def test_what_panels_of_ticdcs_dashboards_ask_for_moves_while_the_bus_works(locked: Locked) -> None:
    asked = {item.metric for item in read_panels() if labels_of(item.metric) is not None}
    before = scraped(locked)
    # An error has its series when there has been one, a producer when its first statistics have come.
    silent = asked - {name for _, name, _ in before}
    of_producers = {name for name in asked if name.startswith("ticdc_sink_kafka_producer_")}
    assert silent <= {"ticdc_kvclient_event_feed_error_count", *of_producers} and len(of_producers) == 12

    seen, at_rest = set[str](), set[str]()

    def have_moved() -> bool:
        now = scraped(locked)
        seen.update({name for _, name, _ in now})
        moved = {key[1] for key, value in now.items() if before.setdefault(key, value) != value}
        at_rest.clear()
        at_rest.update(asked - moved - AT_REST)
        return not at_rest

    try:
        wait_until(have_moved, CATCH_UP_S, "samples of all metrics have moved", locked.bus)
    except AssertionError as late:
        late.add_note(f"at rest: {sorted(at_rest)}")
        raise
    assert asked >= AT_REST, "an entry that nothing needs any more goes"
    assert of_producers <= seen


def test_locked_down_bus_whose_capture_and_processor_are_killed_loses_nothing_on_its_way_to_database_and_files(
    locked: Locked,
) -> None:
    os.kill(locked.processors(DATABASE)[0], signal.SIGKILL)
    locked.wait_moving()
    verify_while_it_moves(locked)
    locked.bus.processes["capture 2"].kill()
    locked.wait_moving()
    os.kill(locked.processors(STORAGE)[0], signal.SIGKILL)
    wait_until(lambda: locked.bank.transfers > TRANSFERS_MIN, CATCH_UP_S, "transfers", locked.bus)
    locked.bank.stop()
    for written in locked.writing:
        written.result(60)
    locked.wait_moving()
    tables = locked.bank.names
    want = locked.server.act(lambda store: upstream_at(store, tables, locked.bank.last_commit_ts))
    assert sum(len(held) for held in want.values()) == 2 * locked.bank.accounts
    assert in_database(locked, want) == want
    assert in_files(locked.files) == as_texts(want)


def test_tables_that_have_rows_come_whole_into_a_database_files_and_a_lake_though_processors_are_killed(
    locked: Locked,
) -> None:
    names: dict[TableId, str] = {}
    old = Generator(locked.server, GeneratorOptions(schema="old", tables=1, rows_per_s=0, rows_max=2_000, seed=7))
    locked.server.spawn(old.run()).result(CATCH_UP_S)
    late = Generator(locked.server, GeneratorOptions(schema="late", tables=1, rows_per_s=300, rows_max=900, seed=8))
    writing = locked.server.spawn(late.run())
    wait_until(lambda: late.rows_committed >= 300, CATCH_UP_S, "rows before the changefeeds", locked.bus)
    files, lake = locked.files.with_name("late-files"), Lake(locked.files.with_name("lake"))
    applied = {
        "late-database": locked.mariadb.uri("worker-count=4"),
        "late-storage": f"file://{files}?protocol=csv&flush-interval=2s",
    }
    uris = {**applied, "late-lake": f"iceberg://?warehouse=file://{lake.folder}&mode=upsert&commit-interval=1s"}
    config = {"initial": "snapshot", "filter": {"rules": ["old.*", "late.*"]}}
    for changefeed, uri in uris.items():
        locked.bus.create_changefeed(
            ChangefeedRequest(upstream=UPSTREAM, sink_uri=uri, config=config, changefeed_id=changefeed)
        )
    for changefeed in applied:
        wait_until(lambda of=changefeed: bool(locked.processors(of)), CATCH_UP_S, "processors", locked.bus)  # type: ignore[misc]
        os.kill(locked.processors(changefeed)[0], signal.SIGKILL)
    writing.result(CATCH_UP_S)
    for changefeed in uris:
        wait_whole(locked.bus, changefeed, CATCH_UP_S)
    locked.wait_moving(uris)
    for schema, generator in (("old", old), ("late", late)):
        names |= {table.table_id: f"{schema}.{table.shape.name}_1" for table in generator._tables}
    upto_ts = late.last_commit_ts
    want = locked.server.act(lambda store: upstream_at(store, names, upto_ts))
    assert all(want.values())
    assert in_database(locked, want) == want
    assert in_files(files) == as_texts(want)
    assert in_lake(lake, want) == want


def verify_while_it_moves(locked: Locked) -> None:
    """Compare both tables as `tidebus verify` does, each time at the ts at which the destination happens to be; the
    upstream as of this ts is what the region server's store holds.
    """
    ((feed,),) = rows(locked.mariadb, "SELECT DISTINCT feed FROM tidebus.position")
    tables = locked.bank.names
    run_sql(locked.mariadb, "CREATE DATABASE upstream")
    for name in tables.values():
        run_sql(locked.mariadb, f"CREATE TABLE upstream.{name.partition('.')[2]} LIKE {name}")

    def prepare(ts: Ts) -> None:
        for name, held in locked.server.act(lambda store: upstream_at(store, tables, ts)).items():
            table = f"upstream.{name.partition('.')[2]}"
            values = ",".join(f"({number},{k},'{c}','{pad}')" for number, (k, c, pad) in held.items())
            run_sql(locked.mariadb, f"DELETE FROM {table}", f"INSERT INTO {table} VALUES {values}")

    source = MariaDbSource(locked.mariadb, prepare)
    check = table_check(source, feed, range_rows=7, wait_s=15.0)
    pairs = [
        TablePair(source=("upstream", table), destination=(schema, table), partition_of=partition_of((schema, table)))
        for schema, _, table in (name.partition(".") for name in tables.values())
    ]

    def have_moved(seen_ts: Ts) -> bool:
        """Ask the partitions of these tables: another one's watermark says nothing of them."""
        with snapshot(connector(locked.mariadb), feed) as seen:
            return all(seen.borders[pair.partition_of(len(seen.borders))].ts > seen_ts for pair in pairs)

    for _ in range(VERIFICATIONS):
        seen_ts = max(source.asked, default=Ts(0))
        wait_until(partial(have_moved, seen_ts), CATCH_UP_S, "rows of both tables", locked.bus)
        for pair in pairs:
            outcome = check.check(pair)
            assert (outcome.verdict, outcome.source_proof.rows) == (Verdict.SAME, locked.bank.accounts), outcome
    assert len(set(source.asked)) >= VERIFICATIONS, source.asked


def as_texts(tables: Rows) -> dict[str, dict[int, tuple[str, ...]]]:
    return {name: {row_id: tuple(map(str, row)) for row_id, row in held.items()} for name, held in tables.items()}


def in_database(locked: Locked, names: Iterable[str]) -> Rows:
    """Return what the database holds of tables."""
    return {
        name: {int(row[0]): (int(row[1]), *map(str, row[2:])) for row in rows(locked.mariadb, f"SELECT * FROM {name}")}
        for name in names
    }


def in_files(folder: Path) -> dict[str, dict[int, tuple[str, ...]]]:
    """Return what somebody holds who has applied all lines of a folder's files, in their order."""
    held: dict[str, dict[int, tuple[str, ...]]] = {}
    for path in sorted(folder.rglob("CDC*.csv")):
        with path.open(newline="") as file:
            for op, table, schema, row_id, *columns in csv.reader(file):
                whole = held.setdefault(f"{schema}.{table}", {})
                whole.pop(int(row_id), None)
                if op != "D":
                    whole[int(row_id)] = tuple(columns)
    return held


def in_lake(lake: Lake, names: Iterable[str]) -> Rows:
    """Return what lake tables hold at the newest tag, which all of them have."""
    parts = {name: (name.partition(".")[0], name.partition(".")[2]) for name in names}
    ts = max(set.intersection(*(lake.tags(schema, table) for schema, table in parts.values())))
    return {
        name: {row["id"]: (row["k"], row["c"], row["pad"]) for row in lake.rows(schema, table, ts)}
        for name, (schema, table) in parts.items()
    }


def test_locked_down_bus_keeps_the_destinations_password_sealed(locked: Locked) -> None:
    with lasting_session(locked.bus.addresses.zookeeper_access) as session:
        node = session.client.get(locked.bus.zk_paths.changefeed_info("default", DATABASE))[0]
    assert b'"sealed"' in node and b"mysql://" not in node


def replayed(changes: Iterable[dict[str, Any]]) -> dict[int, tuple[object, ...]]:
    """Return the table that rows of the Spark source come to."""
    held: dict[int, tuple[object, ...]] = {}
    for row in sorted(changes, key=lambda row: (row["_commit_version"], row["_change_type"] == "update_postimage")):
        held.pop(row["id"], None)
        if row["_change_type"] in ("insert", "update_postimage"):
            held[row["id"]] = (row["k"], row["c"], row["pad"])
    return held


NIGHTLY = pytest.mark.skipif(
    os.environ.get("NIGHTLY_SOURCE") != "1", reason="some minutes: NIGHTLY_SOURCE=1, as `make nightly`"
)


@NIGHTLY
def test_locked_down_bus_is_read_by_the_spark_source_of_who_may(locked: Locked) -> None:
    """What Spark calls on the driver and in its tasks, without a Spark around it."""
    ts = locked.server.tso()
    locked.wait_moving()
    names = locked.bank.names
    want = locked.server.act(lambda store: upstream_at(store, names, ts))
    where, made = locked.bus.addresses, locked.bus.secrets
    assert made is not None
    reached = {"kafka": where.kafka, "kafkaConfig": str(made.kafka_config("sorter")), "endingTs": str(ts)}

    for name in names.values():
        source = TideBusDataSource({**reached, "raw": str(UPSTREAM), "table": name})
        reader = source.reader(source.schema())
        rows_of = (reader.read(partition) for partition in reader.partitions())
        changes = [row for batches in rows_of for batch in batches for row in batch.to_pylist()]
        assert replayed(changes) == want[name]

    zookeeper = {"zookeeper": where.zookeeper, "zookeeperConfig": where.zookeeper_access.config_file}
    given = {**reached, **zookeeper, "changefeed": DATABASE, "cluster": locked.bus.options.cluster}
    # Its settings are sealed; this process, which runs the bus, has the key.
    shown = TideBusDataSource({**given, "table": next(iter(names.values()))}).schema()
    assert shown.fieldNames()[:4] == ["id", "k", "c", "pad"]


@NIGHTLY
def test_locked_down_bus_is_read_on_a_spark_cluster_by_a_program_that_knows_both_secrets(
    locked: Locked, tmp_path: Path
) -> None:
    """Its machines have a bare Python; what Kafka asks of them comes from the driver."""
    ts, name = locked.server.tso(), next(iter(locked.bank.names.values()))
    locked.wait_moving()
    want = locked.server.act(lambda store: upstream_at(store, locked.bank.names, ts))[name]
    made, archive = locked.bus.secrets, tmp_path / "tidebus-executors.tar.gz"
    assert made is not None and run_cli(["executor-archive", str(archive)]) == 0
    reached = {"kafka": locked.bus.addresses.kafka, "kafkaConfig": str(made.kafka_config("sorter"))}
    path = f"{make_bare_python(tmp_path).parent}{os.pathsep}{os.environ['PATH']}"

    with spark_cluster(tmp_path / "spark", 1, path=path) as cluster, Nursery() as nursery:
        driver = SourceDriver(tmp_path / "user", cluster, archive)
        reading = driver.start(nursery, {**reached, "raw": str(UPSTREAM), "table": name, "endingTs": str(ts)})
        wait_until(lambda: not reading.is_running(), CATCH_UP_S, "the read's end", locked.bus)

    assert replayed(driver.rows()) == want, reading.log.read_text()[-3000:]
