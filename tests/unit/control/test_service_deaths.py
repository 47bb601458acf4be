"""A capture tells the owner of what a sorter service has died, also where one of its changefeeds cannot be read."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumers.control.changefeeds.states import DIED
from consumers.control.fleets import service_fleet
from consumers.control.fleets.service_deaths import ServiceDeath
from consumers.control.fleets.service_fleet import FIRST_BEAT_S, LOOK_S, STILL_S, ServiceFleet
from consumers.control.fleets.settings import BusAddresses, SorterSettings
from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.secrets import Keyring
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import Session
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths, decode_changefeed_status, encode_changefeed_info
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import Assigned, Assignment, encode_assignment
from schemas.running_feeds import RunningFeeds, running_file
from tests.support.control.stored_zookeeper import MemorySession

PATHS = ZkPaths("c")
FEEDS = {
    name: ChangefeedInfo(
        changefeed_id=name,
        upstream=UpstreamId("u"),
        sink_uri="kafka://h:9092/t?protocol=canal-json",
        start_ts=Ts(100),
    )
    for name in ("bad", "good")
}
SEALED = Keyring(Keyring().keys).encode(FEEDS["bad"])[:-1] + b', "sealed": "v1:' + b"A" * 40 + b'"}'


@pytest.mark.parametrize("node", [SEALED, b"[" * 100_000, b"\xff"], ids=["sealed by another key", "deep", "no text"])
def test_death_is_told_of_the_changefeeds_that_can_be_read_and_assignments_are_taken_in(node: bytes) -> None:
    made = MemorySession()
    made.client.put(PATHS.changefeed_info("default", "bad"), node)
    made.client.put(PATHS.changefeed_info("default", "good"), encode_changefeed_info(FEEDS["good"]))
    nobody: Any = None
    fleet = ServiceFleet(PATHS, nobody, nobody, ("tidebus",), SorterSettings(data_dir=Path("unused")))
    running = frozenset(("default", name) for name in FEEDS)
    fleet._deaths.append(ServiceDeath(fleet.service_id, 1, "the sorter service has ended", running, {}))
    fleet._services[fleet.service_id].start_at_s = float("inf")
    assigned = Assigned(namespace="default", changefeed_id="good", created_zxid=1, epoch=0, revision=1)
    made.client.put(
        ServicePaths(PATHS).assignment(fleet.service_id), encode_assignment(Assignment(owner_rev=1, feeds=(assigned,)))
    )
    with fleet.attached(cast(Session, made)):
        fleet.look()
    assert fleet._deaths == [] and fleet.feeds == 1
    status = decode_changefeed_status(made.client.get(PATHS.changefeed_status("default", "good"))[0])
    assert status.failure is not None and status.failure.code == DIED


class Standing:
    """A child that does nothing until it is killed."""

    pid = 1

    def __init__(self) -> None:
        self.status: int | None = None

    def is_running(self) -> bool:
        return self.status is None

    def exit_status(self) -> int | None:
        return self.status

    def turn_over_log(self) -> None:
        pass

    def kill(self) -> None:
        self.status = -9

    def discard(self, _grace_s: float) -> None:
        pass

    def tail(self, _lines: int) -> str:
        return ""


class Children:
    """Starts such children."""

    def __init__(self) -> None:
        self.started: list[Standing] = []

    def start(self, *_: object, **__: object) -> Standing:
        self.started.append(Standing())
        return self.started[-1]


@pytest.mark.parametrize(("has_begun", "still_max_s"), [(False, FIRST_BEAT_S), (True, STILL_S)])
def test_service_whose_heart_stands_still_or_never_begins_to_beat_is_killed_and_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_begun: bool, still_max_s: float
) -> None:
    now_s, children = 1_000.0, Children()
    addresses = BusAddresses(
        kafka=KafkaAccess("k:9092"),
        zookeeper=ZooKeeperAccess("z:2181"),
        schema_registry=RegistryAccess(),
        cluster="c",
        upstream=UpstreamId("u"),
    )
    monkeypatch.setattr(service_fleet, "time", SimpleNamespace(monotonic=lambda: now_s))
    fleet = ServiceFleet(PATHS, addresses, cast(Any, children), ("tidebus",), SorterSettings(data_dir=tmp_path))
    fleet.look()
    if has_begun:
        with RunningFeeds(running_file(tmp_path, fleet.service_id), 1) as running:
            running.beat()
        fleet.look()  # its first beat is heard
    (child,), began_at_s = children.started, now_s
    while child.is_running():
        now_s += LOOK_S
        fleet.look()
    assert still_max_s < now_s - began_at_s <= still_max_s + 2 * LOOK_S
    fleet.look()
    (death,) = fleet._deaths
    assert f"after standing still for {still_max_s:.0f} s" in death.message and not death.running
    now_s += service_fleet.AGAIN_FIRST_S
    fleet.look()
    assert len(children.started) == 2
