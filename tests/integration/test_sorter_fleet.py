"""The owner's sorters as real processes over one raw log written by hand: started, judged, killed, replaced."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from compose.stack.children import TIDEBUS, Nursery
from compose.stack.local import Addresses
from consumers.control.changefeeds.store import ChangefeedRequest
from consumers.control.changefeeds.verbs import ChangefeedControl, ConfigChange
from consumers.control.fleets.sorter_fleet import BusAddresses, SorterFleet, SorterSettings
from consumers.control.log.raw_log import FrontierWindow
from edges.zookeeper.session import Session
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedStatus, ZkPaths
from schemas.sink.position import PositionClass, decode_position
from tests.support.raw_log import START_TS, RawLog, read_topic, recorded, sbtest1_changes

TABLE, ROWS = 114, 100
CANAL = "protocol=canal-json&enable-tidb-extension=true&partition-num=1"
WAIT_S = 300.0


class Bus:
    """A raw log, and the changefeeds over it as a user sees them."""

    def __init__(self, stack: Addresses, session: Session, paths: ZkPaths, upstream: str) -> None:
        self.stack, self.session, self.paths = stack, session, paths
        self.control = ChangefeedControl(session, paths)
        self.log = RawLog(stack.kafka, upstream)
        self.log.snapshot([recorded("sbtest1")[0]])
        self.newest_ts = START_TS

    def write(self) -> int:
        """Write ROWS rows more and publish them; return the ts up to which that is."""
        rows = (self.newest_ts - START_TS) // 2_000 * ROWS
        self.log.rows(TABLE, sbtest1_changes(ROWS, self.newest_ts + 1, rows))
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
        self.control.store.create(request, FrontierWindow(START_TS, self.newest_ts))

    def status(self, name: str, namespace: str = "default") -> ChangefeedStatus | None:
        return self.control.store.status(name, namespace)

    def wait(self, name: str, done: Callable[[ChangefeedStatus], bool], namespace: str = "default") -> ChangefeedStatus:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            status = self.status(name, namespace)
            if status is not None and done(status):
                return status
            time.sleep(0.05)
        raise AssertionError(f"{name} is {self.status(name, namespace)}")

    def wait_checkpoint(self, name: str, ts: int, namespace: str = "default") -> ChangefeedStatus:
        return self.wait(name, lambda status: status.checkpoint_ts >= ts and status.state == "normal", namespace)

    def ids(self, topic: str) -> list[int]:
        """Return the ids of the rows in a canal-json topic of one partition."""
        found = [json.loads(record.value or b"") for record in read_topic(self.stack.kafka, topic)]
        return [int(row["data"][0]["id"]) for row in found if row["type"] == "INSERT"]

    def commits(self, topic: str) -> list[int]:
        """Return the commit_ts of the rows in a topic of one partition."""
        positions = [decode_position(record.position) for record in read_topic(self.stack.kafka, topic)]
        return [one.commit_ts for one in positions if one.position_class is PositionClass.ROW]


@pytest.fixture(scope="module")
def bus(stack: Addresses, fresh_name: Callable[[str], str]) -> Iterator[Bus]:
    with Session(stack.zookeeper_access) as session:
        yield Bus(stack, session, ZkPaths(fresh_name("cluster")), fresh_name("up"))


@pytest.fixture(scope="module")
def fleet(bus: Bus, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SorterFleet]:
    with new_fleet(bus, tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


def new_fleet(bus: Bus, folder: Path, **settings: Any) -> SorterFleet:
    addresses = BusAddresses(
        kafka=bus.stack.kafka_access,
        zookeeper=bus.stack.zookeeper_access,
        schema_registry=bus.stack.registry_access,
        cluster=bus.paths.cluster,
        upstream=UpstreamId(bus.log.upstream),
    )
    options = SorterSettings(data_dir=folder, retry_first_s=1.0, **settings)
    return SorterFleet(bus.session, bus.paths, addresses, Nursery(), TIDEBUS, options)


def eventually(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_fleet_runs_changefeeds_of_two_protocols_filters_and_namespaces_and_minds_one_that_dies(
    bus: Bus, fleet: SorterFleet, fresh_name: Callable[[str], str]
) -> None:
    canal, avro = fresh_name("canal"), fresh_name("avro")
    bus.create("all", f"{canal}?{CANAL}")
    other = {"filter": {"event-filters": [{"matcher": ["sb.*"], "ignore-insert-value-expr": "id >= 50"}]}}
    registry = f"schema-registry={bus.stack.schema_registry}"
    bus.create("some", f"{avro}?protocol=avro&partition-num=1&{registry}", "other", config=other)
    upto = bus.write()
    bus.wait_checkpoint("all", upto)
    bus.wait_checkpoint("some", upto, "other")
    assert bus.ids(canal) == list(range(ROWS))
    assert bus.commits(avro) == [START_TS + 1 + 10 * number for number in range(50)]
    before = fleet.seen()
    assert before.keys() == {("default", "all"), ("other", "some")}
    os.killpg(before["default", "all"].pid, signal.SIGKILL)
    upto = bus.write()
    bus.wait("all", lambda status: status.sorter_deaths == 1)
    died = bus.wait("all", lambda status: status.error is not None)
    assert died.error is not None
    assert (died.error.code, died.state in ("pending", "warning")) == ("sorter.died", True)
    assert "signal 9" in died.error.message
    well = bus.wait_checkpoint("all", upto)
    assert (well.error, well.sorter_deaths) == (None, 1)
    bus.wait_checkpoint("some", upto, "other")
    assert bus.ids(canal) == list(range(2 * ROWS)), "nothing lost, and no batch was cut in two"
    assert fleet.seen()["other", "some"].pid == before["other", "some"].pid, "others do not notice"


def test_fleet_changefeed_paused_updated_resumed_overwritten_and_removed_while_another_goes_on(
    bus: Bus, fleet: SorterFleet, fresh_name: Callable[[str], str]
) -> None:
    name, first, second = fresh_name("feed"), fresh_name("first"), fresh_name("second")
    bus.create(name, f"{first}?{CANAL}")
    upto = bus.newest_ts if bus.newest_ts > START_TS else bus.write()
    bus.wait_checkpoint(name, upto)
    written = bus.ids(first)
    pid, paused_at = fleet.seen()["default", name].pid, time.monotonic()
    bus.control.pause(name)
    eventually(lambda: ("default", name) not in fleet.seen())
    assert time.monotonic() - paused_at < 30
    assert not psutil.pid_exists(pid), "no process is left for it"
    stopped = bus.wait(name, lambda status: status.state == "stopped")
    newest = bus.write()
    bus.control.configure(name, ConfigChange(sink_uri=f"kafka://{bus.stack.kafka}/{second}?{CANAL}"))
    status = bus.status(name)
    assert status is not None
    assert status.checkpoint_ts == stopped.checkpoint_ts
    middle = Ts(START_TS + 501)
    bus.control.resume(name, overwrite_checkpoint_ts=middle)
    bus.wait_checkpoint(name, newest)
    assert bus.ids(first) == written, "the sink of before gets nothing more"
    assert bus.ids(second) == list(range(51, len(written) + ROWS)), "from the new checkpoint on"
    bus.control.remove(name)
    eventually(lambda: ("default", name) not in fleet.seen())
    assert name not in [info.changefeed_id for info in bus.control.store.list()]


def test_fleet_changefeed_with_a_target_finishes_and_one_that_cannot_work_fails_at_once(
    bus: Bus, fleet: SorterFleet, fresh_name: Callable[[str], str]
) -> None:
    done, bad, topic = fresh_name("done"), fresh_name("bad"), fresh_name("sink")
    upto = bus.newest_ts if bus.newest_ts > START_TS else bus.write()
    bus.create(done, f"{topic}?{CANAL}", target_ts=Ts(START_TS + 501))
    dispatch = {"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value", "index": "none-such"}]}}
    bus.create(bad, f"{fresh_name('sink')}?{CANAL}", config=dispatch)
    finished = bus.wait(done, lambda status: status.state == "finished")
    assert (finished.checkpoint_ts, finished.error) == (START_TS + 501, None)
    assert upto > START_TS + 501 and bus.ids(topic) == list(range(51))
    failed = bus.wait(bad, lambda status: status.state == "failed")
    assert failed.error is not None
    assert (failed.error.code, failed.checkpoint_ts, failed.sorter_deaths) == ("sorter.dispatch_failed", START_TS, 0)
    assert "none-such" in failed.error.message
    eventually(lambda: not {("default", done), ("default", bad)} & fleet.seen().keys())
    for name in (done, bad):
        bus.control.remove(name)
