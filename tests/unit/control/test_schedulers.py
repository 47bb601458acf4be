"""Each scheduling policy on a cluster drawn by hand (docs/formats/cluster.md §8)."""

from collections.abc import Mapping

import pytest

from consumers.control.core.replication.captures import CaptureState, CaptureStatus
from consumers.control.core.replication.replication_set import ReplicationSet, Role, SetState
from consumers.control.core.replication.tasks import AddSpan, MoveSpan, Plan, RemoveSpan, Scene
from consumers.control.core.scheduling.schedulers import balance, basic, drain_capture, move_table, rebalance
from consumers.control.core.scheduling.schedulers.balance import Balance
from consumers.control.core.scheduling.schedulers.drain_capture import DrainCapture, DrainRefusedError
from consumers.control.core.scheduling.schedulers.move_table import MoveTable
from consumers.control.core.scheduling.schedulers.rebalance import Rebalance
from schemas.ids import CaptureId, TableId
from schemas.tidb.spans import TableSpan

A, B, C = (CaptureId(name) for name in "abc")
NEW, READY, LEAVING = (CaptureStatus(state) for state in CaptureState)


def span(number: int) -> TableSpan:
    return TableSpan.of_table(TableId(number))


def scene(
    captures: Mapping[CaptureId, CaptureStatus],
    primaries: Mapping[int, CaptureId],
    *,
    owner: CaptureId = A,
    others: Mapping[int, ReplicationSet] | None = None,
    missing: range = range(0),
    unwanted: tuple[int, ...] = (),
    salt: int = 1,
) -> Scene:
    """Return a cluster in which ``primaries`` replicate, and the sets ``others`` are in some other state."""
    sets = {
        span(number): ReplicationSet(span(number), SetState.REPLICATING, capture, {capture: Role.PRIMARY})
        for number, capture in primaries.items()
    }
    sets |= {span(number): replication_set for number, replication_set in (others or {}).items()}
    members: dict[CaptureId, list[TableSpan]] = {}
    for where, replication_set in sets.items():
        for capture in replication_set.captures:
            members.setdefault(capture, []).append(where)
    return Scene(
        owner=owner,
        captures=captures,
        sets=sets,
        missing=[span(number) for number in missing],
        unwanted=[span(number) for number in unwanted],
        is_settled=not others,
        members=members,
        salt=salt,
    )


def preparing(number: int, capture: CaptureId) -> ReplicationSet:
    return ReplicationSet(span(number), SetState.PREPARE, None, {capture: Role.SECONDARY})


def moved(plan: Plan) -> list[CaptureId]:
    return [task.capture for task in plan.tasks if isinstance(task, MoveSpan)]


def test_basic_adds_in_batches_round_robin_over_those_who_take_spans_the_emptiest_first() -> None:
    cluster = scene({A: READY, B: READY, C: LEAVING}, {1: A}, missing=range(10, 20))
    plan = basic.plan(cluster, batch_size=3)
    assert plan == Plan((AddSpan(span(10), B), AddSpan(span(11), A), AddSpan(span(12), B)), is_burst=True)


def test_basic_when_nobody_takes_spans_adds_nothing() -> None:
    assert basic.plan(scene({A: NEW, B: LEAVING}, {}, missing=range(3)), batch_size=50).tasks == ()


def test_basic_removes_what_nobody_wants_once_it_replicates() -> None:
    cluster = scene({A: READY}, {1: A, 2: A}, others={3: preparing(3, A)}, unwanted=(2, 3))
    assert basic.plan(cluster, batch_size=50).tasks == (RemoveSpan(span(2)),)


def test_drain_moves_to_the_least_loaded_others_within_the_limit() -> None:
    cluster = scene({A: READY, B: READY, C: READY}, {1: B, 2: B, 3: B, 4: B, 5: A, 6: A})
    state, has = drain_capture.drain(DrainCapture(), cluster, B)
    state, plan = drain_capture.plan(state, cluster, limit=3)
    assert (state.target, has, len(plan.tasks)) == (B, 4, 3)
    assert moved(plan)[:2] == [C, C], "a has two spans already"


def test_drain_ends_when_the_target_is_empty_and_knows_that_it_leaves() -> None:
    empty_but_unaware = scene({A: READY, B: READY}, {1: A})
    assert drain_capture.plan(DrainCapture(B), empty_but_unaware, limit=9) == (DrainCapture(B), Plan())
    assert drain_capture.plan(DrainCapture(B), scene({A: READY, B: LEAVING}, {1: A}), limit=9) == (
        DrainCapture(),
        Plan(),
    )


def test_drain_while_another_span_is_stuck_moves_those_that_replicate() -> None:
    cluster = scene({A: READY, B: READY}, {1: B}, others={2: preparing(2, B)})
    assert drain_capture.plan(DrainCapture(B), cluster, limit=9) == (DrainCapture(B), Plan((MoveSpan(span(1), A),)))


def test_drain_of_a_capture_that_leaves_needs_no_order() -> None:
    state, plan = drain_capture.plan(DrainCapture(), scene({A: READY, B: LEAVING}, {1: B}), limit=9)
    assert (state.target, plan.tasks) == (B, (MoveSpan(span(1), A),))


def test_drain_when_the_owner_leaves_waits_for_the_next_owner() -> None:
    cluster = scene({A: LEAVING, B: READY}, {1: A}, owner=A)
    assert drain_capture.plan(DrainCapture(), cluster, limit=9) == (DrainCapture(), Plan())


def test_drain_when_the_target_is_gone_is_over() -> None:
    assert drain_capture.plan(DrainCapture(B), scene({A: READY, C: READY}, {1: A}), limit=9)[0] == DrainCapture()


@pytest.mark.parametrize(
    ("state", "captures", "target"),
    [
        (DrainCapture(), {A: READY, B: READY}, C),
        (DrainCapture(), {A: READY, B: READY}, A),
        (DrainCapture(), {B: READY}, B),
        (DrainCapture(C), {A: READY, B: READY, C: READY}, B),
    ],
    ids=["unknown", "owner", "only one", "another is drained"],
)
def test_drain_out_of_place_is_refused(
    state: DrainCapture, captures: dict[CaptureId, CaptureStatus], target: CaptureId
) -> None:
    with pytest.raises(DrainRefusedError):
        drain_capture.drain(state, scene(captures, {}), target)


@pytest.mark.parametrize(
    ("number", "to", "expected"),
    [
        (1, B, (MoveSpan(span(1), B),)),
        (1, A, ()),
        (1, C, ()),
        (1, CaptureId("gone"), ()),
        (2, B, ()),
        (9, B, ()),
    ],
    ids=["moves", "is there", "not initialized", "no such capture", "not replicating", "no such span"],
)
def test_move_table_is_done_or_dropped(number: int, to: CaptureId, expected: tuple[MoveSpan, ...]) -> None:
    cluster = scene({A: READY, B: READY, C: NEW}, {1: A}, others={2: preparing(2, A)})
    state, plan = move_table.plan(move_table.order(MoveTable(), span(number), to), cluster)
    assert (plan.tasks, dict(state.orders)) == (expected, {})


def test_move_table_second_order_for_a_span_is_dropped() -> None:
    state = move_table.order(move_table.order(MoveTable(), span(1), B), span(1), C)
    assert dict(state.orders) == {span(1): B}


def test_rebalance_is_one_burst_of_all_moves() -> None:
    cluster = scene({A: READY, B: READY, C: READY}, dict.fromkeys(range(30), A))
    state, plan = rebalance.plan(Rebalance(is_asked=True), cluster)
    assert (state.is_asked, plan.is_burst) == (False, True)
    assert sorted(moved(plan)) == [B] * 10 + [C] * 10


@pytest.mark.parametrize(
    "cluster",
    [
        scene({A: READY, B: LEAVING}, {1: A, 2: A}),
        scene({A: READY, B: READY}, {1: A, 2: A}, others={3: preparing(3, A)}),
        scene({A: READY, B: READY}, {1: A, 2: A}, missing=range(5, 6)),
    ],
    ids=["one leaves", "one prepares", "one is missing"],
)
def test_rebalance_waits_for_a_settled_cluster(cluster: Scene) -> None:
    assert rebalance.plan(Rebalance(is_asked=True), cluster) == (Rebalance(is_asked=True), Plan())


def test_balance_waits_its_interval_then_goes_on_while_there_is_something_to_move() -> None:
    cluster = scene({A: READY, B: READY}, dict.fromkeys(range(8), A))
    state, plans = Balance(2), []
    for _ in range(3):
        state, plan = balance.plan(state, cluster, interval_ticks=100, limit=2)
        plans.append(len(plan.tasks))
    assert (plans, state.ticks_left) == ([0, 0, 2], 0)
    even = scene({A: READY, B: READY}, {1: A, 2: B})
    state, plan = balance.plan(Balance(0), even, interval_ticks=100, limit=2)
    assert (state.ticks_left, plan) == (100, Plan())


def test_balance_looks_at_once_where_a_capture_has_joined() -> None:
    alone = scene({A: READY}, dict.fromkeys(range(6), A))
    state, plan = balance.plan(Balance(90), alone, interval_ticks=100, limit=9)
    assert (state.ticks_left, plan) == (89, Plan())
    joined = scene({A: READY, B: READY}, dict.fromkeys(range(6), A))
    state, plan = balance.plan(state, joined, interval_ticks=100, limit=9)
    assert {task.capture for task in plan.tasks if isinstance(task, MoveSpan)} == {B}
    assert len(plan.tasks) == 3


@pytest.mark.parametrize(
    ("shares", "moves"),
    [((4, 4, 2), 0), ((4, 4, 1), 2), ((9, 0, 0), 6), ((2, 1, 1), 0), ((0, 0, 0), 0)],
)
def test_balance_nobody_keeps_more_than_its_share_rounded_up(shares: tuple[int, ...], moves: int) -> None:
    numbers = iter(range(100))
    primaries = {next(numbers): who for who, share in zip((A, B, C), shares, strict=True) for _ in range(share)}
    planned = balance.balance_moves(scene({A: READY, B: READY, C: READY}, primaries), 99)
    assert len(planned) == moves
    after = [*primaries.values()]
    for move in planned:
        after.remove(primaries[move.span.table_id])
        after.append(move.capture)
    assert all(after.count(who) <= -(-len(after) // 3) for who in (A, B, C))


def test_balance_takes_other_spans_with_another_salt_and_the_same_with_the_same() -> None:
    picks = [
        balance.balance_moves(scene({A: READY, B: READY}, dict.fromkeys(range(40), A), salt=salt), 5)
        for salt in (1, 1, 2)
    ]
    assert picks[0] == picks[1] != picks[2]
