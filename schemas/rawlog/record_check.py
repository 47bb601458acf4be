"""What a capture says of a raw record beside it, in a header, so that whoever reads the record knows it for the same.

Two checksums: one of the record's bytes, and one of what its rows are known by (commit_ts, start_ts, op, key), which
was made of the columns before they were encoded and is compared after they were decoded. Both are CRC-32, whose price
of a call is small: records of a few rows are many. The sums of proofs (:mod:`schemas.flow.flow_sum`) cost 25 µs a
record in numpy's calls (docs/decisions/2026-11-24-checked-raw-records.md). Beside them stands whose the rows are, and a
checksum of all this: so of a damaged record it is known which table stops by it, and who else may pass over it.

A record without the header is of an older release, and is taken as it is. Older readers look at no header.

The format, for readers in other languages: docs/formats/raw-log.md §2.
"""

import re
import struct
import sys
import zlib
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, Self

import numpy as np

from schemas.changes import RowChanges
from schemas.errors import CorruptDataError
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.batch_head import BatchHead, read_head
from schemas.rawlog.binary_columns import joined_bytes

CHECK_HEADER: Final = "tidebus-check"
_SAID: Final = re.compile(
    rb"([0-9]{1,10}):([0-9a-f]{8}):([0-9a-f]{8})(?::([0-9]{1,19}):([0-9]{1,19}):([0-9]{1,19}):([0-9a-f]{8}))?(:.*)?",
    re.DOTALL,
)
_CRC_DIGITS: Final = 8
_SHOWN_BYTES: Final = 16
NO_TABLE: Final = TableId(0)
"""Whose the rows of a damaged record are of which nobody can tell; TiDB's ids begin at 1."""
_Column = Any
"""A buffer: bytes, a memoryview, or an array, which numpy does not declare as one."""
_CRCS: Final = struct.Struct("<4I")


class RecordDamagedError(CorruptDataError):
    """A record of the raw log is not the one that its capture sent, though it may decode; ``fields`` name it, and its
    table where its header still tells: other changefeeds pass over it then. No resume passes it, unless
    ``filter.skip-damaged-records`` names it; a resync of the table brings what is lost.
    """

    code = "rawlog.record_damaged"


class Message(Protocol):
    """The part of ``confluent_kafka.Message`` that is read."""

    def topic(self) -> Any: ...
    def partition(self) -> Any: ...
    def offset(self) -> Any: ...
    def value(self) -> Any: ...
    def headers(self) -> Any: ...


@dataclass(slots=True)
class RowsCheck:
    """Checksums of four columns, of rows one after the other."""

    count: int = 0
    commit_ts: int = 0
    start_ts: int = 0
    op: int = 0
    key: int = 0

    @classmethod
    def of(cls, rows: RowChanges) -> Self:
        """Return the checksums of rows."""
        check = cls()
        check.add_rows(rows)
        return check

    def add(self, count: int, commit_ts: _Column, start_ts: _Column, op: _Column, keys: _Column) -> None:
        """Take ``count`` more rows: int64 little-endian, int8, and keys joined."""
        crc32 = zlib.crc32
        self.count += count
        self.commit_ts = crc32(commit_ts, self.commit_ts)
        self.start_ts = crc32(start_ts, self.start_ts)
        self.op = crc32(op, self.op)
        self.key = crc32(keys, self.key)

    def add_rows(self, rows: RowChanges) -> None:
        """Take more rows."""
        commit_ts, start_ts = np.ascontiguousarray(rows.commit_ts, "<i8"), np.ascontiguousarray(rows.start_ts, "<i8")
        self.add(len(rows), commit_ts, start_ts, np.ascontiguousarray(rows.op), joined_bytes(rows.key))

    @property
    def word(self) -> int:
        """The four as one."""
        return zlib.crc32(_CRCS.pack(self.commit_ts, self.start_ts, self.op, self.key))


class _Said(NamedTuple):
    """A header taken apart."""

    row_count: int
    rows: int
    record: int
    whose: "Whose | None"


class Whose(NamedTuple):
    """Whose the rows of a record are."""

    table_id: TableId
    min_commit_ts: Ts
    max_commit_ts: Ts

    @classmethod
    def of(cls, rows: RowChanges) -> Self:
        """Return whose rows are, of which there is at least one."""
        low, high = rows.ts_span
        return cls(rows.table_id, Ts(low), Ts(high))


def check_headers(rows: RowsCheck, record: bytes, whose: Whose) -> list[tuple[str, bytes]]:
    """Return the headers that say what ``record`` is, or a part of the record that holds the rows."""
    said = b"%d:%08x:%08x:%d:%d:%d" % (rows.count, rows.word, zlib.crc32(record), *whose)
    return [(CHECK_HEADER, b"%b:%08x" % (said, zlib.crc32(said)))]


_ANYBODYS: Final = BatchHead(
    table_id=NO_TABLE,
    region_id=RegionId(0),
    count=1,
    min_commit_ts=Ts(0),
    max_commit_ts=Ts(2**63 - 1),
    may_repeat=False,
)
"""The head of a record of which nobody knows whose it is: of every ts, so that no cut leaves it out unseen."""


class RawRecord(bytes):
    """A record's value, and what its capture says of it.

    :func:`~schemas.rawlog.row_parts.PartJoiner.take` compares the bytes, and
    :func:`~schemas.rawlog.region_batch.decode_region_batch` the rows. One that is damaged, and whose header tells whose
    it is, has what the header says as its head: those who want no rows of that table pass over it, as over any other
    record; the others get the error when they decode it.
    """

    said: bytes | None = None
    """The header; None: there is none."""
    where: tuple[str, int, int] = ("", 0, 0)
    """Topic (one text for all records of it), partition, offset."""
    damage: tuple[str, str, str] | None = None
    """What is wrong, what was seen and what was due."""
    is_checked = False
    """Whether it was compared with what is said of it."""
    head: BatchHead | None = None
    """Its head, once it was read."""

    @classmethod
    def of(cls, message: Message) -> Self:
        """Return a message's value, with what is said of it."""
        said = None
        for name, value in message.headers() or ():
            if name == CHECK_HEADER:
                said = value or b""
        return cls.known(
            message.value() or b"", said, (sys.intern(message.topic()), message.partition(), message.offset())
        )

    @classmethod
    def known(cls, value: bytes, said: bytes | None, where: tuple[str, int, int]) -> Self:
        """Return a record of what is known of it."""
        record = cls(value)
        record.said, record.where = said, where
        return record

    def joined(self, whole: bytes) -> "RawRecord":
        """Return the record that this one was the last part of; each part's bytes have been compared."""
        record = RawRecord(whole)
        record.said, record.where, record.is_checked = self.said, self.where, True
        return record

    @property
    def whose(self) -> Whose | None:
        """Whose it is by its header; None: that does not say, or is damaged itself."""
        said = _said(self.said)
        return None if said is None else said.whose

    @property
    def is_unknown(self) -> bool:
        """Whether it is damaged, and nobody can tell whose it is: it may be any table's, or none of ours at all."""
        return self.damage is not None and self.whose is None

    def compare(self) -> None:
        """Compare the bytes, and whose the rows are by the record's own head, once; what differs is noted as
        :attr:`damage`.
        """
        if self.is_checked:
            return
        try:
            if self.said is not None:
                self._check(self.said)
            elif self.head is None:
                self.head = read_head(self)[0]
        except CorruptDataError as error:
            self.note_unknown(error)
        self.is_checked = True

    def check(self) -> None:
        """Do what :meth:`compare` does.

        Raises:
            RecordDamagedError: it differs, and nobody can tell whose it is.
        """
        self.compare()
        if self.is_unknown:
            self.check_damage()

    def read_head(self) -> BatchHead:
        """Return the record's head; of one that is damaged: what its header says.

        Raises:
            CorruptDataError: it does not start as a RegionBatch does.
        """
        head = self.head
        if head is None:
            head = self.head = read_head(self)[0]
        return head

    def check_damage(self) -> None:
        """Raise what was found.

        Raises:
            RecordDamagedError: it is damaged.
        """
        if self.damage is not None:
            raise self._error(*self.damage)

    def check_rows(self, rows: RowChanges) -> None:
        """Compare the rows that were decoded.

        Raises:
            RecordDamagedError: they are others.
        """
        if self.said is None:
            return
        check = RowsCheck.of(rows)
        if self.said.startswith(b"%d:%08x:" % (check.count, check.word)):
            return
        said = self._parsed()
        if (check.count, check.word) != (said.row_count, said.rows):
            seen, due = f"{check.count}:{check.word:08x}", f"{said.row_count}:{said.rows:08x}"
            raise self._error("a raw record's rows are not those that were sent", seen, due)

    def _check(self, text: bytes) -> None:
        """Compare with what is said: as text, since it is the one that is due nearly always; else taken apart."""
        crc = zlib.crc32(self)
        at = text.find(b":") + _CRC_DIGITS + 2
        end = at + _CRC_DIGITS
        if text[at:end] != b"%08x" % crc and (said := self._parsed()).record != crc:
            self._damage("a raw record's bytes are not those that were sent", f"{crc:08x}", f"{said.record:08x}", said)
            return
        head = self.head = read_head(self)[0]
        seen = Whose(head.table_id, head.min_commit_ts, head.max_commit_ts)
        if not text.startswith(b":%d:%d:%d:" % seen, end):
            said = self._parsed()
            if said.whose is not None and said.whose != seen:
                fault = "a raw record's head is not that of the rows that were sent"
                self._damage(fault, f"{seen}", f"{said.whose}", said)

    def note_unknown(self, error: CorruptDataError) -> None:
        """Note that it is no record of ours, or one that nobody can read: it may be any table's."""
        seen = error.fields.get("seen", repr(bytes(self[:_SHOWN_BYTES])))
        self.damage = error.message, str(seen), str(error.fields.get("due", "a record that a capture has sent"))
        self.head = _ANYBODYS

    def _parsed(self) -> _Said:
        said = _said(self.said)
        if said is None:
            raise self._error(f"header {CHECK_HEADER} of a raw record is none", repr(self.said), "COUNT:ROWS:BYTES")
        return said

    def _damage(self, text: str, seen: str, due: str, said: _Said) -> None:
        whose = said.whose
        if whose is None:
            raise self._error(text, seen, due)
        self.damage = text, seen, due
        self.head = BatchHead(
            table_id=whose.table_id,
            region_id=RegionId(0),
            count=said.row_count,
            min_commit_ts=whose.min_commit_ts,
            max_commit_ts=whose.max_commit_ts,
            may_repeat=False,
        )

    def _error(self, text: str, seen: str, due: str) -> RecordDamagedError:
        topic, partition, offset = self.where
        where: dict[str, object] = {"topic": topic, "partition": partition, "offset": offset}
        if (whose := self.whose) is not None:
            where |= {"table_id": whose.table_id}
            where |= {"min_commit_ts": whose.min_commit_ts, "max_commit_ts": whose.max_commit_ts}
        return RecordDamagedError(text, **where, size=len(self), seen=seen, due=due)


def _said(text: bytes | None) -> _Said | None:
    """Take a header apart; None: it is none. ``whose`` is None where it does not say, or is damaged itself."""
    parsed = _SAID.fullmatch(text or b"")
    if text is None or parsed is None:
        return None
    count, rows, record, table_id, low, high, crc, _ = parsed.groups()
    whose = None
    if crc is not None and zlib.crc32(text[: parsed.start(7) - 1]) == int(crc, 16):
        whose = Whose(TableId(int(table_id)), Ts(int(low)), Ts(int(high)))
    return _Said(int(count), int(rows, 16), int(record, 16), whose)
