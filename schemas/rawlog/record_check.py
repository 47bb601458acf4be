"""What a capture says of a raw record beside it, in a header, so that whoever reads the record knows it for the same.

Two checksums: one of the record's bytes, and one of what its rows are known by (commit_ts, start_ts, op, key), which
was made of the columns before they were encoded and is compared after they were decoded. Both are CRC-32, whose price
of a call is small: records of a few rows are many. The sums of proofs (:mod:`schemas.flow.flow_sum`) cost 25 µs a
record in numpy's calls (docs/decisions/2026-11-24-checked-raw-records.md).

A record without the header is of an older release, and is taken as it is. Older readers look at no header.

The format, for readers in other languages: docs/formats/raw-log.md §2.
"""

import re
import struct
import sys
import zlib
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import numpy as np

from schemas.changes import RowChanges
from schemas.errors import CorruptDataError
from schemas.rawlog.binary_columns import joined_bytes

CHECK_HEADER: Final = "tidebus-check"
_CHECK: Final = re.compile(rb"([0-9]{1,10}):([0-9a-f]{8}):([0-9a-f]{8})(:.*)?", re.DOTALL)
_Column = Any
"""A buffer: bytes, a memoryview, or an array, which numpy does not declare as one."""
_CRCS: Final = struct.Struct("<4I")


class RecordDamagedError(CorruptDataError):
    """A record of the raw log is not the one that its capture sent, though it may decode; ``fields`` name it. No resume
    passes it: have its tables copied anew, and resume above it.
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


def check_headers(rows: RowsCheck, record: bytes) -> list[tuple[str, bytes]]:
    """Return the headers that say what ``record`` is, or a part of the record that holds the rows."""
    return [(CHECK_HEADER, b"%d:%08x:%08x" % (rows.count, rows.word, zlib.crc32(record)))]


class RawRecord(bytes):
    """A record's value, and what its capture says of it.

    :func:`~schemas.rawlog.row_parts.PartJoiner.take` compares the bytes, and
    :func:`~schemas.rawlog.region_batch.decode_region_batch` the rows.
    """

    said: bytes | None = None
    """The header; None: there is none."""
    where: tuple[str, int, int] = ("", 0, 0)
    """Topic (one text for all records of it), partition, offset."""
    _is_sound = False

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
        record.said, record.where, record._is_sound = self.said, self.where, True
        return record

    def check_bytes(self) -> None:
        """Compare the bytes, once.

        Raises:
            RecordDamagedError: they are others.
        """
        if self.said is None or self._is_sound:
            return
        due, seen = self._parsed()[2], zlib.crc32(self)
        if seen != due:
            raise self._damaged("a raw record's bytes are not those that were sent", f"{seen:08x}", f"{due:08x}")
        self._is_sound = True

    def check_rows(self, rows: RowChanges) -> None:
        """Compare the rows that were decoded.

        Raises:
            RecordDamagedError: they are others.
        """
        if self.said is None:
            return
        count, word, _ = self._parsed()
        check = RowsCheck.of(rows)
        if (check.count, check.word) != (count, word):
            seen, due = f"{check.count}:{check.word:08x}", f"{count}:{word:08x}"
            raise self._damaged("a raw record's rows are not those that were sent", seen, due)

    def _parsed(self) -> tuple[int, int, int]:
        parsed = _CHECK.fullmatch(self.said or b"")
        if parsed is None:
            raise self._damaged(f"header {CHECK_HEADER} of a raw record is none", repr(self.said), "COUNT:ROWS:BYTES")
        return int(parsed[1]), int(parsed[2], 16), int(parsed[3], 16)

    def _damaged(self, text: str, seen: str, due: str) -> RecordDamagedError:
        topic, partition, offset = self.where
        where = {"topic": topic, "partition": partition, "offset": offset}
        return RecordDamagedError(text, **where, size=len(self), seen=seen, due=due)


def check_bytes(record: bytes | memoryview) -> None:
    """Compare the bytes of a record of which something is said.

    Raises:
        RecordDamagedError: they are others.
    """
    if isinstance(record, RawRecord):
        record.check_bytes()
