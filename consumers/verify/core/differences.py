"""What two sides' numbers come to: which buckets differ, and which keys.

    range differs --> buckets of its rows by the first bits of their hashes --> rows of those that differ --> keys

A row that was changed stands in one bucket at the source and in another at the destination, so both differ, and both
are read.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from schemas.state_proof.row_text import TableProof

ROWS_PER_BUCKET = 64
BUCKET_BITS_MAX = 16
HASH_BITS = 64
Key = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class HashedRow:
    """One row of one side."""

    hash: int
    key: Key
    """Texts of its key columns; bytes that are no UTF-8 are shown as ``\\xff``."""


@dataclass(frozen=True, slots=True, order=True)
class KeyDifference:
    """One key at which the sides differ.

    ``missing``: only the source has it. ``extra``: only the destination. ``differs``: the rows differ. ``repeated``:
    one side has the same row more often, which only a table without a key can.
    """

    key: Key
    what: Literal["missing", "extra", "differs", "repeated"]


def bucket_shift(rows: int) -> int:
    """Return by how many bits hashes are shifted, so that a bucket has some 64 rows and at most 65,536 are made.

    >>> [bucket_shift(rows) for rows in (0, 64, 65, 50_000, 10**9)]
    [63, 63, 62, 54, 48]
    """
    bits = max(1, (max(0, rows - 1) // ROWS_PER_BUCKET).bit_length())
    return HASH_BITS - min(BUCKET_BITS_MAX, bits)


def differing_buckets(
    source: Mapping[int, TableProof], destination: Mapping[int, TableProof], rows_max: int
) -> tuple[list[int], bool]:
    """Return buckets whose proofs differ, in order, and whether these are all; at most ``rows_max`` rows of a side."""
    nothing = TableProof()
    differing = sorted(
        bucket
        for bucket in source.keys() | destination.keys()
        if source.get(bucket, nothing) != destination.get(bucket, nothing)
    )
    taken: list[int] = []
    rows = 0
    for bucket in differing:
        rows += max(source.get(bucket, nothing).rows, destination.get(bucket, nothing).rows)
        if taken and rows > rows_max:
            return taken, False
        taken.append(bucket)
    return taken, True


def key_differences(source: Iterable[HashedRow], destination: Iterable[HashedRow]) -> list[KeyDifference]:
    """Return the keys at which the rows differ, in the keys' order."""
    left, right = _by_key(source), _by_key(destination)
    differences = []
    for key in sorted(left.keys() | right.keys(), key=_sort_key):
        mine, theirs = left.get(key), right.get(key)
        if mine == theirs:
            continue
        if mine is None or theirs is None:
            differences.append(KeyDifference(key, "extra" if mine is None else "missing"))
        else:
            differences.append(KeyDifference(key, "repeated" if mine.keys() == theirs.keys() else "differs"))
    return differences


def _by_key(rows: Iterable[HashedRow]) -> dict[Key, Counter[int]]:
    by_key: dict[Key, Counter[int]] = {}
    for row in rows:
        by_key.setdefault(row.key, Counter())[row.hash] += 1
    return by_key


def _sort_key(key: Key) -> list[tuple[int, int, str]]:
    """Numbers by value, before texts."""
    return [
        (0, 0, "") if part is None else (1, int(part), "") if part.lstrip("-").isdecimal() else (2, 0, part)
        for part in key
    ]
