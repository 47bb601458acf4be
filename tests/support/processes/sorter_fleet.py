"""A capture's sorter services and the owner who gives them changefeeds, over one raw log written by hand."""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from compose.stack.children import TIDEBUS, Nursery
from compose.stack.local import Addresses
from consumers.control.changefeeds.service_nodes import ServiceNodes
from consumers.control.changefeeds.states import FeedStates
from consumers.control.changefeeds.store import ChangefeedRequest
from consumers.control.changefeeds.verbs import ChangefeedControl
from consumers.control.cluster.capture_registry import CaptureInfo
from consumers.control.cluster.election import raise_revision
from consumers.control.core.changefeeds.state import PATIENCE
from consumers.control.fleets.service_fleet import ServiceFleet
from consumers.control.fleets.settings import BusAddresses, SorterSettings
from consumers.control.fleets.sorter_assigner import SorterAssigner
from consumers.control.log.raw_log import RetainedFrontier
from edges.zookeeper.session import Session
from schemas.ids import CaptureId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedStatus, ZkPaths
from schemas.sink.position import PositionClass, decode_position
from tests.support.control.pauses import growing_pauses
from tests.support.rawlog.raw_log import START_TS, RawLog, read_topic, recorded, sbtest1_changes

TABLE, ROWS = 114, 100
CANAL = "protocol=canal-json&enable-tidb-extension=true&partition-num=1"
WAIT_S = 300.0
STACKS_S, LOG_CHARS = 2.0, 20_000


class FleetBus:
    """A raw log, and the changefeeds over it as a user sees them."""

    def __init__(self, stack: Addresses, session: Session, paths: ZkPaths, upstream: str) -> None:
        self.stack, self.session, self.paths = stack, session, paths
        self.control = ChangefeedControl(session, paths)
        self.log = RawLog(stack.kafka, upstream)
        self.log.snapshot([recorded("sbtest1")[0]])
        self.newest_ts = START_TS
        self.trouble: Callable[[], str] = str
        """Says more of what does not come about."""

    @property
    def landed_rows(self) -> int:
        """Rows that were written, by ids from 0 on."""
        return (self.newest_ts - START_TS) // 2_000 * ROWS

    def write(self) -> int:
        """Write ROWS rows more and publish them; return the ts up to which that is."""
        self.log.rows(TABLE, sbtest1_changes(ROWS, self.newest_ts + 1, self.landed_rows))
        self.newest_ts = Ts(self.newest_ts + 2_000)
        self.log.advance(self.newest_ts)
        return self.newest_ts

    def create(self, name: str, uri: str, namespace: str = "default", **more: Any) -> None:
        request = ChangefeedRequest(
            upstream=UpstreamId(self.log.upstream),
            sink_uri=f"kafka://{self.stack.kafka}/{uri}",
            config=more.pop("config", {}),
            changefeed_id=name,
            namespace=namespace,
            start_ts=START_TS,
            **more,
        )
        self.control.store.create(request, RetainedFrontier(START_TS, self.newest_ts))

    def status(self, name: str, namespace: str = "default") -> ChangefeedStatus | None:
        return self.control.store.status(name, namespace)

    def wait(self, name: str, done: Callable[[ChangefeedStatus], bool], namespace: str = "default") -> ChangefeedStatus:
        deadline, pauses = time.monotonic() + WAIT_S, growing_pauses()
        while time.monotonic() < deadline:
            status = self.status(name, namespace)
            if status is not None and done(status):
                return status
            time.sleep(next(pauses))
        raise AssertionError(f"{name} is {self.status(name, namespace)}\n{self.trouble()}")

    def wait_checkpoint(self, name: str, ts: int, namespace: str = "default") -> ChangefeedStatus:
        return self.wait(name, lambda status: status.checkpoint_ts >= ts and status.state == "normal", namespace)

    def ids(self, topic: str) -> list[int]:
        """Return the ids of the rows in a canal-json topic of one partition."""
        messages = [json.loads(record.value or b"") for record in read_topic(self.stack.kafka, topic)]
        return [int(row["data"][0]["id"]) for row in messages if row["type"] == "INSERT"]

    def commits(self, topic: str) -> list[int]:
        """Return the commit_ts of the rows in a topic of one partition."""
        positions = [decode_position(record.position) for record in read_topic(self.stack.kafka, topic)]
        return [position.commit_ts for position in positions if position.position_class is PositionClass.ROW]


class Fleet:
    """One capture's services, and the owner."""

    def __init__(self, bus: FleetBus, folder: Path, command: Sequence[str] = TIDEBUS) -> None:
        """``command`` begins a command of the bus."""
        addresses = BusAddresses(
            kafka=bus.stack.kafka_access,
            zookeeper=bus.stack.zookeeper_access,
            schema_registry=bus.stack.registry_access,
            cluster=bus.paths.cluster,
            upstream=UpstreamId(bus.log.upstream),
        )
        # The raw log's ts are of a year ago: each service would take that for a backlog, and start a JVM at once.
        settings = SorterSettings(data_dir=folder, spark_on_demand=True)
        self.services = ServiceFleet(bus.paths, addresses, Nursery(), command, settings)
        patience = replace(PATIENCE, first_s=1.0)
        states = FeedStates(bus.session, bus.paths, addresses.upstream, patience=patience)
        raise_revision(bus.session, bus.paths, 1)
        capture = CaptureInfo(
            capture_id=CaptureId("c"), address="", version="0", started_at_s=0, service_id=self.services.service_id
        )
        self.assigner = SorterAssigner(bus.session, bus.paths, states, 1, lambda: {capture.capture_id: capture})
        self._nodes = ServiceNodes(bus.session, bus.paths)
        self.folder, bus.trouble = folder, self._trouble

    def assigned(self) -> dict[tuple[str, str], str]:
        """Return the changefeeds that have a service."""
        return self._nodes.read().service_of()

    def _trouble(self) -> str:
        """Return who is assigned, and what the services have logged, with where their threads stand."""
        for pid in self.services.pids().values():
            os.kill(pid, signal.SIGUSR1)
        time.sleep(STACKS_S)
        logs = [f"{log}:\n{log.read_text()[-LOG_CHARS:]}" for log in self.folder.rglob("*.log")]
        return "\n".join([f"assigned: {self.assigned()}", *logs])

    @property
    def pid(self) -> int:
        return self.services.pids()[self.services.service_id]


def eventually(done: Callable[[], bool]) -> None:
    deadline, pauses = time.monotonic() + WAIT_S, growing_pauses()
    while not done():
        assert time.monotonic() < deadline
        time.sleep(next(pauses))
