"""One reign, tick by tick, with agents whose executors do everything at once (docs/formats/cluster.md §8)."""

from dataclasses import dataclass, field

import pytest

from consumers.control.core.replication.messages import (
    NOTHING,
    AddTableRequest,
    Barrier,
    Checkpoint,
    Heartbeat,
    Message,
    TableState,
)
from consumers.control.core.replication.replication_set import MultiplePrimaryError
from consumers.control.core.scheduling.agent import Agent
from consumers.control.core.scheduling.coordinator import Coordinator, Identity, Limits, NotInitializedError
from schemas.ids import CaptureId, TableId, Ts
from schemas.tidb.spans import TableSpan
from tests.support.upstream.scripted_executor import ScriptedExecutor

A, B, C = (CaptureId(name) for name in "abc")
START = Checkpoint(Ts(10), Ts(10))


def tables_of(*numbers: int) -> dict[TableId, tuple[TableSpan, ...]]:
    return {TableId(number): (TableSpan.of_table(TableId(number)),) for number in numbers}


@dataclass(slots=True)
class Cluster:
    """Captures a, b and c; a is the owner. What is ``mute`` hears and says nothing."""

    limits: Limits = field(default_factory=lambda: Limits(heartbeat_ticks=1))
    alive: set[CaptureId] = field(default_factory=lambda: {A, B, C})
    mute: set[CaptureId] = field(default_factory=set)
    tables: dict[TableId, tuple[TableSpan, ...]] = field(default_factory=lambda: tables_of(1, 2, 3))
    barrier: Barrier = Barrier(Ts(1000))
    coordinator: Coordinator = field(init=False)
    executors: dict[CaptureId, ScriptedExecutor] = field(default_factory=dict)
    agents: dict[CaptureId, Agent] = field(default_factory=dict)
    sent: list[Message] = field(default_factory=list)
    back: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        me = Identity(capture=A, version="0.1.0", owner_revision=1, changefeed_epoch=1)
        self.coordinator = Coordinator(me, Ts(10), self.limits)
        for capture in sorted(self.alive):
            self.join(capture)

    def join(self, capture: CaptureId) -> None:
        self.alive.add(capture)
        self.executors[capture] = ScriptedExecutor(is_quick=True)
        self.agents[capture] = Agent(capture, "0.1.0", f"uuid-{capture}", 1, self.executors[capture], 1)

    def has(self, capture: CaptureId, span: TableSpan, state: TableState) -> None:
        self.executors[capture].states[span] = state
        self.executors[capture].checkpoints[span] = START

    def tick(self, times: int = 1, *, may_schedule: bool = True) -> None:
        for _ in range(times):
            self.sent = self.coordinator.tick(
                self.back,
                alive=frozenset(self.alive),
                tables=self.tables,
                barrier=self.barrier,
                salt=7,
                may_schedule=may_schedule,
            )
            self.back = []
            for capture in sorted(self.alive - self.mute):
                self.back += self.agents[capture].tick(m for m in self.sent if m.receiver == capture)

    def adds(self) -> list[tuple[CaptureId, TableSpan]]:
        return [(m.receiver, m.body.span) for m in self.sent if isinstance(m.body, AddTableRequest)]


def test_coordinator_assigns_nothing_before_every_registered_capture_has_reported() -> None:
    cluster = Cluster(mute={C})
    for _ in range(20):
        cluster.tick()
        assert not cluster.adds()
        assert not cluster.coordinator.is_initialized
        assert cluster.coordinator.checkpoint == NOTHING
    cluster.mute.clear()
    cluster.tick(10)
    assert cluster.coordinator.is_initialized
    assert set(cluster.coordinator.assignments) == {TableSpan.of_table(TableId(number)) for number in (1, 2, 3)}


def test_coordinator_orders_before_all_have_reported_are_refused() -> None:
    coordinator = Cluster().coordinator
    for order in (
        lambda: coordinator.drain(B),
        lambda: coordinator.move(TableSpan.of_table(TableId(1)), B),
        coordinator.rebalance,
    ):
        with pytest.raises(NotInitializedError):
            order()


def test_coordinator_capture_that_comes_later_and_says_nothing_holds_nobody_up() -> None:
    cluster = Cluster(alive={A, B}, tables=tables_of())
    cluster.tick(3)
    cluster.join(CaptureId("late"))
    cluster.mute.add(CaptureId("late"))
    cluster.tables = tables_of(1, 2)
    cluster.tick(6)
    assert sorted(cluster.coordinator.assignments.values()) == [A, B]


def test_coordinator_spreads_spans_and_follows_a_capture_that_is_gone() -> None:
    cluster = Cluster(tables=tables_of(*range(9)))
    cluster.tick(8)
    assert sorted(cluster.coordinator.assignments.values()) == [A] * 3 + [B] * 3 + [C] * 3
    cluster.alive.discard(C)
    cluster.tick(8)
    assert sorted(set(cluster.coordinator.assignments.values())) == [A, B]
    assert len(cluster.coordinator.assignments) == 9


def test_coordinator_checkpoint_stands_while_a_table_is_missing() -> None:
    cluster = Cluster()
    cluster.tick(8)
    before = cluster.coordinator.checkpoint
    assert before.checkpoint_ts == 10
    cluster.tables = tables_of(1, 2, 3, 4)
    for executor in cluster.executors.values():
        for span in executor.states:
            executor.checkpoints[span] = Checkpoint(Ts(500), Ts(600))
    cluster.tick(4, may_schedule=False)
    assert cluster.coordinator.checkpoint == before, "table 4 is nobody's yet"
    cluster.tick(8)
    assert cluster.coordinator.checkpoint == before, "table 4 begins where the changefeed stands"
    for executor in cluster.executors.values():
        for span in executor.states:
            executor.checkpoints[span] = Checkpoint(Ts(500), Ts(600))
    cluster.tick(2)
    assert cluster.coordinator.checkpoint == Checkpoint(Ts(500), Ts(600))


def test_coordinator_without_tables_reaches_the_barrier() -> None:
    cluster = Cluster(tables={}, barrier=Barrier(Ts(90), {TableId(5): Ts(80)}))
    cluster.tick(3)
    assert cluster.coordinator.checkpoint == Checkpoint(Ts(80), Ts(90))


def test_coordinator_new_one_goes_on_with_what_runs_and_removes_what_nobody_wants() -> None:
    cluster = Cluster(tables=tables_of(1, 2))
    cluster.has(B, TableSpan.of_table(TableId(1)), TableState.REPLICATING)
    cluster.has(C, TableSpan.of_table(TableId(2)), TableState.PREPARED)
    cluster.has(C, TableSpan.of_table(TableId(9)), TableState.REPLICATING)
    cluster.tick(8)
    assert cluster.coordinator.assignments == {TableSpan.of_table(TableId(1)): B, TableSpan.of_table(TableId(2)): C}
    assert [call[0] for call in cluster.executors[B].calls] == [], "it has gone on undisturbed"
    assert TableSpan.of_table(TableId(9)) not in cluster.executors[C].states


def test_coordinator_when_two_captures_write_one_span_starts_anew() -> None:
    cluster = Cluster()
    for capture in (B, C):
        cluster.has(capture, TableSpan.of_table(TableId(1)), TableState.REPLICATING)
    with pytest.raises(MultiplePrimaryError):
        cluster.tick(3)


def test_coordinator_split_table_keeps_its_spans_and_fills_the_hole() -> None:
    table = TableId(1)
    cluster = Cluster(tables={table: (TableSpan(table, b"a", b"z"),)})
    cluster.has(B, TableSpan(table, b"c", b"m"), TableState.REPLICATING)
    cluster.tick(8)
    assert set(cluster.coordinator.assignments) == {
        TableSpan(table, b"a", b"c"),
        TableSpan(table, b"c", b"m"),
        TableSpan(table, b"m", b"z"),
    }


def test_coordinator_adds_a_batch_a_tick() -> None:
    cluster = Cluster(Limits(heartbeat_ticks=1, add_table_batch_size=4), tables=tables_of(*range(10)))
    counts = []
    for _ in range(6):
        cluster.tick()
        fresh = [m for m in cluster.sent if isinstance(m.body, AddTableRequest) and m.body.is_secondary]
        counts.append(len(fresh))
    assert [count for count in counts if count] == [4, 4, 2]


def test_coordinator_drain_empties_the_capture_and_tells_it_that_it_leaves() -> None:
    cluster = Cluster(Limits(heartbeat_ticks=1, max_task_concurrency=2), tables=tables_of(*range(12)))
    cluster.tick(8)
    assert cluster.coordinator.drain(C) == 4
    seen_at_once = 0
    for _ in range(60):
        cluster.tick()
        seen_at_once = max(seen_at_once, len(cluster.coordinator.replications.running))
    assert sorted(cluster.coordinator.assignments.values()) == [A] * 6 + [B] * 6
    assert (cluster.executors[C].states, seen_at_once) == ({}, 2)
    assert cluster.agents[C].liveness.name == "STOPPING"


def test_coordinator_moves_a_share_of_very_many_spans_at_a_time() -> None:
    limits = Limits(heartbeat_ticks=1, max_task_concurrency=2, task_share=10, add_table_batch_size=90)
    cluster = Cluster(limits, tables=tables_of(*range(90)))
    cluster.tick(8)
    cluster.coordinator.drain(C)
    seen_at_once = 0
    for _ in range(60):
        cluster.tick()
        seen_at_once = max(seen_at_once, len(cluster.coordinator.replications.running))
    assert (cluster.executors[C].states, seen_at_once) == ({}, 9)


def test_coordinator_move_and_rebalance() -> None:
    cluster = Cluster(tables=tables_of(*range(6)))
    cluster.tick(8)
    for number in range(6):
        cluster.coordinator.move(TableSpan.of_table(TableId(number)), B)
    cluster.tick(12)
    assert set(cluster.coordinator.assignments.values()) == {B}
    cluster.coordinator.rebalance()
    cluster.tick(12)
    assert sorted(cluster.coordinator.assignments.values()) == [A, A, B, B, C, C]


def test_coordinator_that_may_not_schedule_still_listens() -> None:
    cluster = Cluster()
    cluster.tick(8, may_schedule=False)
    assert cluster.coordinator.is_initialized
    assert cluster.coordinator.assignments == {}


def test_coordinator_asks_for_replicating_spans_in_turn_and_for_all_others_each_time() -> None:
    cluster = Cluster(Limits(heartbeat_ticks=1, heartbeat_spans_max=2), alive={A}, tables=tables_of(*range(7)))
    cluster.tick(8)
    asked: list[tuple[TableSpan, ...]] = []
    for _ in range(4):
        cluster.tick()
        asked += [m.body.spans for m in cluster.sent if isinstance(m.body, Heartbeat)]
    assert [len(spans) for spans in asked] == [2, 2, 2, 2]
    assert {span.table_id for spans in asked for span in spans} == set(range(7))
    cluster.tables = tables_of(*range(6))
    cluster.executors[A].is_quick = False
    cluster.tick(3)
    for _ in range(3):
        cluster.tick()
        (spans,) = [m.body.spans for m in cluster.sent if isinstance(m.body, Heartbeat)]
        assert TableSpan.of_table(TableId(6)) in spans, "it is being removed"
