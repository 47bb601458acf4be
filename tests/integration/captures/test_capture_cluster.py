"""Three captures, each a process: they share an upstream's tables, and what one leaves goes on at the others."""

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import KazooException

from compose.capture.settings.options import GRACEFUL_STOP_S
from compose.stack.children import Child, Nursery
from compose.stack.local import Addresses
from producers.region_server.recording import Replay, read_recording
from producers.region_server.server import RegionServer
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ZkPaths
from schemas.rawlog.topics import raw_topics
from tests.support.control.lasting_session import lasting_session
from tests.support.recorded.captured_log import REACH_S, check_law, places, reached
from tests.support.recorded.recording import TIDB_DATA

TABLES = 28
"""That stand when the recording ends."""


@dataclass
class Processes:
    """Captures of one cluster, by the id of their process."""

    stack: Addresses
    pd: str
    name: str
    folder: Path
    nursery: Nursery
    running: dict[int, Child] = field(default_factory=dict)
    started: int = 0

    def start(self) -> int:
        """Start one more."""
        command = [
            *(sys.executable, "-m", "compose.cli", "capture", "--pd", self.pd),
            *("--kafka", self.stack.kafka, "--zookeeper", self.stack.zookeeper),
            *("--schema-registry", self.stack.schema_registry),
            *("--cluster", self.name, "--upstream", self.name, "--sorter-master", "none", "--addr", ""),
        ]
        self.started += 1
        child = self.nursery.start("capture", command, log=self.folder / f"capture-{self.started}.log")
        self.running[child.pid] = child
        return child.pid

    def end(self, pid: int, number: signal.Signals) -> int:
        """Send a signal that ends a capture; return its exit status."""
        child = self.running.pop(pid)
        os.kill(pid, number)
        status = child.wait(REACH_S)
        assert status is not None, self.logs()
        return status

    def logs(self) -> str:
        """Return the ends of all logs, for a failure's report."""
        return "\n".join(f"{log.name}: {log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.log")))

    def status(self, met: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the owner says of the upstream what is expected, and return all that it says."""
        status: dict[str, Any] = {}
        deadline = time.monotonic() + REACH_S
        with lasting_session(self.stack.zookeeper_access) as session:
            while not (status and met(status)):
                assert time.monotonic() < deadline, f"{status}\n{self.logs()}"
                time.sleep(0.1)
                with contextlib.suppress(KazooException):
                    status = json.loads(session.client.get(ZkPaths(self.name).upstream(UpstreamId(self.name)))[0])
        return status

    def owner(self) -> int:
        """Return the owner's process, by the address in its node."""
        with lasting_session(self.stack.zookeeper_access) as session:
            paths = ZkPaths(self.name)
            first = sorted(session.client.get_children(paths.election), key=lambda node: node[-10:])[0]
            capture = session.client.get(f"{paths.election}/{first}")[0].decode()
            info = json.loads(session.client.get(f"{paths.captures}/{capture}")[0])
        return int(re.findall(r"\d+", info["address"])[-1])


@pytest.fixture
def replayed() -> Iterator[tuple[RegionServer, Replay]]:
    with RegionServer(min_ts_interval_ms=100) as server:
        replay = Replay(server, read_recording(TIDB_DATA))
        server.call(replay.load())
        yield server, replay


@pytest.fixture
def captures(
    stack: Addresses, fresh_name: Callable[[str], str], replayed: tuple[RegionServer, Replay], tmp_path: Path
) -> Iterator[Processes]:
    with Nursery() as nursery:
        yield Processes(stack, replayed[0].pd_address, fresh_name("cluster"), tmp_path, nursery)


def is_shared(status: dict[str, Any], captures: int) -> bool:
    """Tell whether so many captures have spans, and no span is at two of them."""
    shares = [spans for spans in status["captures"].values() if spans]
    return len(shares) == captures == len(status["captures"]) and sum(shares) == status["spans"] > 0


def test_captures_share_tables_and_a_killed_ones_and_an_owners_go_on_elsewhere_under_the_frontier_law(
    captures: Processes, replayed: tuple[RegionServer, Replay]
) -> None:
    server, replay = replayed
    topics, end_ts = raw_topics(UpstreamId(captures.name)), read_recording(TIDB_DATA).end_ts
    for _ in range(3):
        captures.start()
    captures.status(lambda status: len(status["captures"]) == 3)
    server.spawn(replay.run(0.5, wait_for_subscriber=True))
    captures.status(lambda status: is_shared(status, 3))
    owner = captures.owner()
    other = next(pid for pid in captures.running if pid != owner)
    captures.end(other, signal.SIGKILL)
    captures.status(lambda status: is_shared(status, 2))
    captures.start()
    captures.status(lambda status: len(status["captures"]) == 3)
    captures.end(captures.owner(), signal.SIGKILL)
    status = captures.status(lambda status: status["owner_rev"] == 2 and is_shared(status, 2))
    reached(captures.stack.kafka, topics, Ts(end_ts + 1))
    status = captures.status(lambda status: status["tables"] == TABLES and is_shared(status, 2))
    assert status["spans"] == TABLES
    check_law(captures.stack.kafka, topics, Ts(replay.bootstrap_ts), end_ts)
    owner = captures.owner()
    assert captures.end(owner, signal.SIGTERM) == 0
    status = captures.status(lambda status: status["owner_rev"] == 3 and is_shared(status, 1))
    captures.start()
    captures.status(lambda status: len(status["captures"]) == 2)
    began_at = time.monotonic()
    for pid in captures.running:
        os.kill(pid, signal.SIGTERM)
    assert [captures.end(pid, signal.SIGCONT) for pid in list(captures.running)] == [0, 0], captures.logs()
    assert time.monotonic() - began_at < GRACEFUL_STOP_S, "those that leave wait for nobody who leaves, too"
    assert {record.owner_rev for record in places(captures.stack.kafka, topics)} == {1, 2, 3}
    assert "leaves with spans" not in captures.logs()
    assert not captures.running
