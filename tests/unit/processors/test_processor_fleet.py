"""Which processors a capture keeps running."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from compose.capture.processor_home import ProcessorHome
from compose.stack.child_logs import BYTES_MAX
from compose.stack.children import TIDEBUS, Child, Nursery
from consumers.control.fleets.processor_fleet import ProcessorFleet
from consumers.control.fleets.settings import BusAddresses
from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import Session
from producers.tls import TlsSettings
from schemas.errors import BusError
from schemas.ids import CaptureId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths, decode_changefeed_info, encode_changefeed_info
from tests.support.control.memory_zookeeper import MemoryZooKeeper

ADDRESSES = BusAddresses(
    kafka=KafkaAccess("k:1"),
    zookeeper=ZooKeeperAccess("z:1"),
    schema_registry=RegistryAccess.at(""),
    cluster="c",
    upstream=UpstreamId("u"),
)


def _info(name: str, sink_uri: str = "mysql://h/", upstream: str = "u", epoch: int = 0) -> ChangefeedInfo:
    return ChangefeedInfo(
        changefeed_id=name, upstream=UpstreamId(upstream), sink_uri=sink_uri, start_ts=Ts(1), epoch=epoch
    )


class Store:
    """The changefeeds in ZooKeeper."""

    def __init__(self) -> None:
        self.zookeeper = MemoryZooKeeper()

    @property
    def infos(self) -> list[ChangefeedInfo]:
        return [decode_changefeed_info(node.value) for node in self.zookeeper.nodes.values()]

    @infos.setter
    def infos(self, infos: list[ChangefeedInfo]) -> None:
        nodes: dict[str, bytes | None] = dict.fromkeys(self.zookeeper.nodes)
        for info in infos:
            nodes[ZkPaths("c").changefeed_info("default", info.changefeed_id)] = encode_changefeed_info(info)
        self.zookeeper.write(nodes)


class Fleet(ProcessorFleet):
    """Looks when it is told to; its children run ``code``."""

    code = "import time; time.sleep(600)"

    def __init__(self, folder: Path) -> None:
        self._nursery = Nursery()
        self.store = Store()
        self.fatal: list[BusError] = []
        session = cast(Session, self.store.zookeeper)
        super().__init__(
            session, ZkPaths("c"), ADDRESSES, self._nursery, TIDEBUS, (), folder, on_fatal=self.fatal.append
        )

    def _started(self, name: tuple[str, str]) -> Child:
        log = self._folder() / f"{name[1]}.log"
        return self._nursery.start(name[1], [sys.executable, "-c", self.code], log=log)

    def look(self) -> dict[str, bool]:
        self._look()
        return {name[1]: processor.child.is_running() for name, processor in self._processors.items()}

    def child(self, name: str) -> Child:
        child = self._processors["default", name].child
        assert isinstance(child, Child)
        return child


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.stop()


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_processor_fleet_runs_one_for_each_changefeed_of_its_upstream_that_needs_one(fleet: Fleet) -> None:
    fleet.store.infos = [
        _info("a"),
        _info("b", "tidb://h/"),
        _info("kafka", "kafka://h/t?protocol=avro"),
        _info("other", upstream="elsewhere"),
    ]
    assert fleet.look() == {"a": True, "b": True}
    gone = fleet.child("a")
    fleet.store.infos = fleet.store.infos[1:]
    assert fleet.look() == {"b": True}
    assert not gone.is_running()


def test_processor_fleet_starts_again_what_has_died(fleet: Fleet) -> None:
    fleet.store.infos = [_info("a")]
    fleet.look()
    pid = fleet.child("a").pid
    fleet.child("a").kill()
    _wait(lambda: fleet.look()["a"])
    assert fleet.child("a").pid != pid


TOLD_TO_STOP = """
import sys
from types import SimpleNamespace as As
from consumers.processors import processor as module

class Session:
    def __init__(self, *_): pass
    def __enter__(self): return self
    def __exit__(self, *_): pass

class Board:
    def __init__(self, *_): print("looks", flush=True)
    def look(self): return As(info=As(desired_state="normal", sink_uri="mysql://h/", changefeed_id="a"), finished=False,
                              runs=False)

module.Session, module.ProcessorBoard = Session, Board
options = module.ProcessorOptions(changefeed_id="a", kafka=None, zookeeper=None, capture="c-1")
sys.exit(module.run_processor(options, None, None))
"""
"""A processor's process, with its handlers of signals, whose changefeed is wanted."""


def test_processor_fleet_starts_again_what_somebody_else_has_told_to_stop(fleet: Fleet) -> None:
    fleet.code = TOLD_TO_STOP
    fleet.store.infos = [_info("a")]
    fleet.look()
    child = fleet.child("a")
    for begun, number in enumerate((signal.SIGTERM, signal.SIGINT), 1):
        _wait(lambda begun=begun: child.log.read_text().count("looks") == begun)  # type: ignore[misc]
        pid = child.pid
        os.kill(pid, number)
        _wait(lambda pid=pid: fleet.look()["a"] and child.pid != pid)  # type: ignore[misc]
    fleet.leave()
    _wait(lambda: not child.is_running())
    assert fleet.look() == {"a": False}  # the others have its partitions now


def test_processor_fleet_tends_the_others_and_leaves_alone_whose_changefeed_nobody_can_read(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.store.infos = [_info("a"), _info("bad")]
    fleet.look()
    pid, bad_pid = fleet.child("a").pid, fleet.child("bad").pid
    path = ZkPaths("c").changefeed_info("default", "bad")
    fleet.store.zookeeper.write(
        {path: b"garbage", ZkPaths("c").changefeed_info("default", "b"): encode_changefeed_info(_info("b"))}
    )
    fleet.child("a").kill()
    _wait(lambda: fleet.look() == {"a": True, "bad": True, "b": True})
    assert fleet.child("a").pid != pid
    assert fleet.child("bad").pid == bad_pid
    assert [path in vars(record)["error"] for record in caplog.records if record.levelname == "ERROR"] == [True]
    fleet.store.zookeeper.write({path: None})
    assert fleet.look() == {"a": True, "b": True}


def test_processor_fleet_goes_on_where_one_cannot_be_started_and_starts_it_once_that_can_be(
    fleet: Fleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.log").mkdir()  # as good as a disk without room
    fleet.store.infos = [_info("a"), _info("b")]
    for _ in range(3):
        assert fleet.look() == {"b": True}
    assert [vars(record)["code"] for record in caplog.records if record.levelname == "ERROR"] == ["bus.child"]
    (tmp_path / "a.log").rmdir()
    assert fleet.look() == {"a": True, "b": True}
    (tmp_path / "a.log").unlink()
    (tmp_path / "a.log").mkdir()
    fleet.child("a").kill()
    _wait(lambda: not fleet.look()["a"] and [record.levelname for record in caplog.records].count("ERROR") == 2)
    (tmp_path / "a.log").rmdir()
    _wait(lambda: fleet.look() == {"a": True, "b": True})
    assert fleet.fatal == []


def test_processor_fleet_sets_the_log_of_one_that_runs_aside_when_it_has_grown_too_large(fleet: Fleet) -> None:
    fleet.store.infos = [_info("a")]
    fleet.look()
    log = fleet.child("a").log
    os.truncate(log, BYTES_MAX + 1)
    assert fleet.look() == {"a": True}
    assert (log.stat().st_size, log.with_name("a.log.1").stat().st_size) == (0, BYTES_MAX + 1)


def test_processor_fleet_leaves_what_is_done_until_the_changefeed_is_resumed(fleet: Fleet) -> None:
    fleet.code = "pass"
    fleet.store.infos = [_info("a")]
    fleet.look()
    pid = fleet.child("a").pid
    _wait(lambda: not fleet.look()["a"])
    for _ in range(3):
        fleet.look()
    assert fleet.child("a").pid == pid
    fleet.store.infos = [_info("a", epoch=1)]
    fleet.look()
    assert fleet.child("a").pid != pid


@pytest.mark.parametrize("create_time", ["2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"])
def test_processor_fleet_begins_anew_for_one_that_was_removed_and_created_between_two_looks(
    fleet: Fleet, create_time: str
) -> None:
    fleet.code = "pass"  # sees that its changefeed is removed
    fleet.store.infos = [replace(_info("a"), create_time="2026-01-01T00:00:00Z")]
    fleet.look()
    pid = fleet.child("a").pid
    _wait(lambda: not fleet.child("a").is_running())
    fleet.code = "import time; time.sleep(600)"
    fleet.store.infos = []
    fleet.store.infos = [replace(_info("a"), create_time=create_time)]
    fleet.look()
    assert fleet.child("a").pid != pid


def test_processor_fleet_that_leaves_tells_all_at_once_and_starts_none_any_more(fleet: Fleet) -> None:
    fleet.code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(600)"
    fleet.store.infos = [_info("a"), _info("b")]
    fleet.look()
    children = [fleet.child("a"), fleet.child("b")]
    fleet.start()
    fleet.leave()
    _wait(lambda: not any(child.is_running() for child in children))
    fleet.store.infos = [*fleet.store.infos, _info("c")]
    fleet.stop()
    assert [child.is_running() for child in children] == [False, False]
    assert ("default", "c") not in fleet._processors


def test_processor_home_tells_children_who_started_them_and_where_they_are_reached() -> None:
    home = ProcessorHome(
        capture=CaptureId("c-1"), peer_host="0.0.0.0", advertise_peer_host="host-1", tls=TlsSettings(ca_path="ca.pem")
    )
    arguments = home.arguments()
    assert arguments[arguments.index("--capture") + 1] == "c-1"
    assert arguments[arguments.index("--advertise-peer-host") + 1] == "host-1"
    assert arguments[arguments.index("--ca") + 1] == "ca.pem"
    assert "--cert" not in arguments
