"""The cache of nodes under planted orders of writes, events and answers."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edges.zookeeper.node_cache import ROUNDS_MAX, NodeCache
from edges.zookeeper.session import Session, ZooKeeperError
from tests.support.control.memory_zookeeper import MemoryZooKeeper


def cache_of(server: MemoryZooKeeper, *patterns: str, **settings: Any) -> NodeCache:
    return NodeCache(cast(Session, server), patterns, **settings)


def values(cache: NodeCache) -> dict[str, bytes]:
    return {path: node.value for path, node in cache.nodes.items()}


def test_write_between_two_answers_is_not_seen_by_half() -> None:
    """The entry is asked for anew; then one transaction folds it into the status, for which nobody asks."""
    server = MemoryZooKeeper()
    server.write({"/entry": b"5", "/status": b"0"})
    cache = cache_of(server, "/entry", "/status")
    cache.refresh()
    server.write({"/entry": b"6"})

    def fold(what: str, path: str) -> None:
        server.on_request = lambda *_: None
        server.write({"/status": b"7", "/entry": b""})

    server.on_request = fold
    cache.refresh()
    assert values(cache) == {"/entry": b"", "/status": b"7"}


def test_write_just_after_its_answer_is_read_in_the_same_refresh() -> None:
    server = MemoryZooKeeper()
    server.write({"/a": b"0"})
    cache = cache_of(server, "/a")

    def write(what: str, path: str) -> None:
        server.on_answer = lambda *_: None
        server.write({"/a": b"1"})

    server.on_answer = write
    cache.refresh()
    assert (values(cache), [what for what, _ in server.asked]) == ({"/a": b"1"}, ["get", "get"])


def test_node_that_comes_between_the_two_questions_for_it_is_read() -> None:
    """get says that it is not there, then it is created, then exists sets a watch for a creation that is over."""
    server = MemoryZooKeeper()
    cache = cache_of(server, "/a", "/below/*")

    def create(what: str, path: str) -> None:
        if what == "get":
            server.write({"/a": b"1"})
        if what == "children" and path == "/below" and "/below/b" not in server.nodes:
            server.write({"/below/b": b"2"})

    server.on_answer = create
    cache.refresh()
    server.on_answer = lambda *_: None
    cache.refresh()
    assert values(cache) == {"/a": b"1", "/below/b": b"2"}


def test_node_that_is_written_at_every_answer_ends_no_refresh_late_and_is_read_by_the_next() -> None:
    server = MemoryZooKeeper()
    server.write({"/a": b"0"})
    cache = cache_of(server, "/a")

    def write(what: str, path: str) -> None:
        server.write({"/a": str(len(server.asked)).encode()})

    server.on_answer = write
    cache.refresh()
    assert len(server.asked) == ROUNDS_MAX
    server.on_answer = lambda *_: None
    cache.refresh()
    assert values(cache) == {"/a": str(ROUNDS_MAX).encode()}


def test_event_that_is_late_is_waited_for_by_an_exact_refresh_only() -> None:
    server = MemoryZooKeeper()
    server.write({"/a": b"0"})
    cache = cache_of(server, "/a")
    cache.refresh()
    server.events_late = True
    server.write({"/a": b"1"})
    cache.refresh()
    assert values(cache) == {"/a": b"0"}
    cache.refresh(is_exact=True)
    assert values(cache) == {"/a": b"1"}


def test_connection_that_was_lost_makes_all_stale_and_what_failed_is_asked_again() -> None:
    server = MemoryZooKeeper()
    server.write({"/f/a": b"0", "/f/b": b"0"})
    cache = cache_of(server, "/f/*")
    cache.refresh()
    nodes, version = cache.nodes, cache.version
    server.suspend()
    assert cache.wait(0)
    server.write({"/f/b": None, "/f/c": b"2"})  # no watch tells
    server.away = True
    for _ in range(2):
        with pytest.raises(ZooKeeperError):
            cache.refresh()
        assert cache.nodes is nodes
    server.away = False
    assert cache.refresh() == version + 1
    assert values(cache) == {"/f/a": b"0", "/f/c": b"2"}
    assert cache.nodes["/f/a"] is nodes["/f/a"]


def test_answer_that_fails_in_mid_refresh_leaves_all_that_was_told_to_the_next() -> None:
    server = MemoryZooKeeper()
    server.write({"/f/a": b"0", "/f/b": b"0"})
    cache = cache_of(server, "/f/*")
    cache.refresh()
    server.write({"/f/a": b"1", "/f/b": b"1"})

    def fail(what: str, path: str) -> None:
        raise ZooKeeperError("planted")

    server.on_answer = fail
    with pytest.raises(ZooKeeperError):
        cache.refresh()
    assert values(cache) == {"/f/a": b"0", "/f/b": b"0"}
    server.on_answer = lambda *_: None
    cache.refresh()
    assert values(cache) == {"/f/a": b"1", "/f/b": b"1"}


def test_closed_cache_hears_of_no_connection() -> None:
    server = MemoryZooKeeper()
    cache = cache_of(server, "/a")
    cache.refresh()
    assert not cache.wait(0)
    cache.close()
    assert not server.listeners
    assert cache.wait(0), "who waits is let go"


NAMES = st.sampled_from(["a", "b"])
PATHS = st.builds(
    lambda outer, inner, part: f"/top/{outer}/{inner}/{part}", NAMES, NAMES, st.sampled_from(["info", "status"])
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), PATHS),
        st.tuples(st.just("delete"), PATHS),
        st.tuples(st.sampled_from(["refresh", "suspend", "late", "exact"]), st.just("")),
    ),
    max_size=30,
)


@given(STEPS, st.lists(st.tuples(st.integers(0, 40), PATHS), max_size=5))
def test_whatever_is_written_when_a_settled_refresh_shows_what_is_there(
    steps: list[tuple[str, str]], between: list[tuple[int, str]]
) -> None:
    server = MemoryZooKeeper()
    cache = cache_of(server, "/top/*/*/info", "/top/*/b/status")
    writes = dict(between)

    def plant(what: str, path: str) -> None:
        target = writes.pop(len(server.asked), None)
        if target is not None:
            server.write({target: None if target in server.nodes else b"planted"})

    server.on_answer = plant
    for number, (what, path) in enumerate(steps):
        if what == "set":
            server.write({path: str(number).encode()})
        elif what == "delete" and path in server.nodes:
            server.write({path: None})
        elif what == "suspend":
            server.suspend()
        elif what == "late":
            server.events_late = True
        elif what in ("refresh", "exact"):
            server.events_late = server.events_late and what == "refresh"
            cache.refresh(is_exact=what == "exact")
    server.events_late = False
    cache.refresh()
    expected = {
        path: node.value
        for path, node in server.nodes.items()
        if path.endswith("/info") or (path.endswith("/status") and path.split("/")[3] == "b")
    }
    assert values(cache) == expected
