"""What the owner knows of the captures that live, on a real ZooKeeper behind a proxy that cuts its connection."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from kazoo.protocol.states import KazooState

from compose.stack.local import Addresses
from consumers.control.cluster.capture_registry import CaptureInfo, CaptureWatch, mark_stopping, register_capture
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import Session
from schemas.errors import CorruptDataError
from schemas.ids import CaptureId
from schemas.nodes.changefeed import ZkPaths
from tests.support.control.lasting_session import lasting_session
from tests.support.upstream.cutting_proxy import CuttingProxy

AWAIT_S = 60.0
A = CaptureInfo(capture_id=CaptureId("a"), address="127.0.0.1:1", version="0.1.0", started_at_s=5)


@pytest.fixture
def paths(fresh_name: Callable[[str], str]) -> ZkPaths:
    return ZkPaths(fresh_name("cluster"))


@pytest.fixture
def other(stack: Addresses, paths: ZkPaths) -> Iterator[Session]:
    """Return a session by which capture a is registered."""
    with lasting_session(stack.zookeeper_access) as session:
        register_capture(session, paths, A)
        yield session


def test_capture_watch_when_its_connection_was_cut_then_it_sees_who_is_leaving(
    stack: Addresses, paths: ZkPaths, other: Session
) -> None:
    is_back = threading.Event()
    with (
        CuttingProxy(stack.zookeeper, 1, bytes_min=1 << 40, bytes_max=1 << 41) as proxy,
        lasting_session(ZooKeeperAccess(proxy.address)) as owner,
        closing(CaptureWatch(owner, paths, lambda _: None)) as watch,
    ):
        assert not watch.captures[A.capture_id].is_stopping
        owner.client.add_listener(lambda state: is_back.set() if state == KazooState.CONNECTED else None)
        proxy.cut()
        assert is_back.wait(AWAIT_S)
        mark_stopping(other, paths, A)
        assert watch.refresh()[A.capture_id].is_stopping
        assert owner.lease_left_s() > 0, "the session has outlived its connection"


def test_capture_watch_when_a_stranger_was_unreadable_then_it_sees_what_others_have_said_meanwhile(
    stack: Addresses, paths: ZkPaths, other: Session
) -> None:
    stranger = f"{paths.captures}/b"
    with (
        lasting_session(stack.zookeeper_access) as owner,
        closing(CaptureWatch(owner, paths, lambda _: None)) as watch,
    ):
        other.client.create(stranger, b"\xff", ephemeral=True)
        mark_stopping(other, paths, A)
        with pytest.raises(CorruptDataError):
            watch.refresh()
        other.client.delete(stranger)
        assert watch.refresh()[A.capture_id].is_stopping
