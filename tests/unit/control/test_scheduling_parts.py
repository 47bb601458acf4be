"""The small rules around the scheduling: what is stale, in which order messages count, who may work together, who is
known, what is covered, and how far everything is."""

import pytest

from consumers.control.core.replication.captures import CaptureSet, CaptureState
from consumers.control.core.replication.cover import OverlappingSpansError, find_holes, wanted_spans
from consumers.control.core.replication.inbox import Inbox
from consumers.control.core.replication.messages import (
    NOTHING,
    Barrier,
    Checkpoint,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Liveness,
    Message,
    TableState,
    TableStatus,
)
from consumers.control.core.replication.progress import advance_checkpoint
from consumers.control.core.replication.replication_set import ReplicationSet
from consumers.control.core.replication.staleness import (
    Known,
    TwoOwnersError,
    Verdict,
    is_for_owner,
    is_same_epoch,
    judge_owner,
)
from consumers.control.core.replication.versions import VersionMismatchError, check_versions
from schemas.ids import CaptureId, TableId, Ts
from schemas.tidb.spans import TableSpan

A, B, C = (CaptureId(name) for name in "abc")
T = TableId(7)


def header(revision: int = 5, feed: int = 1, epoch: str = "") -> Header:
    return Header("0.1.0", revision, epoch, feed)


# Staleness (docs/formats/cluster.md §5.3).


@pytest.mark.parametrize(
    ("known", "sender", "revision", "expected"),
    [
        (Known(A, 5), A, 5, Verdict.TAKE),
        (Known(A, 5), A, 4, Verdict.DROP),
        (Known(A, 5), B, 4, Verdict.DROP),
        (Known(A, 5), B, 6, Verdict.ADOPT),
        (Known(A, 5), A, 6, Verdict.ADOPT),
        (Known(None, 5), A, 5, Verdict.ADOPT),
        (Known(None, 5), A, 4, Verdict.DROP),
    ],
)
def test_agent_obeys_the_highest_owner_revision(
    known: Known, sender: CaptureId, revision: int, expected: Verdict
) -> None:
    assert judge_owner(known, sender, header(revision)) is expected


def test_agent_when_two_owners_have_one_revision_stops() -> None:
    with pytest.raises(TwoOwnersError):
        judge_owner(Known(A, 5), B, header(5))


@pytest.mark.parametrize(
    ("answer", "receiver", "expected"),
    [
        (header(5, 1), A, True),
        (header(4, 1), A, False),
        (header(6, 1), A, False),
        (header(5, 2), A, False),
        (header(5, 1), B, False),
    ],
)
def test_owner_hears_only_answers_of_its_own_reign_and_feed(
    answer: Header, receiver: CaptureId, expected: bool
) -> None:
    assert is_for_owner(answer, receiver, me=A, revision=5, changefeed_epoch=1) is expected


@pytest.mark.parametrize(
    ("known", "epoch", "expected"), [(None, "x", True), ("x", "x", True), ("x", "", True), ("x", "y", False)]
)
def test_processor_epoch_of_another_start_is_not_ours(known: str | None, epoch: str, expected: bool) -> None:
    assert is_same_epoch(known, epoch) is expected


# Order of messages.


def test_inbox_drops_repeats_and_what_was_overtaken_by_sender() -> None:
    def message(sender: CaptureId, sequence: int) -> Message:
        return Message(header(), sender, C, sequence, Heartbeat())

    inbox = Inbox()
    came = [message(A, 1), message(A, 3), message(B, 1), message(A, 2), message(A, 3), message(A, 4)]
    assert [(m.sender, m.sequence) for m in inbox.take(came)] == [(A, 1), (A, 3), (B, 1), (A, 4)]
    assert list(inbox.take([message(A, 4), message(B, 1)])) == []


# Versions (docs/formats/cluster.md §2).


@pytest.mark.parametrize("versions", [[], ["9.9.9"], ["1.2.0", "1.3.0"], ["v1.2.0-alpha", "1.3.9+x", "1.3.9+x"]])
def test_versions_that_go_together(versions: list[str]) -> None:
    check_versions(versions, oldest="1.2.0", end="1.4.0")


@pytest.mark.parametrize(
    "versions", [["1.2.0", "1.2.1", "1.3.0"], ["1.1.9", "1.3.0"], ["1.2.0", "1.4.0"], ["1.2.0", "x"]]
)
def test_versions_that_do_not_go_together_are_refused(versions: list[str]) -> None:
    with pytest.raises(VersionMismatchError):
        check_versions(versions, oldest="1.2.0", end="1.4.0")


# Captures.


def answer(liveness: Liveness = Liveness.ALIVE, *spans: TableSpan) -> HeartbeatResponse:
    return HeartbeatResponse(tuple(TableStatus(span, TableState.REPLICATING) for span in spans), liveness)


def test_captures_when_one_of_the_first_has_not_answered_hand_out_nothing() -> None:
    captures, _ = CaptureSet().with_alive(frozenset({A, B}))
    captures = captures.with_answer(A, answer(Liveness.ALIVE, TableSpan.of_table(T)), "e")
    assert captures.take_first_reports()[1] is None
    captures, reports = captures.with_answer(B, answer(), "e").take_first_reports()
    assert reports == {TableSpan.of_table(T): {A: TableStatus(TableSpan.of_table(T), TableState.REPLICATING)}}
    assert captures.is_initialized
    assert captures.take_first_reports()[1] is None


def test_captures_when_a_silent_one_is_gone_do_not_wait_for_it() -> None:
    captures, _ = CaptureSet().with_alive(frozenset({A, B}))
    captures = captures.with_answer(A, answer(), "e")
    captures, gone = captures.with_alive(frozenset({A}))
    assert gone == frozenset({B})
    assert captures.take_first_reports()[1] == {}


def test_captures_that_are_gone_before_all_have_answered_are_forgotten_with_their_report() -> None:
    captures, _ = CaptureSet().with_alive(frozenset({A, B}))
    captures = captures.with_answer(A, answer(Liveness.ALIVE, TableSpan.of_table(T)), "e")
    captures, _ = captures.with_alive(frozenset({B}))
    assert captures.with_answer(B, answer(), "e").take_first_reports()[1] == {}


def test_captures_that_come_later_are_not_waited_for() -> None:
    captures, _ = CaptureSet().with_alive(frozenset({A}))
    captures, _ = captures.with_alive(frozenset({A, B}))
    captures, reports = captures.with_answer(A, answer(), "e").take_first_reports()
    assert reports == {}
    assert captures.captures[B].state is CaptureState.UNINITIALIZED


def test_capture_that_is_stopping_never_comes_back() -> None:
    captures, _ = CaptureSet().with_alive(frozenset({A}))
    states = []
    for liveness in (Liveness.ALIVE, Liveness.STOPPING, Liveness.ALIVE):
        captures = captures.with_answer(A, answer(liveness), "e")
        states.append(captures.captures[A].state)
    assert states == [CaptureState.INITIALIZED, CaptureState.STOPPING, CaptureState.STOPPING]


def test_capture_answer_of_another_agent_start_is_not_known() -> None:
    captures, _ = CaptureSet().with_alive(frozenset({A}))
    captures = captures.with_answer(A, answer(), "e")
    assert [captures.is_known(A, "e"), captures.is_known(A, "f"), captures.is_known(B, "e")] == [True, False, False]


# Cover.


def cut(start: bytes, end: bytes) -> TableSpan:
    return TableSpan(T, start, end)


@pytest.mark.parametrize(
    ("spans", "holes"),
    [
        ([(b"a", b"z")], []),
        ([(b"a", b"m"), (b"m", b"z")], []),
        ([(b"m", b"z"), (b"a", b"m")], []),
        ([], [(b"a", b"z")]),
        ([(b"b", b"z")], [(b"a", b"b")]),
        ([(b"a", b"y")], [(b"y", b"z")]),
        ([(b"b", b"d"), (b"f", b"g")], [(b"a", b"b"), (b"d", b"f"), (b"g", b"z")]),
    ],
)
def test_holes_are_what_no_span_covers(spans: list[tuple[bytes, bytes]], holes: list[tuple[bytes, bytes]]) -> None:
    assert find_holes(cut(b"a", b"z"), [cut(*span) for span in spans]) == tuple(cut(*hole) for hole in holes)


def test_holes_of_a_whole_table_reach_to_its_bounds() -> None:
    whole = TableSpan.of_table(T)
    assert find_holes(whole, [whole]) == ()
    middle = TableSpan(T, whole.start + b"\x80", whole.start + b"\x90")
    assert find_holes(whole, [middle]) == (
        TableSpan(T, whole.start, middle.start),
        TableSpan(T, middle.end, whole.end),
    )


@pytest.mark.parametrize("spans", [[(b"a", b"n"), (b"m", b"z")], [(b"a", b""), (b"m", b"z")], [(b"a", b"c")] * 2])
def test_spans_that_overlap_are_refused(spans: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(OverlappingSpansError):
        find_holes(cut(b"a", b"z"), [cut(*span) for span in spans])


def test_wanted_spans_keep_what_runs_and_fill_its_holes() -> None:
    other = TableId(8)
    tables = {T: (cut(b"a", b"m"), cut(b"m", b"z")), other: (TableSpan.of_table(other),)}
    assert list(wanted_spans(tables, [])) == [cut(b"a", b"m"), cut(b"m", b"z"), TableSpan.of_table(other)]
    assert list(wanted_spans(tables, [cut(b"c", b"d")])) == [
        cut(b"a", b"c"),
        cut(b"c", b"d"),
        cut(b"d", b"z"),
        TableSpan.of_table(other),
    ]


def test_wanted_spans_that_leave_a_hole_are_refused() -> None:
    with pytest.raises(OverlappingSpansError):
        wanted_spans({T: (cut(b"a", b"m"), cut(b"n", b"z"))}, [])


# Progress.


def at(table: int, checkpoint_ts: int, resolved_ts: int) -> ReplicationSet:
    return ReplicationSet(TableSpan.of_table(TableId(table)), checkpoint=Checkpoint(Ts(checkpoint_ts), Ts(resolved_ts)))


@pytest.mark.parametrize(
    ("previous", "sets", "barrier", "expected"),
    [
        (NOTHING, [at(1, 10, 30), at(2, 20, 25)], Barrier(Ts(99)), (10, 25)),
        (Checkpoint(Ts(15), Ts(28)), [at(1, 10, 30), at(2, 20, 25)], Barrier(Ts(99)), (15, 28)),
        (NOTHING, [at(1, 50, 60)], Barrier(Ts(55)), (50, 55)),
        (NOTHING, [at(1, 50, 60)], Barrier(Ts(99), {TableId(3): Ts(40)}), (40, 60)),
        (NOTHING, [], Barrier(Ts(99), {TableId(3): Ts(40)}), (40, 99)),
    ],
    ids=["least of each", "never back", "global barrier", "table barrier", "no tables"],
)
def test_checkpoint_of_all(
    previous: Checkpoint, sets: list[ReplicationSet], barrier: Barrier, expected: tuple[int, int]
) -> None:
    advanced = advance_checkpoint(previous, sets, barrier)
    assert (advanced.checkpoint_ts, advanced.resolved_ts) == expected
