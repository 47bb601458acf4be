"""The DDL barrier of a database sink: all partitions stand at the DDL, it runs once, they go on.

            all stand at it            it is noted there            it has run            noted as done
    GATHER ------------------> BEGIN --------------------> RUN ------------------> FINISH ------------> GATHER
      |                                                     ^                        ^
      |  all stand at one that an                           | not yet                | it has run already
      |  earlier processor has noted                        |                        |
      +--------------------------> CHECK -------------------+------------------------+

Orders go to who talks to the destination; each is one step there, and a crash between any two is met by CHECK or by
beginning anew: BEGIN notes the DDL and what the destination looks like before it, RUN runs it, FINISH notes it as done
and moves all partitions' positions behind it, in one transaction. So before FINISH no partition is behind the DDL, and
after it none is at it. CHECK asks whether the destination looks otherwise than it did
(:mod:`consumers.processors.apply.ddl`).

A DDL that the user wants skipped goes from BEGIN or CHECK straight to FINISH: all partitions' positions are moved
behind it all the same. Rows at the DDL's own commit_ts stand before it; partitions that are not there yet go on
applying theirs.

That a partition stands at a DDL stays true whatever becomes of who has said so: what is applied is in the destination.
So what is heard late, twice, or from a processor that is gone since does no harm; of a DDL that has ``passed`` it
changes nothing.
"""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import assert_never

from schemas.errors import InvariantBrokenError

Phase = Enum("Phase", ["GATHER", "BEGIN", "CHECK", "RUN", "FINISH"])


@dataclass(frozen=True, slots=True)
class Stands:
    """In: a partition has applied all before the DDL at ``position``, and waits."""

    partition: int
    position: bytes


@dataclass(frozen=True, slots=True)
class DdlBegun:
    """In: BEGIN is done."""


@dataclass(frozen=True, slots=True)
class Checked:
    """In: CHECK is done."""

    has_run: bool


@dataclass(frozen=True, slots=True)
class Skipped:
    """In: instead of BEGIN or CHECK, the DDL is passed over; as the user wants it."""


@dataclass(frozen=True, slots=True)
class Ran:
    """In: RUN is done."""


@dataclass(frozen=True, slots=True)
class Finished:
    """In: FINISH is done."""


Message = Stands | DdlBegun | Checked | Skipped | Ran | Finished


@dataclass(frozen=True, slots=True)
class Order:
    """Out: do this step for the DDL at ``position``. ``Phase.GATHER``: let all partitions go on behind it."""

    phase: Phase
    position: bytes


@dataclass(frozen=True, slots=True)
class DdlBarrier:
    """The state of one changefeed's barrier."""

    partitions: frozenset[int]
    noted: bytes | None = None
    """Position of the DDL that was begun and not finished, as the destination had it at the start."""
    phase: Phase = Phase.GATHER
    position: bytes = b""
    """Of the DDL at hand; empty: nobody stands at one."""
    standing: frozenset[int] = field(default=frozenset())
    passed: bytes = b""
    """All DDLs at or below this position have run, and all partitions may go on behind them."""


def step(state: DdlBarrier, message: Message) -> tuple[DdlBarrier, tuple[Order, ...]]:
    """Take one step.

    Raises:
        InvariantBrokenError: partitions stand at different DDLs, a stranger does, or an answer fits no order.
    """
    match message:
        case Stands(partition, position):
            return _stands(state, partition, position)
        case DdlBegun():
            return _order(_after(state, Phase.BEGIN), Phase.RUN)
        case Checked(has_run):
            return _order(_after(state, Phase.CHECK), Phase.FINISH if has_run else Phase.RUN)
        case Skipped():
            before = Phase.CHECK if state.phase is Phase.CHECK else Phase.BEGIN
            return _order(_after(state, before), Phase.FINISH)
        case Ran():
            return _order(_after(state, Phase.RUN), Phase.FINISH)
        case Finished():
            _after(state, Phase.FINISH)
            return DdlBarrier(state.partitions, passed=state.position), (Order(Phase.GATHER, state.position),)
        case _:
            assert_never(message)


def _stands(state: DdlBarrier, partition: int, position: bytes) -> tuple[DdlBarrier, tuple[Order, ...]]:
    if partition not in state.partitions:
        raise InvariantBrokenError("partition is not part of this barrier", partition=partition)
    if position <= state.passed:
        return state, ()
    if state.position and position != state.position:
        raise InvariantBrokenError("partitions stand at different ddls", partition=partition, position=position.hex())
    state = replace(state, position=position, standing=state.standing | {partition})
    if state.phase is not Phase.GATHER or state.standing != state.partitions:
        return state, ()
    return _order(state, Phase.CHECK if state.noted == position else Phase.BEGIN)


def _after(state: DdlBarrier, phase: Phase) -> DdlBarrier:
    if state.phase is not phase:
        raise InvariantBrokenError("answer to an order that was not given", phase=state.phase.name, answers=phase.name)
    return state


def _order(state: DdlBarrier, phase: Phase) -> tuple[DdlBarrier, tuple[Order, ...]]:
    return replace(state, phase=phase), (Order(phase, state.position),)
