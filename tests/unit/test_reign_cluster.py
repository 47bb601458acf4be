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
from tests.support.ddl_jobs import job, table_info
from tests.support.reign_cluster import FEED, Cluster, FakeDdl, FakeOwner

A, B, C = CaptureId("a"), CaptureId("b"), CaptureId("c")
TABLES = [TableId(number) for number in range(70, 76)]
SPANS = {TableSpan.of_table(table) for table in TABLES}


def creation(finished_ts: int, table_id: int) -> DdlRecord:
    info = table_info(table_id, f"t{table_id}")
    return job(finished_ts, DdlType.CREATE_TABLE, schema_id=1, table_id=table_id, table_info=info)


def cluster(*captures: CaptureId, tables: int = len(TABLES)) -> Cluster:
    """Return a cluster of captures, the first of which is owner, with tables that were made at 10."""
    schema = DdlRecord(kind="schema", ts=Ts(5), schema_id=1, payload={"id": 1, "db_name": {"O": "d", "L": "d"}})
    records = [schema, DdlRecord(kind="snapshot_end", ts=Ts(5), payload={})]
    records += [creation(10 + number, table) for number, table in enumerate(TABLES[:tables])]
    return Cluster(FakeOwner(), FakeDdl(records), captures=captures)


def running(*captures: CaptureId) -> Cluster:
    """Return a cluster in which everything has landed up to 30."""
    one = cluster(*captures)
    one.land(30)
    one.tick(12)
    assert (one.owner.published.resolved_ts, one.reign.is_settled) == (30, True)
    return one


def test_reign_several_captures_share_the_tables_each_at_one_of_them() -> None:
    one = running(A, B, C)
    pulled = one.pulled()
    assert {name: len(spans) for name, spans in pulled.items()} == {A: 2, B: 2, C: 2}
    assert set.union(*pulled.values()) == SPANS
    one.land(40)
    one.tick(2)
    assert one.owner.published.resolved_ts == 40


def test_reign_capture_that_is_silent_keeps_all_spans_and_the_frontier_waiting_until_it_is_gone() -> None:
    one = cluster(A, B)
    silent = one.captures.pop(B)  # registered, and never ticked
    one.land(30)
    one.tick(20)
    assert (one.pulled(), one.owner.published.resolved_ts) == ({A: set()}, 0)
    with pytest.raises(NotInitializedError, match="b"):
        one.reign.check_ready()
    assert any("waits for captures to answer: b" in text for text in one.reign.complaints())
    one.captures[B] = silent
    one.crash(B)
    one.tick(12)
    assert (one.pulled(), one.owner.published.resolved_ts) == ({A: SPANS}, 30)


def test_reign_capture_dies_its_tables_go_on_from_the_published_frontier_at_the_others() -> None:
    one = running(A, B, C)
    lost = one.pulled()[C]
    one.captures[B].puller.landed = Ts(90)  # nothing of it is published: A and C have not come so far
    one.tick(2)
    one.crash(C)
    one.tick(12)
    starts = one.captures[A].puller.starts | one.captures[B].puller.starts
    assert {starts[span] for span in lost} == {30}
    assert set(starts) == SPANS
    one.land(95)
    one.tick(4)
    assert one.owner.published.resolved_ts == 95


def test_reign_table_moves_and_the_frontier_goes_on_at_each_tick() -> None:
    one = running(A, B)
    table = next(iter(one.pulled()[A])).table_id
    one.reign.move_table(table, B)
    for ts in range(31, 51):
        one.land(ts)
        one.tick(1)
        assert one.owner.published.resolved_ts >= ts - 1
    assert {name: TableSpan.of_table(table) in spans for name, spans in one.pulled().items()} == {A: False, B: True}


def test_reign_capture_that_joins_gets_tables_at_once_and_one_that_leaves_hands_them_over() -> None:
    one = running(A, B)
    one.join(C)
    one.land(40)
    for ts in range(40, 60):
        one.land(ts)
        one.tick(1)
    assert {name: len(spans) for name, spans in one.pulled().items()} == {A: 2, B: 2, C: 2}
    one.captures[C].agent.stop()
    for ts in range(60, 90):
        one.land(ts)
        one.tick(1)
    assert one.pulled()[C] == set()
    assert one.owner.published.resolved_ts >= 88


def test_reign_capture_leaves_though_a_table_is_stuck_while_it_begins() -> None:
    one = cluster(A, B, tables=5)
    one.land(30)
    one.tick(12)
    one.ddl.records, one.ddl.landed = [creation(40, TABLES[5])], Ts(50)
    one.tick(4)  # nothing of the new table lands
    assert not one.reign.is_settled
    one.reign.drain(B)
    for ts in range(31, 40):
        for capture in one.captures.values():
            capture.puller.landed = Ts(ts)
        one.tick(2)
    assert one.pulled()[B] <= {TableSpan.of_table(TABLES[5])}


def test_reign_drained_capture_says_that_it_is_stopping() -> None:
    one = running(A, B)
    assert one.reign.drain(B) == 3
    for ts in range(31, 60):
        one.land(ts)
        one.tick(1)
    assert (one.pulled()[B], one.captures[B].agent.is_stopping) == (set(), True)


def test_reign_new_owner_takes_spans_over_as_they_run() -> None:
    one = running(A, B, C)
    before = one.pulled()
    starts = [dict(capture.puller.starts) for capture in one.captures.values()]
    one.owner.published = replace(one.owner.published, owner_rev=2)
    one.ddl.records = cluster(A).ddl.records
    one.reign.close()
    one.elect(B)
    one.land(40)
    one.tick(12)
    assert one.pulled() == before
    assert [capture.puller.starts for capture in one.captures.values()] == starts, "no span was begun anew"
    assert one.owner.published.resolved_ts == 40


def test_reign_two_captures_that_write_one_span_begin_the_upstream_anew() -> None:
    one = running(A, B)
    span = next(iter(one.pulled()[A]))
    stray = one.captures[B].agent._executor
    stray.add_table_span(span, Checkpoint(Ts(30)), is_prepare=True)
    stray.add_table_span(span, Checkpoint(Ts(30)), is_prepare=False)
    one.owner.published = replace(one.owner.published, owner_rev=2)
    one.ddl.records = cluster(A).ddl.records
    one.elect(A)
    one.land(40)
    one.tick(30)
    assert one.saved_epochs == [2]
    pulled = one.pulled()
    assert (pulled[A] | pulled[B], pulled[A] & pulled[B]) == (SPANS, set())
    assert one.owner.published.resolved_ts == 40
    assert stray.status(next(iter(pulled[B]))).state is TableState.REPLICATING


def test_reign_epoch_that_was_lost_is_taken_from_a_new_owner_and_not_from_the_same_one() -> None:
    one = running(A, B)
    one.owner.published = replace(one.owner.published, owner_rev=2)
    one.ddl.records = cluster(A).ddl.records
    one.elect(A, epoch=7)
    one.land(40)
    one.tick(30)
    assert one.owner.published.resolved_ts == 40
    one.ddl.records = cluster(A).ddl.records
    one.elect(A, epoch=3)  # of the same revision: of the past
    one.land(50)
    one.tick(30)
    assert one.owner.published.resolved_ts == 40


def test_reign_versions_that_do_not_go_together_begin_nothing_until_one_is_gone() -> None:
    one = running(A, B)
    one.join(C, version="2.0.0")
    one.ddl.records = [creation(35, 90)]
    one.land(40)
    one.tick(20)
    assert TableSpan.of_table(TableId(90)) not in set.union(*one.pulled().values())
    assert one.owner.published.resolved_ts == 30
    with pytest.raises(VersionMismatchError, match=r"2\.0\.0"):
        one.reign.check_ready()
    assert any("2.0.0" in text for text in one.reign.complaints())
    one.crash(C)
    one.tick(20)
    assert TableSpan.of_table(TableId(90)) in set.union(*one.pulled().values())
    assert one.owner.published.resolved_ts == 40


def test_reign_held_table_that_moves_starts_from_its_own_ts() -> None:
    one = cluster(A, B)
    held = HeldTables(tables=(TABLES[0],), ts=Ts(20), low=(0,))
    one.owner.published = replace(one.owner.published, resolved_ts=Ts(30), held=(held,))
    one.ddl.landed = Ts(30)
    one.tick(12)
    span = TableSpan.of_table(TABLES[0])
    holder = next(name for name, spans in one.pulled().items() if span in spans)
    assert one.captures[holder].puller.starts[span] == 20
    other = B if holder == A else A
    for capture in one.captures.values():
        capture.puller.landed = Ts(25)
    one.tick(4)
    one.reign.move_table(TABLES[0], other)
    one.tick(2)
    assert one.captures[other].puller.starts[span] == 20


def test_reign_orders_from_another_thread_are_answered_at_a_tick_and_refused_afterwards() -> None:
    one = running(A, B)
    orders: ReignOrders = one.reign.orders
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(orders.drain(B)))
    asking.start()
    while asking.is_alive():
        one.tick(1)
    assert answers == [3]
    assert orders is one.reign.orders
    one.close()
    with pytest.raises(NotOwnerError):
        orders.resign()


def test_reign_status_sums_what_all_captures_pull_and_names_whose_table_is_held_and_why() -> None:
    one = running(A, B)
    stuck = next(iter(one.pulled()[B]))
    figures = {
        A: PullFigures(rows=10, regions=3, troubles={"not_leader": 1}),
        B: PullFigures(
            rows=5, regions=4, troubles={"not_leader": 2}, stalls=(StalledSpan(stuck, "region 7: no leader"),)
        ),
    }
    published = one.owner.published
    one.owner.published = replace(published, held=(HeldTables(tables=(stuck.table_id,), ts=Ts(20), low=published.low),))
    reports = {who: replace(report, figures=figures[who]) for who, report in one.peers[A].reports(FEED).items()}
    held = one.reign.held_tables(reports)
    assert [(table.table_id, table.ts, table.why) for table in held] == [
        (stuck.table_id, 20, f"region 7: no leader (capture {B})")
    ]
    told = reign_status(A, one.reign, reports, held)
    assert (told["rows_in"], told["regions"], told["troubles"], told["tables_held"]) == (15, 7, {"not_leader": 3}, 1)
    assert {who: (own["rows_in"], own["spans"]) for who, own in told["pullers"].items()} == {A: (10, 3), B: (5, 3)}
    assert told["held"] == [{"tables": (stuck.table_id,), "names": [f"{held[0].schema}.{held[0].table}"], "ts": 20}]
    assert f"{stuck}: region 7: no leader (capture {B})" in told["stalls"]
    assert json.loads(json.dumps(told))["captures"] == {A: 3, B: 3}
