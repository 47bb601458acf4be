"""One partition of the topic between sorter and storage processors: its lines by folder, each row once.

    message --take--> rows at or below ``last``: repeats, dropped
                      others: their lines wait by folder --flushed--> files; ``last`` and the offset are noted with them

Rows of a partition stand in one order, and a sorter that writes again begins with what it wrote before; so whoever
reads on from the noted offset and drops what is at or below the noted position takes each row exactly once. What an
older sorter writes behind a newer one's records is passed over (:mod:`consumers.processors.core.fence`): it may lack
what the newer one is to write, by other settings.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from consumers.processors.core.fence import PartitionFence
from consumers.processors.core.flow_book import FlowBook
from schemas.ids import Ts
from schemas.sink.fence import NO_FENCE
from schemas.sink.flow_mark import read_mark
from schemas.sink.message_rows import RowSummer, table_word
from schemas.sink.parts import MessageJoiner, is_part
from schemas.sink.position import PositionClass, decode_position
from schemas.sink.storage_rows import (
    FolderForm,
    SchemaFile,
    StorageRows,
    decode_folder,
    decode_schema_file,
    decode_storage_rows,
)


@dataclass(frozen=True, slots=True)
class NotedEnd:
    """How far a partition is in files. ``last`` is the position of the last row in them, empty before the first."""

    offset: int = 0
    last: bytes = b""
    watermark_ts: Ts = Ts(0)


@dataclass(slots=True)
class FolderLines:
    """Lines that wait for a file of one folder."""

    chunks: list[memoryview] = field(default_factory=list)
    bytes_total: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class _NewRows:
    """Rows of a message from ``first`` on, which are no repeats."""

    rows: StorageRows
    first: int
    form: FolderForm

    def add_to(self, summer: RowSummer) -> None:
        word = table_word(self.form.schema, self.form.table)
        summer.add(self.rows.value, self.first, len(self.rows), self.rows.keys_of(self.first), word)


@dataclass(slots=True)
class PartitionLines:
    """Mutable, fed with the partition's records in offset order."""

    offset: int
    """Where reading must begin to find everything behind what was taken."""
    last: bytes
    watermark_ts: Ts
    folders: dict[bytes, FolderLines] = field(default_factory=dict)
    """By the row message's key."""
    bytes_total: int = 0
    _forms: dict[bytes, FolderForm] = field(default_factory=dict)
    _parts: MessageJoiner = field(default_factory=MessageJoiner)
    flow: FlowBook = field(default_factory=lambda: FlowBook(0))
    _fence: PartitionFence = field(default_factory=lambda: PartitionFence(0))
    _first_offset: int = 0

    @classmethod
    def at(cls, end: NotedEnd, partition: int = 0, topic: str = "") -> "PartitionLines":
        """Begin where files end; errors name partition and topic."""
        flow, fence = FlowBook(partition, topic), PartitionFence(partition, topic)
        return cls(end.offset, end.last, end.watermark_ts, flow=flow, _fence=fence, _first_offset=end.offset)

    @property
    def late_records(self) -> int:
        """How many were passed over."""
        return self._fence.late

    def take(
        self, offset: int, key: bytes | None, value: bytes, position: bytes, fence: bytes = NO_FENCE
    ) -> SchemaFile | None:
        """Take the next record; return the schema file that it is, if it is one. One that stands before the offset
        where this began says only who wrote last.

        Raises:
            CorruptDataError: the record does not decode.
            FlowBrokenError: rows that were taken are not those that the sorter wrote.
            FenceWentBackError: a sorter writes whose records would all be late.
        """
        if offset < self._first_offset:
            self._fence.learn(fence)
            return None
        if not self._fence.passes(fence, position, is_part=is_part(key)):
            return None
        self._parts.forget(self.last)
        whole = self._whole(offset, key, value, position)
        self.offset = self._parts.from_offset(offset + 1)
        if whole is None:
            return None
        key, value = whole
        decoded = decode_position(position)
        match decoded.position_class:
            case PositionClass.WATERMARK:
                # Of one that is repeated, or of other cuts, the rows behind it were taken already.
                if decoded.commit_ts > self.watermark_ts and position > self.last:
                    self.flow.pass_watermark(decoded.commit_ts, read_mark(value))
                self.watermark_ts = max(self.watermark_ts, decoded.commit_ts)
            case PositionClass.DDL | PositionClass.BOOTSTRAP:
                return decode_schema_file(value)
            case PositionClass.ROW:
                self._take_rows(key or b"", value, position)
        return None

    @property
    def end(self) -> NotedEnd:
        """What to note once all lines that wait are in files."""
        return NotedEnd(self.offset, self.last, self.watermark_ts)

    @property
    def newest_version(self) -> Ts:
        """The latest table version among the folders that wait: its schema file must be written before their lines."""
        return max((self.form(key).version for key in self.folders), default=Ts(0))

    def form(self, key: bytes) -> FolderForm:
        """Return the folder of a row message's key."""
        if key not in self._forms:
            self._forms[key] = decode_folder(key)
        return self._forms[key]

    def waiting(self) -> Iterator[tuple[FolderForm, FolderLines]]:
        """Yield the folders that wait and their lines."""
        return ((self.form(key), lines) for key, lines in self.folders.items())

    def flushed(self) -> None:
        """Forget the lines: they are in files."""
        self.folders, self.bytes_total = {}, 0
        if len(self._forms) > 10_000:  # of tables that came and went
            self._forms = {}

    def _whole(
        self, offset: int, key: bytes | None, value: bytes, position: bytes
    ) -> tuple[bytes | None, bytes] | None:
        """Return key and value of a record, or of the message that it is the last part of; None: parts are missing, or
        nobody needs them.
        """
        if not is_part(key):
            return key, value
        joined = self._parts.take(position, offset, key, value) if position > self.last else None
        if joined is None:
            return None
        self._fence.close()
        return joined.key, joined.value

    def _take_rows(self, key: bytes, value: bytes, position: bytes) -> None:
        rows = decode_storage_rows(value)
        first = 0
        if position <= self.last:
            first = len(rows)
        elif rows.position(0) <= self.last:
            first = next(number for number, at in enumerate(rows.positions()) if at > self.last)
        if first == len(rows):
            return
        form = self.form(key)  # refuses a key that is none, while the record is at hand
        self.flow.take((_NewRows(rows, first, form),))
        lines = self.folders.setdefault(key, FolderLines())
        chunk = rows.lines(first)
        lines.chunks.append(chunk)
        lines.bytes_total += len(chunk)
        lines.rows += len(rows) - first
        # The message stays in memory as long as its lines do.
        self.bytes_total += len(value)
        self.last = position
