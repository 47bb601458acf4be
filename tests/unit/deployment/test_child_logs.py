"""Logs of children that run for months stay within bounds, and lose nothing that stands in them."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compose.stack.child_logs import BYTES_MAX, KEPT, turn_over
from compose.stack.children import Nursery
from consumers.control.fleets.service_fleet import ServiceFleet, service_log
from consumers.control.fleets.settings import BusAddresses, SorterSettings
from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.zookeeper.access import ZooKeeperAccess
from schemas.ids import UpstreamId
from schemas.nodes.changefeed import ZkPaths

ADDRESSES = BusAddresses(
    kafka=KafkaAccess("k:1"),
    zookeeper=ZooKeeperAccess("z:1"),
    schema_registry=RegistryAccess.at(""),
    cluster="c",
    upstream=UpstreamId("u"),
)


def test_log_within_its_bound_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "sorter.log"
    assert not turn_over(log, 4)
    log.write_text("1234")
    assert not turn_over(log, 4)
    assert [file.name for file in tmp_path.iterdir()] == ["sorter.log"]


def test_log_beyond_its_bound_is_kept_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    log = tmp_path / "sorter.log"
    for number in range(5):
        log.write_text(f"part {number}")
        assert turn_over(log, 4, kept=3)
    texts = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert texts == {"sorter.log": "", "sorter.log.1": "part 4", "sorter.log.2": "part 3", "sorter.log.3": "part 2"}


def test_who_writes_the_log_goes_on_at_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "sorter.log"
    code = (
        "import sys\nfor line in sys.stdin: print(line, end='', flush=True); print('ok', file=sys.stderr, flush=True)"
    )
    with log.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=output, stderr=subprocess.PIPE, text=True
        )
    assert child.stdin is not None and child.stderr is not None
    with child:
        for word in ("first", "second"):
            child.stdin.write(f"{word}\n")
            child.stdin.flush()
            assert child.stderr.readline() == "ok\n"
            if word == "first":
                assert turn_over(log, 1)
        child.stdin.close()
    assert (log.read_text(), log.with_name("sorter.log.1").read_text()) == ("second\n", "first\n")


def test_log_that_cannot_be_copied_is_emptied_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "sorter.log"
    log.write_text("12345")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", refuse)
    assert not turn_over(log, 4)
    assert (log.read_text(), [file.name for file in tmp_path.iterdir()]) == ("", ["sorter.log"])


def test_bounds_of_a_changefeeds_log() -> None:
    assert BYTES_MAX * (KEPT + 1) == 256 << 20


def test_service_that_cannot_be_started_is_started_once_it_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = service_log(tmp_path)
    log.mkdir(parents=True)  # as good as a disk without room
    with Nursery() as nursery:
        fleet = ServiceFleet(
            ZkPaths("c"), ADDRESSES, nursery, (sys.executable, "-c", "pass"), SorterSettings(data_dir=tmp_path)
        )
        for _ in range(3):
            fleet.look()
        assert fleet.pids() == {}
        assert [vars(record)["code"] for record in caplog.records] == ["bus.child"]
        log.rmdir()
        deadline = time.monotonic() + 60
        while not fleet.pids() and time.monotonic() < deadline:
            fleet.look()
        assert fleet.pids().keys() == {fleet.service_id}


def test_service_fleet_sets_the_log_of_one_that_runs_aside_when_it_has_grown_too_large(tmp_path: Path) -> None:
    with Nursery() as nursery:
        command = (sys.executable, "-c", "import time; time.sleep(600)")
        fleet = ServiceFleet(ZkPaths("c"), ADDRESSES, nursery, command, SorterSettings(data_dir=tmp_path))
        fleet.look()
        log = service_log(tmp_path)
        os.truncate(log, BYTES_MAX + 1)
        fleet.look()
        assert (log.stat().st_size, log.with_name("service.log.1").stat().st_size) == (0, BYTES_MAX + 1)
