"""Every state × report of one span (docs/formats/cluster.md §7), with what must come of it written out by hand.

Rows of the table are read ``P`` primary, ``S`` secondary, ``U`` undetermined member; ``+ckpt``: the checkpoint follows
the report. Where our machine says more than TiCDC's table the row says so.
"""

from collections.abc import Mapping

import pytest

from consumers.control.core.replication.messages import Checkpoint, Stats, TableState, TableStatus
from consumers.control.core.replication.replication_set import (
    MultiplePrimaryError,
    ReplicationSet,
    Role,
    SetState,
    check,
    step,
)
from consumers.control.core.replication.set_messages import (
    Add,
    CaptureGone,
    In,
    Move,
    Out,
    Remove,
    SendAdd,
    SendRemove,
    SpanReport,
)
from consumers.control.core.replication.takeover import from_reports
from schemas.errors import Action, InvariantBrokenError
from schemas.ids import CaptureId, TableId, Ts
from schemas.tidb.spans import TableSpan

A, B, C = (CaptureId(name) for name in "abc")
SPAN = TableSpan.of_table(TableId(7))
OLD, NEW = Checkpoint(Ts(10), Ts(12)), Checkpoint(Ts(20), Ts(22))
ABSENT, PREPARE, COMMIT, REPLICATING, REMOVING = SetState
UNKNOWN_T, ABSENT_T, PREPARING_T, PREPARED_T, REPLICATING_T, STOPPING_T, STOPPED_T = TableState

START: Mapping[str, tuple[SetState, str]] = {
    "absent": (ABSENT, ""),
    "absent U": (ABSENT, "U"),
    "prepare S": (PREPARE, "S"),
    "prepare P+S": (PREPARE, "PS"),
    "prepare S+U": (PREPARE, "SU"),
    "commit S": (COMMIT, "S"),
    "commit P": (COMMIT, "P"),
    "commit P+S": (COMMIT, "PS"),
    "commit S+U": (COMMIT, "SU"),
    "commit P+S+U": (COMMIT, "PSU"),
    "replicating P": (REPLICATING, "P"),
    "replicating P+U": (REPLICATING, "PU"),
    "removing P": (REMOVING, "P"),
    "removing P+U": (REMOVING, "PU"),
}
"""The primary is capture a, the secondary b, the undetermined c."""
WHO = {"P": A, "S": B, "U": C}
ROLES = {"P": Role.PRIMARY, "S": Role.SECONDARY, "U": Role.UNDETERMINED}


def make(state: SetState, members: str, checkpoint: Checkpoint = OLD) -> ReplicationSet:
    captures = {WHO[letter]: ROLES[letter] for letter in members}
    made = ReplicationSet(SPAN, state, A if "P" in members else None, captures, checkpoint)
    check(made)
    return made


STAY = "stay"
ERROR = "error"
TABLE: list[tuple[str, str, TableState, str | tuple[SetState, str, str, tuple[Out, ...]]]] = [
    # From, reporter, its report, then STAY, ERROR or (state, "role letter + capture" members, ckpt old/new, messages).
    # PREPARE
    ("prepare S", "S", ABSENT_T, (PREPARE, "Sb", "old", (SendAdd(B, True, OLD),))),
    ("prepare S", "S", PREPARING_T, STAY),
    ("prepare S", "S", PREPARED_T, (COMMIT, "Pb", "old", (SendAdd(B, False, OLD),))),
    ("prepare S", "S", REPLICATING_T, STAY),
    ("prepare S", "S", STOPPING_T, (ABSENT, "Ub", "old", ())),  # TiCDC: dropped at once
    ("prepare S", "S", STOPPED_T, (ABSENT, "", "old", ())),
    ("prepare P+S", "P", ABSENT_T, (PREPARE, "Sb", "new", ())),  # TiCDC: ignored
    ("prepare P+S", "P", PREPARING_T, STAY),
    ("prepare P+S", "P", PREPARED_T, STAY),
    ("prepare P+S", "P", REPLICATING_T, (PREPARE, "Pa Sb", "new", ())),
    ("prepare P+S", "P", STOPPING_T, (PREPARE, "Ua Sb", "new", ())),  # TiCDC: cleared at once
    ("prepare P+S", "P", STOPPED_T, (PREPARE, "Sb", "new", ())),
    ("prepare P+S", "S", ABSENT_T, (PREPARE, "Pa Sb", "old", (SendAdd(B, True, OLD),))),
    ("prepare P+S", "S", PREPARING_T, STAY),
    ("prepare P+S", "S", PREPARED_T, (COMMIT, "Pa Sb", "old", (SendRemove(A),))),
    ("prepare P+S", "S", REPLICATING_T, STAY),
    ("prepare P+S", "S", STOPPING_T, (REPLICATING, "Pa Ub", "old", ())),  # TiCDC: dropped at once
    ("prepare P+S", "S", STOPPED_T, (REPLICATING, "Pa", "old", ())),
    ("prepare S+U", "S", PREPARED_T, (COMMIT, "Sb Uc", "old", ())),
    ("prepare S+U", "U", STOPPING_T, STAY),
    ("prepare S+U", "U", STOPPED_T, (PREPARE, "Sb", "new", ())),
    ("prepare S+U", "U", ABSENT_T, (PREPARE, "Sb", "new", ())),
    ("prepare S+U", "U", PREPARED_T, (PREPARE, "Sb Uc", "old", (SendRemove(C),))),
    # COMMIT
    ("commit S", "S", ABSENT_T, (ABSENT, "", "old", ())),
    ("commit S", "S", PREPARING_T, STAY),
    ("commit S", "S", PREPARED_T, (COMMIT, "Pb", "old", (SendAdd(B, False, OLD),))),
    ("commit S", "S", REPLICATING_T, (REPLICATING, "Pb", "new", ())),  # TiCDC: duplicated primary
    ("commit S", "S", STOPPING_T, STAY),
    ("commit S", "S", STOPPED_T, (ABSENT, "", "old", ())),
    ("commit P", "P", ABSENT_T, (ABSENT, "", "new", ())),
    ("commit P", "P", PREPARING_T, STAY),
    ("commit P", "P", PREPARED_T, (COMMIT, "Pa", "old", (SendAdd(A, False, OLD),))),
    ("commit P", "P", REPLICATING_T, (REPLICATING, "Pa", "new", ())),
    ("commit P", "P", STOPPING_T, (COMMIT, "Pa", "new", ())),
    ("commit P", "P", STOPPED_T, (ABSENT, "", "new", ())),
    ("commit P+S", "P", ABSENT_T, (COMMIT, "Pb", "new", (SendAdd(B, False, NEW),))),
    ("commit P+S", "P", PREPARING_T, STAY),
    ("commit P+S", "P", PREPARED_T, STAY),
    ("commit P+S", "P", REPLICATING_T, (COMMIT, "Pa Sb", "new", (SendRemove(A),))),
    ("commit P+S", "P", STOPPING_T, (COMMIT, "Pa Sb", "new", ())),
    ("commit P+S", "P", STOPPED_T, (COMMIT, "Pb", "new", (SendAdd(B, False, NEW),))),
    ("commit P+S", "S", ABSENT_T, (COMMIT, "Pa", "old", ())),
    ("commit P+S", "S", PREPARING_T, STAY),
    ("commit P+S", "S", PREPARED_T, (COMMIT, "Pa Sb", "old", (SendRemove(A),))),
    ("commit P+S", "S", REPLICATING_T, ERROR),
    ("commit P+S", "S", STOPPING_T, STAY),
    ("commit P+S", "S", STOPPED_T, (COMMIT, "Pa", "old", ())),
    ("commit S+U", "S", PREPARED_T, STAY),
    ("commit S+U", "S", REPLICATING_T, ERROR),
    ("commit S+U", "S", STOPPED_T, (ABSENT, "Uc", "old", ())),
    ("commit S+U", "U", ABSENT_T, (COMMIT, "Sb", "new", ())),
    ("commit S+U", "U", STOPPING_T, STAY),
    ("commit S+U", "U", STOPPED_T, (COMMIT, "Sb", "new", ())),
    ("commit S+U", "U", REPLICATING_T, ERROR),
    ("commit P+S+U", "P", STOPPED_T, (COMMIT, "Sb Uc", "new", ())),  # TiCDC promotes at once
    # REPLICATING
    ("replicating P", "P", ABSENT_T, (ABSENT, "", "new", ())),  # TiCDC: ignored
    ("replicating P", "P", PREPARING_T, STAY),
    ("replicating P", "P", PREPARED_T, STAY),
    ("replicating P", "P", REPLICATING_T, (REPLICATING, "Pa", "new", ())),
    ("replicating P", "P", STOPPING_T, STAY),
    ("replicating P", "P", STOPPED_T, (ABSENT, "", "new", ())),
    ("replicating P+U", "U", REPLICATING_T, ERROR),
    ("replicating P+U", "U", STOPPING_T, STAY),
    ("replicating P+U", "U", STOPPED_T, (REPLICATING, "Pa", "new", ())),
    ("replicating P+U", "P", STOPPED_T, (ABSENT, "Uc", "new", ())),
    # REMOVING
    ("removing P", "P", ABSENT_T, (REMOVING, "", "old", ())),
    ("removing P", "P", PREPARING_T, (REMOVING, "Pa", "old", (SendRemove(A),))),
    ("removing P", "P", PREPARED_T, (REMOVING, "Pa", "old", (SendRemove(A),))),
    ("removing P", "P", REPLICATING_T, (REMOVING, "Pa", "old", (SendRemove(A),))),
    ("removing P", "P", STOPPING_T, STAY),
    ("removing P", "P", STOPPED_T, (REMOVING, "", "old", ())),
    ("removing P+U", "U", REPLICATING_T, (REMOVING, "Pa Uc", "old", (SendRemove(C),))),
    ("removing P+U", "U", STOPPED_T, (REMOVING, "Pa", "new", ())),
    # ABSENT
    ("absent U", "U", STOPPING_T, STAY),
    ("absent U", "U", STOPPED_T, (ABSENT, "", "new", ())),
]


@pytest.mark.parametrize(
    ("start", "reporter", "state", "expected"), TABLE, ids=[f"{row[0]}, {row[1]} {row[2].name}" for row in TABLE]
)
def test_replication_set_each_row_of_the_table(
    start: str, reporter: str, state: TableState, expected: str | tuple[SetState, str, str, tuple[Out, ...]]
) -> None:
    before = make(*START[start])
    report = SpanReport(WHO[reporter], state, NEW)
    if expected == ERROR:
        with pytest.raises(MultiplePrimaryError):
            step(before, report)
        return
    after, sent = step(before, report)
    if isinstance(expected, str):
        assert (after, sent) == (before, ())
        return
    then, members, checkpoint, messages = expected
    captures = {CaptureId(member[1]): ROLES[member[0]] for member in members.split()}
    assert (after.state, dict(after.captures), sent) == (then, captures, messages)
    assert after.checkpoint == (NEW if checkpoint == "new" else OLD)


@pytest.mark.parametrize("start", START)
@pytest.mark.parametrize("state", TableState)
def test_replication_set_report_of_a_stranger_changes_nothing(start: str, state: TableState) -> None:
    before = make(*START[start])
    assert step(before, SpanReport(CaptureId("stranger"), state, NEW)) == (before, ())


def test_table_covers_every_state_and_report() -> None:
    rows = {(start, reporter, state) for start, reporter, state, _ in TABLE}
    for start in ("prepare S", "prepare P+S", "commit S", "commit P", "commit P+S", "replicating P", "removing P"):
        for reporter in START[start][1]:
            missing = {state for state in TableState if (start, reporter, state) not in rows}
            assert missing == {UNKNOWN_T}, (start, reporter)


CRASHES: list[tuple[str, str, tuple[SetState, str, tuple[Out, ...]]]] = [
    ("prepare S", "S", (ABSENT, "", ())),
    ("prepare P+S", "S", (REPLICATING, "Pa", ())),
    ("prepare P+S", "P", (PREPARE, "Sb", ())),
    ("commit S", "S", (ABSENT, "", ())),
    ("commit P", "P", (ABSENT, "", ())),
    ("commit P+S", "P", (COMMIT, "Pb", (SendAdd(B, False, OLD),))),
    ("commit P+S", "S", (COMMIT, "Pa", ())),
    ("commit S+U", "U", (COMMIT, "Sb", ())),
    ("replicating P", "P", (ABSENT, "", ())),
    ("removing P", "P", (REMOVING, "", ())),
]


@pytest.mark.parametrize(("start", "who", "expected"), CRASHES, ids=[f"{row[0]}, {row[1]} crashes" for row in CRASHES])
def test_replication_set_capture_crash_keeps_the_checkpoint(
    start: str, who: str, expected: tuple[SetState, str, tuple[Out, ...]]
) -> None:
    after, sent = step(make(*START[start]), CaptureGone(WHO[who]))
    then, members, messages = expected
    captures = {CaptureId(member[1]): ROLES[member[0]] for member in members.split()}
    assert (after.state, dict(after.captures), sent, after.checkpoint) == (then, captures, messages, OLD)


def drive(start: ReplicationSet, *messages: In) -> tuple[ReplicationSet, list[Out]]:
    sent: list[Out] = []
    for message in messages:
        start, more = step(start, message)
        sent += more
    return start, sent


def test_replication_set_add_goes_through_both_phases() -> None:
    done, sent = drive(
        ReplicationSet(SPAN, checkpoint=OLD),
        Add(A),
        SpanReport(A, PREPARING_T),
        SpanReport(A, PREPARED_T),
        SpanReport(A, REPLICATING_T, NEW),
    )
    assert (done.state, done.primary, done.checkpoint) == (REPLICATING, A, NEW)
    assert sent == [SendAdd(A, True, OLD), SendAdd(A, False, OLD)]


def test_replication_set_move_promotes_only_after_the_old_primary_stopped() -> None:
    done, sent = drive(
        make(REPLICATING, "P"),
        Move(B),
        SpanReport(B, PREPARED_T),
        SpanReport(A, REPLICATING_T, Checkpoint(Ts(15), Ts(16))),
        SpanReport(A, STOPPING_T),
        SpanReport(A, STOPPED_T, NEW),
        SpanReport(B, PREPARED_T),
        SpanReport(B, REPLICATING_T),
    )
    assert sent == [SendAdd(B, True, OLD), SendRemove(A), SendRemove(A), SendAdd(B, False, NEW), SendAdd(B, False, NEW)]
    assert (done.state, dict(done.captures), done.checkpoint) == (REPLICATING, {B: Role.PRIMARY}, NEW)


def test_replication_set_old_primary_still_stopping_when_moved_again_holds_up_the_next() -> None:
    """B dies while A is told to stop; A's older report makes the set REPLICATING; C prepares before A has stopped."""
    waiting, sent = drive(
        make(COMMIT, "PS"),
        SpanReport(A, REPLICATING_T),
        CaptureGone(B),
        SpanReport(A, REPLICATING_T),
        Move(C),
        SpanReport(A, STOPPING_T),
        SpanReport(C, PREPARED_T),
    )
    assert (waiting.state, dict(waiting.captures)) == (COMMIT, {A: Role.UNDETERMINED, C: Role.SECONDARY})
    assert SendAdd(C, False, OLD) not in sent
    done, more = drive(waiting, SpanReport(A, STOPPED_T, NEW), SpanReport(C, PREPARED_T))
    assert (more, done.primary) == ([SendAdd(C, False, NEW)], C)


def test_replication_set_stopped_report_lost_after_the_secondary_died_is_added_anew() -> None:
    done, _ = drive(
        make(COMMIT, "PS"),
        SpanReport(A, REPLICATING_T),
        CaptureGone(B),
        SpanReport(A, REPLICATING_T),
        SpanReport(A, ABSENT_T),
    )
    assert (done.state, dict(done.captures)) == (ABSENT, {})


def test_replication_set_remove_is_forgotten_when_the_primary_stopped() -> None:
    done, sent = drive(make(REPLICATING, "P"), Remove(), SpanReport(A, REPLICATING_T), SpanReport(A, STOPPED_T))
    assert sent == [SendRemove(A), SendRemove(A)]
    assert done.is_removed


@pytest.mark.parametrize("start", START)
def test_replication_set_commands_out_of_place_are_ignored(start: str) -> None:
    before = make(*START[start])
    if before.state is not ABSENT:
        assert step(before, Add(CaptureId("new"))) == (before, ())
    if before.state is not REPLICATING:
        assert step(before, Move(CaptureId("new"))) == (before, ())
    if before.state not in (REPLICATING, ABSENT):
        assert step(before, Remove()) == (before, ())
    for capture in before.captures:
        assert step(before, Add(capture)) == (before, ())
        assert step(before, Move(capture)) == (before, ())


def test_replication_set_fields_of_a_checkpoint_never_go_back() -> None:
    after, _ = step(make(REPLICATING, "P"), SpanReport(A, REPLICATING_T, Checkpoint(Ts(9), Ts(30))))
    assert after.checkpoint == Checkpoint(Ts(10), Ts(30))


def test_replication_set_stats_stay_until_there_are_new_ones() -> None:
    stats = Stats(region_count=3)
    after, _ = drive(
        make(REPLICATING, "P"), SpanReport(A, REPLICATING_T, NEW, stats), SpanReport(A, REPLICATING_T, NEW)
    )
    assert after.stats == stats


TAKEOVERS: list[tuple[str, dict[CaptureId, TableState], tuple[SetState, str, tuple[Out, ...]]]] = [
    ("nobody has it", {A: ABSENT_T, B: STOPPED_T}, (ABSENT, "", ())),
    ("replicating", {A: REPLICATING_T, B: ABSENT_T}, (REPLICATING, "Pa", ())),
    ("preparing", {B: PREPARING_T}, (PREPARE, "Sb", ())),
    ("prepared", {B: PREPARED_T}, (COMMIT, "Sb", ())),
    ("moving, first phase", {A: REPLICATING_T, B: PREPARING_T}, (PREPARE, "Pa Sb", ())),
    ("moving, second phase", {A: REPLICATING_T, B: PREPARED_T}, (COMMIT, "Pa Sb", ())),
    ("moving, old one stopping", {A: STOPPING_T, B: PREPARED_T}, (COMMIT, "Ua Sb", ())),
    ("only stopping", {A: STOPPING_T, B: ABSENT_T}, (REMOVING, "Ua", ())),
    ("two prepare", {A: PREPARING_T, B: PREPARED_T}, (COMMIT, "Ua Sb", (SendRemove(A),))),
]


@pytest.mark.parametrize(("_", "states", "expected"), TAKEOVERS, ids=[row[0] for row in TAKEOVERS])
def test_takeover_from_reports(
    _: str, states: dict[CaptureId, TableState], expected: tuple[SetState, str, tuple[Out, ...]]
) -> None:
    made, sent = from_reports(SPAN, Ts(10), {who: TableStatus(SPAN, state) for who, state in states.items()})
    then, members, messages = expected
    captures = {CaptureId(member[1]): ROLES[member[0]] for member in members.split()}
    assert (made.state, dict(made.captures), sent) == (then, captures, messages)


def test_takeover_two_primaries_is_an_error_that_restarts_the_changefeed() -> None:
    with pytest.raises(MultiplePrimaryError) as caught:
        from_reports(SPAN, Ts(10), {who: TableStatus(SPAN, REPLICATING_T) for who in (A, B)})
    assert caught.value.action is Action.RETRY


def test_takeover_starts_at_the_later_of_changefeed_and_reports() -> None:
    ahead, _ = from_reports(SPAN, Ts(10), {A: TableStatus(SPAN, REPLICATING_T, NEW)})
    behind, _ = from_reports(SPAN, Ts(30), {A: TableStatus(SPAN, REPLICATING_T, NEW)})
    assert (ahead.checkpoint, behind.checkpoint) == (NEW, Checkpoint(Ts(30), Ts(30)))


@pytest.mark.parametrize(
    "broken",
    [
        ReplicationSet(SPAN, REPLICATING, None, {A: Role.PRIMARY}),
        ReplicationSet(SPAN, REPLICATING, A, {A: Role.PRIMARY, B: Role.PRIMARY}),
        ReplicationSet(SPAN, REPLICATING, A, {A: Role.SECONDARY}),
        ReplicationSet(SPAN, PREPARE, None, {}),
        ReplicationSet(SPAN, COMMIT, None, {}),
        ReplicationSet(SPAN, REPLICATING, None, {}),
        ReplicationSet(SPAN, PREPARE, None, {A: Role.SECONDARY, B: Role.SECONDARY}),
        ReplicationSet(SPAN, ABSENT, None, {A: Role.SECONDARY}),
    ],
)
def test_replication_set_in_an_impossible_state_is_refused(broken: ReplicationSet) -> None:
    with pytest.raises(InvariantBrokenError):
        check(broken)
