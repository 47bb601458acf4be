"""The DDL barrier: one begin, one run, one finish, in this order, whoever comes when and whatever was noted before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.processors.core.apply.barrier import (
    Checked,
    DdlBarrier,
    DdlBegun,
    Finished,
    Message,
    Order,
    Phase,
    Ran,
    Skipped,
    Stands,
    step,
)
from consumers.processors.core.apply.syncpoint import first_syncpoint, next_syncpoint
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts, compose_ts, physical_ms

PARTITIONS = (0, 1, 2)
DDL, OTHER = b"ddl", b"other"


def _all(messages: list[Message], noted: bytes | None = None) -> list[Phase]:
    state, orders = DdlBarrier(frozenset(PARTITIONS), noted=noted), list[Order]()
    for message in messages:
        state, out = step(state, message)
        orders += out
    assert all(order.position == DDL for order in orders)
    return [order.phase for order in orders]


@given(st.lists(st.sampled_from(PARTITIONS)).flatmap(lambda repeats: st.permutations([*repeats, *PARTITIONS])))
def test_barrier_any_order_of_partitions_begins_once(stands: list[int]) -> None:
    assert _all([Stands(partition, DDL) for partition in stands]) == [Phase.BEGIN]


def test_barrier_one_partition_short_orders_nothing() -> None:
    assert _all([Stands(0, DDL), Stands(1, DDL), Stands(1, DDL)]) == []


ALL: list[Message] = [Stands(partition, DDL) for partition in PARTITIONS]


def test_barrier_runs_between_begin_and_finish_and_lets_go_at_last() -> None:
    assert _all([*ALL, DdlBegun(), Ran(), Finished()]) == [Phase.BEGIN, Phase.RUN, Phase.FINISH, Phase.GATHER]


@pytest.mark.parametrize(("has_run", "next_phase"), [(True, Phase.FINISH), (False, Phase.RUN)])
def test_barrier_that_was_begun_before_is_checked_and_not_begun_again(has_run: bool, next_phase: Phase) -> None:
    assert _all([*ALL, Checked(has_run)], noted=DDL) == [Phase.CHECK, next_phase]


def test_barrier_with_another_ddl_noted_begins_its_own() -> None:
    assert _all(ALL, noted=OTHER) == [Phase.BEGIN]


@pytest.mark.parametrize("noted", [None, DDL])
def test_barrier_skipped_is_finished_without_a_run(noted: bytes | None) -> None:
    assert _all([*ALL, Skipped(), Finished()], noted=noted)[1:] == [Phase.FINISH, Phase.GATHER]


def test_barrier_let_go_takes_the_next_ddl_and_forgets_what_was_noted() -> None:
    state = DdlBarrier(frozenset(PARTITIONS), noted=DDL)
    for message in [*ALL, Checked(has_run=True), Finished()]:
        state, _ = step(state, message)
    assert state == DdlBarrier(frozenset(PARTITIONS), passed=DDL)


def test_barrier_told_late_of_what_has_passed_stays_as_it_is() -> None:
    passed = DdlBarrier(frozenset(PARTITIONS), passed=DDL)
    assert step(passed, Stands(1, DDL)) == (passed, ())


@pytest.mark.parametrize(
    "messages",
    [
        [Stands(9, DDL)],
        [Stands(0, DDL), Stands(1, OTHER)],
        [DdlBegun()],
        [*ALL, Ran()],
        [*ALL, DdlBegun(), Finished()],
        [*ALL, DdlBegun(), Skipped()],
    ],
)
def test_barrier_what_cannot_happen_raises(messages: list[Message]) -> None:
    with pytest.raises(InvariantBrokenError):
        _all(messages)


@given(st.integers(1, 2**40), st.integers(0, 2**18 - 1), st.integers(30, 3600))
def test_syncpoints_are_whole_intervals_from_the_start_on(start_ms: int, logical: int, interval_s: int) -> None:
    start_ts = compose_ts(start_ms, logical)
    first = first_syncpoint(start_ts, interval_s)
    assert first >= start_ts
    assert physical_ms(first) % (interval_s * 1000) == 0
    assert physical_ms(first) - start_ms <= interval_s * 1000
    following = next_syncpoint(first, start_ts, interval_s)
    assert physical_ms(following) - physical_ms(first) == interval_s * 1000
    assert next_syncpoint(Ts(0), start_ts, interval_s) == first
