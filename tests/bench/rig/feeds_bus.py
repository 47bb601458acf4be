"""A bus by real processes with many changefeeds, for benches that ask what a changefeed costs.

The stack, a capture with its sorter service, and changefeeds of one upstream: each fifth takes all tables, the others a
tenth of them by their filter; canal-json, Avro and open-protocol in turns.
"""

import contextlib
import gc
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from confluent_kafka import Consumer, TopicPartition

from compose.local.bus import BusOptions, LocalBus
from compose.stack.children import TIDEBUS
from compose.stack.local import Addresses
from consumers.control.changefeeds.store import ChangefeedRequest
from edges.zookeeper.session import Session
from schemas.errors import BusError
from schemas.ids import Ts, UpstreamId, physical_ms
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import decode_entries
from schemas.sink.position import POSITION_CLASS_AT, POSITION_HEADER, PositionClass
from tests.bench.feeds.zookeeper_requests import received_packets
from tests.bench.rig.upstream import SCHEMA, Upstream
from tests.support.processes.bus import topic_count

UPSTREAM = UpstreamId("feeds")
CAPTURE, SORTERS = "capture", "sorters"
START_TIMEOUT_S = 240.0
PROTOCOLS = ("canal-json", "avro", "open-protocol")
TOPIC_PREFIX = "feed-"
ALL_TABLES_EVERY = 5
TABLES_SHARE = 10


@dataclass(frozen=True, slots=True)
class Usage:
    """What the bus has used up to a moment."""

    at_s: float
    cpu_s: float
    packets: int
    own_cpu_s: Mapping[int, float]
    """By process, without its children's: of those that live."""
    servers: frozenset[int]
    """Captures and sorter services; with one that has ended the CPU of what it had started is lost."""

    def ended_since(self, before: "Usage") -> int:
        return len(before.servers - self.servers)

    def cpu_s_since(self, before: "Usage") -> float:
        """Return what was used, or a little less: the sum lacks processes that ended and that nobody waited for, and
        what each process that lives says of itself lacks all that ended.
        """
        own_cpu_s = sum(cpu_s - before.own_cpu_s.get(pid, 0.0) for pid, cpu_s in self.own_cpu_s.items())
        return max(self.cpu_s - before.cpu_s, own_cpu_s)

    def cores_since(self, before: "Usage") -> float:
        return self.cpu_s_since(before) / (self.at_s - before.at_s)

    def packets_per_s_since(self, before: "Usage") -> float:
        return (self.packets - before.packets) / (self.at_s - before.at_s)


class Rows(NamedTuple):
    """What sorter services have said so far of all changefeeds' rows; repeats count."""

    written: int
    """Whatever becomes of them: a message of open-protocol holds several."""
    by_spark: int


class FeedsBus:
    """The running bus."""

    def __init__(self, bus: LocalBus, tables: int) -> None:
        self.bus, self._tables = bus, tables
        self.names: list[str] = []

    def create(self, count: int, *, protocol: str = "", rules: Sequence[str] = (), open_batch_rows: int = 0) -> None:
        """Create so many more changefeeds; return when each has a state.

        Args:
            protocol: of all of them, which take all tables then; else they take turns, see the module.
            rules: of the filter, then.
            open_batch_rows: ``max-batch-size`` of open-protocol; 0: the default.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        for number in range(len(self.names), len(self.names) + count):
            tables = rules or ([f"{SCHEMA}.*"] if protocol else self._rules(number))
            spoken = protocol or PROTOCOLS[number % len(PROTOCOLS)]
            batches = f"&max-batch-size={open_batch_rows}" if open_batch_rows and spoken == "open-protocol" else ""
            request = self._request(number, spoken, batches, tables)
            while True:
                self.bus.tick()
                try:
                    self.bus.create_changefeed(request)
                    break
                except BusError as error:
                    if time.monotonic() > deadline:
                        raise
                    say(f"waiting for the raw log: {error}")
                    time.sleep(1.0)
            self.names.append(_name(number))

    def usage(self) -> Usage:
        """Return what the capture and all that it has started, and a service by hand, have used so far."""
        port = int(self.bus.addresses.zookeeper.rsplit(":", 1)[1])
        ours = self._ours()
        servers = frozenset(each.pid for each in ours if _serves(each))
        own_cpu_s = {each.pid: cpu_s_of(each, with_ended=False) for each in ours}
        return Usage(time.monotonic(), sum(map(cpu_s_of, ours)), received_packets(port), own_cpu_s, servers)

    def messages(self) -> int:
        """Return how many messages all topics hold: open-protocol's are of several rows; watermarks and DDL count."""
        return topic_count(self.bus.addresses.kafka_access, TOPIC_PREFIX)

    def rows(self) -> Rows:
        """Return how many rows have been written, up to half a second ago."""
        paths, zookeeper = ServicePaths(self.bus.zk_paths), self.bus.addresses.zookeeper_access
        with Session(zookeeper) as session, session.requests("reading what services say") as client:
            folders = [f"{paths.progress}/{service}" for service in client.get_children(paths.progress)]
            nodes = [
                client.get(f"{folder}/{number}")[0] for folder in folders for number in client.get_children(folder)
            ]
        entries = [entry for node in nodes for entry in decode_entries(node)]
        return Rows(sum(entry.rows_total for entry in entries), sum(entry.spark_rows_total for entry in entries))

    def memory_mb(self) -> dict[str, float]:
        """Return the proportional sizes of all processes of the bus but Kafka."""
        others = {name: _pss_mb(psutil.Process(self.bus.part(name).pid)) for name in ("zookeeper", "registry")}
        sizes = {"ours": sum(map(_pss_mb, self._ours())), **others}
        return {"memory_mb": round(sum(sizes.values())), **{f"{name}_mb": round(size) for name, size in sizes.items()}}

    def _ours(self) -> list[psutil.Process]:
        started = [self.bus.processes[name] for name in (CAPTURE, SORTERS) if name in self.bus.processes]
        roots = [psutil.Process(child.pid) for child in started if child.is_running()]
        return [each for root in roots for each in (root, *root.children(recursive=True))]

    def _request(self, number: int, protocol: str, batches: str, rules: Sequence[str]) -> ChangefeedRequest:
        name = _name(number)
        uri = f"kafka://{self.bus.addresses.kafka}/{TOPIC_PREFIX}{name}?protocol={protocol}{batches}"
        dispatchers = [{"matcher": ["*.*"], "partition": "index-value"}]
        if protocol == "avro":
            uri += f"&schema-registry={self.bus.addresses.schema_registry}&enable-tidb-extension=true&partition-num=1"
            dispatchers[0]["topic"] = f"{TOPIC_PREFIX}{name}_{{schema}}_{{table}}"
        else:
            uri += "&partition-num=3" + ("&enable-tidb-extension=true" if protocol == "canal-json" else "")
        return ChangefeedRequest(
            upstream=UPSTREAM,
            sink_uri=uri,
            config={"sink": {"dispatchers": dispatchers}, "filter": {"rules": list(rules)}},
            changefeed_id=name,
        )

    def _rules(self, number: int) -> list[str]:
        if number % ALL_TABLES_EVERY == 0:
            return [f"{SCHEMA}.*"]
        width = max(1, self._tables // TABLES_SHARE)
        return [f"{SCHEMA}.sbtest1_{(number * width + at) % self._tables + 1}" for at in range(width)]


@contextlib.contextmanager
def feeds_bus(
    folder: Path, source: Upstream, tables: int, *, warm: bool, master: str = "local[2]", sorters: bool = True
) -> Iterator[FeedsBus]:
    """Yield a bus without changefeeds.

    Args:
        warm: the capture's own service, where Spark is there from the first changefeed on; else one by hand, on demand.
        sorters: start that one; else the caller does, by :func:`start_sorters`.
    """
    options = BusOptions(
        data_dir=folder,
        given=Addresses(),
        is_lasting=True,
        pd=source.pd,
        upstream=UPSTREAM,
        master=master if warm else "none",
    )
    with LocalBus(options, say=say) as bus:
        if not warm and sorters:
            start_sorters(bus, folder, master, "--spark-on-demand")
        yield FeedsBus(bus, tables)


def start_sorters(bus: LocalBus, folder: Path, master: str, *more: str) -> None:
    """Start a sorter service by hand."""
    where = bus.addresses
    arguments = [*where.kafka_access.arguments(), *where.zookeeper_access.arguments()]
    arguments += [*where.registry_access.arguments(), "--cluster", bus.options.cluster, "--master", master]
    command = [*TIDEBUS, "sorters", *arguments, "--data-dir", str(folder / SORTERS), *more]
    bus.processes[SORTERS] = bus.nursery.start(SORTERS, command, log=bus.logs / f"{SORTERS}.log")


class Arrivals:
    """A consumer of sink topics, from their ends at :meth:`follow` on. :meth:`close` must be called."""

    def __init__(self, kafka: str, *, every: int = 1) -> None:
        """Of each changefeed's partitions it reads the first, and from there on each ``every``-th."""
        self._every = every
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka,
                "group.id": "feeds",
                "enable.auto.commit": False,
                # Ten answers a second: each request names all partitions, and the broker looks at each of them. So an
                # answer takes what a partition gets in a tenth of a second while a changefeed catches up.
                "fetch.min.bytes": 64 * 1024 * 1024,
                "fetch.wait.max.ms": 100,
                "max.partition.fetch.bytes": 16 * 1024 * 1024,
                "log_level": 3,
            }
        )
        self._followed: set[tuple[str, int]] = set()

    def follow(self) -> int:
        """Take up the partitions that there are now; return how many of them it reads."""
        of_feeds: dict[str, list[tuple[str, int]]] = {}
        for name, topic in self._consumer.list_topics(timeout=30).topics.items():
            if name.startswith(TOPIC_PREFIX):
                of_feeds.setdefault(_feed_of(name), []).extend((name, number) for number in topic.partitions)
        partitions = {each for parts in of_feeds.values() for each in sorted(parts)[:: self._every]}
        fresh = partitions - self._followed
        if fresh:
            self._consumer.incremental_assign([TopicPartition(*each, -1) for each in fresh])
            self._followed = partitions
        return len(self._followed)

    def take(self, seconds: float) -> dict[str, list[float]]:
        """Return the lags of row messages that arrive within ``seconds``, in seconds, by changefeed."""
        lags: dict[str, list[float]] = {}
        until = time.monotonic() + seconds
        gc.disable()  # messages refer to nothing that refers to them; looking for that took half of this process's time
        while time.monotonic() < until:
            messages: list[Any] = self._consumer.consume(10_000, timeout=0.02)
            arrived_s = time.time()
            for message in messages:
                # A whole position is not needed, and a consumer that is slow takes what it measures the core.
                position = dict(message.headers() or [])[POSITION_HEADER]
                if position[POSITION_CLASS_AT] == PositionClass.ROW:
                    commit_ts = Ts(int.from_bytes(position[:POSITION_CLASS_AT], "big"))
                    lags.setdefault(_feed_of(message.topic()), []).append(arrived_s - physical_ms(commit_ts) / 1000)
        gc.enable()
        return lags

    def close(self) -> None:
        self._consumer.close()


def await_all(running: FeedsBus, arrivals: Arrivals, within_s: float, timeout_s: float) -> bool:
    """Return when rows of each changefeed arrive within so many seconds, and their topics are all there; tell whether
    they do, after ``timeout_s`` at most.
    """
    deadline, partitions = time.monotonic() + timeout_s, 0
    while time.monotonic() < deadline:
        running.bus.tick()
        before, partitions = partitions, arrivals.follow()
        lags = arrivals.take(2.0)
        late = [name for name in running.names if name not in lags or min(lags[name]) > within_s]
        say(f"{partitions} partitions, {len(late)} of {len(running.names)} changefeeds are behind")
        if not late and partitions == before:
            return True
    return False


def percentiles(lags: dict[str, list[float]]) -> dict[str, float]:
    """Return p50 and p99 of all rows, and the p99 of the changefeed whose is the worst."""
    p50, p99 = np.percentile(np.concatenate([np.array(each) for each in lags.values()]), [50, 99])
    worst = max(float(np.percentile(each, 99)) for each in lags.values())
    return {"p50_s": round(float(p50), 3), "p99_s": round(float(p99), 3), "worst_p99_s": round(worst, 3)}


def _name(number: int) -> str:
    return f"f{number:03}"


def _feed_of(topic: str) -> str:
    return topic[len(TOPIC_PREFIX) :].split("_", 1)[0]


def cpu_s_of(process: psutil.Process, *, with_ended: bool = True) -> float:
    """Return its CPU seconds, and those of its children that have ended and were waited for."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    ended = times.children_user + times.children_system if with_ended else 0.0
    return float(times.user + times.system + ended)


def _serves(process: psutil.Process) -> bool:
    try:
        return TIDEBUS[-1] in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def _pss_mb(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().pss / 2**20)
    except psutil.NoSuchProcess:
        return 0.0


def say(text: str) -> None:
    """Tell how far the bench is."""
    print(text, file=sys.stderr, flush=True)
