"""Where one span is replicated, as its owner knows it: the machine of docs/formats/cluster.md §7.

        ┌──────── forgotten ◀── nobody left ── REMOVING ◀────── Remove ──────┐
        │                                                                    │
        ▼        Add(X)              X Prepared           X Replicating      │
    ┌────────┐            ┌─────────┐           ┌────────┐           ┌─────────────┐
    │ ABSENT │ ─────────▶ │ PREPARE │ ────────▶ │ COMMIT │ ────────▶ │ REPLICATING │
    └────────┘            └─────────┘           └────────┘           └─────────────┘
        ▲  X gone, no primary │ ▲ │ X gone, primary  │ all gone          │   │
        └─────────────────────┘ │ └──────────────────┼──────────▶(REPL.) │   │
        ▲                       └────────────────────┼──── Move(Y) ──────┘   │
        └────────────────────────────────────────────┴──── primary gone ─────┘

Add: X prepares (pulls and buffers) as secondary; prepared, it becomes primary and writes. Move: Y prepares while A
writes; then A is told to stop, and only when A *has stopped* does Y become primary, at A's final checkpoint.

A capture's crash is a Stopped report without a checkpoint (:class:`CaptureGone`). A report of a capture that is not a
member changes nothing. After each transition the same report is looked at again.

**Where this machine says more than TiCDC's table.** There a report is never lost (it is sent again until acknowledged)
and a span hardly ever stops by itself. Here reports may be lost, so:

* A member that says *Stopping* in PREPARE may write until it says Stopped: it leaves its role but stays a member as
  UNDETERMINED (TiCDC drops it at once, and the next primary may start while it still writes).
* UNDETERMINED members hold up each promotion, not only the one after a Prepared report, and drop out in any state.
* *Absent* from the primary in PREPARE and REPLICATING means what it means in COMMIT: its Stopped report was lost.
* In COMMIT without a primary, a secondary that says *Replicating* was made primary by the owner before: it is taken as
  the primary. TiCDC calls it a duplicated primary.
* Remove in ABSENT is obeyed (there is nobody to wait for, except UNDETERMINED members).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import assert_never

from consumers.control.core.replication.messages import NOTHING, Checkpoint, Stats, TableState
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
from schemas.errors import Action, BusError, InvariantBrokenError
from schemas.ids import CaptureId
from schemas.tidb.spans import TableSpan


class MultiplePrimaryError(BusError):
    """Two captures write one span: the changefeed starts anew, with a new epoch."""

    code, action = "scheduling.multiple_primary", Action.RETRY


class SetState(IntEnum):
    """TiCDC's numbers."""

    ABSENT = 1
    PREPARE = 2
    COMMIT = 3
    REPLICATING = 4
    REMOVING = 5


class Role(IntEnum):
    """What a member is. UNDETERMINED: it is stopping, and may have been the primary."""

    PRIMARY = 1
    SECONDARY = 2
    UNDETERMINED = 3


_Polled = tuple["ReplicationSet", tuple[Out, ...]]

_NOBODY: Mapping[CaptureId, Role] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ReplicationSet:
    """One span. ``captures`` are its members by role and are never changed in place."""

    span: TableSpan
    state: SetState = SetState.ABSENT
    primary: CaptureId | None = None
    captures: Mapping[CaptureId, Role] = field(default_factory=lambda: _NOBODY)
    checkpoint: Checkpoint = NOTHING
    stats: Stats | None = None

    @property
    def is_removed(self) -> bool:
        """Nobody has the span any more: forget it."""
        return self.state is SetState.REMOVING and not self.captures

    @property
    def secondary(self) -> CaptureId | None:
        """The member that prepares or is prepared."""
        return next((capture for capture, role in self.captures.items() if role is Role.SECONDARY), None)

    @property
    def has_undetermined(self) -> bool:
        """Somebody may still write."""
        return Role.UNDETERMINED in self.captures.values()


def check(replication: ReplicationSet) -> None:
    """Check what must hold between any two steps.

    Raises:
        InvariantBrokenError: it does not.
    """
    primaries = [capture for capture, role in replication.captures.items() if role is Role.PRIMARY]
    if primaries != ([] if replication.primary is None else [replication.primary]):
        raise InvariantBrokenError("primary is not the one member in that role", replication=replication)
    roles = list(replication.captures.values())
    match replication.state:
        case SetState.ABSENT:
            holds = roles.count(Role.UNDETERMINED) == len(roles)
        case SetState.PREPARE:
            holds = roles.count(Role.SECONDARY) == 1
        case SetState.COMMIT:
            holds = bool(roles) and roles.count(Role.SECONDARY) <= 1
        case SetState.REPLICATING:
            holds = replication.primary is not None and Role.SECONDARY not in roles
        case SetState.REMOVING:
            holds = Role.SECONDARY not in roles
        case _:
            assert_never(replication.state)
    if not holds:
        raise InvariantBrokenError("members do not fit the state", replication=replication)


def step(before: ReplicationSet, message: In) -> tuple[ReplicationSet, tuple[Out, ...]]:
    """Advance one span.

    Raises:
        MultiplePrimaryError: a member that is not the primary writes.
        InvariantBrokenError: the set would be in a state that cannot be.
    """
    match message:
        case SpanReport():
            if message.capture not in before.captures:
                return before, ()
            after, sent = _poll(before, message)
        case CaptureGone(capture):
            if capture not in before.captures:
                return before, ()
            after, sent = _poll(before, SpanReport(capture, TableState.STOPPED))
        case Add(capture):
            if before.state is not SetState.ABSENT or capture in before.captures:
                return before, ()
            begun = replace(before, captures={**before.captures, capture: Role.SECONDARY}, state=SetState.PREPARE)
            after, sent = _poll(begun, SpanReport(capture, TableState.ABSENT))
        case Move(capture):
            if before.state is not SetState.REPLICATING or capture in before.captures:
                return before, ()
            begun = replace(before, captures={**before.captures, capture: Role.SECONDARY}, state=SetState.PREPARE)
            after, sent = _poll(begun, SpanReport(capture, TableState.ABSENT))
        case Remove():
            if before.state not in (SetState.REPLICATING, SetState.ABSENT):
                return before, ()
            after = replace(before, state=SetState.REMOVING)
            sent = () if before.primary is None else (SendRemove(before.primary),)
        case _:
            assert_never(message)
    if after.state is not before.state or after.captures is not before.captures:
        check(after)
    if (
        after.checkpoint.checkpoint_ts < before.checkpoint.checkpoint_ts
        or after.checkpoint.resolved_ts < before.checkpoint.resolved_ts
    ):
        raise InvariantBrokenError("checkpoint of a span went back", before=before, after=after)
    return after, sent


def _poll(replication: ReplicationSet, report: SpanReport) -> _Polled:
    """Evaluate the report until it changes nothing more."""
    sent: tuple[Out, ...] = ()
    while report.capture in replication.captures:
        state = replication.state
        replication, more = _poll_once(replication, report)
        sent += more
        if replication.state is state:
            break
    return replication, sent


def _poll_once(replication: ReplicationSet, report: SpanReport) -> _Polled:
    if replication.captures[report.capture] is Role.UNDETERMINED:
        return _on_undetermined(replication, report)
    match replication.state:
        case SetState.PREPARE:
            return _on_prepare(replication, report)
        case SetState.COMMIT:
            return _on_commit(replication, report)
        case SetState.REPLICATING:
            return _on_replicating(replication, report)
        case SetState.REMOVING:
            return _on_removing(replication, report)
        case SetState.ABSENT:
            return replication, ()
        case _:
            assert_never(replication.state)


def _on_undetermined(replication: ReplicationSet, report: SpanReport) -> _Polled:
    match report.state:
        case TableState.ABSENT | TableState.STOPPED:
            left = _without(_seen(replication, report), report.capture)
            if left.state is SetState.COMMIT and not left.captures:
                left = replace(left, state=SetState.ABSENT)
            return left, ()
        case TableState.REPLICATING if replication.state in (SetState.COMMIT, SetState.REPLICATING):
            raise _multiple_primary(replication, report)
        case TableState.PREPARING | TableState.PREPARED | TableState.REPLICATING:
            return replication, (SendRemove(report.capture),)
        case _:
            return replication, ()


def _on_prepare(replication: ReplicationSet, report: SpanReport) -> _Polled:
    is_primary = report.capture == replication.primary
    match report.state:
        case TableState.ABSENT if not is_primary:
            return replication, (SendAdd(report.capture, True, replication.checkpoint),)
        case TableState.PREPARED if not is_primary:
            return replace(replication, state=SetState.COMMIT), ()
        case TableState.REPLICATING if is_primary:
            return _seen(replication, report), ()
        case TableState.ABSENT | TableState.STOPPED if is_primary:
            return _without(_seen(replication, report), report.capture), ()
        case TableState.STOPPED:
            return _rest_of_prepare(_without(replication, report.capture)), ()
        case TableState.STOPPING if is_primary:
            return _doubt(_seen(replication, report), report.capture), ()
        case TableState.STOPPING:
            return _rest_of_prepare(_doubt(replication, report.capture)), ()
        case _:
            return replication, ()


def _rest_of_prepare(replication: ReplicationSet) -> ReplicationSet:
    """Return what is left of PREPARE without its secondary."""
    return replace(replication, state=SetState.ABSENT if replication.primary is None else SetState.REPLICATING)


def _on_commit(replication: ReplicationSet, report: SpanReport) -> _Polled:
    is_primary = report.capture == replication.primary
    match report.state:
        case TableState.PREPARED if is_primary:
            # The order to write got lost, or its answer did.
            if replication.secondary is None:
                return replication, (SendAdd(report.capture, False, replication.checkpoint),)
            return replication, ()
        case TableState.PREPARED:
            if replication.primary is not None:
                return replication, (SendRemove(replication.primary),)
            return _promote(replication)
        case TableState.REPLICATING if is_primary:
            replication = _seen(replication, report)
            if replication.secondary is not None:
                return replication, (SendRemove(report.capture),)
            # Either the new primary writes, or the secondary is gone and the old primary has not been told to stop
            # (or not yet heard so: then it will report Stopped).
            return replace(replication, state=SetState.REPLICATING), ()
        case TableState.REPLICATING:
            if replication.primary is not None or replication.has_undetermined:
                raise _multiple_primary(replication, report)
            promoted = _seen(_with_primary(replication, report.capture), report)
            return replace(promoted, state=SetState.REPLICATING), ()
        case TableState.STOPPING if is_primary:
            return _seen(replication, report), ()
        case TableState.ABSENT | TableState.STOPPED if is_primary:
            left = _without(_seen(replication, report), report.capture)
            return _promote(left) if left.secondary is not None else (replace(left, state=SetState.ABSENT), ())
        case TableState.ABSENT | TableState.STOPPED:
            left = _without(replication, report.capture)
            return replace(left, state=SetState.ABSENT) if left.primary is None else left, ()
        case _:
            return replication, ()


def _promote(replication: ReplicationSet) -> _Polled:
    """Make the secondary primary, unless somebody may still write; then its next Prepared report asks again."""
    secondary = replication.secondary
    if secondary is None or replication.has_undetermined:
        return replication, ()
    return _with_primary(replication, secondary), (SendAdd(secondary, False, replication.checkpoint),)


def _on_replicating(replication: ReplicationSet, report: SpanReport) -> _Polled:
    match report.state:
        case TableState.REPLICATING:
            return _seen(replication, report), ()
        case TableState.STOPPED | TableState.ABSENT:
            left = _without(_seen(replication, report), report.capture)
            return replace(left, state=SetState.ABSENT), ()
        case _:
            return replication, ()


def _on_removing(replication: ReplicationSet, report: SpanReport) -> _Polled:
    match report.state:
        case TableState.ABSENT | TableState.STOPPED:
            return _without(replication, report.capture), ()
        case TableState.PREPARING | TableState.PREPARED | TableState.REPLICATING:
            return replication, (SendRemove(report.capture),)
        case _:
            return replication, ()


def _seen(replication: ReplicationSet, report: SpanReport) -> ReplicationSet:
    """Return the set with the report's checkpoint, where that is later, and its stats, where it has any."""
    checkpoint = replication.checkpoint.later(report.checkpoint)
    if checkpoint is replication.checkpoint and report.stats is None:
        return replication
    # Spelled out: this is what nearly all reports come to, and `replace` takes thrice as long.
    return ReplicationSet(
        replication.span,
        replication.state,
        replication.primary,
        replication.captures,
        checkpoint,
        report.stats or replication.stats,
    )


def _with_primary(replication: ReplicationSet, capture: CaptureId) -> ReplicationSet:
    return replace(replication, primary=capture, captures={**replication.captures, capture: Role.PRIMARY})


def _doubt(replication: ReplicationSet, capture: CaptureId) -> ReplicationSet:
    """Return the set with a member whose part is over, but who may still write."""
    primary = None if capture == replication.primary else replication.primary
    return replace(replication, primary=primary, captures={**replication.captures, capture: Role.UNDETERMINED})


def _without(replication: ReplicationSet, *gone: CaptureId) -> ReplicationSet:
    return replace(
        replication,
        primary=None if replication.primary in gone else replication.primary,
        captures={capture: role for capture, role in replication.captures.items() if capture not in gone},
    )


def _multiple_primary(replication: ReplicationSet, report: SpanReport) -> MultiplePrimaryError:
    return MultiplePrimaryError(
        "a capture replicates a span that it is not the primary of",
        span=replication.span,
        primary=replication.primary,
        capture=report.capture,
    )
