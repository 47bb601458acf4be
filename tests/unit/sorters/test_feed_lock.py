"""The lock of a changefeed where connections to ZooKeeper are cut: what a service holds by a session that lives on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
from kazoo.exceptions import BadVersionError, ConnectionLoss, NoAuthError

from edges.zookeeper.connection import LeasedClient
from sorters.run.nodes import feed_lock
from sorters.run.nodes.feed_lock import FeedLock
from tests.support.control.stored_zookeeper import Answer, MemoryZooKeeper

PATH = "/lock/sorter"


@dataclass
class HeldLease:
    losses: int = 0
    timeout_s: float = 6.0
    unanswered_s: float | None = 0.0

    def left_s(self) -> float:
        return 4.0

    def ask(self, request: Callable[[], Answer], timeout_s: float) -> Any:
        return request().get(timeout_s)


class CutZooKeeper(MemoryZooKeeper):
    """Loses the answers of requests, which are done or not, as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts: list[tuple[str, bool, Exception]] = []
        """What is asked, whether it is done all the same, and what it ends with."""

    def cut(self, what: str, *, is_done: bool, error: Exception | None = None) -> None:
        self.cuts.append((what, is_done, error or ConnectionLoss()))

    def create_async(self, path: str, value: bytes, *, ephemeral: bool = False, makepath: bool = False) -> Answer:
        return self._answer("create", lambda: self.create(path, value, ephemeral=ephemeral))

    def exists_async(self, path: str, watch: object = None) -> Answer:
        return self._answer("exists", lambda: self.exists(path))

    def delete_async(self, path: str, version: int) -> Answer:
        return self._answer("delete", lambda: self._delete(path, version))

    def _delete(self, path: str, version: int) -> None:
        if self.get(path)[1].version != version:
            raise BadVersionError
        del self.nodes[path]

    def _answer(self, what: str, done: Callable[[], Any]) -> Answer:
        if not self.cuts or self.cuts[0][0] != what:
            return Answer(done)
        _, is_done, error = self.cuts.pop(0)
        if is_done:
            done()

        def lost() -> None:
            raise error

        return Answer(lost)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_lock, "RECHECK_S", 0.0)


def lock_of(zookeeper: MemoryZooKeeper, lease: HeldLease | None = None) -> FeedLock:
    return FeedLock(LeasedClient(cast("Any", zookeeper), cast("Any", lease or HeldLease())), PATH)


@pytest.mark.parametrize("what", ["exists", "delete"])
@pytest.mark.parametrize("is_done", [True, False])
def test_lock_released_while_the_connection_is_cut_is_freed_in_the_session_that_lives_on(
    what: str, is_done: bool
) -> None:
    zookeeper = CutZooKeeper()
    lock = lock_of(zookeeper)
    assert lock.acquire(lambda: True)
    for _ in range(3):
        zookeeper.cut(what, is_done=is_done)
    lock.release()
    assert PATH not in zookeeper.nodes


def test_lock_that_was_taken_without_an_answer_is_freed_once_it_is_not_wanted() -> None:
    zookeeper = CutZooKeeper()
    zookeeper.cut("create", is_done=True)
    wanted = [False, True]
    assert not lock_of(zookeeper).acquire(wanted.pop)
    assert PATH not in zookeeper.nodes


def test_lock_of_another_session_is_not_freed_by_who_waited_for_it() -> None:
    zookeeper = CutZooKeeper()
    zookeeper.put(PATH, b"another's", owner=8)
    zookeeper.cut("create", is_done=False)
    wanted = [False, True, True]
    assert not lock_of(zookeeper).acquire(wanted.pop)
    assert PATH in zookeeper.nodes


@pytest.mark.parametrize(
    ("lease", "error"),
    [
        (HeldLease(unanswered_s=6.1), ConnectionLoss()),
        (HeldLease(unanswered_s=None), ConnectionLoss()),
        (HeldLease(losses=1), ConnectionLoss()),
        (HeldLease(), NoAuthError()),
    ],
)
def test_lock_is_asked_for_no_more_once_its_session_is_over_or_its_node_refused(
    lease: HeldLease, error: Exception
) -> None:
    zookeeper, losses = CutZooKeeper(), lease.losses
    lease.losses = 0
    lock = lock_of(zookeeper, lease)
    assert lock.acquire(lambda: True)
    lease.losses = losses
    for _ in range(3):
        zookeeper.cut("delete", is_done=False, error=error)
    lock.release()
    assert len(zookeeper.cuts) == 2


def test_fences_under_a_node_that_was_not_freed_are_newer_than_those_of_the_lock_before() -> None:
    zookeeper = CutZooKeeper()
    before, after = lock_of(zookeeper, HeldLease(unanswered_s=None)), lock_of(zookeeper)
    assert before.acquire(lambda: True)
    fences = before.fences()
    given = [fences(), fences()]
    zookeeper.cut("exists", is_done=False)
    before.release()
    assert PATH in zookeeper.nodes
    assert after.acquire(lambda: True)
    given.append(after.fences()())
    assert given == sorted(set(given)), "processors pass over what an older attempt writes"
