"""What is noted while the rows of a cut, or of a task's part of it, become records."""

from dataclasses import dataclass, field

from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import CompiledFeed
from sorters.core.flow.ledger import FlowLedger
from sorters.core.mount.corrupt_rows import CorruptRows
from sorters.core.state_proof.deltas import StateDeltas, StateLedger
from sorters.cut.damaged_records import DamagedRecord, DamagedRecords


@dataclass(frozen=True, slots=True, eq=False)
class CutBooks:
    """Filled as records are made; they say something once all have been made."""

    damaged: DamagedRecords
    """Damaged raw records that are passed over."""
    states: StateLedger | None
    """Adds up rows for state proofs, all that are not left out for images to come; None: no table has a proof."""
    flow: FlowLedger = field(default_factory=FlowLedger)
    """What is read and left out."""
    corrupt: list[CorruptRows] = field(default_factory=list)
    """Rows that do not fit their checksum."""

    @classmethod
    def of(cls, cut: Cut, feed: CompiledFeed) -> "CutBooks":
        """Return empty books."""
        return cls(DamagedRecords(feed.skipped_records), state_ledger(cut))

    def all_corrupt(self) -> CorruptRows:
        """Return the corrupt rows of all tables together."""
        return sum(self.corrupt, CorruptRows())

    def all_damaged(self) -> frozenset[DamagedRecord]:
        """Return the damaged records that were passed over."""
        return frozenset(self.damaged.passed)

    def close_states(self) -> StateDeltas:
        """Return what the rows change in state proofs; called once."""
        return StateDeltas() if self.states is None else self.states.close()


def state_ledger(cut: Cut) -> StateLedger | None:
    """Return what adds up a cut's rows for state proofs; None: no table has one."""
    return StateLedger(cut.states, may_repeat=cut.may_repeat) if cut.states else None
