"""All partitions of one reader together: what may go out is what every one of them has a watermark for.

    assign --> read --revoke--> set aside --assign, it is given back--> read on where it stood
                                    |-------assign, but another has gone further--> read from what was committed
                                    |-------assign without it--> forgotten

**A watermark that went out is never gone back behind.** A partition that comes later (of a topic that was found late,
or from another member) begins below it, and is held until it has reached it: in between, what was applied is of no ts.
Only beyond ``pending_bytes_max`` it goes out by its own watermark, so that memory stays bounded.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from operator import attrgetter, itemgetter

from consumers.client.core.partition import PartitionKey, PartitionReader, StreamRecord
from schemas.ids import Ts
from schemas.sink.image_note import NOTHING_TO_COME, ImageNote
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

    ``records`` are rows and DDL in the order of their positions, each once; those of a partition that came later may be
    below an earlier watermark. Whoever has applied them goes on at ``positions``. ``watermark_ts`` is the least of all
    partitions', and below an earlier one only while a partition that came later has too much to be held.
    """

    watermark_ts: Ts
    records: tuple[StreamRecord, ...]
    positions: Mapping[PartitionKey, ReadPosition]
    images: ImageNote = NOTHING_TO_COME
    """What is still to come at ``watermark_ts``; ``whole`` has all tables that became so since the one before."""


@dataclass(slots=True)
class StreamReader:
    """Mutable; partitions come and go with the consumer group's assignments."""

    pending_bytes_max: int
    """Of all partitions; beyond it those that are ahead of the slowest should not be read (:meth:`ahead`)."""
    partitions: dict[PartitionKey, PartitionReader] = field(default_factory=dict)
    released_ts: Ts = Ts(0)
    """The highest watermark that went out, of this reader or of those before it whose partitions it was given."""
    _set_aside: dict[PartitionKey, PartitionReader] = field(default_factory=dict)
    """Revoked since the last :meth:`assign`."""
    _images: ImageNote = NOTHING_TO_COME
    """As it was said last."""

    def assign(self, positions: Mapping[PartitionKey, ReadPosition]) -> Mapping[PartitionKey, int]:
        """Read partitions from now on; ``positions`` are what the group has committed of them.

        Returns:
            The offset from which each must be read; below 0: from the first record there is.
        """
        for key, position in positions.items():
            reader = self._set_aside.get(key)
            if reader is None or reader.next_offset < 0 or reader.applied_ts < position.applied_ts:
                reader = PartitionReader(position.applied_ts, position.offset)
            self.partitions[key] = reader
            self.released_ts = max(self.released_ts, position.applied_ts)
        self._set_aside = {}
        return {key: self.partitions[key].next_offset for key in positions}

    def revoke(self, keys: Iterable[PartitionKey]) -> None:
        """Read partitions no more, unless the next :meth:`assign` gives them back: a group that takes in a topic or a
        member takes all partitions from everybody first.
        """
        for key in keys:
            if (reader := self.partitions.pop(key, None)) is not None:
                self._set_aside[key] = reader

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

    def due(self) -> Released | None:
        """Return what has become whole, or None: no watermark has moved, or a partition that came later is behind.

        It stays here until :meth:`release`: whoever cannot make anything of it asks again, and a partition that goes
        meanwhile takes its records along.
        """
        ts = self.watermark_ts
        if not any(reader.applied_ts < ts for reader in self.partitions.values()):
            return None
        if ts < self.released_ts and not self._is_too_much_pending():
            return None
        records = merge(*(reader.pending(ts) for reader in self.partitions.values()), key=attrgetter("position"))
        applied = {key: max(reader.applied_ts, ts) for key, reader in self.partitions.items()}
        return Released(
            ts,
            tuple(_without_ddl_copies(records)),
            {key: ReadPosition(self.partitions[key].resume_offset(upto), upto) for key, upto in applied.items()},
            joined_notes([reader.notes(ts) for reader in self.partitions.values()], self._images),
        )

    def release(self, due: Released | None = None) -> Released | None:
        """Forget what goes out, and return it.

        Args:
            due: what :meth:`due` has just returned; None: what it returns now.
        """
        if due is None and (due := self.due()) is None:
            return None
        for reader in self.partitions.values():
            reader.release(due.watermark_ts)
        self.released_ts = max(self.released_ts, due.watermark_ts)
        self._images = due.images
        return due

    def ahead(self) -> frozenset[PartitionKey]:
        """Return the partitions to stop reading for now: too much is pending, and they are not what holds it."""
        if not self._is_too_much_pending():
            return frozenset()
        slowest = self.watermark_ts
        return frozenset(key for key, reader in self.partitions.items() if reader.watermark_ts > slowest)

    def _is_too_much_pending(self) -> bool:
        return sum(reader.pending_bytes for reader in self.partitions.values()) > self.pending_bytes_max


def joined_notes(said: Iterable[Sequence[tuple[Ts, ImageNote]]], before: ImageNote) -> ImageNote:
    """Return what watermarks of several partitions say together: what is to come by the newest, and all that became
    whole. Those of one ts say the same. Where none came it is as ``before``.
    """
    notes = [note for partition in said for note in partition]
    if not notes:
        return ImageNote(before.left, (), before.waiting)
    newest = max(notes, key=itemgetter(0))[1]
    whole = sorted({table for _, note in notes for table in note.whole})
    return ImageNote(newest.left, tuple(whole), newest.waiting)


def _without_ddl_copies(records: Iterable[StreamRecord]) -> Iterable[StreamRecord]:
    """Yield the records, of a DDL that stands in several partitions the first copy only."""
    last = b""
    for record in records:
        is_ddl = record.position[POSITION_CLASS_AT] == PositionClass.DDL
        if is_ddl and record.position == last:
            continue
        last = record.position
        yield record
