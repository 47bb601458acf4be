"""The machines of a changefeed's processors: barriers over all, partitions that come and go, the law of the four ts."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.control.core.replication.messages import (
    Barrier,
    Checkpoint,
    Header,
    HeartbeatResponse,
    Message,
    Standing,
    TableState,
    TableStatus,
)
from consumers.control.core.scheduling.coordinator import Identity
from consumers.processors.core.apply.barrier import DdlBegun, Finished, Phase, Ran
from consumers.processors.core.apply.barriers import (
    NO_BARRIER,
    Answer,
    Barriers,
    DdlStep,
    SyncpointWritten,
    WriteSyncpoint,
)
from consumers.processors.core.apply.executor import PartitionExecutor, PartitionProgress, Work, partition_span
from consumers.processors.core.apply.leader import Leader
from consumers.processors.core.apply.prefetch import Prefetch
from schemas.errors import InvariantBrokenError
from schemas.ids import CaptureId, Ts
from schemas.sink.position import Position, PositionClass
from schemas.sink_figures import SinkFigures, Spread

PARTITIONS = frozenset((0, 1, 2))


def _ddl(ts: int) -> bytes:
    return Position(Ts(ts), PositionClass.DDL, Ts(ts - 1), key=bytes(4)).encode()


FIRST, SECOND = _ddl(10), _ddl(20)
STEPS: list[tuple[Phase, Answer]] = [(Phase.BEGIN, DdlBegun()), (Phase.RUN, Ran()), (Phase.FINISH, Finished())]


def _run(barriers: Barriers, position: bytes) -> None:
    """Take a DDL through all its steps."""
    for phase, answer in STEPS:
        order = barriers.order()
        assert isinstance(order, DdlStep)
        assert (order.phase, order.position, set(order.offsets)) == (phase, position, set(PARTITIONS))
        assert barriers.order() is None, "one at a time"
        barriers.answer(answer)


# Barriers.


TOLD = st.lists(st.sampled_from(sorted(PARTITIONS))).flatmap(lambda more: st.permutations([*more, *PARTITIONS]))


@given(TOLD, TOLD)
def test_barriers_told_in_any_order_and_late_run_each_ddl_once_all_stand(first: list[int], second: list[int]) -> None:
    barriers = Barriers(PARTITIONS)
    for position, partitions in ((FIRST, first), (SECOND, second)):
        for number, partition in enumerate(partitions):
            if PARTITIONS - set(partitions[:number]):
                assert barriers.order() is None
            barriers.stand(partition, ddl=position, offset=number, barrier_ts=Ts(0))
            if position == SECOND:
                barriers.stand(partition, ddl=FIRST, offset=number, barrier_ts=Ts(0))  # somebody is late
        _run(barriers, position)
        assert barriers.passed_ddl == position
        assert barriers.order() is None
    assert barriers.ddls_total == 2


def test_barriers_of_the_next_leader_go_on_with_what_was_noted() -> None:
    barriers = Barriers(PARTITIONS, noted=SECOND, passed=FIRST)
    for partition in PARTITIONS:
        barriers.stand(partition, ddl=FIRST, offset=1, barrier_ts=Ts(0))
    assert barriers.order() is None, "that one has passed"
    for partition in PARTITIONS:
        barriers.stand(partition, ddl=SECOND, offset=2, barrier_ts=Ts(0))
    order = barriers.order()
    assert isinstance(order, DdlStep)
    assert (order.phase, order.offsets) == (Phase.CHECK, dict.fromkeys(PARTITIONS, 2))


def test_barriers_write_a_syncpoint_after_the_ddls_below_it_and_before_those_above() -> None:
    barriers = Barriers(PARTITIONS, next_syncpoint=lambda last: Ts(last + 15) if last < 30 else None)
    assert barriers.barrier_ts == 15
    for partition in PARTITIONS:
        barriers.stand(partition, ddl=FIRST, offset=1, barrier_ts=Ts(0))
    _run(barriers, FIRST)
    for partition in PARTITIONS:
        assert barriers.order() is None
        barriers.stand(partition, ddl=SECOND, offset=2, barrier_ts=Ts(15))
    assert barriers.order() == WriteSyncpoint(Ts(15))
    assert barriers.barrier_ts == 15, "until it is written"
    barriers.answer(SyncpointWritten())
    assert barriers.barrier_ts == 30
    _run(barriers, SECOND)
    for partition in PARTITIONS:
        barriers.stand(partition, ddl=b"", offset=0, barrier_ts=Ts(30))
    assert barriers.order() == WriteSyncpoint(Ts(30))
    barriers.answer(SyncpointWritten())
    assert (barriers.barrier_ts, barriers.order()) == (NO_BARRIER, None)


def test_barriers_answered_what_was_not_ordered_raise() -> None:
    with pytest.raises(InvariantBrokenError):
        Barriers(PARTITIONS).answer(SyncpointWritten())


# Partitions of one processor.

SPAN = partition_span(1)
START = Checkpoint(Ts(5), Ts(5))


@dataclass
class Known:
    """The leader, as an agent knows it."""

    owner_revision: int = 7
    barrier: Barrier | None = Barrier(Ts(99), resolved_ts=Ts(8))


@dataclass
class AllAt:
    """Work that is equally far everywhere."""

    at: PartitionProgress

    def progress(self, partition: int) -> PartitionProgress:
        return self.at


FIGURES = SinkFigures(flushes_us=Spread((1,), 5), batch_rows=Spread((0, 1), 2))


def _executor(applied_ts: int = 9, read_ts: int = 20) -> PartitionExecutor:
    works = AllAt(
        PartitionProgress(
            applied_ts=Ts(applied_ts),
            read_ts=Ts(read_ts),
            ddl=FIRST,
            ddl_offset=3,
            rows_total=4,
            windows_proven=5,
            windows_unproven=1,
            sink=FIGURES,
        )
    )
    return PartitionExecutor(works, Known())


def _done(executor: PartitionExecutor, *works: Work) -> None:
    orders = executor.take_orders()
    assert [order.work for order in orders] == list(works)
    for order in orders:
        executor.done(order)


def test_executor_takes_a_partition_over_in_two_phases_and_gives_it_back() -> None:
    executor = _executor()
    executor.add_table_span(SPAN, START, is_prepare=True)
    assert executor.status(SPAN) == TableStatus(SPAN, TableState.PREPARING, START)
    _done(executor, Work.LOCATE)
    assert executor.is_add_finished(SPAN, is_prepare=True)
    executor.add_table_span(SPAN, START, is_prepare=False)
    executor.add_table_span(SPAN, START, is_prepare=False)
    assert executor.status(SPAN).state is TableState.PREPARED
    (order,) = executor.take_orders()
    assert (order.work, order.revision) == (Work.OPEN, 7)
    executor.done(order)
    assert executor.is_add_finished(SPAN, is_prepare=False)
    standing = Standing(ddl=FIRST, offset=3, rows_total=4, windows_proven=5, windows_unproven=1, sink=FIGURES)
    announced = TableStatus(SPAN, TableState.REPLICATING, Checkpoint(Ts(8), Ts(20)), standing=standing)
    assert executor.status(SPAN) == announced, "no checkpoint above what the leader has announced"
    executor.remove_table_span(SPAN)
    assert executor.is_remove_finished(SPAN) is None
    _done(executor, Work.END)
    assert executor.is_remove_finished(SPAN) == Checkpoint(Ts(8), Ts(20))
    _done(executor, Work.FORGET)
    assert not executor.current_spans()


def test_executor_removed_while_it_locates_drops_the_answer_also_when_added_again() -> None:
    executor = _executor()
    executor.add_table_span(SPAN, START, is_prepare=True)
    (late,) = executor.take_orders()
    executor.remove_table_span(SPAN)
    assert executor.is_remove_finished(SPAN) == START
    executor.add_table_span(SPAN, START, is_prepare=True)
    assert not executor.done(late)
    assert not executor.is_add_finished(SPAN, is_prepare=True)
    _done(executor, Work.FORGET, Work.LOCATE)
    assert executor.is_add_finished(SPAN, is_prepare=True)


def test_executor_removed_while_it_opens_ends_what_it_has_opened() -> None:
    executor = _executor()
    executor.add_table_span(SPAN, START, is_prepare=True)
    _done(executor, Work.LOCATE)
    executor.add_table_span(SPAN, START, is_prepare=False)
    executor.remove_table_span(SPAN)
    assert executor.is_remove_finished(SPAN) is None
    _done(executor, Work.OPEN)
    assert executor.status(SPAN).state is TableState.STOPPING
    _done(executor, Work.END)
    assert executor.is_remove_finished(SPAN) is not None


# The leader.

ME, OTHER = CaptureId("me"), CaptureId("other")
IDENTITY = Identity(capture=ME, version="1", owner_revision=3, changefeed_epoch=0)


@dataclass
class Partitions:
    """All partitions on one processor that says what the test says."""

    leader: Leader
    sequence: int = 0

    def tell(self, *statuses: TableStatus) -> list[Message]:
        self.sequence += 1
        body = HeartbeatResponse(statuses)
        message = Message(Header("1", 3, "e", 0), OTHER, ME, self.sequence, body)
        return self.leader.tick([message], alive=frozenset((OTHER,)), salt=self.sequence)

    def all_at(self, resolved_ts: dict[int, int], checkpoint_ts: dict[int, int]) -> None:
        self.tell(
            *(
                TableStatus(
                    partition_span(part),
                    TableState.REPLICATING,
                    Checkpoint(Ts(checkpoint_ts[part]), Ts(resolved_ts[part])),
                    standing=Standing(),
                )
                for part in PARTITIONS
            )
        )


def _led() -> Partitions:
    return Partitions(Leader(IDENTITY, Ts(5), Barriers(PARTITIONS)))


def test_leader_announces_the_least_resolved_ts_and_takes_checkpoints_up_to_it() -> None:
    led = _led()
    led.all_at({0: 9, 1: 8, 2: 7}, dict.fromkeys(PARTITIONS, 5))
    assert led.leader.checkpoint == Checkpoint(Ts(5), Ts(7))
    led.all_at({0: 9, 1: 8, 2: 8}, {0: 6, 1: 7, 2: 7})
    assert led.leader.checkpoint == Checkpoint(Ts(6), Ts(8))


@given(
    st.lists(
        st.tuples(st.fixed_dictionaries({part: st.integers(5, 30) for part in PARTITIONS}), st.integers(0, 30)),
        max_size=10,
    )
)
def test_leader_law_holds_whatever_processors_have_read_that_count_only_what_is_announced(
    reads: list[tuple[dict[int, int], int]],
) -> None:
    led, resolved = _led(), dict.fromkeys(PARTITIONS, 5)
    for read, applied in reads:
        resolved = {part: max(resolved[part], read[part]) for part in PARTITIONS}
        announced = led.leader.checkpoint.resolved_ts
        before = led.leader.checkpoint
        led.all_at(resolved, {part: min(applied, resolved[part], announced) for part in PARTITIONS})
        assert led.leader.checkpoint.checkpoint_ts >= before.checkpoint_ts
        assert led.leader.checkpoint.resolved_ts >= before.resolved_ts


def test_leader_told_of_a_checkpoint_above_what_it_has_announced_raises() -> None:
    led = _led()
    led.all_at({0: 9, 1: 9, 2: 7}, dict.fromkeys(PARTITIONS, 5))
    with pytest.raises(InvariantBrokenError, match="order of their ts"):
        led.all_at({0: 9, 1: 9, 2: 7}, {0: 9, 1: 5, 2: 5})


def test_leader_adds_up_windows_of_all_partitions_and_forgets_none_that_it_heard_of_late() -> None:
    led = _led()
    led.all_at(dict.fromkeys(PARTITIONS, 5), dict.fromkeys(PARTITIONS, 5))
    for proven, unproven in ((3, 1), (2, 1)):
        standing = Standing(windows_proven=proven, windows_unproven=unproven)
        led.tell(*(TableStatus(partition_span(part), TableState.REPLICATING, START, standing=standing)
                   for part in (0, 1)))  # fmt: skip
    assert led.leader.windows == (6, 2)


def test_leader_adds_up_what_processors_count_and_forgets_nothing_that_it_heard_of_late() -> None:
    led = _led()
    led.all_at(dict.fromkeys(PARTITIONS, 5), dict.fromkeys(PARTITIONS, 5))
    for writes in (3, 2):
        standing = Standing(sink=replace(FIGURES, flushes_us=Spread((writes,), 7 * writes), files=writes))
        led.tell(*(TableStatus(partition_span(part), TableState.REPLICATING, START, standing=standing)
                   for part in (0, 1)))  # fmt: skip
    assert led.leader.figures == SinkFigures(flushes_us=Spread((6,), 42), batch_rows=Spread((0, 2), 4), files=6)


def test_leader_hears_of_a_ddl_from_a_processor_that_is_gone_since() -> None:
    led = _led()
    led.all_at(dict.fromkeys(PARTITIONS, 5), dict.fromkeys(PARTITIONS, 5))
    standing = Standing(ddl=FIRST, offset=1)
    led.tell(*(TableStatus(partition_span(part), TableState.REPLICATING, START, standing=standing) for part in (0, 1)))
    gone = Message(
        Header("1", 3, "e", 0),
        CaptureId("gone"),
        ME,
        1,
        HeartbeatResponse((TableStatus(partition_span(2), TableState.STOPPING, START, standing=standing),)),
    )
    assert led.leader.barriers.order() is None
    led.leader.tick([gone], alive=frozenset((OTHER,)), salt=0)
    assert isinstance(led.leader.barriers.order(), DdlStep)


# What is read ahead.


@dataclass(frozen=True)
class Record:
    offset: int
    value: bytes = b"x"


@given(st.integers(0, 20), st.lists(st.booleans(), max_size=10), st.integers(0, 40))
def test_prefetch_gives_all_records_from_an_offset_on_or_none(start: int, there: list[bool], offset: int) -> None:
    """Offsets may be left out, as of records that a broker keeps for itself. The record right before comes too, where
    it was read: its fence tells who wrote last.
    """
    ahead = Prefetch[Record](start)
    read = [Record(start + number) for number, is_there in enumerate(there) if is_there]
    for record in read:
        ahead.add(record)
    taken = ahead.take(offset)
    if taken is None:
        assert offset < start or offset > (read[-1].offset + 1 if read else start)
    else:
        assert [record for record in taken if record.offset >= offset] == [
            record for record in read if record.offset >= offset
        ]
        assert [record for record in taken if record.offset < offset] == [
            record for record in read if record.offset + 1 == offset
        ]
        assert offset >= start
