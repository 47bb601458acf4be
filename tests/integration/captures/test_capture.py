"""A capture on real parts: what a real TiDB wrote comes into the raw log, under the frontier law, across restarts."""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import compose.capture.life
from compose.capture.process import run_capture
from compose.capture.settings.options import CaptureOptions
from compose.stack.local import Addresses
from consumers.control.cluster.capture_registry import list_captures
from consumers.control.core.frontier.span_split import SplitSettings
from consumers.control.owner.reign_parts import ReignOptions
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import Session
from producers.region_server.kv.store import ClusterStore
from producers.region_server.recording import Replay, read_recording
from producers.region_server.server import RegionServer
from schemas.ddl.job import DdlDecodeError, DdlType, decode_ddl_job_row
from schemas.ids import TableId, Ts, UpstreamId
from schemas.nodes.changefeed import ZkPaths
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.topics import raw_topics
from tests.support.control.lasting_session import lasting_session
from tests.support.recorded.captured_log import REACH_S, check_law, places, raw_rows, reached
from tests.support.recorded.recording import TIDB_DATA, committed_changes, row_table_id
from tests.support.recorded.schema_feed import schema_store

SESSION_S = 30.0
"""A machine that is slow for some seconds ends no session: a capture that starts anew is another story."""
STOP_S = 180.0


@dataclass
class Served:
    """A capture in a thread of this process."""

    options: CaptureOptions
    stopping: threading.Event
    thread: threading.Thread
    status: list[int]

    def stop(self) -> int:
        self.stopping.set()
        self.thread.join(STOP_S)
        assert not self.thread.is_alive()
        return self.status[0]


def serve(options: CaptureOptions) -> Served:
    stopping, status = threading.Event(), list[int]()
    thread = threading.Thread(target=lambda: status.append(run_capture(options, stopping)), daemon=True)
    thread.start()
    return Served(options, stopping, thread, status)


@pytest.fixture
def options(stack: Addresses, fresh_name: Callable[[str], str]) -> CaptureOptions:
    name = fresh_name("capture")
    return CaptureOptions(
        pd="127.0.0.1:1",
        kafka=stack.kafka_access,
        zookeeper=stack.zookeeper_access,
        schema_registry=stack.registry_access,
        cluster=name,
        upstream=UpstreamId(name),
        session_timeout_s=SESSION_S,
    )


@pytest.fixture
def replayed() -> Iterator[tuple[RegionServer, Replay]]:
    recording = read_recording(TIDB_DATA)
    with RegionServer(min_ts_interval_ms=100) as server:
        replay = Replay(server, recording)
        server.call(replay.load())
        yield server, replay


def wait_for_status(options: CaptureOptions, owner_rev: int) -> dict[str, Any]:
    """Return the upstream's status node once an owner of that revision has written it after all drops and scans."""
    status: dict[str, Any] = {}
    deadline = time.monotonic() + REACH_S
    with lasting_session(options.zookeeper) as session:
        while [status.get(name) for name in ("owner_rev", "tables", "stalls")] != [owner_rev, 28, []]:
            assert time.monotonic() < deadline, status
            status = json.loads(session.client.get(ZkPaths(options.cluster).upstream(options.upstream))[0])
            time.sleep(0.1)
    return status


def test_capture_recording_lands_under_the_frontier_law_across_a_restart(
    options: CaptureOptions, replayed: tuple[RegionServer, Replay]
) -> None:
    server, replay = replayed
    options = replace(options, pd=server.pd_address)
    topics, end_ts = raw_topics(options.upstream), read_recording(TIDB_DATA).end_ts
    server.spawn(replay.run(1.0, wait_for_subscriber=True))
    first = serve(options)
    reached(options.kafka.servers, topics, Ts((replay.bootstrap_ts + end_ts) // 2))
    with lasting_session(options.zookeeper) as session:
        assert len(list_captures(session, ZkPaths(options.cluster))) == 1
        assert first.stop() == 0
        assert list_captures(session, ZkPaths(options.cluster)) == []
    second = serve(options)
    try:
        reached(options.kafka.servers, topics, Ts(end_ts + 1))
        status = wait_for_status(options, owner_rev=2)
        assert (status["tables"], status["stalls"]) == (28, [])
    finally:
        assert second.stop() == 0
    assert {record.owner_rev for record in places(options.kafka.servers, topics)} == {1, 2}
    check_law(options.kafka.servers, topics, Ts(replay.bootstrap_ts), end_ts)


def row_keys() -> list[tuple[TableId, list[bytes]]]:
    """Return the tables that stand at the recording's end with the row keys that it writes, most first."""
    changes = list(committed_changes())
    standing = schema_store(changes).pullable_tables_at(Ts(read_recording(TIDB_DATA).end_ts))
    keys: dict[TableId, set[bytes]] = {table: set() for table in standing}
    for change in changes:
        table = row_table_id(change.key)
        if table in keys:
            keys[TableId(table)].add(change.key)
    return sorted(((table, sorted(table_keys)) for table, table_keys in keys.items()), key=lambda item: -len(item[1]))


def split_regions(server: RegionServer, keys: list[bytes], regions: int) -> None:
    """Make regions begin at some of ``keys``, evenly."""
    cuts = keys[:: max(1, len(keys) // regions)]

    def split(store: ClusterStore) -> None:
        for key in cuts:
            store.split(key)

    server.act(split)


def wait_for_parts(options: CaptureOptions, parts: int) -> None:
    """Wait until the owner pulls so many spans more than tables."""
    status: dict[str, Any] = {"spans": 0, "tables": 0}
    deadline = time.monotonic() + REACH_S
    with lasting_session(options.zookeeper) as session:
        while status["spans"] - status["tables"] < parts:
            assert time.monotonic() < deadline, status
            time.sleep(0.1)
            with contextlib.suppress(NoNodeError):
                status = json.loads(session.client.get(ZkPaths(options.cluster).upstream(options.upstream))[0])


def wait_for_log(caplog: pytest.LogCaptureFixture, message: str) -> None:
    deadline = time.monotonic() + REACH_S
    while not any(line.message == message for line in caplog.records):
        assert time.monotonic() < deadline, caplog.text
        time.sleep(0.05)


def test_capture_of_large_tables_lands_their_spans_over_partitions_under_the_frontier_law_across_splits_and_a_restart(
    options: CaptureOptions, replayed: tuple[RegionServer, Replay], caplog: pytest.LogCaptureFixture
) -> None:
    """The recording makes its tables one after the other, so they are begun, split and split anew all the while."""
    server, replay = replayed
    split = SplitSettings(enable_table_across_nodes=True, region_threshold=6)
    options = replace(options, pd=server.pd_address, reign=ReignOptions(split=split, split_look_s=0.5))
    topics, end_ts = raw_topics(options.upstream), read_recording(TIDB_DATA).end_ts
    large = row_keys()[:8]
    for _, keys in large:
        split_regions(server, keys, 8)
    server.spawn(replay.run(1.0, wait_for_subscriber=True))
    with caplog.at_level(logging.INFO, "consumers.control.owner.pulled_tables"):
        first = serve(options)
        wait_for_parts(options, 2)
        reached(options.kafka.servers, topics, Ts((replay.bootstrap_ts + end_ts) // 2))
        for _, keys in large:
            split_regions(server, keys[-len(keys) // 4 :], 40)  # in the last span, which gets more than all others
        wait_for_log(caplog, "table is split anew")
        assert first.stop() == 0
        second = serve(options)
        try:
            reached(options.kafka.servers, topics, Ts(end_ts + 1))
            wait_for_parts(options, 2 * len(large))
            status = wait_for_status(options, owner_rev=2)
        finally:
            assert second.stop() == 0
    assert (status["tables"], status["spans"]) == (28, 28 + 2 * len(large))
    check_law(options.kafka.servers, topics, Ts(replay.bootstrap_ts), end_ts)
    log = raw_rows(options.kafka.servers, topics, len(places(options.kafka.servers, topics)[0].high))
    landed_in = [{row_table_id(key) for record in partition for _, _, key in record} for partition in log]
    assert any(sum(table in tables for tables in landed_in) > 1 for table, _ in large)


def test_capture_that_cannot_read_a_ddl_job_goes_on_and_one_that_can_lands_what_was_missed(
    options: CaptureOptions, replayed: tuple[RegionServer, Replay], monkeypatch: pytest.MonkeyPatch
) -> None:
    def older_version(value: bytes, *args: Any, **where: Any) -> DdlRecord | None:
        record = decode_ddl_job_row(value, *args, **where)
        if record is not None and record.payload["type"] == DdlType.CREATE_TABLE and b"t_upk" in value:
            raise DdlDecodeError("row of mysql.tidb_ddl_job does not decode", reason="from a newer TiDB")
        return record

    server, replay = replayed
    # Tables are held soon, so that a place of held tables lies between the job and R.
    options = replace(options, pd=server.pd_address, reign=ReignOptions(held_lag_s=0.2))
    topics, end_ts = raw_topics(options.upstream), read_recording(TIDB_DATA).end_ts
    for module in ("producers.pull.ddl.ddl_feed", "schemas.ddl.job"):
        monkeypatch.setattr(f"{module}.decode_ddl_job_row", older_version)
    server.spawn(replay.run(2.0, wait_for_subscriber=True))
    first = serve(options)
    reached(options.kafka.servers, topics, Ts(end_ts + 1))
    assert first.stop() == 0
    last = places(options.kafka.servers, topics)[-1]
    assert last.held_ddl, "R goes on, and says what it lacks"
    job_ts = last.held_ddl[0].ts
    monkeypatch.undo()
    second = serve(options)
    try:
        reached(options.kafka.servers, topics, Ts(last.resolved_ts + 1))
    finally:
        assert second.stop() == 0
    assert places(options.kafka.servers, topics)[-1].held_ddl == ()
    passing = [
        record
        for record in places(options.kafka.servers, topics)
        if record.resolved_ts >= job_ts and not record.held_ddl
    ]
    assert min(record.resolved_ts for record in passing) > last.resolved_ts, (
        "nobody is told to pass the job before that"
    )
    check_law(options.kafka.servers, topics, Ts(replay.bootstrap_ts), end_ts)


def test_capture_lost_session_starts_anew_under_another_id_and_revision(
    options: CaptureOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[Session] = []

    class Kept(Session):
        def __init__(self, hosts: ZooKeeperAccess, *, timeout_s: float) -> None:
            super().__init__(hosts, timeout_s=timeout_s)
            sessions.append(self)

    monkeypatch.setattr(compose.capture.life, "Session", Kept)
    with RegionServer(min_ts_interval_ms=100) as server:
        replay = Replay(server, read_recording(TIDB_DATA))
        server.call(replay.load())
        topics = raw_topics(options.upstream)
        serving = serve(replace(options, pd=server.pd_address))
        try:
            reached(options.kafka.servers, topics, Ts(1))
            known = sessions[0].client.client_id
            twin = KazooClient(hosts=options.zookeeper.servers, client_id=known, timeout=SESSION_S)
            twin.start(REACH_S)
            twin.stop()  # closing a second connection to a session ends the session
            deadline = time.monotonic() + REACH_S
            while {record.owner_rev for record in places(options.kafka.servers, topics)} != {1, 2}:
                assert time.monotonic() < deadline
                time.sleep(0.3)
            assert len(sessions) == 2
        finally:
            assert serving.stop() == 0


def test_capture_wrong_address_ends_with_an_error(options: CaptureOptions, caplog: pytest.LogCaptureFixture) -> None:
    assert run_capture(replace(options, zookeeper=ZooKeeperAccess("127.0.0.1:1"))) == 1
    assert "zookeeper.unreachable" in str([vars(record).get("code") for record in caplog.records])
