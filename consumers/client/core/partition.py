"""One partition of a changefeed's topics as a reader knows it: what came, and what still waits for the watermark.

    record --take--> at or below ``applied``, or pending already? --yes--> a repeat, dropped
                        | no
                        v
                     pending, in the order of positions --release(W)--> out, once every partition has reached W

**The repeat rule.** A record is a repeat only if it is pending already, or at or below the ts that was *applied*: whose
changes went out to, and were committed by, whoever reads. A watermark that was only seen says nothing: the reader that
saw it may be gone, and the next one begins in the middle of what a restarted sorter writes again.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from operator import itemgetter

from schemas.errors import Action, BusError
from schemas.ids import Ts
from schemas.sink.image_note import NOTHING_TO_COME, ImageNote
from schemas.sink.position import Position, PositionClass, decode_position


class RecordsLostError(BusError):
    """Records that the reader has not seen are gone from the topic: retention, compaction, or a topic made anew."""

    code, action = "client.records_lost", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True, order=True)
class PartitionKey:
    """Where a record stands, up to its offset."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """One record of an output topic; ``position`` is the bytes of its ``tidebus-position`` header, ``images`` those of
    ``tidebus-images``, which only watermarks have, while table images are under way.
    """

    topic_partition: PartitionKey
    offset: int
    key: bytes | None
    value: bytes | None
    position: bytes
    images: bytes = b""

    @property
    def bytes_total(self) -> int:
        """What it holds of memory, about."""
        return len(self.key or b"") + len(self.value or b"") + len(self.position)


@dataclass(slots=True)
class PartitionReader:
    """Mutable, fed with the records of one partition in offset order."""

    applied_ts: Ts
    """Everything of this partition up to it was applied, by this reader or one before it. 0: nothing was."""
    next_offset: int = 0
    """The one after the last record that was taken; below 0: whatever stands first, as nothing was read before."""
    watermark_ts: Ts = Ts(0)
    _watermark_offset: int = 0
    """Of the record that has raised it to where it is."""
    pending_bytes: int = 0
    _positions: list[bytes] = field(default_factory=list)
    """Of the pending records, ascending."""
    _pending: list[StreamRecord] = field(default_factory=list)
    _notes: list[tuple[Ts, ImageNote]] = field(default_factory=list)
    """What the watermarks that have not been released say of table images, ascending."""

    def __post_init__(self) -> None:
        self.watermark_ts = max(self.watermark_ts, self.applied_ts)

    def take(self, record: StreamRecord) -> None:
        """Take the next record of the partition; nothing of one that raises.

        Raises:
            RecordsLostError: there was another before it, which nobody has seen.
            CorruptDataError: its position does not decode, or what a watermark says of table images.
        """
        if 0 <= self.next_offset < record.offset:
            raise RecordsLostError(
                "records are gone that this group has not read; a destination that is to be whole must be filled anew",
                topic=record.topic_partition.topic,
                partition=record.topic_partition.partition,
                next_offset=self.next_offset,
                offset=record.offset,
            )
        position = decode_position(record.position)
        match position.position_class:
            case PositionClass.WATERMARK:
                if position.commit_ts > self.watermark_ts:
                    note = ImageNote.decode(record.images) if record.images else NOTHING_TO_COME
                    self.watermark_ts, self._watermark_offset = position.commit_ts, record.offset
                    self._notes.append((position.commit_ts, note))
            case PositionClass.BOOTSTRAP:
                pass  # a schema, which the messages of these protocols carry themselves
            case PositionClass.ROW | PositionClass.DDL:
                self._keep(record, position)
        self.next_offset = max(self.next_offset, record.offset + 1)

    def pending(self, ts: Ts) -> list[StreamRecord]:
        """Return the pending records with commit_ts at or below ``ts``, in order of positions."""
        return self._pending[: self._pending_end(ts)]

    def notes(self, ts: Ts) -> list[tuple[Ts, ImageNote]]:
        """Return what watermarks at or below ``ts`` said of table images."""
        return self._notes[: self._notes_end(ts)]

    def release(self, ts: Ts) -> list[StreamRecord]:
        """Forget what is pending up to ``ts``, which is applied then, and return its records."""
        end = self._pending_end(ts)
        out = self._pending[:end]
        del self._pending[:end], self._positions[:end], self._notes[: self._notes_end(ts)]
        self.pending_bytes -= sum(record.bytes_total for record in out)
        self.applied_ts = max(self.applied_ts, ts)
        return out

    def resume_offset(self, applied_ts: Ts) -> int:
        """Return from where on a reader that has applied ``applied_ts`` must read."""
        # A pending record may stand again later; the first copy is the one that must not be missed. Nor must a
        # watermark that has not counted yet: where nothing is written any more, no other follows.
        needed = [record.offset for record in self._pending[self._pending_end(applied_ts) :]]
        if self.watermark_ts > applied_ts:
            needed.append(self._watermark_offset)
        return min(needed, default=self.next_offset)

    def _pending_end(self, ts: Ts) -> int:
        return bisect_right(self._positions, _after(ts))

    def _notes_end(self, ts: Ts) -> int:
        return bisect_right(self._notes, ts, key=itemgetter(0))

    def _keep(self, record: StreamRecord, position: Position) -> None:
        at = bisect_left(self._positions, record.position)
        is_pending = at < len(self._positions) and self._positions[at] == record.position
        if is_pending or position.commit_ts <= self.applied_ts:
            return  # a repeat
        self._positions.insert(at, record.position)
        self._pending.insert(at, record)
        self.pending_bytes += record.bytes_total


def _after(ts: Ts) -> bytes:
    """Return a position's bytes that stand behind every record of ``ts`` and before all of the next one."""
    return ts.to_bytes(8, "big") + b"\xff"
