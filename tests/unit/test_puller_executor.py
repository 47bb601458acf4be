"""The puller as a table executor: when a span counts as prepared, what is reported of it, what overlaps it."""

from dataclasses import replace

from consumers.control.cluster.puller_executor import PullerExecutor
from consumers.control.core.frontier.frontier import first_record
from consumers.control.core.replication.messages import Checkpoint, TableState
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.frontier import FrontierRecord, HeldTables
from schemas.tidb.keys import table_span
from schemas.tidb.spans import TableSpan
from tests.support.reign_cluster import FakePuller

TABLE = TableId(45)
SPAN = TableSpan.of_table(TABLE)
START = Checkpoint(Ts(10), Ts(10))
PUBLISHED: FrontierRecord = replace(first_record(1, Ts(10), 1), resolved_ts=Ts(20))


def executor(published: FrontierRecord | None = PUBLISHED) -> tuple[PullerExecutor, FakePuller]:
    puller = FakePuller(CaptureId("a"))
    return PullerExecutor(puller, published), puller


def look(one: PullerExecutor, puller: FakePuller, landed: int) -> TableState:
    puller.landed = Ts(landed)
    one.look()
    one.is_add_finished(SPAN, is_prepare=True)
    return one.status(SPAN).state


def test_executor_span_is_prepared_once_it_has_landed_past_its_start_and_what_is_published() -> None:
    one, puller = executor()
    one.add_table_span(SPAN, START, is_prepare=True)
    states = [look(one, puller, landed) for landed in (10, 15, 20)]
    assert states == [TableState.PREPARING, TableState.PREPARING, TableState.PREPARED]
    one.published(replace(PUBLISHED, resolved_ts=Ts(30)))
    assert look(one, puller, 20) is TableState.PREPARED, "the frontier goes on meanwhile"
    one.add_table_span(SPAN, START, is_prepare=False)
    assert one.is_add_finished(SPAN, is_prepare=False)
    assert puller.starts == {SPAN: 10}, "a primary lands on as it did"


def test_executor_span_of_a_held_table_is_prepared_where_its_table_is_published() -> None:
    one, puller = executor(replace(PUBLISHED, held=(HeldTables(tables=(TABLE,), ts=Ts(12), low=(0,)),)))
    one.add_table_span(SPAN, START, is_prepare=True)
    assert [look(one, puller, landed) for landed in (11, 12)] == [TableState.PREPARING, TableState.PREPARED]
    assert one.status(SPAN).checkpoint == Checkpoint(Ts(12), Ts(12))


def test_executor_checkpoint_is_what_is_published_and_resolved_ts_what_has_landed() -> None:
    one, puller = executor()
    one.add_table_span(SPAN, START, is_prepare=True)
    look(one, puller, 40)
    assert one.status(SPAN).checkpoint == Checkpoint(Ts(20), Ts(40))
    look(one, puller, 50)
    one.remove_table_span(SPAN)
    assert (one.status(SPAN).state, puller.starts) == (TableState.STOPPED, {})
    assert one.is_remove_finished(SPAN) == Checkpoint(Ts(20), Ts(50))
    assert list(one.current_spans()) == []


def test_executor_span_that_starts_anew_is_not_judged_by_what_it_had_landed_before() -> None:
    one, puller = executor()
    one.add_table_span(SPAN, START, is_prepare=True)
    assert look(one, puller, 40) is TableState.PREPARED
    one.remove_table_span(SPAN)
    one.is_remove_finished(SPAN)
    one.add_table_span(SPAN, START, is_prepare=True)
    assert not one.is_add_finished(SPAN, is_prepare=True)
    assert one.status(SPAN).checkpoint.resolved_ts == 10


def test_executor_span_that_overlaps_ends_the_other_one() -> None:
    one, _ = executor()
    one.add_table_span(SPAN, START, is_prepare=True)
    start, _ = table_span(TABLE)
    part = TableSpan(TABLE, start, start + b"m")
    one.add_table_span(part, START, is_prepare=True)
    assert list(one.current_spans()) == [part]
    one.drop_all()
    assert list(one.current_spans()) == []
