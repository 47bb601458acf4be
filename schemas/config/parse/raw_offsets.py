"""Records of the raw log as a user names them: ``3:17`` is one of partition 3, ``3:17-40`` those from 17 to 40, both
ends among them.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

OFFSET_MAX = 2**63 - 1
RANGE_RECORDS_MAX = 1_000_000
"""Of one range. What is damaged in it later is passed over too, so nobody is to name a whole partition."""
_NAMED = re.compile(r"([0-9]{1,10}):([0-9]{1,19})(?:-([0-9]{1,19}))?")


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one raw partition, both ends among them."""

    partition: int
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what a text names.

        Raises:
            ValueError: none, or too many; it says what is allowed.

        >>> OffsetRange.parse("3:17-40")
        OffsetRange(partition=3, first=17, last=40)
        """
        named = _NAMED.fullmatch(text)
        if named is None or max(map(int, filter(None, named.groups()))) > OFFSET_MAX:
            raise ValueError('must be "PARTITION:OFFSET" or "PARTITION:FIRST-LAST" of records of the raw log')
        partition, first, last = int(named[1]), int(named[2]), int(named[3] or named[2])
        if not first <= last < first + RANGE_RECORDS_MAX:
            raise ValueError(
                f"FIRST-LAST must be from 1 to {RANGE_RECORDS_MAX:,} offsets, the first one not above the last"
            )
        return cls(partition, first, last)


@dataclass(frozen=True, slots=True)
class RawOffsets:
    """Ranges of offsets; in it is a (raw partition, offset) that one of them has."""

    ranges: tuple[OffsetRange, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Return what texts name.

        Raises:
            ValueError: see :meth:`OffsetRange.parse`.
        """
        return cls(tuple(map(OffsetRange.parse, texts)))

    def __contains__(self, where: object) -> bool:
        if not isinstance(where, tuple):
            return False
        partition, offset = where
        return any(each.partition == partition and each.first <= offset <= each.last for each in self.ranges)
