"""Several captures as real processes over one region server of this process, for tests and benches of the cluster."""

import contextlib
import http.client
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compose.local.bus import BusOptions, LocalBus
from compose.ports import LOOPBACK, free_ports
from compose.stack.children import Child
from compose.stack.local import Addresses
from consumers.control.cluster.capture_registry import CaptureInfo, list_captures
from consumers.control.cluster.election import Election
from consumers.control.cluster.upstream_node import UpstreamNode
from consumers.control.log.frontier_topic import FrontierTopic, FrontierUnavailableError
from edges.zookeeper.session import Session
from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.server import RegionServer, RegionServerOptions
from schemas.ids import CaptureId, UpstreamId
from schemas.rawlog.frontier import FrontierRecord, follow_frontier
from schemas.rawlog.topics import raw_topics
from tests.support.control.lasting_session import lasting_session
from tests.support.processes.bus import wait_until

NAMES = ("capture", "capture 2", "capture 3")
WAIT_S = 180.0
"""For anything that takes seconds on an idle machine."""


@dataclass
class Cluster:
    """A bus whose captures all serve the API, each at an address of its own that outlives its process."""

    bus: LocalBus
    server: RegionServer
    addresses: dict[str, str]
    """Of the captures' APIs, by process name."""
    session: Session
    frontier: FrontierTopic
    upstream: UpstreamId
    captures_began_at_s: float = 0.0
    """By the monotonic clock."""
    notes: list[str] = field(default_factory=list)

    # -- what it looks like --------------------------------------------------------------------------------------------

    def captures(self) -> dict[str, CaptureInfo]:
        """Return who is registered, by process name; the newest where one that was killed is still listed."""
        names = {address: name for name, address in self.addresses.items()}
        registered = sorted(list_captures(self.session, self.bus.zk_paths), key=lambda info: info.started_at_s)
        return {names[info.address]: info for info in registered if info.address in names}

    def capture_id(self, name: str) -> str:
        """Return the id that a process is registered under; '': it is not."""
        info = self.captures().get(name)
        return "" if info is None else info.capture_id

    def owner(self) -> str:
        """Wait for an owner that is registered and return its process's name."""
        names: list[str] = []

        def elected() -> bool:
            owner = Election(self.session, self.bus.zk_paths, CaptureId("")).owner()
            names.extend(name for name, info in self.captures().items() if info.capture_id == owner)
            return bool(names)

        self.wait(elected, "an owner")
        return names[-1]

    def other(self) -> str:
        """Return a capture that is not the owner."""
        owner = self.owner()
        return next(name for name in self.addresses if name != owner)

    def status(self) -> Mapping[str, Any]:
        """Return what the owner last said of the upstream."""
        return UpstreamNode(self.session, self.bus.zk_paths, self.upstream).read()

    def spans(self) -> dict[str, int]:
        """Return how many spans each registered capture has, by the owner's last word."""
        spans = self.status().get("captures", {})
        return {name: spans.get(info.capture_id, 0) for name, info in self.captures().items()}

    def child(self, name: str) -> Child:
        """Return a capture's process."""
        return self.bus.processes[name]

    # -- waiting -------------------------------------------------------------------------------------------------------

    def wait(self, done: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
        """Wait, with the supervisor at work."""
        wait_until(done, timeout_s, what, self.bus)

    def resolved_ts(self) -> int:
        """Return the R that readers of the frontier topic stand at."""
        newest = self.frontier.newest()
        return 0 if newest is None else int(newest.resolved_ts)

    def wait_moving(self, what: str, timeout_s: float = WAIT_S) -> float:
        """Wait until the frontier has passed this moment; return how long that took, in seconds."""
        began_at, now_ts = time.monotonic(), self.server.tso()
        self.wait(lambda: self.resolved_ts() >= now_ts, f"the frontier moves: {what}", timeout_s)
        took_s = time.monotonic() - began_at
        self.notes.append(f"{what}: {took_s:.1f} s")
        return took_s

    def wait_sharing(self, spans: int) -> None:
        """Wait until all captures are registered, each as the process that answers for it, and have spans, all of them
        together.
        """

        def shared() -> bool:
            counts = self.spans()
            return all(counts.values()) and sum(counts.values()) >= spans and self._registered()

        self.wait(shared, "all captures have spans")

    def places(self) -> list[FrontierRecord]:
        """Return where readers of the frontier topic stood after each of its records."""
        followed: list[FrontierRecord] = []
        for _, record in self.frontier.read(*self.frontier.offsets()):
            followed.append(follow_frontier(followed[-1] if followed else None, record))
        return followed

    def wait_registered(self) -> None:
        """Wait until all captures are registered, each as the process that answers for it."""
        self.wait(self._registered, "all captures are registered")

    def _registered(self) -> bool:
        """Tell whether each capture answers, as the one that ZooKeeper lists: who was killed is listed for as long as
        its session would have lasted.
        """
        captures = self.captures()
        with contextlib.suppress(OSError, http.client.HTTPException):  # it is just starting
            return len(captures) == len(self.addresses) and all(
                self.answer(name, "GET", "/api/v2/status")[1].get("id") == info.capture_id
                for name, info in captures.items()
            )
        return False

    # -- what is done to it --------------------------------------------------------------------------------------------

    def post(self, name: str, path: str) -> Any:
        """Have a capture's API do something."""
        return self._ask(name, "POST", path)

    def get(self, name: str, path: str) -> Any:
        """Ask a capture's API."""
        return self._ask(name, "GET", path)

    def _ask(self, name: str, method: str, path: str) -> Any:
        status, said = self.answer(name, method, path)
        assert status < 300, said
        return said

    def answer(self, name: str, method: str, path: str) -> tuple[int, Any]:
        """Return status and body of what a capture's API answers, whatever that is."""
        with contextlib.closing(http.client.HTTPConnection(self.addresses[name], timeout=WAIT_S)) as connection:
            connection.request(method, path, b"{}", {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.load(answer)

    def drain(self) -> tuple[str, int]:
        """Have the owner drain a capture that is not the owner and has spans, as soon as it does; return its name and
        how many spans it had. Another is picked at each attempt: the one before may just have been elected.
        """
        drained: list[tuple[str, int]] = []

        def accepted() -> bool:
            owner, name = self.owner(), self.other()
            if not self.spans().get(name):  # it has just begun anew, on a machine that stood for a while
                return False
            path = f"/api/v2/captures/{self.capture_id(name)}/drain"
            # The owner is just being replaced, or the other has just begun anew.
            with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
                drained.append((name, self.post(owner, path)["current_table_count"]))
            return bool(drained)

        self.wait(accepted, "the owner drains")
        return drained[-1]

    @contextlib.contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """SIGSTOP a capture's process while inside."""
        os.kill(self.child(name).pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.child(name).pid, signal.SIGCONT)

    def watch_for(self, seconds: float) -> None:
        """Let time pass, with the supervisor at work: for faults whose length is the point."""
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= until, "time passes", seconds + WAIT_S)


@contextlib.contextmanager
def cluster(
    folder: Path,
    upstream: UpstreamId,
    *,
    names: tuple[str, ...] = NAMES,
    given: Addresses | None = None,
    arguments: tuple[str, ...] = (),
    server: RegionServer | None = None,
    frontier_s: float = WAIT_S,
) -> Iterator[Cluster]:
    """Start a stack and captures, over ``server`` or a region server with one table.

    ``frontier_s``: how long the first frontier record may take.
    """
    addresses = {name: f"{LOOPBACK}:{port}" for name, port in zip(names, free_ports(len(names)), strict=True)}
    with contextlib.ExitStack() as stack:
        if server is None:
            server = stack.enter_context(RegionServer(RegionServerOptions(min_ts_interval_ms=200)))
            # Makes what TiDB's own bootstrap would have made; a capture waits for no less.
            server.spawn(Generator(server, GeneratorOptions(schema="boot", tables=1, rows_max=1)).run()).result(60)
        options = BusOptions(
            data_dir=folder,
            pd=server.pd_address,
            upstream=upstream,
            given=given or Addresses(),
            api_addr=addresses[names[0]],
            capture_arguments=("--sorter-spark-on-demand", *arguments),
        )
        bus = stack.enter_context(LocalBus(options))
        began_at_s = time.monotonic()
        for name in names[1:]:
            bus.start_capture(name, "--addr", addresses[name])
        session = stack.enter_context(lasting_session(bus.addresses.zookeeper_access))
        topic = raw_topics(upstream).frontier

        def is_there() -> bool:
            with (
                contextlib.suppress(FrontierUnavailableError),
                contextlib.closing(FrontierTopic(bus.addresses.kafka_access, topic)) as probe,
            ):
                return probe.newest() is not None
            return False

        wait_until(is_there, frontier_s, "a frontier", bus)
        frontier = stack.enter_context(contextlib.closing(FrontierTopic(bus.addresses.kafka_access, topic)))
        yield Cluster(bus, server, addresses, session, frontier, upstream, began_at_s)
