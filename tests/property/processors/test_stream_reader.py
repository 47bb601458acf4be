"""The pure reader of a changefeed's topics, tried by the conformance kit; and the kit, tried by consumers that err."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from consumers.client.canal_json import CanalJsonDecoder
from consumers.client.changes import Row
from consumers.client.conformance import RowKey, check_consumer
from consumers.client.core.partition import PartitionKey, StreamRecord
from consumers.client.core.stream import ReadPosition, Released, StreamReader
from schemas.ids import Ts
from schemas.sink.position import Position, PositionClass, decode_position

SEEDS, SEEDS_FOR_ERRORS = range(300), range(80)
PENDING_BYTES_MAX = 1 << 20


class ByStreamReader:
    """Leans on StreamReader; what it releases and where to go on are applied together."""

    def __init__(self, partitions: Sequence[PartitionKey]) -> None:
        self.rows: dict[RowKey, str] = {}
        self.ts = 0
        self.positions: Mapping[PartitionKey, ReadPosition] = {key: ReadPosition(0, Ts(0)) for key in partitions}
        self.reader = self.fresh()

    def fresh(self) -> StreamReader:
        reader = StreamReader(PENDING_BYTES_MAX)
        reader.assign(self.positions)
        return reader

    def feed(self, record: StreamRecord) -> None:
        self.reader.take(record)

    def crash(self) -> Mapping[PartitionKey, int]:
        self.reader = self.fresh()
        return {key: position.offset for key, position in self.positions.items()}

    def shown(self) -> tuple[int, Mapping[RowKey, str]]:
        if (released := self.reader.release()) is not None:
            for record in released.records:
                self.apply(record)
            self.note(released)
        return self.ts, dict(self.rows)

    def note(self, released: Released) -> None:
        self.ts, self.positions = max(self.ts, released.watermark_ts), released.positions

    def apply(self, record: StreamRecord) -> None:
        change = CanalJsonDecoder()(record, decode_position(record.position))
        assert isinstance(change, Row)
        key = change.table, str(change.columns["id"])
        if change.op == "delete":
            self.rows.pop(key, None)
        else:
            self.rows[key] = change.columns["v"]


class Strict(ByStreamReader):
    """Whose destination refuses what a right consumer never does: a row inserted twice, or one deleted that is gone."""

    def apply(self, record: StreamRecord) -> None:
        row = CanalJsonDecoder()(record, decode_position(record.position))
        assert isinstance(row, Row)
        assert ((row.table, str(row.columns["id"])) in self.rows) == (row.op != "insert"), row
        super().apply(record)


def test_stream_reader_with_repeats_crashes_and_rewinds_shows_exactly_what_the_upstream_held() -> None:
    assert check_consumer(Strict, SEEDS) == []


class GoesOnWhereItHasRead(ByStreamReader):
    """Commits the offsets that it has read to, though what it read last waits for a watermark still."""

    def note(self, released: Released) -> None:
        super().note(released)
        readers = self.reader.partitions
        self.positions = {
            key: ReadPosition(readers[key].next_offset, position.applied_ts) for key, position in self.positions.items()
        }


class DropsBelowWatermarkSeen(ByStreamReader):
    """Takes for repeats what is at or below the highest watermark that it has seen, also one of a life before."""

    def __init__(self, partitions: Sequence[PartitionKey]) -> None:
        super().__init__(partitions)
        self.seen: dict[PartitionKey, int] = {}

    def feed(self, record: StreamRecord) -> None:
        position = decode_position(record.position)
        if position.position_class is PositionClass.WATERMARK:
            self.seen[record.topic_partition] = max(position.commit_ts, self.seen.get(record.topic_partition, 0))
        elif position.commit_ts <= self.seen.get(record.topic_partition, 0):
            # No row any more; it stands at its offset all the same.
            record = replace(record, position=Position(position.commit_ts, PositionClass.BOOTSTRAP).encode())
        super().feed(record)


class AppliesAsItComes(ByStreamReader):
    """Applies each row at once, repeats too, and shows the least watermark."""

    def feed(self, record: StreamRecord) -> None:
        super().feed(record)
        if decode_position(record.position).position_class is PositionClass.ROW:
            super().apply(record)

    def apply(self, record: StreamRecord) -> None:
        pass


class TakesItsOwnPartitionsWatermark(ByStreamReader):
    """Releases each partition by its own watermark and calls that of the last one its ts."""

    def shown(self) -> tuple[int, Mapping[RowKey, str]]:
        for reader in self.reader.partitions.values():
            for record in reader.release(reader.watermark_ts):
                self.apply(record)
            self.ts = max(self.ts, reader.watermark_ts)
        self.positions = {
            key: ReadPosition(partition.resume_offset(partition.applied_ts), partition.applied_ts)
            for key, partition in self.reader.partitions.items()
        }
        return self.ts, dict(self.rows)


class RemembersNothing(ByStreamReader):
    """Forgets after a crash up to where it had applied, and shows its rows for the ts that it had come to."""

    def note(self, released: Released) -> None:
        super().note(released)
        self.positions = {
            key: ReadPosition(max(0, position.offset - 3), Ts(0)) for key, position in self.positions.items()
        }

    def crash(self) -> Mapping[PartitionKey, int]:
        offsets = super().crash()
        for reader in self.reader.partitions.values():
            reader.applied_ts = reader.watermark_ts = Ts(0)
        return offsets


@pytest.mark.parametrize(
    "wrong",
    [GoesOnWhereItHasRead, DropsBelowWatermarkSeen, AppliesAsItComes, TakesItsOwnPartitionsWatermark, RemembersNothing],
)
def test_conformance_kit_with_a_consumer_that_errs_finds_it(wrong: type[ByStreamReader]) -> None:
    failures = check_consumer(wrong, SEEDS_FOR_ERRORS)
    assert failures, wrong.__doc__
    again = check_consumer(wrong, [failures[0].seed])
    assert again == failures[:1]
