"""A raw log in memory, true by the frontier law, and the clients of the Spark source over it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from schemas.ddl.bad_jobs import BadJobs
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import FrontierRecord, HeldTables, follow_frontier
from schemas.rawlog.images import NO_IMAGES, ImageState, follow_images
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.rawlog.topics import raw_topics
from sorters.core.source.options import SourceOptions
from sorters.log.failures import HistoryLostError
from sorters.source.table_log import TableLog
from tests.support.rawlog.raw_log import Change, row_changes


@dataclass
class MemoryLog:
    """Raw partitions, DDL records and frontier records, which a test appends to."""

    partitions: int
    events: list[list[bytes]] = field(default_factory=list)
    landed: list[list[list[Change]]] = field(default_factory=list)
    """What each record holds."""
    tables: list[list[int]] = field(default_factory=list)
    ddl: list[DdlRecord] = field(default_factory=list)
    frontier: list[FrontierRecord] = field(default_factory=list)
    oldest: dict[int, int] = field(default_factory=dict)
    """What retention has left: the first offset of a raw partition."""

    def __post_init__(self) -> None:
        self.events = [[] for _ in range(self.partitions)]
        self.landed = [[] for _ in range(self.partitions)]
        self.tables = [[] for _ in range(self.partitions)]

    def land(self, partition: int, table_id: int, changes: list[Change]) -> None:
        """Append one region batch."""
        batch = RegionBatch(region_id=RegionId(1), may_repeat=False, rows=row_changes(table_id, changes))
        self.events[partition].append(encode_region_batch(batch, 1))
        self.landed[partition].append(changes)
        self.tables[partition].append(table_id)

    def publish(
        self, ts: int, *, repeats: bool = False, held: tuple[HeldTables, ...] = (), images: ImageState = NO_IMAGES
    ) -> None:
        """Publish that everything up to ``ts`` has landed: ``low`` is the first record with a row above it, since the
        last record's.
        """
        last = self.frontier[-1] if self.frontier else None
        low = [
            next(
                (at for at, changes in enumerate(records) if any(change.commit_ts > ts for change in changes)),
                len(records),
            )
            for records in self.landed
        ]
        high = tuple(len(records) for records in self.events)
        self.frontier.append(
            FrontierRecord(
                owner_rev=1,
                resolved_ts=Ts(ts),
                high=high,
                low=tuple(max(pair) for pair in zip(low, last.low, strict=True)) if last else tuple(low),
                ddl_high=len(self.ddl),
                repeat_high=high if repeats else last.repeat_high if last else (0,) * self.partitions,
                held=held,
                images=follow_images(last.images, images) if last else images,
            )
        )

    def lose_lows(self) -> None:
        """Let lows never run ahead of what a later record needs, as an owner's do."""
        floor = self.frontier[-1].low
        for at in range(len(self.frontier) - 1, -1, -1):
            record = self.frontier[at]
            floor = tuple(min(pair) for pair in zip(floor, record.low, strict=True))
            fields = {name: getattr(record, name) for name in record.__slots__}
            self.frontier[at] = FrontierRecord(**{**fields, "low": floor})


class MemoryFrontier:
    """As :class:`~sorters.log.frontier_reader.FrontierReader`."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def end(self) -> int:
        return len(self._log.frontier)

    def first(self) -> int:
        return 0

    def read(self, start: int, end: int) -> Iterator[FrontierRecord]:
        yield from self._log.frontier[start:end]

    def record_before(self, offset: int) -> FrontierRecord:
        followed = None
        for record in self._log.frontier[:offset]:
            followed = follow_frontier(followed, record)
        assert followed is not None
        return followed

    def find(self, after_ts: Ts) -> int:
        return sum(record.resolved_ts <= after_ts for record in self._log.frontier)


class MemoryEvents:
    """As :class:`~edges.kafka.offsets.TopicReader`."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def bounds(self, partition: int) -> tuple[int, int]:
        return self._log.oldest.get(partition, 0), len(self._log.events[partition])

    def read_all(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
        for partition, (start, end) in ranges.items():
            for offset in range(start, end):
                if offset < self._log.oldest.get(partition, 0):
                    raise HistoryLostError("records are gone", partition=partition)
                yield partition, offset, self._log.events[partition][offset]


class MemorySchemas:
    """As :class:`~sorters.run.schema_feed.SchemaFeed`."""

    def __init__(self, log: MemoryLog) -> None:
        self._log, self._next = log, 0
        self.store, self.bad_jobs = SchemaStore.empty(), BadJobs()

    @property
    def bad(self) -> tuple[object, ...]:
        return self.bad_jobs.jobs

    def advance(self, ddl_end: int) -> bool:
        for record in self._log.ddl[self._next : ddl_end]:
            self.bad_jobs.apply(self.store, record)
        self._next = max(self._next, ddl_end)
        return True


class MemoryTableLog(TableLog):
    """A table of a :class:`MemoryLog`."""

    def __init__(self, log: MemoryLog, options: SourceOptions) -> None:
        self.name, self.topics, self.config = options.table, raw_topics(options.upstream), {}
        self.frontier = MemoryFrontier(log)  # type: ignore[assignment]
        self.events = MemoryEvents(log)  # type: ignore[assignment]
        self.schemas = MemorySchemas(log)  # type: ignore[assignment]
        self._log = log

    def newest(self) -> tuple[int, FrontierRecord]:
        end = self.frontier.end()
        record = self.frontier.record_before(end)
        self.schemas.advance(record.ddl_high)
        return end, record

    def close(self) -> None:
        """Nothing is open."""


def table_of(change: Change) -> TableId:
    """Return the physical table of a change's key."""
    return TableId(int.from_bytes(change.key[1:9], "big") - (1 << 63))
