"""What the control plane asks of ZooKeeper, by the number of changefeeds, while they rest and while all of them move.

``python -m tests.bench.feeds.zookeeper_requests`` prints a JSON line for each number of changefeeds. All that one
capture asks runs here over a ZooKeeper of its own: the owner's looks at changefeeds and services, three a second; the
processor fleet; the captures' register; the session's lease; a scrape of the metrics each second. A stub stands for the
sorter service, to which all are assigned: where ``moving`` is true, it writes all entries ten times a second, in one
transaction, and every two seconds their figures with them. ``requests_per_s`` are the packets that the server has had,
but for the stub's own; ``look_ms`` is the CPU time of one look of the owner.
"""

import argparse
import contextlib
import json
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from compose.capture.api.addresses import ApiAddresses
from compose.capture.api.backend import ApiBackend
from compose.ports import LOOPBACK, free_ports
from compose.stack.children import TIDEBUS, Nursery
from compose.stack.parts import READY_S, start_zookeeper, zookeeper_ready
from consumers.control.changefeeds.states import FeedStates
from consumers.control.changefeeds.store import ChangefeedRequest, ChangefeedStore
from consumers.control.cluster.capture_registry import CaptureInfo, CaptureWatch, register_capture
from consumers.control.cluster.election import raise_revision
from consumers.control.fleets.processor_fleet import ProcessorFleet
from consumers.control.fleets.settings import BusAddresses
from consumers.control.fleets.sorter_assigner import LOOK_S, SorterAssigner
from consumers.control.log.raw_log import RetainedFrontier
from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.connection import zookeeper_client
from edges.zookeeper.session import Session
from producers.tls import TlsSettings
from schemas.errors import BusError
from schemas.ids import CaptureId, Ts, UpstreamId
from schemas.nodes.changefeed import ZkPaths
from schemas.nodes.feed_figures import FeedFigures
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import FeedName, ServiceInfo, decode_assignment, encode_service
from tests.support.processes.service_progress import WrittenProgress, entry

FEEDS = (1, 10, 100, 300)
UPSTREAM = UpstreamId("bench")
WRITE_S, SCRAPE_S = 0.1, 1.0
FIGURES_EVERY = 20
"""Writes for one of figures."""
SETTLE_S = 2.0
"""What making the changefeeds has left to be done."""
LOOKS_FIRST = 3
"""The first look writes a status for each changefeed."""
START_TS, REVISION = Ts(100), 1


class Paced:
    """Does something again and again in a thread of its own."""

    def __init__(self, every_s: float, do: Callable[[], object]) -> None:
        self.times, self.cpu_s = 0, 0.0
        self._every_s, self._do = every_s, do
        self._stopping = threading.Event()
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Paced":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._every_s):
                began_s = time.thread_time()
                self._do()
                self.cpu_s += time.thread_time() - began_s
                self.times += 1
        except Exception as error:
            self.failure = error


def measure(port: int, feeds: int, *, is_moving: bool, seconds: float) -> dict[str, object]:
    """Let a capture's control plane run over ``feeds`` changefeeds for ``seconds``; return the figures."""
    paths = ZkPaths(f"bench-{feeds}-{int(is_moving)}")
    access = ZooKeeperAccess(f"{LOOPBACK}:{port}")
    with zookeeper_client(access, 30.0) as stub_leased, Session(access) as session:
        created = _create(session, paths, feeds)
        stub_client = stub_leased.client
        stub = WrittenProgress(stub_client, paths)
        stub.prepare(*(entry(name, zxid, START_TS) for name, zxid in created.items()))
        me = ServiceInfo(service=stub.service, host="h", pid=1, version="0", started_at_s=0, master="local[1]")
        stub_client.create(ServicePaths(paths).service(me.service), encode_service(me), ephemeral=True, makepath=True)
        checkpoint_ts = START_TS

        def move() -> None:
            nonlocal checkpoint_ts
            checkpoint_ts = Ts(checkpoint_ts + 1)
            figures = FeedFigures(windows_proven=(checkpoint_ts - START_TS) // FIGURES_EVERY)
            stub.write(*(entry(name, zxid, checkpoint_ts, figures=figures) for name, zxid in created.items()))

        with contextlib.ExitStack() as stack:
            states = FeedStates(session, paths, UPSTREAM)
            raise_revision(session, paths, REVISION)
            assigner = SorterAssigner(session, paths, states, REVISION, dict)
            look = stack.enter_context(Paced(LOOK_S, assigner.look))
            _rest_of_a_capture(stack, session, paths, access)
            writer = Paced(WRITE_S, move)
            if is_moving:
                stack.enter_context(writer)
            while look.times < LOOKS_FIRST and look.failure is None:
                time.sleep(0.05)
            time.sleep(SETTLE_S)
            before = received_packets(port), writer.times, look.times, look.cpu_s, time.monotonic()
            time.sleep(seconds)
            after = received_packets(port), writer.times, look.times, look.cpu_s, time.monotonic()
            wall_s = after[4] - before[4]
            figures = {
                "bench": "zookeeper_requests",
                "feeds": feeds,
                "moving": is_moving,
                "requests_per_s": round((after[0] - before[0] - (after[1] - before[1])) / wall_s, 1),
                "service_writes_per_s": round((after[1] - before[1]) / wall_s, 1),
                "look_ms": round((after[3] - before[3]) / (after[2] - before[2]) * 1000, 2),
            }
            given = decode_assignment(session.client.get(ServicePaths(paths).assignment(stub.service))[0])
            assert len(given.feeds) == feeds, given
        states.look()
        behind = [feed.checkpoint_ts for feed in states.feeds.values() if feed.checkpoint_ts < checkpoint_ts]
        assert len(states.feeds) == feeds, len(states.feeds)
        assert not behind, (behind, checkpoint_ts)
    return figures


def _create(session: Session, paths: ZkPaths, feeds: int) -> dict[FeedName, int]:
    """Return the changefeeds with the zxid of their creation."""
    store, created = ChangefeedStore(session, paths), {}
    for number in range(feeds):
        request = ChangefeedRequest(
            upstream=UPSTREAM,
            sink_uri="kafka://127.0.0.1:9092/t?protocol=canal-json",
            config={},
            changefeed_id=f"cf-{number}",
            start_ts=START_TS,
        )
        info = store.create(request, RetainedFrontier(Ts(1), Ts(200)))
        name = info.namespace, info.changefeed_id
        created[name] = int(session.client.get(paths.changefeed_info(*name))[1].czxid)
    return created


def _rest_of_a_capture(
    stack: contextlib.ExitStack, session: Session, paths: ZkPaths, zookeeper: ZooKeeperAccess
) -> None:
    """Begin what else a capture asks of ZooKeeper."""
    me = CaptureInfo(capture_id=CaptureId("bench"), address="127.0.0.1:1", version="0", started_at_s=0)
    register_capture(session, paths, me)
    stack.callback(CaptureWatch(session, paths, lambda _: None).close)
    kafka = KafkaAccess("127.0.0.1:1")
    addresses = BusAddresses(
        kafka=kafka,
        zookeeper=zookeeper,
        schema_registry=RegistryAccess.at(""),
        cluster=paths.cluster,
        upstream=UPSTREAM,
    )
    fleet = ProcessorFleet(session, paths, addresses, Nursery(), TIDEBUS, (), on_fatal=_fail)
    fleet.start()
    stack.callback(fleet.stop)
    api = ApiAddresses(
        pd="", tls=TlsSettings(), kafka=kafka, zookeeper=zookeeper, cluster=paths.cluster, upstream=UPSTREAM
    )
    backend = stack.enter_context(contextlib.closing(ApiBackend(session, me, api, lambda: False)))
    stack.enter_context(Paced(SCRAPE_S, backend.all_feeds))


def _fail(error: BusError) -> None:
    raise error


def received_packets(port: int) -> int:
    """Return how many packets a ZooKeeper on this machine has had."""
    with socket.create_connection((LOOPBACK, port), timeout=10.0) as wire:
        wire.sendall(b"srvr")
        text = b"".join(iter(lambda: wire.recv(4096), b"")).decode()
    match = re.search(r"Received: (\d+)", text)
    assert match is not None, text
    return int(match[1])


@contextlib.contextmanager
def _server() -> Iterator[int]:
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder, Nursery() as nursery:
        child = start_zookeeper(nursery, Path(folder) / "zookeeper", port)
        child.wait_ready(lambda: zookeeper_ready(port), READY_S)
        yield port


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--feeds", type=int, help="only this number")
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args(argv)
    with _server() as port:
        for feeds in FEEDS if options.feeds is None else (options.feeds,):
            for is_moving in (False, True):
                figures = measure(port, feeds, is_moving=is_moving, seconds=options.seconds)
                print(json.dumps(figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
