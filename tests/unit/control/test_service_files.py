"""What services note for their capture, in its data folder: it goes with them, however their capture has ended."""

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compose.capture import process
from consumers.control.core.changefeeds.service_plan import dedicated_id
from consumers.control.fleets import service_fleet
from consumers.control.fleets.service_fleet import ServiceFleet
from consumers.control.fleets.settings import BusAddresses, SorterSettings
from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session_file import SessionFile
from schemas.ids import UpstreamId
from schemas.nodes.changefeed import ZkPaths

ADDRESSES = BusAddresses(
    kafka=KafkaAccess("k:1"),
    zookeeper=ZooKeeperAccess("z:1"),
    schema_registry=RegistryAccess.at(""),
    cluster="c",
    upstream=UpstreamId("u"),
)
LEFT = ["running-0b6e", "running-0b6e.crash", "running-0b6e-ded-default.orders"]
"""By services of a capture that was killed."""


class Child:
    """One that runs until it is told to end."""

    pid = 1

    def __init__(self) -> None:
        self.runs = True

    def is_running(self) -> bool:
        return self.runs

    def exit_status(self) -> int:
        return 0

    def terminate(self) -> None:
        self.runs = False

    def turn_over_log(self) -> None: ...
    def discard(self, _: float) -> None: ...
    def tail(self, _: int) -> str:
        return ""


class Children:
    """Starts services: all that is seen here of one are its files."""

    def start(self, _: str, command: list[str], **__: object) -> Child:
        given = dict(pairwise(command))
        for end in ("", ".crash"):
            Path(given["--data-dir"], f"running-{given['--service-id']}{end}").write_bytes(bytes(600))
        return Child()

    def stop_together(self, _: float) -> None: ...


def fleet_in(folder: Path, *, is_heir: bool) -> ServiceFleet:
    for name in LEFT:
        (folder / name).touch()
    (folder / "capture.session").touch()
    settings = SorterSettings(data_dir=folder)
    return ServiceFleet(ZkPaths("c"), ADDRESSES, cast(Any, Children()), ("tidebus",), settings, is_heir=is_heir)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("is_heir", [True, False])
def test_fleet_that_ends_leaves_no_file_of_its_services_nor_its_heir_those_of_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_heir: bool
) -> None:
    monkeypatch.setattr(service_fleet, "LOOK_S", 0.01)
    fleet = fleet_in(tmp_path, is_heir=is_heir)
    others = ["capture.session", *([] if is_heir else LEFT)]
    with fleet:
        until(lambda: f"running-{fleet.service_id}.crash" in names(tmp_path))
        assert names(tmp_path) == sorted([*others, f"running-{fleet.service_id}", f"running-{fleet.service_id}.crash"])
    assert names(tmp_path) == sorted(others)


def test_service_that_is_not_wanted_any_more_leaves_no_file(tmp_path: Path) -> None:
    fleet = fleet_in(tmp_path, is_heir=False)
    own = dedicated_id(fleet.service_id, ("default", "orders"))
    fleet._services[own] = service_fleet._Service(own, ("default", "orders"))
    fleet.look()
    known = fleet._services[own]
    assert {f"running-{own}", f"running-{own}.crash"} <= {*names(tmp_path)}
    known.kill_at_s = float("inf")  # as the owner's word has it
    cast(Child, known.child).terminate()
    for _ in range(2):
        fleet.look()
    assert own not in fleet._services
    assert not {f"running-{own}", f"running-{own}.crash"} & {*names(tmp_path)}


def test_capture_is_its_folders_heir_where_it_has_the_lock_that_its_predecessor_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[bool] = []

    class SeenError(Exception):
        pass

    def running_services(_: object, *, is_heir: bool) -> None:
        said.append(is_heir)
        raise SeenError

    monkeypatch.setattr(process, "running_services", running_services)
    monkeypatch.setattr(process, "spare_old_objects", lambda _: None)

    def run(folder: Path | None) -> None:
        with pytest.raises(SeenError):
            process.run_capture(cast(Any, SimpleNamespace(sorters=SimpleNamespace(data_dir=folder))))

    run(tmp_path)
    with SessionFile(tmp_path / "capture.session"):  # another capture lives
        run(tmp_path)
    run(None)
    assert said == [True, False, False]


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)
