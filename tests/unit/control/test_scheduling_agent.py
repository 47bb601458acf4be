"""The agent's rules (docs/formats/cluster.md §6): one task a span, what each state answers, whom it obeys."""

import itertools
from dataclasses import dataclass, field

import pytest

from consumers.control.core.replication.messages import (
    AddTableRequest,
    AddTableResponse,
    Barrier,
    Checkpoint,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Liveness,
    Message,
    RemoveTableRequest,
    RemoveTableResponse,
    Request,
    Response,
    TableState,
)
from consumers.control.core.scheduling.agent import Agent
from schemas.ids import CaptureId, TableId, Ts
from schemas.tidb.spans import TableSpan
from tests.support.upstream.scripted_executor import ScriptedExecutor

ME, OWNER, NEXT = CaptureId("me"), CaptureId("owner"), CaptureId("next")
SPAN, OTHER = TableSpan.of_table(TableId(7)), TableSpan.of_table(TableId(8))
START = Checkpoint(Ts(10), Ts(10))
_sequence = itertools.count()


@dataclass(slots=True)
class Bench:
    """An agent that knows of revision 5, and its executor."""

    executor: ScriptedExecutor = field(default_factory=ScriptedExecutor)
    agent: Agent = field(init=False)

    def __post_init__(self) -> None:
        self.agent = Agent(ME, "0.1.0", "uuid", 1, self.executor, 5)

    def ask(
        self, *bodies: Request, sender: CaptureId = OWNER, revision: int = 5, feed: int = 1, epoch: str = ""
    ) -> list[Response]:
        header = Header("0.1.0", revision, epoch, feed)
        answers = self.agent.tick(Message(header, sender, ME, next(_sequence), body) for body in bodies)
        responses: list[Response] = []
        for answer in answers:
            assert isinstance(answer.body, Response)
            assert answer.receiver == self.agent.owner
            responses.append(answer.body)
        return responses


def states(answers: list[Response]) -> list[tuple[str, TableState]]:
    pairs: list[tuple[str, TableState]] = []
    for answer in answers:
        if isinstance(answer, HeartbeatResponse):
            pairs += [("beat", status.state) for status in answer.tables]
        else:
            pairs.append(("add" if isinstance(answer, AddTableResponse) else "remove", answer.status.state))
    return pairs


def add(*, is_secondary: bool, ts: int = 10) -> AddTableRequest:
    return AddTableRequest(SPAN, is_secondary, Checkpoint(Ts(ts), Ts(ts)))


def test_agent_add_secondary_is_silent_until_prepared() -> None:
    bench = Bench()
    assert bench.ask(add(is_secondary=True)) == []
    assert bench.ask() == []
    bench.executor.states[SPAN] = TableState.PREPARED
    assert states(bench.ask()) == [("add", TableState.PREPARED)]
    assert bench.ask() == [], "done"
    assert bench.executor.calls == [("prepare", SPAN, 10)]


def test_agent_add_primary_starts_at_the_requests_checkpoint_and_reports_until_it_replicates() -> None:
    bench = Bench()
    bench.ask(add(is_secondary=True))
    bench.executor.states[SPAN] = TableState.PREPARED
    bench.ask()
    assert states(bench.ask(add(is_secondary=False, ts=30))) == [("add", TableState.PREPARED)]
    assert states(bench.ask(add(is_secondary=False, ts=30))) == [("add", TableState.PREPARED)]
    bench.executor.states[SPAN] = TableState.REPLICATING
    assert states(bench.ask()) == [("add", TableState.REPLICATING)]
    assert bench.executor.calls == [("prepare", SPAN, 10), ("write", SPAN, 30)]


@pytest.mark.parametrize("is_secondary", [True, False])
@pytest.mark.parametrize("state", [TableState.REPLICATING, TableState.STOPPING, TableState.STOPPED])
def test_agent_add_where_there_is_nothing_to_do_just_reports(state: TableState, is_secondary: bool) -> None:
    bench = Bench()
    bench.executor.states[SPAN], bench.executor.checkpoints[SPAN] = state, START
    assert states(bench.ask(add(is_secondary=is_secondary))) == [("add", state)]
    assert bench.executor.calls == []


def test_agent_remove_reports_stopping_until_it_has_stopped_then_the_final_checkpoint() -> None:
    bench = Bench()
    bench.executor.states[SPAN] = TableState.REPLICATING
    bench.executor.checkpoints[SPAN] = Checkpoint(Ts(44), Ts(0))
    assert states(bench.ask(RemoveTableRequest(SPAN))) == [("remove", TableState.STOPPING)]
    assert states(bench.ask(RemoveTableRequest(SPAN))) == [("remove", TableState.STOPPING)]
    bench.executor.states[SPAN] = TableState.STOPPED
    (answer,) = bench.ask()
    assert isinstance(answer, RemoveTableResponse)
    assert (answer.status.state, answer.status.checkpoint) == (TableState.STOPPED, Checkpoint(Ts(44), Ts(44)))
    assert states(bench.ask(RemoveTableRequest(SPAN))) == [("remove", TableState.ABSENT)]
    assert bench.executor.calls == [("remove", SPAN, 0)]


def test_agent_second_request_for_a_span_with_a_task_is_ignored() -> None:
    bench = Bench()
    bench.ask(add(is_secondary=True), RemoveTableRequest(SPAN), add(is_secondary=False, ts=99))
    bench.executor.states[SPAN] = TableState.PREPARED
    assert states(bench.ask()) == [("add", TableState.PREPARED)]
    assert bench.executor.calls == [("prepare", SPAN, 10)]


def test_agent_heartbeat_tells_of_all_spans_and_of_those_it_has_not() -> None:
    bench = Bench()
    bench.executor.states[SPAN], bench.executor.checkpoints[SPAN] = TableState.REPLICATING, START
    assert states(bench.ask(Heartbeat((OTHER,)))) == [("beat", TableState.ABSENT), ("beat", TableState.REPLICATING)]
    assert states(bench.ask(Heartbeat((OTHER,), all_spans=False))) == [("beat", TableState.ABSENT)]


def test_agent_heartbeat_in_the_tick_of_an_add_never_says_absent() -> None:
    bench = Bench()
    assert states(bench.ask(Heartbeat(), add(is_secondary=True))) == [("beat", TableState.PREPARING)]


def test_agent_heartbeat_while_a_remove_is_under_way_says_stopping() -> None:
    bench = Bench()
    bench.executor.states[SPAN], bench.executor.checkpoints[SPAN] = TableState.REPLICATING, START
    bench.ask(RemoveTableRequest(SPAN))
    bench.executor.states[SPAN] = TableState.REPLICATING
    assert ("beat", TableState.STOPPING) in states(bench.ask(Heartbeat()))


def test_agent_heartbeat_carries_barrier_and_stats_and_drain() -> None:
    bench = Bench()
    bench.executor.states[SPAN], bench.executor.checkpoints[SPAN] = TableState.REPLICATING, START
    (answer,) = bench.ask(Heartbeat(is_stopping=True, collect_stats=True, barrier=Barrier(Ts(77))))
    assert isinstance(answer, HeartbeatResponse)
    assert answer.tables[0].stats is not None
    assert (answer.liveness, bench.agent.barrier) == (Liveness.STOPPING, Barrier(Ts(77)))
    (answer,) = bench.ask(Heartbeat())
    assert isinstance(answer, HeartbeatResponse)
    assert answer.liveness is Liveness.STOPPING, "never back"


def test_agent_obeys_no_owner_of_before_its_registration() -> None:
    bench = Bench()
    assert bench.ask(add(is_secondary=True), revision=4) == []
    assert bench.executor.calls == []


def test_agent_once_a_new_owner_has_spoken_refuses_the_old_one() -> None:
    bench = Bench()
    bench.ask(Heartbeat())
    assert states(bench.ask(Heartbeat((SPAN,)), sender=NEXT, revision=6)) == [("beat", TableState.ABSENT)]
    assert bench.ask(add(is_secondary=True), Heartbeat()) == []
    assert (bench.executor.calls, bench.agent.owner_revision) == ([], 6)


def test_agent_when_owners_change_within_a_tick_answers_the_new_one_only() -> None:
    """The old owner's question was of one span; its answer must not pass for all that the new one is to know."""
    bench = Bench()
    bench.executor.states = {SPAN: TableState.REPLICATING, OTHER: TableState.REPLICATING}
    bench.executor.checkpoints = {SPAN: START, OTHER: START}
    answers = bench.agent.tick(
        [
            Message(Header("0.1.0", 5, "", 1), OWNER, ME, next(_sequence), Heartbeat((SPAN,), all_spans=False)),
            Message(Header("0.1.0", 6, "", 1), NEXT, ME, next(_sequence), Heartbeat()),
        ]
    )
    assert [(answer.receiver, answer.header.owner_revision) for answer in answers] == [(NEXT, 6)]
    assert isinstance(answers[0].body, HeartbeatResponse)
    assert {status.span for status in answers[0].body.tables} == {SPAN, OTHER}


@pytest.mark.parametrize(("feed", "epoch"), [(2, ""), (1, "another.5")], ids=["changefeed epoch", "processor epoch"])
def test_agent_add_for_another_start_is_ignored(feed: int, epoch: str) -> None:
    bench = Bench()
    bench.ask(Heartbeat())
    bench.ask(add(is_secondary=True), feed=feed, epoch=epoch)
    assert bench.executor.calls == []


def test_agent_has_a_new_processor_epoch_for_each_owner() -> None:
    bench = Bench()
    bench.ask(Heartbeat())
    first = bench.agent.processor_epoch
    bench.ask(Heartbeat(), sender=NEXT, revision=6)
    assert first != bench.agent.processor_epoch
    bench.ask(add(is_secondary=True), sender=NEXT, revision=6, epoch=bench.agent.processor_epoch)
    assert bench.executor.calls == [("prepare", SPAN, 10)]
