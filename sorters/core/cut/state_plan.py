"""Which rows of a cut count for the state proofs of their tables."""

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.ids import TableId, Ts


@dataclass(frozen=True, slots=True)
class TableStatePlan:
    """Which rows of a table count, and by which of their columns."""

    after_ts: Ts
    """Changes at or below it are in the proof already."""
    columns: tuple[int, ...]
    """Ids, in the proof's order."""
    counts_image: bool = False
    """Rows of the table's image count. Of a table that has a proof, or none, they say what is known, or no use."""
    ranges: tuple[tuple[bytes, bytes], ...] | None = None
    """Raw keys ``[start, end)`` whose changes count, while an image reads the table again; None: all."""


StatePlan = Mapping[TableId, TableStatePlan]
"""Of physical tables whose proof is carried; rows of others are not looked at."""
