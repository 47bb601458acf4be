"""The changes of a commit's step, by table: in memory as far as they fit, the rest in a file that nobody else sees.

    parts ─▶ held ─▶ more than HELD_BYTES_MAX: the largest table goes to its file, by bucket of a hash ─▶ groups

A transaction may be larger than any machine's memory, and no commit may divide it. Changes that belong together (of one
key in mode upsert; repeats of one change in mode append) have one hash, so what is written at once is some buckets.
The file is anonymous: it is gone with the process, however that ends.
"""

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from sorters.core.lake.changes import POSITION, in_order
from sorters.core.route.partition_hash import crc32_column

HELD_BYTES_MAX = 128 << 20
"""Of all tables' changes as Arrow holds them, while they are gathered."""
GROUP_BYTES = 64 << 20
"""Of the changes that are put in order and written at once, which takes several times as much."""
BUCKETS = 256
"""So that a bucket of 16 GiB of one table is not more than a group."""


@dataclass(eq=False)
class TableChanges:
    """The changes of one table version."""

    version: TableVersion
    keys: Sequence[str]
    """Columns of which changes with the same values belong together."""
    folder: Path
    _held: list[pa.Table] = field(default_factory=list)
    _file: IO[bytes] | None = None
    _blocks: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Bucket → offset and length of its blocks in the file."""

    @property
    def held_bytes(self) -> int:
        """What it holds in memory."""
        return sum(int(part.nbytes) for part in self._held)

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        return not self._held and not self._blocks

    def is_small(self, bytes_max: int) -> bool:
        """Tell whether all of them are in memory, and no more than so many bytes."""
        return self._file is None and self.held_bytes <= bytes_max

    def add(self, part: pa.Table) -> None:
        """Take changes."""
        self._held.append(part)

    def groups(self) -> Iterator[pa.Table]:
        """Yield the changes, each once, in disjoint groups of those that belong together, each group in order. May be
        asked for again.
        """
        if self._file is None:
            if self._held:
                yield in_order(self._held)
            return
        self.spill()
        waiting, size = list[int](), 0
        for bucket in sorted(self._blocks):
            more = sum(length for _, length in self._blocks[bucket])
            if waiting and size + more > GROUP_BYTES:
                yield in_order(self._read(waiting))
                waiting, size = [], 0
            waiting.append(bucket)
            size += more
        yield in_order(self._read(waiting))

    def spill(self) -> None:
        """Write what is in memory to the file."""
        if not self._held:
            return
        if self._file is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 # as long as this object
        whole = pa.concat_tables(self._held).combine_chunks()
        self._held.clear()
        buckets = _buckets(whole, self.keys)
        order = np.argsort(buckets, kind="stable")
        distinct, starts = np.unique(buckets[order], return_index=True)
        for bucket, rows in zip(distinct.tolist(), np.split(order, starts[1:]), strict=True):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, whole.schema) as writer:
                writer.write_table(whole.take(rows))
            block = sink.getvalue()
            self._blocks[int(bucket)].append((self._file.tell(), block.size))
            self._file.write(block)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()

    def _read(self, buckets: Sequence[int]) -> Iterator[pa.Table]:
        assert self._file is not None
        for bucket in buckets:
            for offset, length in self._blocks[bucket]:
                self._file.seek(offset)
                with pa.ipc.open_stream(self._file.read(length)) as reader:
                    yield reader.read_all()
        self._file.seek(0, 2)


class HeldChanges:
    """The changes of all tables of a step; :meth:`close` must be called."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is for what does not fit in memory."""
        self._folder = folder
        self._tables: dict[tuple[int, Ts], TableChanges] = {}
        self._held_bytes = 0

    def of(self, version: TableVersion, keys: Sequence[str] = ()) -> TableChanges:
        """Return those of a table version. ``keys``: see :class:`TableChanges`; none: repeats alone belong together."""
        key = version.table_id, version.version
        if key not in self._tables:
            self._tables[key] = TableChanges(version, tuple(keys) or (POSITION,), self._folder)
        return self._tables[key]

    def add(self, changes: TableChanges, part: pa.Table) -> None:
        """Take changes of a table; what is too much with them goes to its file."""
        if not part.num_rows:
            return
        changes.add(part)
        self._held_bytes += int(part.nbytes)
        while self._held_bytes > HELD_BYTES_MAX:
            largest = max(self._tables.values(), key=lambda table: table.held_bytes)
            self._held_bytes -= largest.held_bytes
            largest.spill()

    def __iter__(self) -> Iterator[TableChanges]:
        """Yield the tables, as they came."""
        yield from self._tables.values()

    def close(self) -> None:
        """Let go of all."""
        for table in self._tables.values():
            table.close()


def _buckets(changes: pa.Table, keys: Sequence[str]) -> npt.NDArray[np.int64]:
    hashed = np.zeros(changes.num_rows, np.uint32)
    for name in keys:
        column = changes.column(name).combine_chunks()
        is_bytes = pa.types.is_binary(column.type) or pa.types.is_string(column.type)
        hashed = hashed * np.uint32(31) + crc32_column(column if is_bytes else pc.cast(column, pa.string()), 0)
    return (hashed % BUCKETS).astype(np.int64)
