"""What a sorter leaves in ZooKeeper while ZooKeeper comes and goes."""

from collections.abc import Callable
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from edges.zookeeper.session import ZooKeeperUnreachableError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths, decode_changefeed_status, encode_changefeed_info
from sorters.run.status import Edition, StatusBoard

PATHS = ZkPaths("c")
INFO_PATH = PATHS.changefeed_info("default", "orders")
STATUS_PATH = PATHS.changefeed_status("default", "orders")
BEGUN_PATH = PATHS.changefeed_begun("default", "orders")


class Answer:
    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask

    def get(self, timeout: float) -> Any:
        return self._ask()


class Stat:
    def __init__(self, version: int) -> None:
        self.version, self.czxid = version, 1


class FewNodes:
    """As much of kazoo's client as a sorter's status needs; ``away``: no answer comes to what is written there."""

    def __init__(self, info: bytes) -> None:
        self.nodes = {INFO_PATH: (info, 0)}
        self.away: set[str] = set()
        self.written: list[str] = []

    def get_async(self, path: str) -> Answer:
        def ask() -> tuple[bytes, Stat]:
            if path not in self.nodes:
                raise NoNodeError
            return self.nodes[path][0], Stat(self.nodes[path][1])

        return Answer(ask)

    def create_async(self, path: str, value: bytes) -> Answer:
        return Answer(lambda: self._put(path, value, -1))

    def set_async(self, path: str, value: bytes, version: int = -1) -> Answer:
        def ask() -> Stat:
            if path not in self.nodes:
                raise NoNodeError
            if version not in (-1, self.nodes[path][1]):
                raise BadVersionError
            return self._put(path, value, self.nodes[path][1])

        return Answer(ask)

    def _put(self, path: str, value: bytes, version: int) -> Stat:
        if path in self.away:
            raise KazooTimeoutError
        if version < 0 and path in self.nodes:
            raise NodeExistsError
        self.nodes[path] = value, version + 1
        self.written.append(path)
        return Stat(version + 1)

    @property
    def checkpoint_ts(self) -> Ts:
        return decode_changefeed_status(self.nodes[STATUS_PATH][0]).checkpoint_ts


@pytest.fixture
def info() -> ChangefeedInfo:
    return ChangefeedInfo(
        changefeed_id="orders",
        upstream=UpstreamId("u"),
        sink_uri="kafka://127.0.0.1:9092/orders",
        start_ts=Ts(10),
    )


@pytest.mark.parametrize("reported", [True, False], ids=["the report was lost", "it was left out"])
def test_epoch_is_begun_only_behind_a_checkpoint_that_zookeeper_has(info: ChangefeedInfo, reported: bool) -> None:
    zookeeper = FewNodes(encode_changefeed_info(info))
    board = StatusBoard(zookeeper, PATHS, "default", "orders")
    board.open(info, Edition(1, 0))
    board.report(checkpoint_ts=Ts(20))
    board.begin(b"from 20", Ts(20))
    zookeeper.away = {STATUS_PATH}
    if reported:
        board.report(checkpoint_ts=Ts(30))
    with pytest.raises(ZooKeeperUnreachableError):
        board.begin(b"from 30", Ts(30))
    assert (board.begun(), zookeeper.checkpoint_ts) == (b"from 20", 20), "the next sorter repeats what ran last"
    zookeeper.away, zookeeper.written = set(), []
    board.begin(b"from 30", Ts(30))
    assert (board.begun(), zookeeper.checkpoint_ts) == (b"from 30", 30)
    assert zookeeper.written == [STATUS_PATH, BEGUN_PATH]
