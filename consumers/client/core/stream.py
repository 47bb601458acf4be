"""All partitions of one reader together: what may go out is what every one of them has a watermark for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import merge
from operator import attrgetter

from consumers.client.core.partition import PartitionKey, PartitionReader, StreamRecord
from schemas.ids import Ts
from schemas.sink.position import POSITION_CLASS_AT, PositionClass


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Where a reader of one partition goes on: read from ``offset``, drop what is at or below ``applied_ts``.

    ``offset`` below 0: from the first record there is, as nothing was read before.
    """

    offset: int
    applied_ts: Ts


@dataclass(frozen=True, slots=True)
class Released:
    """Everything between two watermarks of this reader.

    ``records`` are rows and DDL in the order of their positions, each once. Whoever has applied them goes on at
    ``positions``. ``watermark_ts`` is the least of all partitions'; a partition that the reader has found later, or was
    given from another, may bring records below an earlier one.
    """

    watermark_ts: Ts
    records: tuple[StreamRecord, ...]
    positions: Mapping[PartitionKey, ReadPosition]


@dataclass(slots=True)
class StreamReader:
    """Mutable; partitions come and go with the consumer group's assignments."""

    pending_bytes_max: int
    """Of all partitions; beyond it those that are ahead of the slowest should not be read (:meth:`ahead`)."""
    partitions: dict[PartitionKey, PartitionReader] = field(default_factory=dict)

    def assign(self, positions: Mapping[PartitionKey, ReadPosition]) -> None:
        """Begin to read partitions, each from its position; forget what was pending of one that was here."""
        for key, position in positions.items():
            self.partitions[key] = PartitionReader(position.applied_ts, position.offset)

    def revoke(self, keys: Iterable[PartitionKey]) -> None:
        """Read partitions no more: their pending records are another reader's now."""
        for key in keys:
            self.partitions.pop(key, None)

    def take(self, record: StreamRecord) -> None:
        """Take a record; one of a partition that was revoked meanwhile is dropped.

        Raises:
            RecordsLostError: there was another before it, which nobody has seen.
            CorruptDataError: its position does not decode.
        """
        reader = self.partitions.get(record.topic_partition)
        if reader is not None:
            reader.take(record)

    @property
    def watermark_ts(self) -> Ts:
        """The least of all partitions' watermarks; 0 while there are none."""
        return min((reader.watermark_ts for reader in self.partitions.values()), default=Ts(0))

    def release(self) -> Released | None:
        """Return what has become whole, or None when no watermark has moved since and nothing came late."""
        ts = self.watermark_ts
        if not any(reader.applied_ts < ts for reader in self.partitions.values()):
            return None
        released = [reader.release(ts) for reader in self.partitions.values()]
        records = merge(*released, key=attrgetter("position"))
        positions = {
            key: ReadPosition(reader.resume_offset(), reader.applied_ts) for key, reader in self.partitions.items()
        }
        return Released(ts, tuple(_without_ddl_copies(records)), positions)

    def ahead(self) -> frozenset[PartitionKey]:
        """Return the partitions to stop reading for now: too much is pending, and they are not what holds it."""
        if sum(reader.pending_bytes for reader in self.partitions.values()) <= self.pending_bytes_max:
            return frozenset()
        slowest = self.watermark_ts
        return frozenset(key for key, reader in self.partitions.items() if reader.watermark_ts > slowest)


def _without_ddl_copies(records: Iterable[StreamRecord]) -> Iterable[StreamRecord]:
    """Yield the records, of a DDL that stands in several partitions the first copy only."""
    last = b""
    for record in records:
        is_ddl = record.position[POSITION_CLASS_AT] == PositionClass.DDL
        if is_ddl and record.position == last:
            continue
        last = record.position
        yield record
