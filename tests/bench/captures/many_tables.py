"""What scheduling costs with very many tables: the first full assignment, and an owner and agents that are idle.

``python -m tests.bench.captures.many_tables`` runs an owner's reign with its own agent in this process and a second
capture's agent in another, over gRPC on loopback: schema store, coordinator, agents, landing books, reports, frontier
arithmetic and pace are a capture's own. Left out are ZooKeeper, Kafka and the event feed, whose cost with as many
regions is the bench ``idle_regions``; what stands for it here, a landed_ts a second and span, is not counted.

It prints one JSON line: ``assign_s`` from the first tick of the reign, which reads the schema, until every table is
replicating, and ``assign_cpu_s`` the CPU time of both processes for it; ``moving_s`` until the frontier has passed a ts
from then on. ``idle_cores`` is the CPU time of both processes by wall time while nothing but resolved ts happens,
``owner_cores`` the first one's part; ``peer_bytes_per_s`` goes between the two, both ways, of which
``heartbeat_bytes_per_s`` are requests and answers, the rest landing reports and frontier records. ``--real``
leaves nothing out: :mod:`tests.bench.rig.many_tables_real`.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import psutil

from compose.peers import open_peers
from consumers.control.cluster.capture_registry import CaptureInfo
from consumers.control.cluster.puller_agent import PullerAgent
from consumers.control.cluster.puller_executor import PullerExecutor
from consumers.control.core.scheduling.coordinator import Identity
from consumers.control.owner.owner import Owner
from consumers.control.owner.pace import rest_s
from consumers.control.owner.reign import Reign
from consumers.control.owner.reign_parts import ReignOptions, ReignParts
from consumers.control.peers.grpc_peers import GrpcPeers
from consumers.control.peers.interface import upstream_feed
from producers.pull.core.landing.book import LandingBook
from schemas.ids import CaptureId, Ts, UpstreamId, compose_ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import DdlReport, FrontierRecord, LandingReport, encode_frontier
from schemas.tidb.spans import TableSpan
from tests.bench.rig.many_tables_real import print_real

OWNER, OTHER = CaptureId("owner"), CaptureId("other")
FEED = upstream_feed(UpstreamId("many"))
VERSION = "0.1.0"
PARTITIONS = 8
FIRST_TABLE = 100
RESOLVED_EVERY_S = 1.0
DEADLINE_S = 600.0


class QuietPuller:
    """A puller whose spans have nothing to say but their resolved ts."""

    def __init__(self, capture: CaptureId) -> None:
        self._book = LandingBook(capture, PARTITIONS)
        self._spans: dict[TableSpan, None] = {}
        self._resolved_at = 0.0
        self.uncounted_s = 0.0
        """CPU time that the event feed's stand-in took."""

    def assign(self, spans: Mapping[TableSpan, Ts]) -> None:
        for span, ts in spans.items():
            self._book.assign(span, ts)
            self._spans[span] = None

    def remove(self, spans: Iterable[TableSpan]) -> None:
        for span in spans:
            self._book.remove((span,))
            self._spans.pop(span, None)

    def report(self) -> LandingReport:
        began_s, now = time.thread_time(), time.monotonic()
        if now >= self._resolved_at:
            self._resolved_at, now_ts = now + RESOLVED_EVERY_S, _now_ts()
            for span in self._spans:
                self._book.resolved(span, now_ts)
            self.uncounted_s += time.thread_time() - began_s
        return self._book.report()

    def published(self, record: FrontierRecord) -> None:
        self._book.published(record)


class MemoryTopic:
    """A frontier topic of one process."""

    def __init__(self) -> None:
        self._newest: FrontierRecord | None = None

    def publish(self, record: FrontierRecord) -> int:
        encode_frontier(record)
        self._newest = record
        return 0

    def newest(self) -> FrontierRecord | None:
        return self._newest


class SureSession:
    """A session that never ends."""

    def check_lease(self) -> None:
        """It holds."""


@dataclass
class Snapshot:
    """A DDL feed that begins with so many tables, and says no more."""

    tables: int
    _records: list[DdlRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        text = (files("producers.region_server") / "templates" / "sbtest1.json").read_text(encoding="utf-8")
        info: dict[str, Any] = json.loads(text)["table_info"]
        ts = _now_ts()
        schema = {
            "id": 1,
            "db_name": {"O": "many", "L": "many"},
            "charset": "utf8mb4",
            "collate": "utf8mb4_bin",
            "state": 5,
        }
        self._records = [DdlRecord(kind="schema", ts=ts, schema_id=1, payload=schema)]
        for number in range(self.tables):
            name = f"t{number}"
            table = {**info, "id": FIRST_TABLE + number, "name": {"O": name, "L": name}}
            self._records.append(DdlRecord(kind="table", ts=ts, schema_id=1, payload=table))
        self._records.append(DdlRecord(kind="snapshot_end", ts=ts, payload={}))

    def report(self) -> DdlReport:
        return DdlReport(landed_ts=_now_ts(), end=self.tables)

    def take(self) -> list[DdlRecord]:
        taken, self._records = self._records, []
        return taken


def other(owner_address: str) -> None:
    """Be the second capture until standard input ends; then say what was not counted."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    with contextlib.closing(open_peers(OTHER, VERSION)) as peers:
        peers.resolve({OWNER: owner_address, OTHER: peers.address})
        puller = QuietPuller(OTHER)
        agent = _agent(OTHER, puller, peers)
        print(peers.address, flush=True)
        tick_s = ReignOptions().tick_s
        while not ended.is_set():
            began_at = time.monotonic()
            agent.tick()
            print(round(puller.uncounted_s, 3), flush=True)
            ended.wait(rest_s(time.monotonic() - began_at, tick_s, is_settled=agent.is_settled))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--real", action="store_true", help="with region server, ZooKeeper and Kafka")
    parser.add_argument("--captures", type=int, default=2, help="with --real")
    parser.add_argument("--other", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.other:
        other(options.other)
        return 0
    if options.real:
        print_real(options.tables, options.seconds, options.captures)
        return 0
    with contextlib.closing(open_peers(OWNER, VERSION)) as peers:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.captures.many_tables", "--other", peers.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdin is not None
        try:
            figure = measure(peers, child, options.tables, options.seconds)
        finally:
            child.stdin.close()
            child.wait(30)
    print(json.dumps(figure), flush=True)
    return 0


def measure(peers: GrpcPeers, child: "subprocess.Popen[str]", tables: int, seconds: float) -> dict[str, object]:
    """Assign all tables, then be idle; return the figures."""
    assert child.stdout is not None
    address, uncounted = child.stdout.readline().strip(), [0.0]

    def listen() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            uncounted[0] = float(line)

    threading.Thread(target=listen, daemon=True).start()
    peers.resolve({OWNER: peers.address, OTHER: address})
    puller, snapshot = QuietPuller(OWNER), Snapshot(tables)
    agent = _agent(OWNER, puller, peers)
    reign = _reign(peers, snapshot, {OWNER: peers.address, OTHER: address})
    processes = psutil.Process(), psutil.Process(child.pid)
    began_at, cpu_s = time.monotonic(), sum(map(_cpu_s, processes))
    _drive(agent, reign, lambda: _replicating(reign) >= tables)
    assign_s, assign_cpu_s = time.monotonic() - began_at, sum(map(_cpu_s, processes)) - cpu_s
    now_ts = _now_ts()
    _drive(agent, reign, lambda: reign.published.resolved_ts >= now_ts)
    moving_s = time.monotonic() - began_at
    wall, cpu, stats = time.monotonic(), [_cpu_s(process) for process in processes], peers.stats()
    before = [puller.uncounted_s, uncounted[0]]
    resolved_ts, until = reign.published.resolved_ts, wall + seconds
    _drive(agent, reign, lambda: time.monotonic() >= until)
    wall = time.monotonic() - wall
    spent = [_cpu_s(process) - at for process, at in zip(processes, cpu, strict=True)]
    cores = [
        (took - (now - then)) / wall
        for took, now, then in zip(spent, [puller.uncounted_s, uncounted[0]], before, strict=True)
    ]
    after = peers.stats()
    moved = (reign.published.resolved_ts - resolved_ts) / compose_ts(1000)
    assert moved > seconds / 2, f"the frontier moved by {moved} s only"
    return {
        "bench": "many_tables",
        "tables": tables,
        "assign_s": round(assign_s, 1),
        "assign_cpu_s": round(assign_cpu_s, 1),
        "moving_s": round(moving_s, 1),
        "idle_cores": round(sum(cores), 3),
        "owner_cores": round(cores[0], 3),
        "peer_bytes_per_s": round(
            (after.sent_bytes - stats.sent_bytes + after.received_bytes - stats.received_bytes) / wall
        ),
        "heartbeat_bytes_per_s": round((after.message_bytes - stats.message_bytes) / wall),
        "owner_rss_mb": processes[0].memory_info().rss >> 20,
        "other_rss_mb": processes[1].memory_info().rss >> 20,
    }


def _agent(capture: CaptureId, puller: QuietPuller, peers: GrpcPeers) -> PullerAgent:
    epochs = iter(range(1_000_000))
    return PullerAgent(
        capture, VERSION, 0, PullerExecutor(puller), peers, FEED, new_epoch=lambda: f"{capture}-{next(epochs)}"
    )


def _reign(peers: GrpcPeers, snapshot: Snapshot, addresses: Mapping[CaptureId, str]) -> Reign:
    owner = Owner(MemoryTopic(), SureSession(), 1, PARTITIONS)
    owner.start(lambda: Ts(_now_ts() - compose_ts(1000)))
    infos = {
        capture: CaptureInfo(capture_id=capture, address=address, version=VERSION, started_at_s=0, peer_address=address)
        for capture, address in addresses.items()
    }
    parts = ReignParts(
        me=Identity(capture=OWNER, version=VERSION, owner_revision=1, changefeed_epoch=1),
        owner=owner,
        ddl=snapshot,
        peers=peers,
        feed=FEED,
        captures=lambda: infos,
        count_regions=lambda tables, at_least: {},
    )
    return Reign(parts, ReignOptions(), had_predecessor=False)


def _drive(agent: PullerAgent, reign: Reign, is_over: Any) -> None:
    """Tick as an owner's thread does."""
    deadline, tick_s = time.monotonic() + DEADLINE_S, ReignOptions().tick_s
    while not is_over():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {DEADLINE_S:.0f} s: {reign.complaints()}, {_replicating(reign)} replicating")
        began_at = time.monotonic()
        agent.tick()
        reign.tick()
        time.sleep(rest_s(time.monotonic() - began_at, tick_s, is_settled=reign.is_settled))


def _replicating(reign: Reign) -> int:
    book = reign._coordinator.replications
    return len(book.sets) - len(book.unsettled)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _now_ts() -> Ts:
    return compose_ts(round(time.time() * 1000))


if __name__ == "__main__":
    sys.exit(main())
