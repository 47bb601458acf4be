"""Damaged raw records of a cut: those of tables that the changefeed does not want, and those that an operator has
named, are passed over and noted; any other one, also where nobody can tell whose it is, is for its decoding to refuse.
What is damaged is mostly known before it is decoded; a header's word on the rows is held against them only then.
"""

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from schemas.ids import TableId, Ts
from schemas.rawlog.batch_head import BatchHead
from schemas.rawlog.record_check import NO_TABLE, RawRecord, RecordDamagedError

RawOffset = tuple[int, int]
"""Raw partition and offset."""


@dataclass(frozen=True, slots=True)
class DamagedRecord:
    """One that was passed over, as its header tells of it."""

    where: RawOffset
    table_id: TableId
    """:data:`~schemas.rawlog.record_check.NO_TABLE`: nobody can tell."""
    max_commit_ts: Ts
    is_skipped: bool
    """Whether the changefeed may want its table, and lacks its rows now: ``filter.skip-damaged-records`` names it."""


class DamagedRecords:
    """Those of one changefeed's cut, or of a part of it."""

    def __init__(self, skipped: Container[RawOffset] = ()) -> None:
        """``skipped`` are named by the operator."""
        self._skipped = skipped
        self.passed: set[DamagedRecord] = set()

    def passes(self, record: bytes, *, is_wanted: bool) -> bool:
        """Tell whether a record, of a table that is wanted or not, is passed over; note it if it is damaged."""
        if not isinstance(record, RawRecord) or record.damage is None:
            return not is_wanted
        whose, where = record.whose, record.where[1:]
        may_be_wanted = is_wanted or whose is None
        if may_be_wanted and where not in self._skipped:
            return False
        table_id, max_commit_ts = (NO_TABLE, Ts(0)) if whose is None else (whose.table_id, whose.max_commit_ts)
        self.passed.add(DamagedRecord(where, table_id, max_commit_ts, may_be_wanted))
        return True

    def passes_undecoded(self, record: bytes, head: BatchHead) -> bool:
        """Tell whether a record of a table that is wanted, which nobody knew to be damaged before it was decoded, is
        passed over; note it. Its head is what its capture has said, if that has said anything.
        """
        if not isinstance(record, RawRecord) or (where := record.where[1:]) not in self._skipped:
            return False
        table_id, max_commit_ts = (NO_TABLE, Ts(0)) if record.said is None else (head.table_id, head.max_commit_ts)
        self.passed.add(DamagedRecord(where, table_id, max_commit_ts, is_skipped=True))
        return True


def is_damaged(record: bytes) -> bool:
    """Tell whether a record is known to be another than was sent."""
    return isinstance(record, RawRecord) and record.damage is not None


@contextmanager
def naming_damage(name_of: Callable[[TableId], str]) -> Iterator[None]:
    """Add the table's name to the error of a damaged record."""
    try:
        yield
    except RecordDamagedError as error:
        if isinstance(table_id := error.fields.get("table_id"), int):
            error.fields["table"] = name_of(TableId(table_id))
        raise
