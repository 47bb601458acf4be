"""A capture's sorter services on a real ZooKeeper: started, started again, and what is said of those that die.

The services are short scripts here that register and note what they work for, as the real ones do.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from compose.stack.children import Nursery
from compose.stack.local import Addresses
from consumers.control.changefeeds.store import ChangefeedRequest
from consumers.control.changefeeds.verbs import ChangefeedControl
from consumers.control.core.changefeeds.service_plan import dedicated_id
from consumers.control.fleets.service_fleet import ServiceFleet
from consumers.control.fleets.settings import BusAddresses, SorterSettings
from consumers.control.log.raw_log import RetainedFrontier
from edges.zookeeper.session import Session
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedStatus, ZkPaths
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import Assigned, Assignment, encode_assignment
from tests.support.control.lasting_session import lasting_session

WAIT_S = 240.0
STUB = """
import argparse, os, sys, time
from pathlib import Path
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import Session
from schemas.nodes.changefeed import ZkPaths
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import ServiceInfo, encode_service
from schemas.running_feeds import RunningFeeds, running_file
parser = argparse.ArgumentParser()
for flag in ("--service-id", "--dedicated", "--cluster", "--zookeeper", "--data-dir"):
    parser.add_argument(flag, default="")
given, _ = parser.parse_known_args(sys.argv[2:])
running = RunningFeeds(running_file(Path(given.data_dir), given.service_id), 2)
running.note(0, ("default", "poison"))
running.note(1, ("default", "other"))
running.clear(1)
info = ServiceInfo(service=given.service_id, host="", pid=os.getpid(), version="", started_at_s=0, master="",
                   dedicated=given.dedicated)
with Session(ZooKeeperAccess(given.zookeeper)) as session:
    path = ServicePaths(ZkPaths(given.cluster)).service(given.service_id)
    while session.client.exists(path):
        time.sleep(0.05)
    session.client.create(path, encode_service(info), ephemeral=True, makepath=True)
    print("these are my last words", flush=True)
    time.sleep(600)
"""


class World:
    """A capture's services, and the owner's part played by the test."""

    def __init__(self, stack: Addresses, session: Session, cluster: str, folder: Path) -> None:
        self.session, self.paths = session, ZkPaths(cluster)
        self.nodes, self.control = ServicePaths(self.paths), ChangefeedControl(session, self.paths)
        addresses = BusAddresses(
            kafka=stack.kafka_access,
            zookeeper=stack.zookeeper_access,
            schema_registry=stack.registry_access,
            cluster=cluster,
            upstream=UpstreamId("u"),
        )
        program = (sys.executable, "-c", STUB)
        self.fleet = ServiceFleet(self.paths, addresses, Nursery(), program, SorterSettings(data_dir=folder))

    def create(self, name: str) -> None:
        request = ChangefeedRequest(
            upstream=UpstreamId("u"),
            sink_uri="kafka://127.0.0.1:9092/t?protocol=canal-json",
            config={},
            changefeed_id=name,
            start_ts=Ts(100),
        )
        self.control.store.create(request, RetainedFrontier(Ts(50), Ts(200)))

    def assign(self, *names: str, dedicated: str = "") -> None:
        info = {name: self.session.client.get(self.paths.changefeed_info("default", name))[1] for name in names}
        feeds = tuple(
            Assigned(namespace="default", changefeed_id=name, created_zxid=info[name].czxid, epoch=0, revision=1)
            for name in names
        )
        assignment = Assignment(feeds=feeds, dedicated=(("default", dedicated),) if dedicated else ())
        path, node = self.nodes.assignment(self.fleet.service_id), encode_assignment(assignment)
        if self.session.client.exists(path):
            self.session.client.set(path, node)
        else:
            self.session.client.create(path, node, makepath=True)

    def registered(self) -> dict[str, int]:
        """Return the services of which the test knows that they are at work, by id."""
        client = self.session.client
        names = client.get_children(self.nodes.services) if client.exists(self.nodes.services) else []
        return {name: pid for name, pid in self.fleet.pids().items() if name in names}

    def status(self, name: str) -> ChangefeedStatus | None:
        return self.control.store.status(name)


@pytest.fixture
def world(stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path) -> Iterator[World]:
    with lasting_session(stack.zookeeper_access) as session:
        yield World(stack, session, fresh_name("cluster"), tmp_path)


def eventually(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_fleet_service_that_dies_is_started_again_and_what_it_was_working_for_is_said(world: World) -> None:
    world.create("poison")
    world.create("other")
    with world.fleet as fleet, fleet.attached(world.session):
        eventually(lambda: fleet.service_id in world.registered())
        world.assign("poison", "other")
        eventually(lambda: fleet.feeds == 2)
        pid = fleet.pids()[fleet.service_id]
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: world.status("poison") is not None)
        status = world.status("poison")
        assert status is not None and status.failure is not None
        assert (status.failure.code, status.failure.epoch, status.failure.may_heal) == ("sorter.died", 0, True)
        assert "signal 9" in status.failure.message and "my last words" in status.failure.message
        assert world.status("other") is None, "its thread was idle"
        eventually(lambda: world.registered().get(fleet.service_id, pid) != pid)
    assert world.registered() == {}


def test_fleet_service_that_was_aborted_checks_batches_from_then_on(world: World) -> None:
    def words() -> list[str]:
        pid = world.fleet.pids().get(world.fleet.service_id)
        return [] if pid is None else Path(f"/proc/{pid}/cmdline").read_text().split("\0")

    def is_another(pid: int) -> bool:
        return world.registered().get(world.fleet.service_id, pid) != pid

    with world.fleet as fleet, fleet.attached(world.session):
        eventually(lambda: fleet.service_id in world.registered())
        asked = []
        for number in (signal.SIGKILL, signal.SIGABRT, signal.SIGKILL):
            pid = fleet.pids()[fleet.service_id]
            os.kill(pid, number)
            eventually(partial(is_another, pid))
            asked.append("--check-batches" in words())
        assert asked == [False, True, True]


def test_fleet_death_is_told_once_there_is_a_session_and_not_of_a_changefeed_that_has_rested(world: World) -> None:
    world.create("poison")
    with world.fleet as fleet:
        with fleet.attached(world.session):
            eventually(lambda: fleet.service_id in world.registered())
            world.assign("poison")
            eventually(lambda: fleet.feeds == 1)
        pid = fleet.pids()[fleet.service_id]
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: fleet.pids().get(fleet.service_id, pid) != pid)
        assert world.status("poison") is None
        world.control.pause("poison")
        world.control.resume("poison")
        with fleet.attached(world.session):
            eventually(lambda: fleet.service_id in world.registered())
            eventually(lambda: fleet.feeds == 1)
            assert world.status("poison") is None, "under the epoch of now nothing has died"


def test_fleet_starts_a_service_for_a_changefeed_alone_while_the_owner_wants_it(world: World) -> None:
    own = dedicated_id(world.fleet.service_id, ("default", "alone"))
    with world.fleet as fleet, fleet.attached(world.session):
        world.assign(dedicated="alone")
        eventually(lambda: world.registered().keys() == {fleet.service_id, own})
        before = fleet.pids()
        world.assign()
        eventually(lambda: fleet.pids() == {fleet.service_id: before[fleet.service_id]})
    with pytest.raises(ProcessLookupError):
        os.kill(before[own], 0)
