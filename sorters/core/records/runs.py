"""Sorted runs: how the records of a cut get from the tasks that make them to the one that writes them, and into order.

A task of the first step divides what it makes into runs, each sorted and of one slot, and packs each as one block of
bytes, so that a few hundred large values are moved and no rows. A task of the second step gets all runs of its slot
in any order, and :func:`merge_runs` yields their records in windows: all up to one position, then all up to the next.
Where windows end is read off a sample of each run. A window is made of slices of the runs, which may lie in a file, so
that only windows are ever held as rows.
"""

import zlib
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sorters.core.records.order import OUTPUT_SCHEMA, OnOrder, OutputRecords, drop_repeats, order_of, sort_records

RUN_BYTES = 512 * 1024
"""Of one block, about: small enough that those who copy blocks, Spark several times, hold few of them at once."""
WINDOW_ROWS = 16_384
ROW_BYTES = 16 * 1024
"""A longer row counts as several in a window: 16,384 rows of 80 KB would be more than a gigabyte."""
SAMPLE_ROWS = 512
"""A run gives its position every so many rows; a window holds at most so many more of each run than it was meant to."""


class Run(Protocol):
    """``pyarrow.RecordBatch`` of :data:`OUTPUT_SCHEMA`, sorted by position, as far as we use it."""

    num_rows: int
    nbytes: int

    def column(self, name: str) -> Any: ...

    def slice(self, offset: int, length: int) -> "Run": ...

    def serialize(self) -> Any: ...


def split_runs(records: OutputRecords, slots: int) -> Iterator[tuple[int, Run]]:
    """Yield ``(slot, run)``: the records of each slot, sorted, in runs of about :data:`RUN_BYTES`."""
    order = order_of(records).to_numpy()
    slot = slots_of(records, slots)[order]
    for number in range(slots):
        chosen = order[slot == number]
        if not len(chosen):
            continue
        mine = records.take(pa.array(chosen))
        rows = max(1, mine.num_rows * RUN_BYTES // max(mine.nbytes, 1))
        for run in mine.combine_chunks().to_batches(rows):
            yield number, run


def slots_of(records: OutputRecords, slots: int) -> npt.NDArray[np.int64]:
    """Return the slot of each record: the same for all of a partition, and others for the partitions beside it."""
    topics = records.column("topic").combine_chunks().dictionary_encode()
    if isinstance(topics, pa.ChunkedArray):
        topics = pa.concat_arrays(topics.chunks)
    starts = np.array([zlib.crc32(topic.encode()) for topic in topics.dictionary.to_pylist()], np.int64)
    slot: npt.NDArray[np.int64] = (starts[topics.indices.to_numpy()] + records.column("partition").to_numpy()) % slots
    return slot


def pack_run(run: Run) -> Any:
    """Return a run as a ``pyarrow.Buffer``, without its schema."""
    return run.serialize()


def unpack_run(block: Any) -> Run:
    """Return the run in ``block``, a ``pyarrow.Buffer`` whose bytes it goes on using."""
    run: Run = pa.ipc.read_record_batch(block, OUTPUT_SCHEMA)
    return run


def merge_runs(
    runs: list[Run], *, may_repeat: bool, rows: int = WINDOW_ROWS, on_order: OnOrder | None = None
) -> Iterator[OutputRecords]:
    """Yield all records of ``runs`` in their order, in tables of about ``rows``; equal ones once, if there may be any.

    The list is emptied, and a run let go when its last row has been yielded.
    """
    waiting = sorted((_OpenRun(run) for run in runs if run.num_rows), key=lambda run: run.first, reverse=True)
    runs.clear()
    merging: list[_OpenRun] = []
    for end in _window_ends(waiting, rows):
        while waiting and waiting[-1].first <= end:
            merging.append(waiting.pop())
        parts = [part for run in merging if (part := run.upto(end)) is not None]
        merging = [run for run in merging if run.has_more]
        records = sort_records(pa.Table.from_batches(parts, OUTPUT_SCHEMA).combine_chunks())
        kept = drop_repeats(records) if may_repeat else records
        if on_order is not None:
            on_order(records, kept)
        yield kept


class _OpenRun:
    """A run and how far it has been read."""

    def __init__(self, run: Run) -> None:
        self._run, self._at = run, 0
        self._row_weight = 1 + run.nbytes // max(run.num_rows, 1) // ROW_BYTES
        self._positions = run.column("position")
        self.first: bytes = self._positions[0].as_py()

    @property
    def has_more(self) -> bool:
        return self._at < self._run.num_rows

    def samples(self) -> Iterator[tuple[bytes, int]]:
        """Yield positions of the run, the last one among them, and how many rows each adds to the one before; rows that
        are long count as several.
        """
        count = self._run.num_rows
        for start in range(0, count, SAMPLE_ROWS):
            end = min(start + SAMPLE_ROWS, count)
            yield self._positions[end - 1].as_py(), (end - start) * self._row_weight

    def upto(self, end: bytes) -> Run | None:
        """Return the rows up to and with position ``end`` that have not been read yet; None: there are none."""
        start = self._at
        self._at = bisect_right(self._positions, end, start, key=lambda position: position.as_py())
        return self._run.slice(start, self._at - start) if self._at > start else None


def _window_ends(runs: list[_OpenRun], rows: int) -> Iterator[bytes]:
    """Yield the positions at which windows end, the last of all among them; each is greater than the one before."""
    held, ended = 0, b""
    samples = sorted(sample for run in runs for sample in run.samples())
    for number, (position, count) in enumerate(samples):
        held += count
        if (held >= rows or number == len(samples) - 1) and position != ended:
            yield position
            held, ended = 0, position
