"""Image and stream in one, proven: a database and topics are the source at each watermark, whoever was killed.

Tables of all kinds of key, partitioned ones and a large one had rows before the bus came, and are written to all the
time, with DDL. Every look compares three: the source as its writer noted it
(:mod:`tests.support.database.state_writer`), the database's own hashes in a snapshot, and the state proof that the
sorter carries. ``make nightly`` runs it (``NIGHTLY_STATES``); ``STATES_ROWS`` is the large table's,
``STATES_ROWS_PER_S`` the rate, ``STATES_LOOKS`` how many watermarks are looked at, and ``STATES_SEED`` draws what
happens after which look, and who dies first during the image.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from compose.local.bus import BusOptions, LocalBus
from compose.operator.verify import VerifyOptions, check_settings, table_pairs, told_proofs, told_ts
from compose.stack.mariadb import LocalMariaDb
from consumers.client import ChangeBatch, Row
from consumers.client.materialised import MaterialisedTable
from consumers.control.changefeeds.store import (
    ChangefeedRequest,
    ChangefeedStore,
    NoFrontierError,
)
from consumers.control.log.frontier_topic import FrontierUnavailableError
from consumers.control.log.raw_log import RawLogUnavailableError
from consumers.verify.core.outcome import TableOutcome, Verdict
from consumers.verify.table_check import TableCheck, TablePair
from producers.region_server.core.chaos import StartStore, StopStore
from producers.region_server.server import RegionServer, RegionServerOptions
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts, UpstreamId
from schemas.state_proof.row_text import TableProof
from tests.support.control.lasting_session import lasting_session
from tests.support.database.apply import rows, run_sql
from tests.support.database.mariadb import started_or_skip
from tests.support.database.state_writer import SCHEMA, StateWriter
from tests.support.database.verify import connector
from tests.support.database.written_source import WrittenSource
from tests.support.processes.bus import sorter_pid, wait_checkpoint, wait_until
from tests.support.processes.secure_bus import made_secrets, region_server_tls, with_parameters
from tests.support.topics.imaged_topics import is_whole, wait_whole
from tests.support.topics.topic_reader import TopicReader

pytestmark = pytest.mark.skipif("NIGHTLY_STATES" not in os.environ, reason="some minutes; make nightly runs it")

UPSTREAM, BASE, TOPICS = UpstreamId("states"), "base", "topics"
LARGE_ROWS = int(os.environ.get("STATES_ROWS", "100000"))
ROWS_PER_S = float(os.environ.get("STATES_ROWS_PER_S", "300"))
LOOKS = int(os.environ.get("STATES_LOOKS", "24"))
DRAWN = random.Random(int(os.environ.get("STATES_SEED", "1")))
SCANNED_ROWS_PER_S = max(1_500, LARGE_ROWS // 60)
"""An image takes so long that somebody can die in its midst, and not much longer."""
OLD_TABLES = (
    ("large", "int", LARGE_ROWS),
    *((f"{kind}_{number}", kind, 3_000) for kind in ("int", "common", "wide") for number in (1, 2, 3)),
    *((f"{kind}_{number}", kind, 3_000) for kind in ("row_id", "binary", "hash") for number in (1, 2)),
    ("range_1", "range", 12_000),
)
LATE_TABLES = (("late_int", "int"), ("late_common", "common"), ("late_hash", "hash"))
EXTENDED, EMPTIED = ("int_2", "hash_2"), "int_3"
CATCH_UP_S = 600.0
"""For a restarted part to be back, an image to be whole, or the next watermark to be proven, on a loaded machine."""
LOOK_S = 8.0
"""Of one look: the supervisor must be let look between."""


@dataclass
class States:
    """A running bus over a region server of this process, and the database."""

    bus: LocalBus
    server: RegionServer
    writer: StateWriter
    writing: "Future[None]"
    mariadb: LocalMariaDb
    source: WrittenSource
    check: TableCheck = field(init=False, repr=False)
    pairs: dict[str, TablePair] = field(default_factory=dict)
    proven: list[tuple[str, Ts]] = field(default_factory=list)
    """Looks at which source, database and state proof were the same: table, and ts."""
    unproven: Counter[str] = field(default_factory=Counter)
    """Looks at which source and database were the same, and why there was no proof."""

    def create(self, name: str, sink_uri: str, config: dict[str, Any]) -> None:
        config = {"initial": "snapshot", "filter": {"rules": [f"{SCHEMA}.*"]}, **config}
        request = ChangefeedRequest(upstream=UPSTREAM, sink_uri=sink_uri, config=config, changefeed_id=name)

        def is_created() -> bool:
            try:
                self.bus.create_changefeed(request)
            except (FrontierUnavailableError, NoFrontierError, RawLogUnavailableError):
                return False
            return True

        self.wait(is_created, "the first frontier")

    def wait(self, done: Callable[[], bool], what: str) -> None:
        def is_done() -> bool:
            if self.writing.done():
                self.writing.result()  # an error of it is the test's: what waits for new rows would wait in vain
            return done()

        wait_until(is_done, CATCH_UP_S, what, self.bus)

    def processor_pids(self) -> list[int]:
        address = self.bus.addresses.zookeeper
        commands = [(process.pid, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
        return [pid for pid, words in commands if {"processor", address} <= set(words)]

    def kill_processors(self) -> None:
        """Kill all that there are, as soon as there are some: who was killed before may still be away."""
        killed: list[int] = []

        def is_killed() -> bool:
            killed[:] = self.processor_pids()
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            return bool(killed)

        self.wait(is_killed, "a processor to kill")

    def kill_sorters(self) -> None:
        """Kill the service that runs the changefeed, as soon as there is one."""
        self.wait(lambda: sorter_pid(self.bus, BASE) is not None, "a sorter to kill")
        killed = sorter_pid(self.bus, BASE)
        assert killed is not None
        os.killpg(killed, signal.SIGKILL)

    def kill(self, capture: str) -> None:
        self.bus.processes[capture].kill()

    def upstream(self, *steps: Callable[[], object]) -> None:
        """Let something happen at the source, in one step of the server's loop."""
        self.server.act(lambda _: [step() for step in steps])

    def stop_store(self) -> None:
        """Take a store away, and give it back after some seconds."""
        store = self.server.store.store_ids[1]
        self.server.perform(StopStore(store))
        back_at = time.monotonic() + 3
        self.wait(lambda: time.monotonic() > back_at, "some seconds without a store")
        self.server.perform(StartStore(store))

    def ready(self) -> None:
        """Make what compares tables, by the product's own settings."""
        access = self.bus.addresses.zookeeper_access
        with lasting_session(access) as session:
            info = ChangefeedStore(session, self.bus.zk_paths).get(BASE)
        config = load_changefeed(info.sink_uri, info.config)
        options = VerifyOptions(
            changefeed_id=BASE,
            cluster=self.bus.options.cluster,
            zookeeper=access,
            upstream_dsn="",
            wait_s=LOOK_S,
        )

        def checkpoint_ts() -> Ts:
            with lasting_session(access) as session:
                return told_ts(ChangefeedStore(session, self.bus.zk_paths), info)

        proofs = told_proofs(self.bus.addresses.kafka_access, info, checkpoint_ts)
        settings = check_settings(options, info, config)
        self.check = TableCheck(self.source, connector(self.mariadb), settings, proofs)
        self.pairs = {pair.source[1]: pair for pair in table_pairs(config, self.source, ())}

    def look(self, table: str) -> TableOutcome:
        """Compare a table at the ts at which it stands; it must be the same."""
        outcome = self.check.check(self.pairs[table])
        self.bus.tick()
        if outcome.verdict is Verdict.NOT_COMPARED:  # a DDL is under way
            self.unproven[outcome.reason] += 1
            return outcome
        if outcome.verdict is Verdict.DIFFERENT and "may still be under way" in outcome.reason:
            self.unproven[outcome.reason] += 1
            return outcome
        assert outcome.verdict is Verdict.SAME, outcome
        if outcome.proof is None:
            self.unproven[outcome.proof_reason] += 1
        elif (table, outcome.ts) not in self.proven:
            self.proven.append((table, outcome.ts))
        return outcome

    def prove(self, table: str, *, at_new_ts: bool = False) -> None:
        """Look until the state proof of the ts is there, too; ``at_new_ts``: at one at which nobody has looked."""
        before = {ts for _, ts in self.proven} if at_new_ts else set[Ts]()

        def is_proven() -> bool:
            outcome = self.look(table)
            return outcome.proof is not None and outcome.ts not in before

        self.wait(is_proven, f"a proof of {table}, {len(self.proven)} so far, {self.unproven}")


@contextmanager
def running(folder: Path) -> Iterator[States]:
    secrets = made_secrets(folder)
    options = RegionServerOptions(min_ts_interval_ms=200, tls=region_server_tls(secrets))
    with RegionServer(options) as server, started_or_skip(LocalMariaDb(data=folder / "mariadb")) as mariadb:
        writer = StateWriter(server, rows_per_s=ROWS_PER_S)
        server.spawn(writer.load(OLD_TABLES)).result(600)
        bus_options = BusOptions(
            data_dir=folder / "bus",
            pd=server.pd_address,
            upstream=UPSTREAM,
            secrets=secrets,
            capture_arguments=("--image-rows-per-second", str(SCANNED_ROWS_PER_S), "--sorter-spark-on-demand"),
        )
        with LocalBus(bus_options) as bus:
            bus.start_capture("capture 2")
            writing = server.spawn(writer.run())
            yield States(bus, server, writer, writing, mariadb, WrittenSource(server, writer))
            writer.stop()


@pytest.mark.timeout(5_400)
def test_database_and_topics_are_the_source_at_every_watermark_and_each_plant_is_named(tmp_path: Path) -> None:
    with running(tmp_path) as of:
        of.create(BASE, of.mariadb.uri("worker-count=4"), {"state-proofs": [f"{SCHEMA}.*"]})
        of.create(TOPICS, _topics_uri(of.bus), _topics_config())
        _kill_during_image(of)
        for name in (BASE, TOPICS):
            wait_whole(of.bus, name, CATCH_UP_S)
        whole_ts = of.server.tso()
        for name in (BASE, TOPICS):
            wait_checkpoint(of.bus, name, whole_ts, CATCH_UP_S)
        of.ready()
        began_at = time.monotonic()
        reader = _reader(of)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(reader.run)
            try:
                _look_and_kill(of)
                reader.last_ts = of.server.tso()
                of.wait(reading.done, "topics are read to their end")
            finally:
                reader.last_ts = reader.last_ts if reading.done() else Ts(0)  # it ends, whatever has happened
            reading.result()
        for table in of.pairs:
            of.prove(table)
        assert len({ts for _, ts in of.proven}) >= LOOKS
        print(f"{len(of.proven)} proven, {of.unproven} not, {time.monotonic() - began_at:.0f} s, {os.getloadavg()}")
        print(f"topics: {sum(reader.looked.values())} tables at {len(reader.looked)} watermarks")
        print(f"their images were under way at {len(reader.passed_over)} more")
        assert not reader.different
        assert len(reader.looked) >= LOOKS // 2
        assert reader.looked[reader.watermark_ts] == len(reader.tables)
        _planted_batch(reader.tables["int_1"], of, reader.watermark_ts)
        _plants(of)


def _topics_uri(bus: LocalBus) -> str:
    uri = f"kafka://{bus.addresses.kafka}/{TOPICS}_ddl?protocol=canal-json&enable-tidb-extension=true&partition-num=2"
    return with_parameters(uri, bus.sink_parameters)


def _topics_config() -> dict[str, Any]:
    dispatch = {"matcher": ["*.*"], "topic": TOPICS + "_{schema}_{table}", "partition": "index-value"}
    return {"sink": {"dispatchers": [dispatch]}}


def _reader(of: States) -> TopicReader:
    """Return what reads the topics: a column that is added ends what it can prove, and a pattern finds the topic of a
    new table late.
    """
    old, late = [name for name, _, _ in OLD_TABLES], [name for name, _ in LATE_TABLES]
    return TopicReader(
        kafka=of.bus.addresses.kafka_access,
        pattern=f"^{TOPICS}_.*",
        source=of.source,
        tables={name: MaterialisedTable(SCHEMA, name) for name in (*old, *late) if name not in EXTENDED},
        only_in_the_end=frozenset({"large", *late}),
    )


def _rows_there(of: States) -> int:
    made = rows(of.mariadb, f"SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = '{SCHEMA}'")
    if int(made[0][0]) < len(OLD_TABLES):
        return 0
    return int(rows(of.mariadb, f"SELECT COUNT(*) FROM {SCHEMA}.large")[0][0])


def _kill_during_image(of: States) -> None:
    """Everybody dies while rows of the image are under way."""
    of.wait(lambda: _rows_there(of) > 0, "rows of the image")
    captures = ["capture", "capture 2"]
    DRAWN.shuffle(captures)
    deaths: list[Callable[[], object]] = [of.kill_processors, of.kill_sorters, partial(of.kill, captures[0])]
    DRAWN.shuffle(deaths)
    for die in deaths:
        die()
    assert not is_whole(of.bus, BASE), "they die in the middle"
    before = _rows_there(of)
    of.wait(lambda: _rows_there(of) > before, "more rows of the image")
    of.kill(captures[1])


def _look_and_kill(of: States) -> None:
    """Look at watermark after watermark; between them somebody dies, a region splits, a DDL runs, in an order and at
    distances that are drawn. In the end nobody writes any more, and all is applied.
    """
    writer = of.writer
    events: list[Callable[[], object]] = [
        of.kill_sorters,
        partial(of.kill, "capture"),
        of.kill_processors,
        partial(of.upstream, partial(writer.split, "large")),
        partial(of.upstream, *(partial(writer.add_column, name) for name in EXTENDED)),
        partial(of.kill, "capture 2"),
        partial(of.upstream, *(partial(writer.create, name, kind) for name, kind in LATE_TABLES)),
        of.stop_store,
        partial(of.upstream, partial(writer.truncate, EMPTIED)),
        of.kill_processors,
    ]
    looks_all = max(LOOKS, len(events))
    DRAWN.shuffle(events)
    after = dict(zip(sorted(DRAWN.sample(range(1, looks_all + 1), len(events))), events, strict=True))
    for looks in range(1, looks_all + 1):
        names = list(of.pairs)
        of.prove("large" if looks % 4 == 1 else names[(looks - 1) * 7 % len(names)], at_new_ts=True)
        if looks in after:
            after[looks]()
            of.ready()  # tables may have come
    writer.stop()
    of.writing.result(60)
    last_ts = of.server.tso()
    for name in (BASE, TOPICS):
        wait_checkpoint(of.bus, name, last_ts, CATCH_UP_S)


def _planted_batch(table: MaterialisedTable, of: States, ts: Ts) -> None:
    """A row that never comes, and one with another's value, show in the proof of what was materialised."""
    key, columns = next(iter(table.rows.items()))
    expected = of.source.proof("int_1", ts)
    lost = Row(schema=SCHEMA, table="int_1", op="delete", commit_ts=ts, start_ts=ts, columns=columns, key_names=("id",))
    table.apply(ChangeBatch(watermark_ts=ts, changes=(lost,)))
    assert table.proof() == TableProof(expected.rows - 1, table.proof().xor)
    assert table.proof().xor != expected.xor
    put_back = replace(lost, op="insert", columns={**columns, "k": 1})
    table.apply(ChangeBatch(watermark_ts=ts, changes=(put_back,)))
    assert table.proof().rows == expected.rows and table.proof() != expected, key


def _plants(of: States) -> None:
    """A lost row, swapped values and a chunk that was written again are found, at the destination, by their keys."""
    ts = of.server.tso()
    held = of.server.act(lambda _: of.writer.tables["large"].at(ts))
    lost, left, right = (int(held.numbers[at]) for at in (17, 40, 41))
    run_sql(of.mariadb, f"DELETE FROM {SCHEMA}.large WHERE id = {lost}")
    _found(of, "large", {(str(lost),): "missing"})
    with_row = dict(zip(held.numbers.tolist(), held.sequences.tolist(), strict=True))
    pool = of.writer.pool
    texts = {
        number: of.writer.tables["large"].kind.texts(number, with_row[number], pool) for number in (lost, left, right)
    }
    shown = {number: [(text or b"").decode() for text in each] for number, each in texts.items()}
    run_sql(
        of.mariadb,
        f"INSERT INTO {SCHEMA}.large VALUES ({lost}, {shown[lost][1]}, '{shown[lost][2]}', '{shown[lost][3]}')",
        f"UPDATE {SCHEMA}.large SET k = {shown[right][1]} WHERE id = {left}",
        f"UPDATE {SCHEMA}.large SET k = {shown[left][1]} WHERE id = {right}",
    )
    _found(of, "large", {(str(left),): "differs", (str(right),): "differs"})
    # A chunk of the image once more, after changes came: rows are as they were, and those that were deleted are back.
    table = of.writer.tables["int_1"]
    held = of.server.act(lambda _: table.at(ts))
    newest = dict(zip(held.numbers.tolist(), held.sequences.tolist(), strict=True))
    expected: dict[tuple[str | None, ...], str] = {}
    for number in range(1, 1_001):
        first = table.earlier_sequence(number)
        if newest.get(number) == first:
            continue
        key = (str(number),)
        expected[key] = "differs" if number in newest else "extra"
        _, k, c, pad = (text.decode() for text in table.kind.texts(number, first, pool) if text is not None)
        run_sql(of.mariadb, f"REPLACE INTO {SCHEMA}.int_1 VALUES ({number}, {k}, '{c}', '{pad}')")
        if len(expected) == 60:
            break
    assert {"differs", "extra"} == set(expected.values())
    _found(of, "int_1", expected)


def _found(of: States, table: str, expected: dict[tuple[str | None, ...], str]) -> None:
    outcome = of.check.check(of.pairs[table])
    assert outcome.verdict is Verdict.DIFFERENT
    assert outcome.odd == "destination", outcome
    assert {difference.key: difference.what for difference in outcome.differences} == expected
