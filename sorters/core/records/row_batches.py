"""Messages of several rows: joins neighbours of an output partition, for protocols whose messages may hold more.

Rows are encoded one a message. Once a cut is in its order, each partition's rows are taken from its start in groups of
``rows_per_message``, fewer where a message would grow too large; DDL events and watermarks stand alone and end a group,
and so does another key where the protocol joins only rows of one (``same_key``).
So the groups depend on nothing but the cut. A joined message carries the position of its last row: at or below a
position that a consumer has applied, all its rows are; above it, the first ones may be repeats.

Source: pingcap/tiflow ``pkg/sink/codec/open/open_protocol_encoder.go``, ``AppendRowChangedEvent``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.config.sink.kafka import MESSAGE_OVERHEAD_BYTES
from schemas.sink.position import POSITION_CLASS_AT, PositionClass
from sorters.core.columnar.spans import BoolArray, IntArray, gather, spans_of
from sorters.core.encode.wire.protocol import Joiner
from sorters.core.records.message_parts import in_parts
from sorters.core.records.order import (
    OutputRecords,
    column_of,
    join_records,
    make_records,
    no_records,
    sort_records,
    topics_of,
)

Limit = Callable[[str], int]
"""The largest message that a topic takes: key, value and overhead."""


def join_neighbours(records: OutputRecords, joiner: Joiner, limit: Limit) -> OutputRecords:
    """Return the records with neighbouring rows of a partition joined, in the order of :func:`sort_records`.

    ``records`` are a whole cut, or all of it that goes to some of the partitions, in its order and without repeats.
    """
    if records.num_rows < 2:
        return records
    return sort_records(_Grouped.of(records, joiner, limit).joined(joiner))


def join_stream(chunks: Iterable[OutputRecords], joiner: Joiner, limit: Limit) -> Iterator[OutputRecords]:
    """Yield what :func:`join_neighbours` makes of the chunks together, holding one group of each partition at most."""
    held = no_records()
    for chunk in chunks:
        if not chunk.num_rows:
            continue
        grouped = _Grouped.of(join_records([held, chunk]), joiner, limit)
        done, held = grouped.without_open_groups()
        yield sort_records(done.joined(joiner))
    if held.num_rows:
        yield join_neighbours(held, joiner, limit)


@dataclass(frozen=True, slots=True)
class RowJoin:
    """What :func:`join_neighbours` needs of a changefeed: small, and picklable, for the tasks that write."""

    joiner: Joiner
    message_bytes_max: int
    topic_message_bytes: Mapping[str, int]
    cuts_rows: bool = False
    """Rows whose message is larger than its topic takes go there in parts; False: there are none."""

    def whole(self, records: OutputRecords) -> OutputRecords:
        """See :func:`join_neighbours`."""
        return self._fitting(join_neighbours(records, self.joiner, self._limit))

    def stream(self, chunks: Iterable[OutputRecords]) -> Iterator[OutputRecords]:
        """See :func:`join_stream`."""
        return map(self._fitting, join_stream(chunks, self.joiner, self._limit))

    def _fitting(self, records: OutputRecords) -> OutputRecords:
        least = min([self.message_bytes_max, *self.topic_message_bytes.values()])
        return in_parts(records, self._limit) if self.cuts_rows and records.nbytes > least // 2 else records

    def _limit(self, topic: str) -> int:
        return message_limit(topic, self.message_bytes_max, self.topic_message_bytes)


def message_limit(topic: str, message_bytes_max: int, topic_message_bytes: Mapping[str, int]) -> int:
    """Return the largest message that may go to a topic: the changefeed's setting, or less if the topic takes less."""
    return min(message_bytes_max, topic_message_bytes.get(topic, message_bytes_max))


@dataclass(frozen=True, slots=True, eq=False)
class _Grouped:
    """Records, those of one partition side by side, and where each message of them starts."""

    records: OutputRecords
    starts: IntArray
    home: IntArray
    is_row: BoolArray

    @classmethod
    def of(cls, records: OutputRecords, joiner: Joiner, limit: Limit) -> Self:
        topic_code, topics = topics_of(records)
        home = topic_code.astype(np.int64) << 32 | records.column("partition").to_numpy()
        order = np.argsort(home, kind="stable")
        records, home = records.take(pa.array(order)), home[order]
        positions = spans_of(column_of(records, "position"))
        is_row = gather(positions.buffer, positions.start + POSITION_CLASS_AT, 1)[:, 0] == PositionClass.ROW
        starts_run = np.ones(len(home), np.bool_)
        starts_run[1:] = (home[1:] != home[:-1]) | ~is_row[1:] | ~is_row[:-1]
        keys = column_of(records, "key")
        if joiner.same_key:
            starts_run[1:] |= _differs(keys)
        sizes = joiner.added_bytes(keys, column_of(records, "value"))
        room = np.array([limit(topic) - MESSAGE_OVERHEAD_BYTES - joiner.head_bytes for topic in topics], np.int64)
        runs = np.flatnonzero(starts_run)
        return cls(records, _group_starts(runs, sizes, room[home >> 32], joiner.rows_per_message), home, is_row)

    def joined(self, joiner: Joiner) -> OutputRecords:
        """Return one record a group."""
        count = len(self.home)
        if len(self.starts) == count:
            return self.records
        offsets = pa.array(np.append(self.starts, count), pa.int32())
        sides = (column_of(self.records, name) for name in ("key", "value"))
        keys, values = joiner.join(*(pa.ListArray.from_arrays(offsets, side) for side in sides))
        ends = np.append(self.starts[1:], count)
        last = self.records.select(["topic", "partition", "position"]).take(pa.array(ends - 1))
        columns = [last.column("topic"), last.column("partition"), keys, values, last.column("position")]
        return make_records(columns)

    def without_open_groups(self) -> tuple[Self, OutputRecords]:
        """Take out the last group of each partition if it ends with a row: what comes next may belong to it."""
        ends = np.append(self.starts[1:], len(self.home))
        last_of_home = np.append(self.home[1:] != self.home[:-1], True)
        is_open = last_of_home[ends - 1] & self.is_row[ends - 1]
        held = np.repeat(is_open, ends - self.starts)
        kept = ~held
        starts = (np.cumsum(kept) - kept)[self.starts[~is_open]]
        done = replace(self, records=self.records.filter(pa.array(kept)), starts=starts, home=self.home[kept])
        return replace(done, is_row=self.is_row[kept]), self.records.filter(pa.array(held))


def _group_starts(runs: IntArray, sizes: IntArray, room: IntArray, rows_max: int) -> IntArray:
    """Return where each message starts. ``runs`` is where each run of rows does; a run is divided from its start on."""
    ends = np.append(runs[1:], len(sizes))
    number = np.arange(len(sizes)) - np.repeat(runs, ends - runs)
    starts = np.flatnonzero(number % rows_max == 0)
    too_large = np.add.reduceat(sizes, starts) > room[starts]
    if not too_large.any():
        return starts
    # Some message would grow too large: those runs are divided row by row. One row alone was checked when it was made.
    affected = np.unique(np.searchsorted(runs, starts[too_large], "right") - 1)
    divided = [
        np.fromiter(_divide(int(runs[run]), int(ends[run]), sizes, int(room[runs[run]]), rows_max), np.int64)
        for run in affected.tolist()
    ]
    untouched = starts[~np.isin(np.searchsorted(runs, starts, "right") - 1, affected)]
    return np.sort(np.concatenate([untouched, *divided]))


def _divide(start: int, end: int, sizes: IntArray, room: int, rows_max: int) -> Iterator[int]:
    rows, size = 0, 0
    for at, more in zip(range(start, end), sizes[start:end].tolist(), strict=True):
        if rows == 0 or rows == rows_max or size + more > room:
            yield at
            rows, size = 0, 0
        rows, size = rows + 1, size + more


def _differs(keys: Any) -> BoolArray:
    """Tell which keys, from the second on, are not the one before; a message without key is no row's."""
    unequal = pc.fill_null(pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)), True)
    differs: BoolArray = unequal.to_numpy(zero_copy_only=False)
    return differs
