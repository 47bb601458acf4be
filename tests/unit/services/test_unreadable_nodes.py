"""Nodes that somebody else has written, as a sorter service meets them: said once, and used once they are right."""

import logging
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths, encode_changefeed_info
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import Assigned, Assignment, encode_assignment
from sorters.service import group_state
from sorters.service.group_state import GroupState
from sorters.service.hosted_feed import FeedHome, HostedFeed
from tests.support.control.memory_zookeeper import MemoryZooKeeper

PATHS = ZkPaths("c")
SERVICES = ServicePaths(PATHS)
INFO_PATH = PATHS.changefeed_info("default", "orders")
INFO = ChangefeedInfo(
    changefeed_id="orders", upstream=UpstreamId("u"), sink_uri="kafka://k/t?protocol=canal-json", start_ts=Ts(10)
)
AWAIT_S = 60.0


class Lines(logging.Handler):
    """Counts what is logged under a beginning, and lets others wait for it."""

    def __init__(self, begins: str) -> None:
        super().__init__()
        self.begins, self.seen, self._changed = begins, list[logging.LogRecord](), threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(self.begins):
            with self._changed:
                self.seen.append(record)
                self._changed.notify_all()

    def wait(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.seen, AWAIT_S)


@contextmanager
def lines(begins: str) -> Iterator[Lines]:
    heard = Lines(begins)
    logger = logging.getLogger("sorters.service")
    logger.addHandler(heard)
    try:
        yield heard
    finally:
        logger.removeHandler(heard)


class Reads:
    """Counts requests for one node."""

    def __init__(self, zookeeper: MemoryZooKeeper, path: str) -> None:
        self._path, self._changed, self.count = path, threading.Condition(), 0
        zookeeper.on_answer = self._note

    def _note(self, what: str, path: str) -> None:
        if (what, path) == ("get", self._path):
            with self._changed:
                self.count += 1
                self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.count >= count, AWAIT_S)


def write(zookeeper: MemoryZooKeeper, path: str, node: bytes) -> None:
    """Write a node, and let those hear of it who watch it."""
    zookeeper.write({path: node})
    zookeeper.sync_async(path)


def hosted(zookeeper: MemoryZooKeeper) -> HostedFeed:
    home = SimpleNamespace(client=zookeeper, lease=None, paths=PATHS, is_lost=lambda: False)
    assigned = Assigned(namespace="default", changefeed_id="orders", created_zxid=1, epoch=0, revision=1)
    return HostedFeed(assigned, cast("FeedHome", home))


def test_hosted_feed_when_its_info_does_not_decode_then_it_says_so_once_and_runs_once_it_does() -> None:
    zookeeper = MemoryZooKeeper()
    zookeeper.write({INFO_PATH: b"garbage \xff"})
    reads, feed = Reads(zookeeper, INFO_PATH), hosted(zookeeper)
    with ThreadPoolExecutor(1) as pool, lines("changefeed is not readable") as heard:
        running = pool.submit(feed._next_run)
        heard.wait()
        for count in (2, 3):
            write(zookeeper, INFO_PATH, b"garbage \xff")
            reads.wait(count)
        assert not running.done()
        write(zookeeper, INFO_PATH, encode_changefeed_info(INFO))
        wanted = running.result(AWAIT_S)
    assert wanted is not None
    assert wanted[0].start_ts == 10
    (line,) = heard.seen
    said = cast("Any", line)
    assert (said.changefeed, said.code, line.exc_info) == ("orders", "bus.corrupt_data", None)


def test_group_state_when_its_assignment_does_not_decode_then_it_says_so_once_and_takes_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_state, "FLUSH_S", 0.005)
    zookeeper, path = MemoryZooKeeper(), SERVICES.assignment("s")
    zookeeper.write({SERVICES.service("s"): b"", path: encode_assignment(Assignment())})
    got: queue.SimpleQueue[Assignment] = queue.SimpleQueue()
    state = GroupState(cast("Any", zookeeper), SERVICES, "s", got.put, lambda: False)
    assert got.get_nowait() == Assignment()
    with closing(state), lines("assignment is not readable") as heard:
        reads = Reads(zookeeper, path)
        write(zookeeper, path, b"garbage \xff")
        reads.wait(5)
        assigned = Assigned(namespace="default", changefeed_id="orders", created_zxid=1, epoch=0, revision=1)
        write(zookeeper, path, encode_assignment(Assignment(feeds=(assigned,))))
        assert got.get(timeout=AWAIT_S).feeds == (assigned,)
    (line,) = heard.seen
    said = cast("Any", line)
    assert "bus.corrupt_data" in said.reason
    assert said.path == path
