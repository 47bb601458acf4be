"""An owner and several captures: who gets which spans and from which ts, who is waited for, what begins anew."""

import json
import threading
from dataclasses import replace

import pytest

from consumers.control.core.replication.messages import Checkpoint, TableState
from consumers.control.core.replication.versions import VersionMismatchError
from consumers.control.core.scheduling.coordinator import NotInitializedError
from consumers.control.owner.reign_orders import NotOwnerError, ReignOrders
from consumers.control.owner.reign_status import reign_status
from schemas.ddl.job import DdlType
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import HeldTables
from schemas.rawlog.pull_figures import PullFigures, StalledSpan
from schemas.tidb.spans import TableSpan
from tests.support.control.reign_cluster import FEED, Cluster, FakeDdl, FakeOwner
from tests.support.recorded.ddl_jobs import job, table_info

A, B, C = CaptureId("a"), CaptureId("b"), CaptureId("c")
TABLES = [TableId(number) for number in range(70, 76)]
SPANS = {TableSpan.of_table(table) for table in TABLES}


def creation(finished_ts: int, table_id: int) -> DdlRecord:
    info = table_info(table_id, f"t{table_id}")
    return job(finished_ts, DdlType.CREATE_TABLE, schema_id=1, table_id=table_id, table_info=info)


def new_cluster(*captures: CaptureId, tables: int = len(TABLES)) -> Cluster:
    """Return a cluster of captures, the first of which is owner, with tables that were made at 10."""
    schema = DdlRecord(kind="schema", ts=Ts(5), schema_id=1, payload={"id": 1, "db_name": {"O": "d", "L": "d"}})
    records = [schema, DdlRecord(kind="snapshot_end", ts=Ts(5), payload={})]
    records += [creation(10 + number, table) for number, table in enumerate(TABLES[:tables])]
    return Cluster(FakeOwner(), FakeDdl(records), captures=captures)


def running(*captures: CaptureId) -> Cluster:
    """Return a cluster in which everything has landed up to 30."""
    cluster = new_cluster(*captures)
    cluster.land(30)
    cluster.tick(12)
    assert (cluster.owner.published.resolved_ts, cluster.reign.is_settled) == (30, True)
    return cluster


def test_reign_several_captures_share_the_tables_each_at_one_of_them() -> None:
    cluster = running(A, B, C)
    pulled = cluster.pulled()
    assert {name: len(spans) for name, spans in pulled.items()} == {A: 2, B: 2, C: 2}
    assert set.union(*pulled.values()) == SPANS
    cluster.land(40)
    cluster.tick(2)
    assert cluster.owner.published.resolved_ts == 40


def test_reign_capture_that_is_silent_keeps_all_spans_and_the_frontier_waiting_until_it_is_gone() -> None:
    cluster = new_cluster(A, B)
    silent = cluster.captures.pop(B)  # registered, and never ticked
    cluster.land(30)
    cluster.tick(20)
    assert (cluster.pulled(), cluster.owner.published.resolved_ts) == ({A: set()}, 0)
    with pytest.raises(NotInitializedError, match="b"):
        cluster.reign.check_ready()
    assert any("waits for captures to answer: b" in text for text in cluster.reign.complaints())
    cluster.captures[B] = silent
    cluster.crash(B)
    cluster.tick(12)
    assert (cluster.pulled(), cluster.owner.published.resolved_ts) == ({A: SPANS}, 30)


def test_reign_capture_dies_its_tables_go_on_from_the_published_frontier_at_the_others() -> None:
    cluster = running(A, B, C)
    lost = cluster.pulled()[C]
    cluster.captures[B].puller.landed = Ts(90)  # nothing of it is published: A and C have not come so far
    cluster.tick(2)
    cluster.crash(C)
    cluster.tick(12)
    starts = cluster.captures[A].puller.starts | cluster.captures[B].puller.starts
    assert {starts[span] for span in lost} == {30}
    assert set(starts) == SPANS
    cluster.land(95)
    cluster.tick(4)
    assert cluster.owner.published.resolved_ts == 95


def test_reign_table_moves_and_the_frontier_goes_on_at_each_tick() -> None:
    cluster = running(A, B)
    table = next(iter(cluster.pulled()[A])).table_id
    cluster.reign.move_table(table, B)
    for ts in range(31, 51):
        cluster.land(ts)
        cluster.tick(1)
        assert cluster.owner.published.resolved_ts >= ts - 1
    assert {name: TableSpan.of_table(table) in spans for name, spans in cluster.pulled().items()} == {A: False, B: True}


def test_reign_capture_that_joins_gets_tables_at_once_and_one_that_leaves_hands_them_over() -> None:
    cluster = running(A, B)
    cluster.join(C)
    cluster.land(40)
    for ts in range(40, 60):
        cluster.land(ts)
        cluster.tick(1)
    assert {name: len(spans) for name, spans in cluster.pulled().items()} == {A: 2, B: 2, C: 2}
    cluster.captures[C].agent.stop()
    for ts in range(60, 90):
        cluster.land(ts)
        cluster.tick(1)
    assert cluster.pulled()[C] == set()
    assert cluster.owner.published.resolved_ts >= 88


def test_reign_capture_leaves_though_a_table_is_stuck_while_it_begins() -> None:
    cluster = new_cluster(A, B, tables=5)
    cluster.land(30)
    cluster.tick(12)
    cluster.ddl.records, cluster.ddl.landed = [creation(40, TABLES[5])], Ts(50)
    cluster.tick(4)  # nothing of the new table lands
    assert not cluster.reign.is_settled
    cluster.reign.drain(B)
    for ts in range(31, 40):
        for capture in cluster.captures.values():
            capture.puller.landed = Ts(ts)
        cluster.tick(2)
    assert cluster.pulled()[B] <= {TableSpan.of_table(TABLES[5])}


def test_reign_drained_capture_says_that_it_is_stopping() -> None:
    cluster = running(A, B)
    assert cluster.reign.drain(B) == 3
    for ts in range(31, 60):
        cluster.land(ts)
        cluster.tick(1)
    assert (cluster.pulled()[B], cluster.captures[B].agent.is_stopping) == (set(), True)


def test_reign_new_owner_takes_spans_over_as_they_run() -> None:
    cluster = running(A, B, C)
    before = cluster.pulled()
    starts = [dict(capture.puller.starts) for capture in cluster.captures.values()]
    cluster.owner.published = replace(cluster.owner.published, owner_rev=2)
    cluster.ddl.records = new_cluster(A).ddl.records
    cluster.reign.close()
    cluster.elect(B)
    cluster.land(40)
    cluster.tick(12)
    assert cluster.pulled() == before
    assert [capture.puller.starts for capture in cluster.captures.values()] == starts, "no span was begun anew"
    assert cluster.owner.published.resolved_ts == 40


def test_reign_two_captures_that_write_one_span_begin_the_upstream_anew() -> None:
    cluster = running(A, B)
    span = next(iter(cluster.pulled()[A]))
    stray = cluster.captures[B].agent._executor
    stray.add_table_span(span, Checkpoint(Ts(30)), is_prepare=True)
    stray.add_table_span(span, Checkpoint(Ts(30)), is_prepare=False)
    cluster.owner.published = replace(cluster.owner.published, owner_rev=2)
    cluster.ddl.records = new_cluster(A).ddl.records
    cluster.elect(A)
    cluster.land(40)
    cluster.tick(30)
    assert cluster.saved_epochs == [2]
    pulled = cluster.pulled()
    assert (pulled[A] | pulled[B], pulled[A] & pulled[B]) == (SPANS, set())
    assert cluster.owner.published.resolved_ts == 40
    assert stray.status(next(iter(pulled[B]))).state is TableState.REPLICATING


def test_reign_epoch_that_was_lost_is_taken_from_a_new_owner_and_not_from_the_same_one() -> None:
    cluster = running(A, B)
    cluster.owner.published = replace(cluster.owner.published, owner_rev=2)
    cluster.ddl.records = new_cluster(A).ddl.records
    cluster.elect(A, epoch=7)
    cluster.land(40)
    cluster.tick(30)
    assert cluster.owner.published.resolved_ts == 40
    cluster.ddl.records = new_cluster(A).ddl.records
    cluster.elect(A, epoch=3)  # of the same revision: of the past
    cluster.land(50)
    cluster.tick(30)
    assert cluster.owner.published.resolved_ts == 40


def test_reign_versions_that_do_not_go_together_begin_nothing_until_one_is_gone() -> None:
    cluster = running(A, B)
    cluster.join(C, version="2.0.0")
    cluster.ddl.records = [creation(35, 90)]
    cluster.land(40)
    cluster.tick(20)
    assert TableSpan.of_table(TableId(90)) not in set.union(*cluster.pulled().values())
    assert cluster.owner.published.resolved_ts == 30
    with pytest.raises(VersionMismatchError, match=r"2\.0\.0"):
        cluster.reign.check_ready()
    assert any("2.0.0" in text for text in cluster.reign.complaints())
    cluster.crash(C)
    cluster.tick(20)
    assert TableSpan.of_table(TableId(90)) in set.union(*cluster.pulled().values())
    assert cluster.owner.published.resolved_ts == 40


def test_reign_held_table_that_moves_starts_from_its_own_ts() -> None:
    cluster = new_cluster(A, B)
    held = HeldTables(tables=(TABLES[0],), ts=Ts(20), low=(0,))
    cluster.owner.published = replace(cluster.owner.published, resolved_ts=Ts(30), held=(held,))
    cluster.ddl.landed = Ts(30)
    cluster.tick(12)
    span = TableSpan.of_table(TABLES[0])
    holder = next(name for name, spans in cluster.pulled().items() if span in spans)
    assert cluster.captures[holder].puller.starts[span] == 20
    other = B if holder == A else A
    for capture in cluster.captures.values():
        capture.puller.landed = Ts(25)
    cluster.tick(4)
    cluster.reign.move_table(TABLES[0], other)
    cluster.tick(2)
    assert cluster.captures[other].puller.starts[span] == 20


def test_reign_orders_from_another_thread_are_answered_at_a_tick_and_refused_afterwards() -> None:
    cluster = running(A, B)
    orders: ReignOrders = cluster.reign.orders
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(orders.drain(B)))
    asking.start()
    while asking.is_alive():
        cluster.tick(1)
    assert answers == [3]
    assert orders is cluster.reign.orders
    cluster.close()
    with pytest.raises(NotOwnerError):
        orders.resign()


def test_reign_status_sums_what_all_captures_pull_and_names_whose_table_is_held_and_why() -> None:
    cluster = running(A, B)
    stuck = next(iter(cluster.pulled()[B]))
    figures = {
        A: PullFigures(rows=10, regions=3, troubles={"not_leader": 1}),
        B: PullFigures(
            rows=5, regions=4, troubles={"not_leader": 2}, stalls=(StalledSpan(stuck, "region 7: no leader"),)
        ),
    }
    published = cluster.owner.published
    cluster.owner.published = replace(
        published, held=(HeldTables(tables=(stuck.table_id,), ts=Ts(20), low=published.low),)
    )
    reports = {who: replace(report, figures=figures[who]) for who, report in cluster.peers[A].reports(FEED).items()}
    held = cluster.reign.held_tables(reports)
    assert [(table.table_id, table.ts, table.why) for table in held] == [
        (stuck.table_id, 20, f"region 7: no leader (capture {B})")
    ]
    status = reign_status(A, cluster.reign, reports, held)
    assert (status["rows_in"], status["regions"], status["tables_held"]) == (15, 7, 1)
    assert status["troubles"] == {"not_leader": 3}
    assert {who: (own["rows_in"], own["spans"]) for who, own in status["pullers"].items()} == {A: (10, 3), B: (5, 3)}
    assert status["held"] == [{"tables": (stuck.table_id,), "names": [f"{held[0].schema}.{held[0].table}"], "ts": 20}]
    assert f"{stuck}: region 7: no leader (capture {B})" in status["stalls"]
    assert json.loads(json.dumps(status))["captures"] == {A: 3, B: 3}
