"""Committed row changes between matcher and raw log: as tuples where there are few, as columns of one event else."""

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Change = tuple[int, int, int, bytes, bytes, bytes, int]
"""``(commit_ts, start_ts, op, key, value, old_value, txn_source)``: one committed row change, in RowChanges' order."""

Int64s = npt.NDArray[np.int64]


_PUT: Final = 1
"""cdcpb ``Event.OpType``."""


class JoinedBytes(NamedTuple):
    """A column of byte strings. Joined while they are fresh in the processor's cache: later each would be a miss."""

    lengths: Int64s
    data: bytes

    @classmethod
    def of(cls, column: Sequence[bytes]) -> "JoinedBytes":
        """Join a column."""
        return cls(np.fromiter(map(len, column), np.int64, len(column)), b"".join(column))

    @classmethod
    def empty(cls, count: int) -> "JoinedBytes":
        """Return a column of ``count`` empty strings."""
        return cls(np.zeros(count, np.int64), b"")

    @classmethod
    def concatenated(cls, columns: Sequence["JoinedBytes"]) -> "JoinedBytes":
        """Return columns one after the other, at least one."""
        if len(columns) == 1:
            return columns[0]
        return cls(np.concatenate([column.lengths for column in columns]), b"".join(column.data for column in columns))

    def equals(self, other: "JoinedBytes") -> bool:
        """Tell whether the byte strings are the same ones, in the same order."""
        # By their bytes: numpy takes ten times as long to compare a hundred lengths.
        return self.data == other.data and self.lengths.tobytes() == other.lengths.tobytes()

    def items(self) -> list[bytes]:
        """Return the byte strings."""
        return [self.data[first:end] for first, end in pairwise([0, *np.cumsum(self.lengths).tolist()])]


class ChangeColumns(Collection[Change]):
    """``n`` changes, at least one, as columns of length ``n``; whoever wants them one by one iterates."""

    __slots__ = ("commit_ts", "key", "old_value", "op", "start_ts", "txn_source", "value")

    def __init__(
        self,
        commit_ts: Int64s,
        start_ts: Int64s,
        op: npt.NDArray[np.int8],
        key: JoinedBytes,
        value: JoinedBytes,
        old_value: JoinedBytes,
        txn_source: Int64s,
    ) -> None:
        """Take columns of one length."""
        self.commit_ts = commit_ts
        self.start_ts = start_ts
        self.op = op
        self.key = key
        self.value = value
        self.old_value = old_value
        self.txn_source = txn_source

    @classmethod
    def of(
        cls,
        commit_ts: Sequence[int],
        start_ts: Sequence[int],
        op: Sequence[int],
        key: Sequence[bytes],
        value: Sequence[bytes],
        old_value: Sequence[bytes],
        txn_source: Sequence[int],
    ) -> "ChangeColumns":
        """Return what plain sequences of one length hold; ``of(*zip(*changes))`` for tuples."""
        count = len(commit_ts)
        return cls(
            np.fromiter(commit_ts, np.int64, count),
            np.fromiter(start_ts, np.int64, count),
            np.fromiter(op, np.int8, count),
            JoinedBytes.of(key),
            JoinedBytes.of(value),
            JoinedBytes.of(old_value),
            np.fromiter(txn_source, np.int64, count),
        )

    @classmethod
    def of_puts(
        cls,
        commit_ts: Sequence[int],
        start_ts: int,
        key: JoinedBytes,
        value: JoinedBytes,
        old_value: JoinedBytes,
        txn_source: Sequence[int] | None,
    ) -> "ChangeColumns":
        """Return the changes of one transaction that only puts rows; no ``txn_source``: it is 0 in all of them."""
        count = len(commit_ts)
        first = commit_ts[0]
        same = commit_ts.count(first) == count
        return cls(
            np.full(count, first, np.int64) if same else np.fromiter(commit_ts, np.int64, count),
            np.full(count, start_ts, np.int64),
            np.full(count, _PUT, np.int8),
            key,
            value,
            old_value,
            np.zeros(count, np.int64) if txn_source is None else np.fromiter(txn_source, np.int64, count),
        )

    @classmethod
    def concatenated(cls, parts: Sequence["ChangeColumns"]) -> "ChangeColumns":
        """Return parts one after the other, at least one."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.commit_ts for part in parts]),
            np.concatenate([part.start_ts for part in parts]),
            np.concatenate([part.op for part in parts]),
            JoinedBytes.concatenated([part.key for part in parts]),
            JoinedBytes.concatenated([part.value for part in parts]),
            JoinedBytes.concatenated([part.old_value for part in parts]),
            np.concatenate([part.txn_source for part in parts]),
        )

    @property
    def value_bytes(self) -> int:
        """Return the bytes of all values and old values."""
        return len(self.value.data) + len(self.old_value.data)

    def __len__(self) -> int:
        return len(self.commit_ts)

    def __iter__(self) -> Iterator[Change]:
        return zip(
            self.commit_ts.tolist(),
            self.start_ts.tolist(),
            self.op.tolist(),
            self.key.items(),
            self.value.items(),
            self.old_value.items(),
            self.txn_source.tolist(),
            strict=True,
        )

    def __contains__(self, change: object) -> bool:
        return any(change == mine for mine in self)
