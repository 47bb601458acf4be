"""A sorter service is told of every assignment, whenever the owner makes it and whatever becomes of answers."""

import queue
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, cast

import pytest
from kazoo.handlers.threading import KazooTimeoutError

from schemas.nodes.changefeed import ZkPaths
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import Assigned, Assignment, encode_assignment
from sorters.run.nodes.feed_lock import SorterLockLostError
from sorters.service import group_state
from sorters.service.group_state import GroupState, feed_key
from tests.support.control.memory_zookeeper import MemoryZooKeeper

SERVICES = ServicePaths(ZkPaths("c"))
PATH = SERVICES.assignment("s")
ORDERS = Assigned(namespace="default", changefeed_id="orders", created_zxid=1, epoch=0, revision=1)
FIRST, NEXT = Assignment(owner_rev=1, feeds=(ORDERS,)), Assignment(owner_rev=2)
AWAIT_S = 60.0


@contextmanager
def group(zookeeper: MemoryZooKeeper) -> Iterator[tuple[GroupState, "queue.SimpleQueue[Assignment]"]]:
    """Return the state of a registered service, and what it is told of its assignment."""
    heard: queue.SimpleQueue[Assignment] = queue.SimpleQueue()
    zookeeper.write({SERVICES.service("s"): b""})
    with closing(GroupState(cast("Any", zookeeper), SERVICES, "s", heard.put, lambda: False)) as state:
        yield state, heard


def test_assignment_when_it_is_made_between_the_two_requests_for_it_then_it_is_read() -> None:
    """get says that there is none, then the owner makes it, then exists sets a watch for a creation that is over."""
    zookeeper = MemoryZooKeeper()

    def assign(what: str, path: str) -> None:
        if (what, path) == ("get", PATH) and PATH not in zookeeper.nodes:
            zookeeper.write({PATH: encode_assignment(FIRST)})

    zookeeper.on_answer = assign
    with group(zookeeper) as (_, heard):
        assert heard.get_nowait() == FIRST


def test_assignment_when_reading_it_fails_after_a_refusal_then_it_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watch has told of it already, and tells no more."""
    monkeypatch.setattr(group_state, "REREAD_S", 3600.0)
    zookeeper, failures = MemoryZooKeeper(), [KazooTimeoutError("no answer")]
    zookeeper.write({PATH: encode_assignment(FIRST)})

    def fail(what: str, path: str) -> None:
        if what == "transaction":
            zookeeper._arrive()
        elif (what, path) == ("get", PATH) and failures:
            raise failures.pop()

    with group(zookeeper) as (state, heard):
        assert heard.get_nowait() == FIRST
        zookeeper.on_request = fail
        zookeeper.write({PATH: encode_assignment(NEXT)})
        with pytest.raises(SorterLockLostError):
            state.ask(feed_key(ORDERS)).wait()
        assert heard.get(timeout=AWAIT_S) == NEXT


def test_assignment_when_no_watch_tells_of_it_then_it_is_read_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    zookeeper = MemoryZooKeeper()
    zookeeper.events_late = True
    with group(zookeeper) as (_, heard):
        assert heard.get_nowait() == Assignment()
        monkeypatch.setattr(group_state, "REREAD_S", 0.01)
        zookeeper.write({PATH: encode_assignment(FIRST)})
        while heard.get(timeout=AWAIT_S) != FIRST:
            pass
