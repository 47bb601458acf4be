"""A raw record larger than its topic takes: cut into parts that are records of their own, and put together by readers.

A row of TiDB may be 120 MiB, and as much again of its old value; what a topic or a broker takes is less. A part is a
RegionBatch without rows: a reader that looks at heads only passes over it, one that is older than parts refuses it. Its
head has the ts of the row. Its field ``part`` names the landing, the part's number and the count of parts, and holds
the bytes that this part has of the record.

The parts of one landing stand in one partition in their order, with records of others between them, since one producer
sent them one after the other. A landing that was given up leaves its first parts: they never become a row. To the
frontier law (:mod:`schemas.rawlog.frontier`) each part is a change of its own, so whoever reads ``[low, high)`` finds
all parts of some landing of a row, and may find the last parts of another one, which say nothing without their first.

The format, for readers in other languages: docs/formats/raw-log.md §3.
"""

import struct
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field

from schemas.errors import CorruptDataError
from schemas.rawlog.batch_head import BatchHead
from schemas.rawlog.record_check import RawRecord
from schemas.rawlog.region_batch import check_record, encode_part, part_of, read_batch_head

ROW_BYTES_MAX = 120 * 1024 * 1024
"""Of a row's value, and of its old one: where TiDB's ``txn-entry-size-limit`` ends."""
PART_OVERHEAD_BYTES = 128
"""What a part has besides its bytes of the record."""
_PART_HEAD = struct.Struct("<QII")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPart:
    """What a part says of itself."""

    landing: int
    """uint64 that no other landing of any row has."""
    number: int
    """From 0."""
    count: int
    content: memoryview


def read_part(record: bytes) -> RowPart:
    """Read a record whose head counts no rows.

    Raises:
        CorruptDataError: it is no part.
    """
    content = part_of(record)
    if len(content) < _PART_HEAD.size:
        raise CorruptDataError("raw record has neither rows nor a part of one", size=len(record))
    landing, number, count = _PART_HEAD.unpack_from(content)
    return RowPart(landing=landing, number=number, count=count, content=content[_PART_HEAD.size :])


def cut_record(record: bytes, bytes_max: int, landing: int) -> Iterator[bytes]:
    """Yield the parts of a raw record, none of them larger than ``bytes_max``.

    Args:
        record: of one row, as :func:`~schemas.rawlog.region_batch.encode_region_batch` made it.
        landing: see :class:`RowPart`.
    """
    head, size = read_batch_head(record), bytes_max - PART_OVERHEAD_BYTES
    count = -(-len(record) // size)
    for number in range(count):
        content = memoryview(record)[number * size : (number + 1) * size]
        yield encode_part(head, record[:5], _PART_HEAD.pack(landing, number, count) + content)


@dataclass(slots=True)
class PartJoiner:
    """Puts parts together as they come by: of each partition in the order of its offsets."""

    wanted: Callable[[BatchHead], bool] = lambda _: True
    """Tells the rows that are wanted by their heads; the parts of others are passed over."""
    keeps_unknown: bool = False
    """Whether damaged records of which nobody can tell whose they are come out, too, for their taker to judge."""
    _open: dict[tuple[int, int], list[memoryview]] = field(default_factory=dict)
    """(partition, landing) → the contents of its parts so far."""

    @property
    def open_partitions(self) -> Set[int]:
        """Where first parts of rows were seen, and not the last ones yet."""
        return {partition for partition, _ in self._open}

    def take(self, partition: int, record: bytes, *, may_begin: bool = True) -> bytes | None:
        """Take the next record; return a whole one: itself, or what it was the last part of.

        Args:
            may_begin: False: only go on with rows whose first part was taken before; nothing else is returned.

        Raises:
            CorruptDataError: the record is neither a batch nor a part.
            RecordDamagedError: it is not what its capture sent, and nobody can tell whose it is; see
                :attr:`keeps_unknown`. One whose header tells is returned as a whole record, which says so when it is
                decoded: also a part.
        """
        if self.keeps_unknown and isinstance(record, RawRecord):
            record.compare()
        else:
            check_record(record)
        head = read_batch_head(record)
        if head.count:
            return record if may_begin else None
        try:
            part = read_part(record)
        except CorruptDataError as error:  # it begins as a part does by chance, as a line of somebody else's may
            if not (self.keeps_unknown and isinstance(record, RawRecord)):
                raise
            record.note_unknown(error)
            return record if may_begin else None
        landing = partition, part.landing
        if part.number == 0 and may_begin and self.wanted(head):
            self._open[landing] = []
        parts = self._open.get(landing)
        if parts is None:
            return None
        if part.number != len(parts):  # its producer gave a part up, and the row with it
            del self._open[landing]
            return None
        parts.append(part.content)
        if len(parts) < part.count:
            return None
        del self._open[landing]
        whole = b"".join(parts)
        return record.joined(whole) if isinstance(record, RawRecord) else whole
