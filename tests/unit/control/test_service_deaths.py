"""A capture tells the owner of what a sorter service has died, also where one of its changefeeds cannot be read."""

from pathlib import Path
from typing import Any, cast

import pytest

from consumers.control.changefeeds.states import DIED
from consumers.control.fleets.service_fleet import ServiceFleet, _Death
from consumers.control.fleets.settings import SorterSettings
from edges.secrets import Keyring
from edges.zookeeper.session import Session
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths, decode_changefeed_status, encode_changefeed_info
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import Assigned, Assignment, encode_assignment
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
    fleet._deaths.append(
        _Death(fleet.service_id, 1, "the sorter service has ended", running, dict.fromkeys(running, 0))
    )
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
