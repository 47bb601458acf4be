"""The cache of nodes on a ZooKeeper of its own, which is restarted, and whose own counter says what was asked of it."""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from compose.ports import LOOPBACK, free_ports
from compose.stack.children import Child, Nursery
from compose.stack.parts import READY_S, start_zookeeper, zookeeper_ready
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.node_cache import NodeCache
from edges.zookeeper.session import SESSION_TIMEOUT_MAX_S, LeaseLostError, Session, ZooKeeperError
from tests.support.control.lasting_session import lasting_session

WAIT_S = 120.0
INTERVAL_S = 0.3


@dataclass
class Server:
    child: Child
    port: int

    @property
    def access(self) -> ZooKeeperAccess:
        return ZooKeeperAccess(f"{LOOPBACK}:{self.port}")

    def received(self) -> int:
        """Return the packets that the server has had, of all its clients."""
        with socket.create_connection((LOOPBACK, self.port), timeout=5.0) as wire:
            wire.sendall(b"srvr")
            text = b"".join(iter(lambda: wire.recv(4096), b"")).decode()
        match = re.search(r"Received: (\d+)", text)
        assert match is not None, text
        return int(match[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    (port,) = free_ports(1)
    with Nursery() as nursery:
        child = start_zookeeper(nursery, tmp_path_factory.mktemp("stack") / "zookeeper", port)
        child.wait_ready(lambda: zookeeper_ready(port), READY_S)
        yield Server(child, port)


@pytest.fixture
def root(fresh_name: Callable[[str], str]) -> str:
    return f"/{fresh_name('cluster')}"


@pytest.fixture
def session(server: Server) -> Iterator[Session]:
    with lasting_session(server.access) as session:
        yield session


@pytest.fixture
def other(server: Server) -> Iterator[Session]:
    with lasting_session(server.access) as session:
        yield session


def values(cache: NodeCache) -> dict[str, bytes]:
    return {path: node.value for path, node in cache.nodes.items()}


def cost(cache: NodeCache) -> int:
    """Return how many requests a refresh sends."""
    before = cache.requests_total
    cache.refresh()
    return cache.requests_total - before


def await_told(cache: NodeCache) -> None:
    assert cache.wait(WAIT_S), "no watch has told of anything"


def test_nodes_that_patterns_name_are_read_and_no_others(session: Session, root: str) -> None:
    for path in ("a/x/info", "a/x/status", "a/y/info", "b/z/info", "b/z/deep/info", "own"):
        session.client.create(f"{root}/{path}", path.encode(), makepath=True)
    cache = NodeCache(session, [f"{root}/*/*/info", f"{root}/own"])
    assert (dict(cache.nodes), cache.version) == ({}, 0)
    assert cache.refresh() == 1
    assert values(cache) == {f"{root}/{path}": path.encode() for path in ("a/x/info", "a/y/info", "b/z/info", "own")}


def test_nothing_is_asked_while_nothing_changes_and_one_request_for_a_node_that_has(
    session: Session, other: Session, root: str
) -> None:
    for number in range(3):
        session.client.create(f"{root}/{number}", b"0", makepath=True)
    cache = NodeCache(session, [f"{root}/*"])
    cache.refresh()
    nodes = cache.nodes
    assert [cost(cache) for _ in range(20)] == [0] * 20
    assert cache.nodes is nodes
    for number in range(50):
        other.client.set(f"{root}/1", str(number).encode())
    await_told(cache)
    assert cost(cache) == 1
    assert (values(cache)[f"{root}/1"], cache.nodes[f"{root}/1"].version, cache.version) == (b"49", 50, 2)
    assert cache.nodes[f"{root}/2"] is nodes[f"{root}/2"]


def test_what_the_session_has_written_itself_is_seen_at_once(session: Session, root: str) -> None:
    cache = NodeCache(session, [f"{root}/a", f"{root}/below/*"])
    cache.refresh()
    session.client.create(f"{root}/a", b"0", makepath=True)
    cache.refresh()
    assert values(cache) == {f"{root}/a": b"0"}
    for number in range(200):
        session.client.set(f"{root}/a", str(number).encode())
        cache.refresh()
        assert values(cache) == {f"{root}/a": str(number).encode()}
    session.client.create(f"{root}/below/b", b"b", makepath=True)
    cache.refresh()
    assert values(cache)[f"{root}/below/b"] == b"b"


def test_exact_refresh_sees_what_others_have_written_before(session: Session, other: Session, root: str) -> None:
    session.client.create(f"{root}/a", b"", makepath=True)
    cache = NodeCache(session, [f"{root}/a"], interval_s=3600.0)
    cache.refresh()
    for number in range(100):
        other.client.set(f"{root}/a", str(number).encode())
        cache.refresh(is_exact=True)
        assert values(cache) == {f"{root}/a": str(number).encode()}


def test_node_that_is_deleted_and_created_again_is_another(session: Session, other: Session, root: str) -> None:
    cache = NodeCache(session, [f"{root}/*/info", f"{root}/*/status"])
    cache.refresh()
    other.client.create(f"{root}/cf/info", b"old", makepath=True)
    cache.refresh(is_exact=True)
    first = cache.nodes[f"{root}/cf/info"]
    other.client.delete(f"{root}/cf", recursive=True)
    cache.refresh(is_exact=True)
    assert dict(cache.nodes) == {}
    other.client.create(f"{root}/cf/info", b"new", makepath=True)
    other.client.delete(f"{root}/cf", recursive=True)
    other.client.create(f"{root}/cf/info", b"new", makepath=True)
    cache.refresh(is_exact=True)
    second = cache.nodes[f"{root}/cf/info"]
    assert (second.value, second.version, second.created_zxid > first.created_zxid) == (b"new", 0, True)
    other.client.create(f"{root}/cf/status", b"s")
    cache.refresh(is_exact=True)
    assert values(cache) == {f"{root}/cf/info": b"new", f"{root}/cf/status": b"s"}
    other.client.delete(f"{root}/cf/status")
    cache.refresh(is_exact=True)
    assert values(cache) == {f"{root}/cf/info": b"new"}
    other.client.delete(root, recursive=True)
    cache.refresh(is_exact=True)
    assert dict(cache.nodes) == {}


def test_refreshes_within_the_interval_ask_nothing(session: Session, root: str) -> None:
    session.client.create(f"{root}/a", b"0", makepath=True)
    cache = NodeCache(session, [f"{root}/a"], interval_s=INTERVAL_S)
    cache.refresh()
    began_s, before, looks = time.monotonic(), cache.requests_total, 0
    while time.monotonic() - began_s < 3 * INTERVAL_S or looks <= 20:
        session.client.set(f"{root}/a", str(looks).encode())
        cache.refresh()
        looks += 1
    assert 0 < cache.requests_total - before <= (time.monotonic() - began_s) / INTERVAL_S + 1


def test_two_nodes_of_one_transaction_are_never_seen_apart(session: Session, other: Session, root: str) -> None:
    """One says how far a sorter is, and is folded into the other: whoever saw only half would see it go back."""
    for name in ("a", "b"):
        session.client.create(f"{root}/{name}/value", b"0", makepath=True)
    cache, stopping = NodeCache(session, [f"{root}/*/value"]), threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not stopping.is_set():
            transaction = other.client.transaction()
            for name in ("a", "b"):
                transaction.set_data(f"{root}/{name}/value", str(written + 1).encode())
            transaction.commit()
            written += 1
            time.sleep(0.003)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen: set[bytes] = set()
        while len(seen) < 100:
            cache.refresh()
            assert len(set(values(cache).values())) == 1
            seen.update(values(cache).values())
    finally:
        stopping.set()
        writer.join()


def test_many_threads_share_one_cache(session: Session, other: Session, root: str) -> None:
    for number in range(20):
        session.client.create(f"{root}/{number}", b"0", makepath=True)
    cache, failures = NodeCache(session, [f"{root}/*"]), []

    def read() -> None:
        version = 0
        for _ in range(100):
            now = cache.refresh()
            if now < version or len(cache.nodes) != 20:
                failures.append((version, now, len(cache.nodes)))
            version = now

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for number in range(100):
        other.client.set(f"{root}/{number % 20}", b"1")
    for reader in readers:
        reader.join()
    cache.refresh(is_exact=True)
    assert (failures, set(values(cache).values())) == ([], {b"1"})


def test_three_hundred_nodes_cost_the_server_nothing_while_they_rest(
    server: Server, session: Session, root: str
) -> None:
    for number in range(300):
        session.client.create(f"{root}/{number}/info", b"0", makepath=True)
    cache = NodeCache(session, [f"{root}/*/info", f"{root}/*/status"])
    cache.refresh()
    assert len(cache.nodes) == 300
    before = server.received()
    for _ in range(100):
        cache.refresh()
    pings = 5  # of the sessions, which live on, and of the question itself
    assert server.received() - before <= pings
    session.client.set(f"{root}/7/info", b"1")
    before = server.received()
    cache.refresh()
    assert 1 <= server.received() - before <= 1 + pings


def test_server_that_restarts_is_asked_for_all_anew_and_nothing_is_missed(server: Server, root: str) -> None:
    with lasting_session(server.access) as session:  # which a restart on a busy machine does not outlast
        check_restart(server, session, root)


def check_restart(server: Server, session: Session, root: str) -> None:
    session.client.create(f"{root}/a", b"0", makepath=True)
    session.client.create(f"{root}/b", b"0", makepath=True)
    cache = NodeCache(session, [f"{root}/*"])
    cache.refresh()
    nodes = cache.nodes
    server.child.stop()
    await_told(cache)
    with pytest.raises(ZooKeeperError):
        cache.refresh()
    assert cache.nodes is nodes, "what was known stands while nobody answers"
    server.child.start()
    server.child.wait_ready(lambda: zookeeper_ready(server.port), READY_S)
    with lasting_session(server.access) as other:
        other.client.set(f"{root}/a", b"1")
        deadline_s = time.monotonic() + WAIT_S
        while values(cache)[f"{root}/a"] != b"1":
            assert time.monotonic() < deadline_s
            try:
                cache.refresh()
            except ZooKeeperError:
                time.sleep(0.1)
        assert cache.nodes[f"{root}/b"] is nodes[f"{root}/b"]
        other.client.set(f"{root}/b", b"2")  # watches stand again
        await_told(cache)
        cache.refresh()
    assert values(cache) == {f"{root}/a": b"1", f"{root}/b": b"2"}


def test_closed_session_ends_a_refresh_at_once(server: Server, root: str) -> None:
    session = lasting_session(server.access)
    cache = NodeCache(session, [f"{root}/*"])
    cache.refresh()
    session.close()
    began_s = time.monotonic()
    with pytest.raises((ZooKeeperError, LeaseLostError)):
        cache.refresh()
    assert time.monotonic() - began_s < SESSION_TIMEOUT_MAX_S / 4
