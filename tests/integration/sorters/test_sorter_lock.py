"""One sorter a changefeed: the lock alone on a real ZooKeeper, and two sorter processes."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from compose.stack.local import Addresses
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.connection import LeasedClient, zookeeper_client
from edges.zookeeper.lease import LEASE_SHARE
from schemas.sink.fence import NO_FENCE
from schemas.sink.position import PositionClass, decode_position
from sorters.run.nodes.feed_lock import ANSWER_S, SESSION_S, FeedLock, SorterLockLostError
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import START_TS, RawLog, read_topic, recorded, sbtest1_changes
from tests.support.upstream.relay import Relay

ROWS = 100
WAIT_S = 180.0
LONG_S = 30.0
"""A session that a slow machine does not lose."""


@pytest.fixture
def connect(stack: Addresses) -> Iterator[Callable[[], LeasedClient]]:
    with ExitStack() as connections:
        yield lambda: connections.enter_context(zookeeper_client(stack.zookeeper_access, LONG_S))


@pytest.fixture
def path(connect: Callable[[], LeasedClient], fresh_name: Callable[[str], str]) -> str:
    folder = f"/{fresh_name('lock')}"
    connect().client.ensure_path(folder)
    return f"{folder}/sorter"


def end_session(stack: Addresses, client: Any) -> None:
    """End a client's session: closing a second connection to it does that."""
    twin = KazooClient(stack.zookeeper, client_id=client.client_id, timeout=LONG_S)
    twin.start(WAIT_S)
    twin.stop()
    twin.close()


def eventually(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_lock_second_sorter_waits_names_the_holder_and_takes_over_when_it_goes(
    connect: Callable[[], LeasedClient], path: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = FeedLock(connect(), path), FeedLock(connect(), path)
    assert first.fences()() == NO_FENCE
    assert first.acquire(lambda: True)
    assert first.acquire(lambda: True), "again costs nothing"
    first.check()
    run = first.fences()
    given = [run(), run(), first.fences()()]
    got: list[bool] = []
    waiting = threading.Thread(target=lambda: got.append(second.acquire(lambda: True)))
    waiting.start()
    eventually(lambda: any(str(os.getpid()) in str(vars(record).get("holder")) for record in caplog.records))
    assert got == []
    with pytest.raises(SorterLockLostError):
        second.check()
    first.release()
    waiting.join(WAIT_S)
    assert got == [True]
    second.check()
    first.release()
    second.check()
    given += [run(), second.fences()()]
    assert given == sorted(set(given)), "each attempt is newer, and one of the next holder newer than all"
    assert run() < given[-1], "also one that the first holder begins without the lock"


def test_lock_whose_session_has_ended_is_lost_and_can_be_had_again(
    stack: Addresses, connect: Callable[[], LeasedClient], path: str
) -> None:
    zookeeper = connect()
    lock = FeedLock(zookeeper, path)
    assert lock.acquire(lambda: True)
    assert not lock.is_lost()
    end_session(stack, zookeeper.client)
    eventually(lock.is_lost)
    with pytest.raises(SorterLockLostError):
        lock.check()
    assert lock.acquire(lambda: True)
    lock.check()
    assert not lock.is_lost()


def test_lock_released_while_zookeeper_does_not_answer_is_free_once_it_does_in_the_same_session(
    stack: Addresses, connect: Callable[[], LeasedClient], path: str
) -> None:
    with Relay(stack.zookeeper) as relay, zookeeper_client(ZooKeeperAccess(relay.address), LONG_S) as zookeeper:
        lock = FeedLock(zookeeper, path)
        assert lock.acquire(lambda: True)
        relay.hold()
        released = threading.Thread(target=lock.release)
        released.start()
        released.join(1.5 * ANSWER_S)
        relay.go_on()
        released.join(WAIT_S)
        assert FeedLock(connect(), path).acquire(iter([True, False]).__next__)
        assert zookeeper.lease.losses == 0


def test_lock_without_an_answer_of_zookeeper_is_lost_before_the_session_can_have_ended(
    stack: Addresses, path: str
) -> None:
    with Relay(stack.zookeeper) as relay, zookeeper_client(ZooKeeperAccess(relay.address), SESSION_S) as zookeeper:
        lock = FeedLock(zookeeper, path)
        assert lock.acquire(lambda: True)
        relay.hold()
        held_at, looked_after_s = time.monotonic(), list[float]()

        def is_lost() -> bool:
            looked_after_s.append(time.monotonic() - held_at)
            return lock.is_lost()

        eventually(is_lost)
        *had_after_s, lost_after_s = looked_after_s
        assert had_after_s or lost_after_s > 1.0, "a server that restarts costs nothing yet"
        assert all(after_s < SESSION_S * LEASE_SHARE for after_s in had_after_s), "or the session may have ended"
        relay.go_on()
        eventually(lambda: lock.acquire(lambda: True))
        lock.check()
        assert not lock.is_lost()


def test_lock_of_a_removed_changefeed_is_not_waited_for(connect: Callable[[], LeasedClient], path: str) -> None:
    asked = iter([True, False])
    assert not FeedLock(connect(), f"{path}/gone/sorter").acquire(lambda: next(asked))


def test_second_sorter_process_waits_without_writing_and_takes_over_from_a_killed_one(
    stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    raw_log, topic = RawLog(stack.kafka, fresh_name("up")), fresh_name("sink")
    raw_log.snapshot([recorded("sbtest1")[0]])
    feed = fresh_name("feed")
    first, second = (Sorter(stack.kafka, stack.zookeeper, tmp_path / name, feed) for name in ("first", "second"))
    try:
        sink = f"kafka://{stack.kafka}/{topic}?protocol=canal-json&enable-tidb-extension=true&partition-num=1"
        first.create(raw_log.upstream, sink, start_ts=START_TS)
        raw_log.rows(114, sbtest1_changes(ROWS, START_TS + 1))
        raw_log.advance(START_TS + 2_000)
        first.start()
        first.wait_checkpoint(START_TS + 2_000)
        node, _ = first.client.get(first.paths.changefeed_sorter("default", feed))
        assert first.process is not None
        assert json.loads(node)["pid"] == first.process.pid
        second.start()
        eventually(lambda: "waiting for it to go" in second.log())
        raw_log.rows(114, sbtest1_changes(ROWS, START_TS + 3_001, ROWS))
        raw_log.advance(START_TS + 5_000)
        first.wait_checkpoint(START_TS + 5_000)
        first.kill()
        raw_log.rows(114, sbtest1_changes(ROWS, START_TS + 6_001, 2 * ROWS))
        raw_log.advance(START_TS + 8_000)
        second.wait_checkpoint(START_TS + 8_000)
    finally:
        first.close()
        second.close()
    positions = [decode_position(record.position) for record in read_topic(stack.kafka, topic)]
    rows = [position for position in positions if position.position_class is PositionClass.ROW]
    assert [row.commit_ts for row in rows] == sorted({row.commit_ts for row in rows}), "nothing twice, all in order"
    assert len(rows) == 3 * ROWS
