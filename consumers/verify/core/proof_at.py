"""What a changefeed's sorter says that a table holds at a ts, from the states that it has told.

A state holds from its ``ts`` on, up to the next one's ``after_ts``; in between the table has changed, and no state is
of a ts there. Below the oldest that is left nothing is known, but where the table was made above it: a run of the
sorter takes back what runs before it have told, and the topic is compacted. A partitioned table is what its partitions
are together.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from schemas.ids import TableId, Ts
from schemas.state_proof.carried import CarriedState
from schemas.state_proof.row_text import TableProof

_MADE_BY: Final = frozenset({"create", "truncate", "partition"})
"""By what a state begins whose table was not there before."""
NO_EVEN_REPEATS: Final = "rows that a table without a key has an even number of times are not in its XOR"
BETWEEN, GONE = "of this very ts no state was told", "of this ts no state is left any more"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofAnswer:
    """A proof at a ts, or why there is none."""

    proof: TableProof | None = None
    columns: tuple[str, ...] = ()
    """Names of those that are in it, in order."""
    reason: str = ""
    is_early: bool = False
    """Of this ts there will be an answer."""
    is_between: bool = False
    """Of another ts there may be one."""


def proof_at(states: Iterable[CarriedState], table: str, ts: Ts, told_ts: Ts) -> ProofAnswer:
    """Return the proof of a table, ``schema.table``.

    Args:
        states: of all tables of the changefeed, in any order, some more than once.
        ts: as of which.
        told_ts: up to where the sorter has told all states.
    """
    if told_ts < ts:
        return ProofAnswer(reason=f"the sorter has told up to {told_ts} only", is_early=True)
    by_id: dict[TableId, list[CarriedState]] = {}
    for state in states:
        by_id.setdefault(state.table_id, []).append(state)
    taken: list[CarriedState] = []
    for history in by_id.values():
        state_there, unknown = _at(history, ts)
        if unknown and any(each.table == table for each in history):
            return ProofAnswer(reason=unknown, is_between=unknown == BETWEEN)
        if state_there is not None and state_there.table == table:
            taken.append(state_there)
    return _together(taken)


def odd_side(source: TableProof, proof: TableProof, destination: TableProof) -> str:
    """Return which of the three is unlike the two others; ``all``: no two are alike; '': all are.

    A proof has no sum. Where the sides differ by theirs alone it cannot say which is right: then '' means that it is
    like both, as far as it sees.

    >>> odd_side(TableProof(1, 2), TableProof(1, 2), TableProof(1, 3))
    'destination'
    """
    mine, theirs = replace(source, sum=None), replace(destination, sum=None)
    if mine == theirs:
        return "" if proof == mine else "proof" if source == destination else "all"
    if mine == proof:
        return "destination"
    return "source" if proof == theirs else "all"


def _at(history: Sequence[CarriedState], ts: Ts) -> tuple[CarriedState | None, str]:
    """Return the state at ``ts``, and why it is not known; None, and '': the table was not there yet."""
    ordered = sorted(history, key=lambda state: state.ts)
    before = next((state for state in reversed(ordered) if state.ts <= ts), None)
    behind = next((state for state in ordered if state.ts > ts), None)
    if behind is None:
        return before, ""
    if before is None and behind.begun_by in _MADE_BY and behind.begun_ts > ts:
        return None, ""
    if behind.after_ts < ts:
        return before, BETWEEN
    return before, "" if before is not None else GONE


def _together(states: Sequence[CarriedState]) -> ProofAnswer:
    if not states:
        return ProofAnswer(reason="the changefeed carries no proof of it")
    for state in states:
        if state.unproven:
            return ProofAnswer(reason=f"unproven since {state.ts}: {state.unproven}")
        if state.image is not None:
            return ProofAnswer(reason="its image is under way")
    columns = {tuple(name for _, name in state.columns) for state in states}
    if len(columns) > 1:
        return ProofAnswer(reason="its partitions have proofs of different columns")
    proof = TableProof()
    for state in states:
        proof = proof.with_rows_of(state.proof)
    return ProofAnswer(proof=proof, columns=columns.pop())
