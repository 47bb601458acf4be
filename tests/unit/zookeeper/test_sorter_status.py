"""What a sorter leaves in ZooKeeper while ZooKeeper comes and goes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from edges.zookeeper.session import ZooKeeperUnreachableError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import (
    SET_EPOCH_UNKNOWN,
    ChangefeedInfo,
    ChangefeedStatus,
    ZkPaths,
    decode_changefeed_status,
    encode_changefeed_info,
    encode_changefeed_status,
)
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import FeedEntry, encode_entries
from sorters.run.nodes.status import Edition, StatusBoard

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

    def get_children_async(self, path: str) -> Answer:
        def ask() -> list[str]:
            below = {node.removeprefix(f"{path}/").split("/")[0] for node in self.nodes if node.startswith(f"{path}/")}
            if not below:
                raise NoNodeError
            return sorted(below)

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
    zookeeper: Any = FewNodes(encode_changefeed_info(info))
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


@pytest.mark.parametrize(("entry_epoch", "checkpoint_ts"), [(3, 80), (4, 100)], ids=["of an older epoch", "of now"])
def test_board_opened_on_a_status_of_the_release_before_goes_by_entries_of_its_epoch_alone(
    info: ChangefeedInfo, entry_epoch: int, checkpoint_ts: int
) -> None:
    """That release may have set the checkpoint when the epoch began; what it says is kept from then on."""
    info = replace(info, epoch=4)
    entry = FeedEntry(
        namespace="default",
        changefeed_id="orders",
        created_zxid=1,
        epoch=entry_epoch,
        revision=7,
        checkpoint_ts=Ts(100),
        resolved_ts=Ts(100),
        begun='{"frontier_topic": "f", "origin_ts": 70, "frontier_offset": 1, "frontier_end": 2}',
    )
    status = ChangefeedStatus(state="normal", checkpoint_ts=Ts(80), resolved_ts=Ts(80), set_epoch=SET_EPOCH_UNKNOWN)
    zookeeper: Any = FewNodes(encode_changefeed_info(info))
    zookeeper.nodes[STATUS_PATH] = encode_changefeed_status(status), 0
    zookeeper.nodes[ServicePaths(PATHS).entries("s1", 0)] = encode_entries([entry]), 0
    board = StatusBoard(zookeeper, PATHS, "default", "orders")
    assert board.open(info, Edition(1, 0)) == checkpoint_ts
    assert (board.begun() is not None) == (entry_epoch == 4)
    board.report()
    assert decode_changefeed_status(zookeeper.nodes[STATUS_PATH][0]).set_epoch == 4
    zookeeper.nodes[STATUS_PATH] = encode_changefeed_status(status), 9
    board.report(checkpoint_ts=Ts(200))
    written = decode_changefeed_status(zookeeper.nodes[STATUS_PATH][0])
    assert (written.set_epoch, written.checkpoint_ts) == (4, 200), "its owner has written meanwhile"
