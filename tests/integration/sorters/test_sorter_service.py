"""Sorter services as real processes over the real Kafka and ZooKeeper: what is assigned runs, and runs once."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compose.stack.local import Addresses
from schemas.ids import Ts
from schemas.running_feeds import read_threads, running_file
from schemas.sink.position import PositionClass, decode_position
from tests.support.processes.sorter_service import ServiceCluster
from tests.support.rawlog.raw_log import START_TS, RawLog, SinkRecord, read_topic, recorded, sbtest1_changes

TABLE, ROWS = 114, 40
WAIT_S = 240.0
STEP = 10 * ROWS
KILLED_WHEN_A_CUT_IS_WRITTEN = """
import os, signal
from sorters.service.group_state import GroupState
note = GroupState.note
def dying(self, entry):
    if entry.rows_total:
        os.kill(os.getpid(), signal.SIGKILL)
    note(self, entry)
GroupState.note = dying
"""
HANGS_AND_LOSES_ITS_LEASE = """
import time
from edges.zookeeper.session import LeaseLostError, Session
from sorters.cut import small_cut
whole, check_lease, hangs = small_cut.whole_cut, Session.check_lease, []
def hanging(cut, raw, *more):
    if raw.tables(cut):
        hangs.append(True)
        time.sleep(600)
    return whole(cut, raw, *more)
def lost(self):
    if hangs:
        raise LeaseLostError("the test has taken the session")
    check_lease(self)
small_cut.whole_cut, Session.check_lease = hanging, lost
"""


@pytest.fixture
def raw_log(stack: Addresses, fresh_name: Callable[[str], str]) -> RawLog:
    log = RawLog(stack.kafka, fresh_name("up"))
    log.snapshot([recorded("sbtest1")[0]])
    log.advance(START_TS)
    return log


@pytest.fixture
def cluster(stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path) -> Iterator[ServiceCluster]:
    cluster = ServiceCluster(stack.kafka, stack.zookeeper, fresh_name("services"), tmp_path)
    yield cluster
    cluster.close()


class Feeds:
    """Changefeeds over one raw log, each with a topic of its own."""

    def __init__(self, cluster: ServiceCluster, log: RawLog, fresh_name: Callable[[str], str], count: int) -> None:
        self.cluster, self.log, self.landed = cluster, log, 0
        self.topics = {f"feed-{number}": fresh_name("sink") for number in range(count)}
        for name in self.topics:
            cluster.create(name, log.upstream, self.sink(name), start_ts=START_TS)

    @property
    def names(self) -> list[str]:
        return list(self.topics)

    def sink(self, name: str) -> str:
        query = "protocol=canal-json&enable-tidb-extension=true&partition-num=1"
        return f"kafka://{self.cluster.kafka}/{self.topics[name]}?{query}"

    def land(self, records: int = 1) -> Ts:
        """Land some more rows and publish the frontier above them; return its ts."""
        for _ in range(records):
            changes = sbtest1_changes(ROWS, START_TS + 1 + self.landed * STEP, self.landed * ROWS)
            self.log.rows(TABLE, changes, self.landed % 2)
            self.landed += 1
        upto = Ts(START_TS + self.landed * STEP)
        self.log.advance(upto)
        return upto

    def rows(self, name: str) -> list[int]:
        """Return the commit_ts of a topic's rows, in their order."""
        positions = [decode_position(record.position) for record in self.records(name)]
        return [position.commit_ts for position in positions if position.position_class is PositionClass.ROW]

    def records(self, name: str) -> list[SinkRecord]:
        return read_topic(self.cluster.kafka, self.topics[name])

    @property
    def all_rows(self) -> list[int]:
        return [START_TS + 1 + 10 * row for row in range(self.landed * ROWS)]


def test_a_service_runs_many_changefeeds_over_one_reading_of_the_log(
    cluster: ServiceCluster, raw_log: RawLog, fresh_name: Callable[[str], str]
) -> None:
    feeds = Feeds(cluster, raw_log, fresh_name, 12)
    cluster.assign({"one": [cluster.assigned(name) for name in feeds.names]})
    cluster.start("one", "--spark-on-demand")
    for _ in range(3):
        cluster.wait_checkpoints(feeds.names, feeds.land(3))
    for name in feeds.names:
        assert feeds.rows(name) == feeds.all_rows, name
    entries = {entry.changefeed_id: entry for entry in cluster.entries()}
    assert {name: entry.rows_total for name, entry in entries.items()} == dict.fromkeys(
        feeds.names, len(feeds.all_rows)
    )
    assert cluster.stop("one") == 0
    assert cluster.entries() == [], "who stops leaves all in the changefeeds' own nodes"
    for name in feeds.names:
        status = cluster.own_status(name)
        assert status is not None
        assert status.checkpoint_ts == START_TS + feeds.landed * STEP
        path = cluster.paths.changefeed_sorter("default", name)
        assert cluster.client.exists(path) is None


def test_a_killed_services_changefeeds_are_taken_over_and_their_epochs_repeated(
    cluster: ServiceCluster, raw_log: RawLog, fresh_name: Callable[[str], str]
) -> None:
    feeds = Feeds(cluster, raw_log, fresh_name, 4)
    feeds.land(3)
    cluster.assign({"one": [cluster.assigned(name) for name in feeds.names], "two": []})
    cluster.start("one", "--spark-on-demand", trouble=KILLED_WHEN_A_CUT_IS_WRITTEN)
    assert cluster.processes["one"].wait(WAIT_S) == -signal.SIGKILL, cluster.logs()
    del cluster.processes["one"]
    begun = {entry.changefeed_id: json.loads(entry.begun) for entry in cluster.entries() if entry.begun}
    assert begun, "what was begun is known"
    written = {name: feeds.records(name) for name in begun if feeds.rows(name)}
    assert written, "and some of it was written"
    upto = feeds.land(2)
    cluster.assign({"one": [], "two": [cluster.assigned(name) for name in feeds.names]})
    cluster.start("two", "--spark-on-demand")
    cluster.wait_checkpoints(feeds.names, upto)
    for name in feeds.names:
        before, after = written.get(name, []), feeds.records(name)
        assert [_bytes(record) for record in after[: len(before)]] == [_bytes(record) for record in before]
        again = after[len(before) :]
        assert [_bytes(record) for record in again[: len(before)]] == [_bytes(record) for record in before], name
        assert _rows(again) == feeds.all_rows, name


def test_nobody_is_to_blame_for_a_service_that_ends_with_a_changefeed_at_work_as_its_lease_is_lost(
    cluster: ServiceCluster, raw_log: RawLog, fresh_name: Callable[[str], str]
) -> None:
    feeds = Feeds(cluster, raw_log, fresh_name, 1)
    cluster.assign({"one": [cluster.assigned(name) for name in feeds.names]})
    cluster.start("one", "--spark-on-demand", trouble=HANGS_AND_LOSES_ITS_LEASE)
    feeds.land()
    assert cluster.processes["one"].wait(WAIT_S) == 1
    del cluster.processes["one"]
    assert "do not end" in cluster.logs() and "the test has taken the session" in cluster.logs()
    assert read_threads(running_file(cluster.folder / "one", "one")) == []


def test_a_changefeed_moves_between_living_services_without_a_row_twice(
    cluster: ServiceCluster, raw_log: RawLog, fresh_name: Callable[[str], str]
) -> None:
    feeds = Feeds(cluster, raw_log, fresh_name, 2)
    first, second = (cluster.assigned(name) for name in feeds.names)
    cluster.assign({"one": [first, second], "two": []})
    for service in ("one", "two"):
        cluster.start(service, "--spark-on-demand")
    cluster.wait_checkpoints(feeds.names, feeds.land(2))
    for at in range(4):
        there, gone = (("two", "one"), ("one", "two"))[at % 2]
        moved = cluster.assigned("feed-1")
        cluster.assign({there: [moved, *([first] if there == "one" else [])], gone: [first] if gone == "one" else []})
        cluster.wait_checkpoints(feeds.names, feeds.land(2))
    for name in feeds.names:
        assert feeds.rows(name) == feeds.all_rows, name
    assert cluster.newest()["feed-1"].revision == cluster.revision


def test_an_error_stops_its_changefeed_alone_and_a_pause_is_obeyed_at_once(
    cluster: ServiceCluster, raw_log: RawLog, fresh_name: Callable[[str], str]
) -> None:
    feeds = Feeds(cluster, raw_log, fresh_name, 3)
    refused = f"kafka://{cluster.kafka}/not-there?protocol=canal-json&auto-create-topic=false"
    cluster.create("feed-1", raw_log.upstream, refused, start_ts=START_TS)
    cluster.assign({"one": [cluster.assigned(name) for name in feeds.names]})
    cluster.start("one", "--spark-on-demand")
    cluster.wait_checkpoints(["feed-0", "feed-2"], feeds.land(2))

    def is_refused() -> bool:
        status = cluster.own_status("feed-1")
        return status is not None and status.failure is not None

    cluster.wait(is_refused, "the changefeed without a topic says nothing", WAIT_S)
    status = cluster.own_status("feed-1")
    assert status is not None
    assert status.failure is not None
    assert (status.failure.code, status.failure.epoch) == ("sorter.topic_missing", 0)
    cluster.create(
        "feed-2", raw_log.upstream, feeds.sink("feed-2"), start_ts=START_TS, epoch=1, desired_state="stopped"
    )
    path = cluster.paths.changefeed_sorter("default", "feed-2")
    cluster.wait(lambda: cluster.client.exists(path) is None, "the paused changefeed's lock is held", WAIT_S)
    rows = feeds.rows("feed-2")
    cluster.wait_checkpoints(["feed-0"], feeds.land(2))
    assert feeds.rows("feed-2") == rows
    assert feeds.rows("feed-0") == feeds.all_rows


def test_a_service_that_loses_its_session_begins_anew_under_its_id(
    cluster: ServiceCluster, raw_log: RawLog, fresh_name: Callable[[str], str]
) -> None:
    feeds = Feeds(cluster, raw_log, fresh_name, 2)
    cluster.assign({"one": [cluster.assigned(name) for name in feeds.names]})
    cluster.start("one", "--spark-on-demand")
    cluster.wait_checkpoints(feeds.names, feeds.land(1))
    os.kill(cluster.processes["one"].pid, signal.SIGSTOP)
    cluster.wait(
        lambda: cluster.registered("one") is None, "the session of a process that stands still is over", WAIT_S
    )
    os.kill(cluster.processes["one"].pid, signal.SIGCONT)
    cluster.wait_checkpoints(feeds.names, feeds.land(2))
    for name in feeds.names:
        assert sorted(set(feeds.rows(name))) == feeds.all_rows, name


def _bytes(record: SinkRecord) -> tuple[bytes | None, bytes | None, bytes]:
    return record.key, record.value, record.position


def _rows(records: list[SinkRecord]) -> list[int]:
    positions = [decode_position(record.position) for record in records]
    return [position.commit_ts for position in positions if position.position_class is PositionClass.ROW]
