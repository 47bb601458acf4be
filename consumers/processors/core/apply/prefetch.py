"""What was read of a partition before it is applied here: some of it, ready for the moment when it is taken over."""

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

PREFETCH_BYTES_MAX = 8 * 1024 * 1024
"""Of one partition, about a second's worth; taking it over takes less."""


class ReadRecord(Protocol):
    """What is asked of a record."""

    @property
    def offset(self) -> int: ...
    @property
    def value(self) -> bytes: ...


Record = TypeVar("Record", bound=ReadRecord)


@dataclass(slots=True)
class Prefetch(Generic[Record]):
    """The partition's records from offset ``start`` on, none left out, and perhaps the one before."""

    start: int
    records: list[Record] = field(default_factory=list)
    bytes: int = 0

    @property
    def is_full(self) -> bool:
        """Whether reading on should wait."""
        return self.bytes > PREFETCH_BYTES_MAX

    def add(self, record: Record) -> None:
        """Take the next record."""
        self.records.append(record)
        self.bytes += len(record.value)

    def take(self, offset: int) -> list[Record] | None:
        """Return the records from ``offset`` on, and the one before where it was read; None: reading must begin anew
        there, for nothing of it was read.
        """
        if not self.records:
            return [] if offset == self.start else None
        if not self.start <= offset <= self.records[-1].offset + 1:
            return None
        return [record for record in self.records if record.offset >= offset - 1]
