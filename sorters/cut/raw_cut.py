"""The raw records of a cut that one process holds whole."""

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Protocol

from schemas.ids import TableId
from sorters.core.cut.cut import Cut
from sorters.cut.image_chunks import RawChunk, chunk_tables, read_chunks
from sorters.cut.raw_records import ReadsRanges, raw_records, tables_of
from sorters.cut.worker import SharedRows

RAW_RECORD_BYTES_GUESS = 4 * 1024
"""Size of a raw record before any was read: low, since starting Spark in vain costs more than reading in vain."""


@dataclass(frozen=True, slots=True)
class RawCut:
    """The raw records of one cut, and the bytes that were read to get them."""

    records: list[bytes]
    raw_bytes: int
    shared: SharedRows | None = None
    """Their rows, where other changefeeds run the same cut; None: nobody is known to."""
    chunks: tuple[RawChunk, ...] = ()
    """Of table images."""

    def tables(self, cut: Cut) -> Set[TableId]:
        """Return the physical tables that there may be rows of in ``cut``, which it was read for."""
        tables = tables_of(self.records, cut) if self.shared is None else self.shared.tables()
        return tables | chunk_tables(cut) if cut.chunks else tables


class RawReader(ReadsRanges, Protocol):
    """Reads raw records for small cuts, as :class:`~sorters.cut.record_window.RecordWindow` does."""

    def read_cut(self, cut: Cut, raw_bytes_max: int) -> RawCut | None:
        """Return the raw records of ``cut``; None: they are more than ``raw_bytes_max``.

        Raises:
            KafkaUnreachableError, HistoryLostError: Kafka does not hand them out.
            CorruptDataError: a record is not one of the raw log.
        """
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


def read_cut(reader: ReadsRanges, cut: Cut, raw_bytes_max: int) -> RawCut | None:
    """Do what :meth:`RawReader.read_cut` says, by any reader."""
    records, raw_bytes = list[bytes](), 0

    def count(size: int) -> None:
        nonlocal raw_bytes
        raw_bytes += size
        if raw_bytes > raw_bytes_max:
            raise _TooMuchError

    try:
        records.extend(raw_records(reader, cut, count, keeps_unknown=True))
    except _TooMuchError:
        return None
    return RawCut(records, raw_bytes)


class _TooMuchError(Exception):
    """A cut has more raw bytes than may be held; those of rows that are not whole yet count."""


def with_chunks(raw: RawCut, reader: ReadsRanges, cut: Cut, raw_bytes_max: int) -> RawCut | None:
    """Return the same with the cut's chunks of table images; None: they are more than ``raw_bytes_max`` together.

    Raises:
        KafkaUnreachableError, HistoryLostError, CorruptDataError: see :func:`~sorters.cut.image_chunks.read_chunks`.
    """
    raw_bytes, chunks = raw.raw_bytes, list[RawChunk]()

    def count(size: int) -> None:
        nonlocal raw_bytes
        raw_bytes += size

    for chunk in read_chunks(reader, cut, count):
        chunks.append(chunk)
        if raw_bytes > raw_bytes_max:
            return None
    return replace(raw, raw_bytes=raw_bytes, chunks=tuple(chunks))
