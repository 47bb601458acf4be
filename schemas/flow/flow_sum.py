"""The sum of row changes: how many, and their ids added up modulo 2**64. Order does not matter, multiplicity does.

An id is a non-linear mix of what a change is known by: raw key, commit_ts, start_ts, and whether the record deletes
(an update that is split becomes a DELETE and a PUT of one change). The format, for readers in other languages:
docs/formats/proofs.md. Its columnar twin is :mod:`sorters.core.flow.row_ids`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from schemas.ids import TableId

MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
WORD_BYTES: Final = 8
_HEX: Final = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class FlowSum:
    """``count`` ids that come to ``total`` modulo 2**64."""

    count: int = 0
    total: int = 0

    def __add__(self, other: "FlowSum") -> "FlowSum":
        return FlowSum(self.count + other.count, (self.total + other.total) & MASK)

    def __sub__(self, other: "FlowSum") -> "FlowSum":
        return FlowSum(self.count - other.count, (self.total - other.total) & MASK)

    def __bool__(self) -> bool:
        return bool(self.count or self.total)

    def __str__(self) -> str:
        return f"{self.count}:{self.total:016x}"


NOTHING: Final = FlowSum()
TableSums = Mapping[TableId, FlowSum]
"""By physical table; one that is not there has none."""


def parse_sum(text: object) -> FlowSum:
    """Read what ``str`` makes of a sum.

    Raises:
        ValueError: it is none.
    """
    count, _, total = str(text).partition(":")
    if not _HEX.fullmatch(total) or not count.removeprefix("-").isdecimal() or not count.isascii():
        raise ValueError(f"{text!r} is no sum of rows, which reads COUNT:SIXTEEN_HEX_DIGITS")
    return FlowSum(int(count), int(total, 16))


def mix(word: int) -> int:
    """Return splitmix64's finalizer of 64 bits (Steele, Lea and Flood, 2014)."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


@cache
def factor(number: int) -> int:
    """Return the odd number that the ``number``-th word of an id is multiplied by."""
    return mix((_GOLDEN * (number + 1)) & MASK) | 1


def row_id(key: bytes, commit_ts: int, start_ts: int, *, deletes: bool) -> int:
    """Return the id of a change.

    Words 0 to 3 are commit_ts, start_ts, the key's length doubled plus whether it deletes, and, of a key whose length
    is no multiple of 8, its last 8 bytes; from 4 on the key's whole words of 8 bytes. Bytes are little-endian; a key of
    less than 8 is filled with zeros at its front.
    """
    words = [commit_ts & MASK, start_ts & MASK, len(key) * 2 + deletes]
    words.append(int.from_bytes(key[-WORD_BYTES:].rjust(WORD_BYTES, b"\0"), "little") if len(key) % WORD_BYTES else 0)
    whole = len(key) // WORD_BYTES * WORD_BYTES
    words += [int.from_bytes(key[at : at + WORD_BYTES], "little") for at in range(0, whole, WORD_BYTES)]
    return mix(sum(factor(number) * word for number, word in enumerate(words)) & MASK)


def total_of(sums: TableSums) -> FlowSum:
    """Return the sum over all tables."""
    count = sum(each.count for each in sums.values())
    return FlowSum(count, sum(each.total for each in sums.values()) & MASK)


def add_sums(first: TableSums, second: TableSums) -> dict[TableId, FlowSum]:
    """Return the sums of both, table by table."""
    added = dict(first)
    if not added:  # as for each cut of a small changefeed: a sum costs a microsecond, and a cut has one a table
        return dict(second)
    for table, each in second.items():
        added[table] = added.get(table, NOTHING) + each
    return added
