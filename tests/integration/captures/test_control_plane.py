"""Election, owner revision, frontier topic and changefeed store on a real ZooKeeper and a real Kafka."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

from compose.stack.local import Addresses
from consumers.control.changefeeds.store import (
    ChangefeedExistsError,
    ChangefeedNotFoundError,
    ChangefeedRequest,
    ChangefeedStore,
    NoFrontierError,
    StartTsError,
)
from consumers.control.cluster.capture_registry import CaptureInfo, list_captures, register_capture
from consumers.control.cluster.election import Election
from consumers.control.core.frontier.frontier import FrontierInputs, NewerOwnerError
from consumers.control.log.frontier_topic import FrontierTopic, FrontierUnavailableError
from consumers.control.log.raw_log import RetainedFrontier, retained_frontier
from consumers.control.owner.owner import Owner
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import LeaseLostError, Session, SessionTimeoutError, ZooKeeperUnreachableError
from producers.pull.landing.raw_log import RawLogSettings, ensure_raw_topics
from schemas.errors import BusError, ConfigError, InvariantBrokenError
from schemas.ids import CaptureId, TableId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedStatus, ZkPaths
from schemas.rawlog.frontier import DdlReport, LandingReport
from schemas.rawlog.topics import RawTopics, raw_topics
from schemas.tidb.spans import TableSpan
from tests.support.control.changefeed_status import write_status
from tests.support.upstream.cutting_proxy import CuttingProxy
from tests.support.upstream.feed_sink import wait_until

A, B = CaptureId("a"), CaptureId("b")
TIMEOUT_S = 30.0
"""A machine that is slow for some seconds ends no session."""
SHORT_S = 4.0
CLOSED_S = 120.0


@pytest.fixture
def paths(fresh_name: Callable[[str], str]) -> ZkPaths:
    return ZkPaths(fresh_name("cluster"))


@pytest.fixture
def session(stack: Addresses) -> Iterator[Session]:
    with Session(stack.zookeeper_access, timeout_s=TIMEOUT_S) as session:
        yield session


@pytest.fixture
def topics(stack: Addresses, fresh_name: Callable[[str], str]) -> RawTopics:
    topics = raw_topics(UpstreamId(fresh_name("u")))
    assert ensure_raw_topics(stack.kafka_access, topics, RawLogSettings(partitions=2)) == 2
    return topics


@pytest.fixture
def frontier(stack: Addresses, topics: RawTopics) -> Iterator[FrontierTopic]:
    with contextlib.closing(FrontierTopic(stack.kafka_access, topics.frontier)) as topic:
        yield topic


def test_session_wrong_address_is_a_clear_error_in_time() -> None:
    with pytest.raises(ZooKeeperUnreachableError, match="check --zookeeper"):
        Session(ZooKeeperAccess("127.0.0.1:1"), connect_timeout_s=1.0)


def test_request_while_no_server_can_be_reached_fails_within_the_session_timeout(stack: Addresses) -> None:
    with contextlib.ExitStack() as exits:
        proxy = CuttingProxy(stack.zookeeper, 1, bytes_min=1 << 30, bytes_max=1 << 31)
        with proxy:
            session = exits.enter_context(Session(ZooKeeperAccess(proxy.address), timeout_s=SHORT_S))
            assert session.client.exists("/") is not None
        asked = threading.Thread(target=session.close)  # told to stop meanwhile
        with pytest.raises(BusError), session.requests("looking") as client:
            while True:  # the first calls may still find that their connection is lost
                with contextlib.suppress(ConnectionLoss):
                    client.exists("/")
        asked.start()
        asked.join(CLOSED_S)
        assert not asked.is_alive()


@pytest.mark.parametrize("timeout_s", [3.9, 61.0])
def test_session_timeout_out_of_bounds_is_refused_before_connecting(timeout_s: float) -> None:
    with pytest.raises(SessionTimeoutError, match="out of bounds"):
        Session(ZooKeeperAccess("127.0.0.1:1"), timeout_s=timeout_s)


def test_session_lease_is_of_what_the_server_grants(stack: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack's ZooKeeper grants at most 60 s."""
    monkeypatch.setattr("edges.zookeeper.session.SESSION_TIMEOUT_MAX_S", 100.0)
    with Session(stack.zookeeper_access, timeout_s=90.0) as session:
        wait_until(lambda: session.timeout_s == pytest.approx(60.0), lambda: session.timeout_s)
        assert session.lease_left_s() <= 40.0
    with Session(stack.zookeeper_access, timeout_s=TIMEOUT_S) as session:
        assert session.timeout_s == pytest.approx(TIMEOUT_S)


def test_session_closed_elsewhere_ends_the_lease_before_the_timeout(stack: Addresses) -> None:
    with Session(stack.zookeeper_access, timeout_s=TIMEOUT_S) as session:
        assert 0 < session.lease_left_s() < TIMEOUT_S
        expired = session.client.client_id
        assert expired is not None
        with contextlib.closing(_twin(stack, expired)):
            pass  # closing a second connection to the same session ends it
        ended_at = time.monotonic()
        wait_until(lambda: session.lease_left_s() == 0, session.lease_left_s)
        assert time.monotonic() - ended_at < TIMEOUT_S / 2, "it is told, and need not wait for the timeout"
        with pytest.raises(LeaseLostError):
            session.check_lease()


def test_registry_capture_is_listed_until_its_session_ends(stack: Addresses, session: Session, paths: ZkPaths) -> None:
    info = CaptureInfo(capture_id=A, address="127.0.0.1:1", version="0.1.0", started_at_s=5)
    assert list_captures(session, paths) == []
    with Session(stack.zookeeper_access, timeout_s=TIMEOUT_S) as other:
        register_capture(other, paths, info)
        assert list_captures(session, paths) == [info]
        with pytest.raises(InvariantBrokenError, match="taken"):
            register_capture(session, paths, info)
    assert list_captures(session, paths) == []


def test_election_second_capture_wins_when_the_first_goes_with_a_higher_revision(
    stack: Addresses, session: Session, paths: ZkPaths
) -> None:
    won: list[int | None] = []
    with Session(stack.zookeeper_access, timeout_s=TIMEOUT_S) as first_session:
        first, second = Election(first_session, paths, A), Election(session, paths, B)
        assert first.campaign() == 1
        waiting = threading.Thread(target=lambda: won.append(second.campaign()))
        waiting.start()
        waiting.join(0.5)
        assert (won, second.owner()) == ([], A)
    waiting.join(CLOSED_S)
    assert (won, second.owner()) == ([2], B)
    second.resign()
    assert second.owner() is None


def test_election_stopping_capture_gives_up(stack: Addresses, session: Session, paths: ZkPaths) -> None:
    with Session(stack.zookeeper_access, timeout_s=TIMEOUT_S) as other:
        assert Election(other, paths, A).campaign() == 1
        assert Election(session, paths, B).campaign(lambda: True) is None


def test_election_lost_node_takes_no_revision(session: Session, paths: ZkPaths) -> None:
    election = Election(session, paths, A)
    election._stand()
    assert election._node is not None
    session.client.delete(election._node)
    with pytest.raises(LeaseLostError, match="election node is gone"):
        election._next_revision()
    assert session.client.get(paths.owner_rev)[0] == b"0"


def test_election_revision_written_by_another_is_never_taken_twice(session: Session, paths: ZkPaths) -> None:
    election = Election(session, paths, A)
    assert election.campaign() == 1
    client: Any = session.client
    real, raced = client.get, iter([True, False])

    def racing(path: str) -> object:
        read = real(path)
        if next(raced):
            client.set(path, b"7")
        return read

    client.get = racing
    assert election._next_revision() == 8


TABLE = TableSpan.of_table(TableId(1))


def report(landed: int, ends: tuple[int, int]) -> LandingReport:
    return LandingReport(
        capture=A,
        landed_ts={TABLE: Ts(landed)},
        ends=ends,
        chunks=(),
        floors=ends,
        repeat_ends=(0, 0),
    )


def test_owner_new_log_starts_at_the_given_ts_and_publishes_only_what_moved(
    session: Session, frontier: FrontierTopic
) -> None:
    owner = Owner(frontier, session, 1, 2)
    assert owner.start(lambda: Ts(10)).resolved_ts == 10
    tables = {TABLE: A}
    moved = owner.tick(FrontierInputs({A: report(20, (3, 4))}, DdlReport(landed_ts=Ts(25), end=1), tables))
    assert moved is not None
    assert (moved.resolved_ts, moved.high, moved.ddl_high) == (20, (3, 4), 1)
    assert owner.tick(FrontierInputs({A: report(20, (3, 4))}, DdlReport(landed_ts=Ts(25), end=1), tables)) is None
    assert frontier.newest() == moved
    assert frontier.offsets() == (0, 2)


def test_owner_next_owner_goes_on_from_the_last_record_and_the_old_one_counts_for_nobody(
    session: Session, frontier: FrontierTopic
) -> None:
    tables, ddl = {TABLE: A}, DdlReport(landed_ts=Ts(99), end=1)
    old, new = Owner(frontier, session, 1, 2), Owner(frontier, session, 2, 2)
    old.start(lambda: Ts(10))
    old.tick(FrontierInputs({A: report(20, (3, 4))}, ddl, tables))
    record = new.start(lambda: Ts(0))
    assert (record.owner_rev, record.resolved_ts, record.high) == (2, 20, (3, 4))
    old.tick(FrontierInputs({A: report(90, (9, 9))}, ddl, tables))
    assert frontier.newest() == record
    with pytest.raises(NewerOwnerError, match="did not grow"):
        Owner(frontier, session, 2, 2).start(lambda: Ts(0))


def test_owner_without_lease_publishes_nothing(stack: Addresses, frontier: FrontierTopic) -> None:
    with Session(stack.zookeeper_access, timeout_s=TIMEOUT_S) as session:
        owner = Owner(frontier, session, 1, 2)
        owner.start(lambda: Ts(10))
    with pytest.raises(LeaseLostError):
        owner.tick(FrontierInputs({A: report(20, (3, 4))}, DdlReport(landed_ts=Ts(25), end=1), {TABLE: A}))
    assert frontier.offsets() == (0, 1)


def test_frontier_topic_that_is_not_there_is_a_clear_error(stack: Addresses) -> None:
    missing = FrontierTopic(stack.kafka_access, "no-such-topic")
    with contextlib.closing(missing), pytest.raises(FrontierUnavailableError, match="check --kafka"):
        missing.newest()


def test_frontier_window_is_from_the_oldest_record_that_the_log_serves_to_the_newest(
    stack: Addresses, session: Session, topics: RawTopics, frontier: FrontierTopic
) -> None:
    assert retained_frontier(stack.kafka_access, topics) is None
    owner = Owner(frontier, session, 1, 2)
    owner.start(lambda: Ts(10))
    for step in range(1, 6):
        ddl = DdlReport(landed_ts=Ts(99), end=1)
        owner.tick(FrontierInputs({A: report(10 + step, (step, step))}, ddl, {TABLE: A}))
    assert retained_frontier(stack.kafka_access, topics) == RetainedFrontier(Ts(10), Ts(15))
    oldest = frontier.oldest_usable((3, 2))
    assert oldest is not None
    assert (oldest.resolved_ts, oldest.low) == (13, (3, 3))
    assert frontier.oldest_usable((6, 6)) is None


WINDOW = RetainedFrontier(Ts(100), Ts(200))
URI = "kafka://127.0.0.1:9092/t?protocol=canal-json"


def request(**changes: object) -> ChangefeedRequest:
    return ChangefeedRequest(
        **{"upstream": UpstreamId("u"), "sink_uri": URI, "config": {}, "changefeed_id": "cf", **changes}  # type: ignore[arg-type]
    )


@pytest.fixture
def store(session: Session, paths: ZkPaths) -> ChangefeedStore:
    return ChangefeedStore(session, paths)


def test_changefeed_store_create_without_start_ts_starts_at_the_newest_frontier(store: ChangefeedStore) -> None:
    info = store.create(request(), WINDOW)
    assert info.start_ts == 200
    assert store.get("cf") == info
    assert store.list() == [info]
    assert store.status("cf") is None


def test_changefeed_store_create_without_id_gives_one(store: ChangefeedStore) -> None:
    assert len(store.create(request(changefeed_id=None), WINDOW).changefeed_id) == 36


@pytest.mark.parametrize(
    ("changes", "window", "kind", "says"),
    [
        ({"changefeed_id": "a--b"}, WINDOW, ConfigError, "changefeed-id must be letters"),
        ({"namespace": "x" * 129}, WINDOW, ConfigError, "namespace must be letters"),
        ({"sink_uri": "kafka://127.0.0.1:9092/t?protocol=nonsense"}, WINDOW, ConfigError, "nonsense"),
        ({"config": {"no-such-key": 1}}, WINDOW, ConfigError, "no-such-key"),
        ({"start_ts": Ts(99)}, WINDOW, StartTsError, "oldest possible start-ts is 100"),
        ({"start_ts": Ts(150), "target_ts": Ts(150)}, WINDOW, ConfigError, "target-ts must be above"),
        ({}, None, NoFrontierError, "start a capture"),
    ],
)
def test_changefeed_store_create_not_allowed_says_why_and_stores_nothing(
    store: ChangefeedStore,
    changes: dict[str, object],
    window: RetainedFrontier | None,
    kind: type[BusError],
    says: str,
) -> None:
    with pytest.raises(kind, match=says) as caught:
        store.create(request(**changes), window)
    assert caught.value.code
    assert store.list() == []


def test_changefeed_store_create_twice_says_that_the_id_is_taken(store: ChangefeedStore) -> None:
    store.create(request(start_ts=Ts(100)), WINDOW)
    with pytest.raises(ChangefeedExistsError, match="take another"):
        store.create(request(), WINDOW)
    assert store.get("cf").start_ts == 100


def test_changefeed_store_update_that_raced_sees_what_the_other_wrote(store: ChangefeedStore) -> None:
    store.create(request(), WINDOW)
    racing = iter([True, False])

    def stop(info):  # type: ignore[no-untyped-def]
        if next(racing):
            store.update("cf", lambda other: replace(other, target_ts=Ts(900)))
        return replace(info, desired_state="stopped")

    changed = store.update("cf", stop)
    assert (changed.desired_state, changed.target_ts) == ("stopped", 900)
    assert store.get("cf") == changed


def test_changefeed_store_status_and_removal(store: ChangefeedStore) -> None:
    status = ChangefeedStatus(state="normal", checkpoint_ts=Ts(1), resolved_ts=Ts(2))
    store.create(request(), WINDOW)
    write_status(store, "cf", status)
    assert store.status("cf") == status
    store.remove("cf")
    assert store.list() == []
    with pytest.raises(ChangefeedNotFoundError, match="changefeed list"):
        store.remove("cf")


def _twin(stack: Addresses, client_id: tuple[int, bytes]):  # type: ignore[no-untyped-def]
    class Twin:
        def __init__(self) -> None:
            self.client = KazooClient(hosts=stack.zookeeper, client_id=client_id, timeout=TIMEOUT_S)
            self.client.start()

        def close(self) -> None:
            self.client.stop()
            self.client.close()

    return Twin()
