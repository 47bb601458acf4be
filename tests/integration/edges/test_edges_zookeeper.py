"""A locked-down ZooKeeper: TLS, a user, and nodes that are their creator's alone, whoever of ours has made them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import OPEN_ACL_UNSAFE, Permissions

from compose.ports import LOOPBACK, free_ports
from compose.stack.children import Nursery
from compose.stack.parts import READY_S, start_zookeeper, zookeeper_ready
from compose.stack.secure.folder import StackSecrets
from consumers.control.changefeeds.store import ChangefeedRequest, ChangefeedStore
from consumers.control.cluster.capture_registry import CaptureInfo, list_captures, register_capture
from consumers.control.cluster.election import Election
from consumers.control.log.raw_log import RetainedFrontier
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.acl import close_nodes
from edges.zookeeper.connection import zookeeper_client
from edges.zookeeper.session import Session, ZooKeeperError, ZooKeeperUnreachableError
from schemas.ids import CaptureId, Ts, UpstreamId
from schemas.nodes.changefeed import ZkPaths
from sorters.run.nodes.feed_lock import FeedLock
from sorters.run.nodes.status import StatusBoard

A = CaptureId("capture-a")


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> StackSecrets:
    return StackSecrets.make(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module")
def servers(secrets: StackSecrets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    (port,) = free_ports(1)
    with Nursery() as nursery:
        process = start_zookeeper(nursery, tmp_path_factory.mktemp("stack") / "zookeeper", port, secrets)
        process.wait_ready(lambda: zookeeper_ready(port, secrets), READY_S)
        yield f"{LOOPBACK}:{port}"


@pytest.fixture
def access(secrets: StackSecrets, servers: str) -> ZooKeeperAccess:
    return ZooKeeperAccess.read(servers, secrets.zookeeper_config())


@pytest.fixture
def paths(fresh_name: Callable[[str], str]) -> ZkPaths:
    return ZkPaths(fresh_name("cluster"))


@pytest.fixture
def stranger(secrets: StackSecrets, servers: str) -> Iterator[KazooClient]:
    """Somebody whom the CA has given a certificate, but who is not our user."""
    pair = secrets.operator
    client = KazooClient(servers, use_ssl=True, ca=secrets.ca_path, certfile=pair.cert, keyfile=pair.key)
    client.start(20)
    yield client
    client.stop()
    client.close()


def below(client: KazooClient, path: str) -> list[str]:
    """Return a node and all below it."""
    return [path, *(node for name in client.get_children(path) for node in below(client, f"{path}/{name}"))]


def use_all_nodes(access: ZooKeeperAccess, session: Session, paths: ZkPaths) -> None:
    """Let captures, owners, users and sorters make the nodes that they make."""
    register_capture(session, paths, CaptureInfo(capture_id=A, address="127.0.0.1:1", version="0.1.0", started_at_s=5))
    Election(session, paths, A).campaign(lambda: False)
    store = ChangefeedStore(session, paths)
    request = ChangefeedRequest(
        changefeed_id="cf",
        upstream=UpstreamId("u"),
        sink_uri="kafka://h:1/t?protocol=canal-json",
        config={},
        start_ts=Ts(5),
    )
    info = store.create(request, RetainedFrontier(Ts(1), Ts(9)))
    with zookeeper_client(access, 4.0) as connection:
        lock = FeedLock(connection, paths.changefeed_sorter("default", "cf"))
        assert lock.acquire(lambda: True)
        board = StatusBoard(connection.client, paths, "default", "cf")
        stored = board.info()
        assert stored is not None
        board.open(info, stored[1])
        board.report(checkpoint_ts=Ts(6))
        board.begin(b"epoch", Ts(6))
        lock.release()


def test_nodes_of_all_parts_are_their_creators_alone(
    access: ZooKeeperAccess, paths: ZkPaths, stranger: KazooClient
) -> None:
    with Session(access, timeout_s=4.0) as session:
        use_all_nodes(access, session, paths)
        nodes = below(session.client, paths.root)
        assert {paths.election, paths.changefeed_status("default", "cf"), paths.changefeed_begun("default", "cf")} <= {
            *nodes
        }
        for path in nodes:
            schemes = {entry.id.scheme for entry in session.client.get_acls_async(path).get()[0]}
            assert "world" not in schemes, path
            for attempt in (stranger.get, stranger.get_children, stranger.delete):
                with pytest.raises(NoAuthError):
                    attempt(path)
            with pytest.raises(NoAuthError):
                stranger.set(path, b"x")
            with pytest.raises(NoAuthError):
                stranger.create(f"{path}/planted", b"x")
        assert [capture.capture_id for capture in list_captures(session, paths)] == [A]


def test_request_that_an_acl_forbids_says_so_and_goes_through_once_it_does_not(
    access: ZooKeeperAccess, paths: ZkPaths
) -> None:
    with Session(access, timeout_s=4.0) as session:
        session.client.ensure_path(paths.captures)
        mine, _ = session.client.get_acls_async(paths.captures).get()
        own = access.client(4.0)
        own.start(20)
        try:
            own.set_acls(paths.captures, [entry._replace(perms=Permissions.ADMIN) for entry in mine])
            with pytest.raises(ZooKeeperError, match="ACL forbids it to our user"):
                list_captures(session, paths)
            own.set_acls(paths.captures, mine)
        finally:
            own.stop()
            own.close()
        assert list_captures(session, paths) == []


def test_who_has_no_certificate_is_not_let_in(secrets: StackSecrets, servers: str) -> None:
    for settings in ({}, {"use_ssl": True, "ca": secrets.ca_path}):
        client = KazooClient(servers, **settings)
        with pytest.raises(KazooTimeoutError):
            client.start(3)
        client.stop()
        client.close()


def test_server_of_another_ca_is_not_trusted(servers: str, tmp_path: Path) -> None:
    other = StackSecrets.make(tmp_path)
    with pytest.raises(ZooKeeperUnreachableError, match="does not answer"):
        Session(ZooKeeperAccess.read(servers, other.zookeeper_config()), connect_timeout_s=3.0)


def test_another_process_of_the_user_reads_and_writes(access: ZooKeeperAccess, paths: ZkPaths) -> None:
    with Session(access, timeout_s=4.0) as session, Session(access, timeout_s=4.0) as other:
        use_all_nodes(access, session, paths)
        assert ChangefeedStore(other, paths).get("cf").changefeed_id == "cf"
        ChangefeedStore(other, paths).remove("cf")
        assert session.client.exists(paths.changefeed_info("default", "cf")) is None


def test_nodes_of_a_cluster_that_was_open_are_closed(
    access: ZooKeeperAccess, paths: ZkPaths, stranger: KazooClient
) -> None:
    with Session(access, timeout_s=4.0) as session:
        session.client.ensure_path(paths.root)
        session.client.create(paths.captures, b"", acl=OPEN_ACL_UNSAFE)
        session.client.create(f"{paths.captures}/old", b"secret", acl=OPEN_ACL_UNSAFE)
        assert stranger.get(f"{paths.captures}/old")[0] == b"secret"
        assert close_nodes(session, access, paths.root) == 2
        with pytest.raises(NoAuthError):
            stranger.get(f"{paths.captures}/old")
        assert close_nodes(session, access, paths.root) == 0
