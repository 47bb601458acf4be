"""Rows whose checksum does not fit: what is told of them, and the error that stops a changefeed for one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from schemas.errors import Action, BusError
from sorters.core.mount.mounted import MountedPart

NAMED_MAX = 20
"""Rows of a cut that are told by name; of the rest only the number."""


class CorruptChecksumError(BusError):
    """A row does not fit its checksum, and ``corruption-handle-level`` is ``error``."""

    code, action = "mount.corrupt_checksum", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True)
class CorruptRow:
    """Where a corrupt row stands upstream."""

    table: str
    key: str
    """The raw row key in hex."""
    commit_ts: int


@dataclass(frozen=True, slots=True)
class CorruptRows:
    """How many rows, and the first of them."""

    count: int = 0
    named: tuple[CorruptRow, ...] = ()

    def __add__(self, other: "CorruptRows") -> "CorruptRows":
        return CorruptRows(self.count + other.count, (self.named + other.named)[:NAMED_MAX])


OnCorrupt = Callable[[CorruptRows], None]


def corrupt_rows(parts: Iterable[MountedPart]) -> CorruptRows:
    """Return the rows of these parts whose checksum does not fit."""
    corrupt = CorruptRows()
    for part in parts:
        if part.checksums is None:
            continue
        rows = np.flatnonzero(part.checksums.corrupted)
        named = tuple(
            CorruptRow(part.table.name, part.names.keys[row].hex(), int(part.commit_ts[row]))
            for row in rows[:NAMED_MAX].tolist()
        )
        corrupt += CorruptRows(len(rows), named)
    return corrupt


def corrupt_error(corrupt: CorruptRows) -> CorruptChecksumError:
    """Return the error that names the first row; the caller raises it."""
    first = corrupt.named[0]
    return CorruptChecksumError(
        "row does not fit its checksum",
        table=first.table,
        key=first.key,
        commit_ts=first.commit_ts,
        corrupt_rows=corrupt.count,
        setting="corruption-handle-level = error",
    )
