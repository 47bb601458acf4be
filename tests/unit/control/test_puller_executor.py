"""The puller as a table executor: when a span counts as prepared, what is reported of it, what overlaps it."""

from dataclasses import replace

from consumers.control.cluster.puller_executor import PullerExecutor
from consumers.control.core.frontier.frontier import first_record
from consumers.control.core.replication.messages import Checkpoint, TableState
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.frontier import FrontierRecord, HeldTables
from schemas.tidb.keys import table_span
from schemas.tidb.spans import TableSpan
from tests.support.control.reign_cluster import FakePuller

TABLE = TableId(45)
SPAN = TableSpan.of_table(TABLE)
START = Checkpoint(Ts(10), Ts(10))
PUBLISHED: FrontierRecord = replace(first_record(1, Ts(10), 1), resolved_ts=Ts(20))


def new_executor(published: FrontierRecord | None = PUBLISHED) -> tuple[PullerExecutor, FakePuller]:
    puller = FakePuller(CaptureId("a"))
    return PullerExecutor(puller, published), puller


def look(executor: PullerExecutor, puller: FakePuller, landed: int) -> TableState:
    puller.landed = Ts(landed)
    executor.look()
    executor.is_add_finished(SPAN, is_prepare=True)
    return executor.status(SPAN).state


def test_executor_span_is_prepared_once_it_has_landed_past_its_start_and_what_is_published() -> None:
    executor, puller = new_executor()
    executor.add_table_span(SPAN, START, is_prepare=True)
    states = [look(executor, puller, landed) for landed in (10, 15, 20)]
    assert states == [TableState.PREPARING, TableState.PREPARING, TableState.PREPARED]
    executor.published(replace(PUBLISHED, resolved_ts=Ts(30)))
    assert look(executor, puller, 20) is TableState.PREPARED, "the frontier goes on meanwhile"
    executor.add_table_span(SPAN, START, is_prepare=False)
    assert executor.is_add_finished(SPAN, is_prepare=False)
    assert puller.starts == {SPAN: 10}, "a primary lands on as it did"


def test_executor_span_of_a_held_table_is_prepared_where_its_table_is_published() -> None:
    executor, puller = new_executor(replace(PUBLISHED, held=(HeldTables(tables=(TABLE,), ts=Ts(12), low=(0,)),)))
    executor.add_table_span(SPAN, START, is_prepare=True)
    assert [look(executor, puller, landed) for landed in (11, 12)] == [TableState.PREPARING, TableState.PREPARED]
    assert executor.status(SPAN).checkpoint == Checkpoint(Ts(12), Ts(12))


def test_executor_checkpoint_is_what_is_published_and_resolved_ts_what_has_landed() -> None:
    executor, puller = new_executor()
    executor.add_table_span(SPAN, START, is_prepare=True)
    look(executor, puller, 40)
    assert executor.status(SPAN).checkpoint == Checkpoint(Ts(20), Ts(40))
    look(executor, puller, 50)
    executor.remove_table_span(SPAN)
    assert (executor.status(SPAN).state, puller.starts) == (TableState.STOPPED, {})
    assert executor.is_remove_finished(SPAN) == Checkpoint(Ts(20), Ts(50))
    assert list(executor.current_spans()) == []


def test_executor_span_that_starts_anew_is_not_judged_by_what_it_had_landed_before() -> None:
    executor, puller = new_executor()
    executor.add_table_span(SPAN, START, is_prepare=True)
    assert look(executor, puller, 40) is TableState.PREPARED
    executor.remove_table_span(SPAN)
    executor.is_remove_finished(SPAN)
    executor.add_table_span(SPAN, START, is_prepare=True)
    assert not executor.is_add_finished(SPAN, is_prepare=True)
    assert executor.status(SPAN).checkpoint.resolved_ts == 10


def test_executor_span_that_overlaps_ends_the_other_one() -> None:
    executor, _ = new_executor()
    executor.add_table_span(SPAN, START, is_prepare=True)
    start, _ = table_span(TABLE)
    part = TableSpan(TABLE, start, start + b"m")
    executor.add_table_span(part, START, is_prepare=True)
    assert list(executor.current_spans()) == [part]
    executor.drop_all()
    assert list(executor.current_spans()) == []
