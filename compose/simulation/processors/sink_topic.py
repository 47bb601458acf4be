"""The topic between sorter and processors, and the sorter that writes it: a pure function of the history, in batches.

A sorter that is killed leaves a batch half written and begins again at its checkpoint: the same rows in the same order,
cut into other messages or parts of one, perhaps with more behind them. A partition is written in order, and partitions
independently. Watermarks say which rows stand before them, as :mod:`schemas.sink.flow_mark` has it, and records who
wrote them (:mod:`schemas.sink.fence`); some sorters are of a release that does neither, and some are another writer.

A sorter that is stopped loses its lock, and another one begins. What the stopped one's client still held it sends when
it goes on, each partition's in order, between the records of those that came after it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from random import Random
from zlib import crc32

from compose.simulation.processors.history import START_TS, Event, RowChange, SimDdl, SimHistory, SimTxn, partition_of
from consumers.processors.sink_source import SinkRecord
from schemas.ddl.job import DdlType
from schemas.ids import Ts
from schemas.sink.fence import NO_FENCE, Fence
from schemas.sink.flow_mark import FlowMark, marked_watermark
from schemas.sink.message_rows import message_row_id, sum_of_ids, table_word
from schemas.sink.parts import cut_message
from schemas.sink.position import Position, PositionClass
from schemas.sink.sql_rows import (
    KEY_END,
    SqlDdl,
    SqlRow,
    TableForm,
    encode_ddl,
    encode_form,
    encode_rows,
    encode_watermark,
)

_TYPES = {
    "alter": DdlType.ADD_COLUMN,
    "truncate": DdlType.TRUNCATE_TABLE,
    "rename": DdlType.RENAME_TABLE,
    "swap": DdlType.EXCHANGE_PARTITION,
}
SCHEMA = "d"
LIVES_A_WRITER, MARKLESS_IN = 3, 4
"""So many sorters in a row are one writer; one in so many is of a former release: it writes no marks and no fences."""
LATE_STARTS, LATE_RUNS = 0.1, 0.6
"""In a tick: whether a sorter that was stopped goes on, and how much of it comes then."""
PARTS_IN = 10
"""The sorter cuts one message in so many into parts."""
Unplaced = tuple[bytes, bytes | None, bytes]
"""Position, key and value of a record that has no offset yet."""


class SimSinkTopic:
    """Records by partition."""

    def __init__(self, partitions: int) -> None:
        self.records: list[list[SinkRecord]] = [[] for _ in range(partitions)]

    @property
    def partitions(self) -> int:
        """How many there are."""
        return len(self.records)

    def append(self, partition: int, record: Unplaced, fence: bytes) -> None:
        """Write one record."""
        position, key, value = record
        records = self.records[partition]
        records.append(SinkRecord(partition, len(records), position, key, value, fence))


@dataclass(slots=True)
class Stopped:
    """What a sorter that was stopped still holds, by partition, the next record last."""

    left: list[list[Unplaced]]
    fence: bytes
    goes_on: bool = False


class Sorter:
    """One after the other; the next one begins where the checkpoint is."""

    def __init__(self, random: Random, history: SimHistory, topic: SimSinkTopic) -> None:
        self._random, self._history, self._topic = random, history, topic
        self.checkpoint_ts = START_TS
        self._upto_ts = START_TS
        self._lives = self._attempts = 0
        self._left: list[list[Unplaced]] = []
        """Of the batch at hand, by partition, the next record last."""
        self._fence = NO_FENCE
        """Of the batch at hand."""
        self.stopped: list[Stopped] = []
        self.late = 0
        """Records that were written behind another sorter's."""

    @property
    def _is_former(self) -> bool:
        """Whether it is of a former release."""
        return self._lives % MARKLESS_IN == MARKLESS_IN - 1

    def work(self) -> None:
        """Write some records, or begin the next batch."""
        self._write_late()
        if any(self._left):
            for partition, left in enumerate(self._left):
                for _ in range(min(len(left), self._random.randint(0, 6))):
                    self._topic.append(partition, left.pop(), self._fence)
            if not any(self._left):
                self.checkpoint_ts = self._upto_ts
        elif self._history.now_ts > self.checkpoint_ts:
            self._begin(self._history.now_ts)

    def crash(self) -> None:
        """Lose the rest of the batch."""
        self._left = []
        self._lives += 1
        if self._is_former:
            self.stopped = []  # they are killed before it begins: nobody could tell

    def stop(self) -> bool:
        """Lose the lock while a batch is half written, and keep the rest of it for later; False: there is none."""
        if self._is_former or not any(self._left):
            return False
        self.stopped.append(Stopped(self._left, self._fence))
        self.crash()
        return True

    def _write_late(self) -> None:
        random = self._random
        for stopped in self.stopped:
            stopped.goes_on = stopped.goes_on or random.random() < LATE_STARTS
            if not stopped.goes_on:
                continue
            for partition, left in enumerate(stopped.left):
                while left and random.random() < LATE_RUNS:
                    self._topic.append(partition, left.pop(), stopped.fence)
                    self.late += 1
        self.stopped = [stopped for stopped in self.stopped if any(stopped.left)]

    def _begin(self, upto_ts: Ts) -> None:
        self._upto_ts = upto_ts
        self._attempts += 1
        self._fence = NO_FENCE if self._is_former else Fence(1 + self._lives, self._attempts).encode()
        events = list(self._history.between(self.checkpoint_ts, upto_ts))
        partitions = self._topic.partitions
        self._left = [list(self._batch(events, upto_ts, number))[::-1] for number in range(partitions)]

    def _batch(self, events: list[Event], upto_ts: Ts, number: int) -> Iterator[Unplaced]:
        waiting: list[tuple[SimTxn, RowChange]] = []
        ids: list[int] = []
        for event in events:
            if isinstance(event, SimDdl):
                yield from self._messages(waiting)
                waiting = []
                yield ddl_record(event)
            else:
                mine = [row for row in event.rows if partition_of(row.table, self._topic.partitions) == number]
                waiting += [(event, row) for row in mine]
                ids += [_row_id(event, row) for row in mine]
        yield from self._messages(waiting)
        value = encode_watermark(upto_ts)
        if not self._is_former:
            mark = FlowMark(self.checkpoint_ts, sum_of_ids(ids), str(self._lives // LIVES_A_WRITER))
            value = marked_watermark(upto_ts, mark)
        yield Position(upto_ts, PositionClass.WATERMARK).encode(), None, value

    def _messages(self, rows: list[tuple[SimTxn, RowChange]]) -> Iterator[Unplaced]:
        """Join neighbouring rows of one table form, some of them, as it comes."""
        for _, group in groupby(rows, key=lambda pair: (pair[1].table, pair[1].version, pair[1].is_read)):
            left = list(group)
            while left:
                count = self._random.randint(1, 4)
                yield from _in_parts(*_row_message(left[:count]))
                left = left[count:]


def _row_id(txn: SimTxn, row: RowChange) -> int:
    key = b"%d" % row.key + KEY_END
    return message_row_id(txn.commit_ts, txn.start_ts, row.op, key, table_word(SCHEMA, row.table))


def _in_parts(position: bytes, key: bytes, value: bytes) -> Iterator[Unplaced]:
    """Take some messages for larger than the topic takes, however short they are."""
    lot = crc32(value)
    if lot % PARTS_IN:
        yield position, key, value
        return
    room = len(key) + 30 + lot // PARTS_IN % 30
    yield from ((position, part_key, bytes(part)) for part_key, part in cut_message(key, value, room))


def _row_message(rows: list[tuple[SimTxn, RowChange]]) -> tuple[bytes, bytes, bytes]:
    txn, row = rows[-1]
    form = TableForm(
        schema=SCHEMA,
        table=row.table,
        version=Ts(row.version),
        columns=("id", "v"),
        key=("id",),
        uniques=(("id",),) if row.is_read else None,
    )
    encoded = [
        SqlRow(
            row_txn.commit_ts,
            row_txn.start_ts,
            change.op,
            b"%d" % change.key,
            b"%d" % change.value if change.value else b"",
        )
        for row_txn, change in rows
    ]
    position = Position(txn.commit_ts, PositionClass.ROW, txn.start_ts, row.op, f"{row.table}/{row.key}".encode())
    return position.encode(), encode_form(form), encode_rows(form, encoded)


def ddl_record(ddl: SimDdl) -> Unplaced:
    """Return the record that every partition gets of a DDL."""
    event = SqlDdl(
        commit_ts=ddl.commit_ts,
        ddl_type=_TYPES[ddl.kind],
        schema=SCHEMA,
        table=ddl.table,
        pre_schema=SCHEMA if ddl.other else "",
        pre_table=ddl.other,
        query=ddl.kind,
    )
    return ddl_position(ddl), None, encode_ddl(event)


def ddl_position(ddl: SimDdl) -> bytes:
    """Return where a DDL stands."""
    return Position(ddl.commit_ts, PositionClass.DDL, ddl.start_ts, key=bytes(4)).encode()
