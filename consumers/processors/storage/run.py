"""One run of a storage processor: reads its partitions and writes their lines into files, every ``flush-interval``.

    poll → lines wait by partition and folder → due, or too many: flush the partition
    flush: data files (side by side) → the partition's state → index files;  then metadata, when all have moved
           no lines, and the end has moved → the state alone, once a minute

The order of a flush, and what a crash in the middle of it leaves, is :mod:`consumers.processors.core.storage.files`'s.

It has the partitions that its leader gives it (``obey``). A storage cannot refuse a late write, as a database does: so
a partition is given to the next processor only when the last one has said that it has stopped, or its
session is over, and each write asks for the lease of the session first
(:class:`consumers.processors.storage.store.LeasedStore`).
"""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from consumers.control.core.replication.messages import Barrier
from consumers.processors.core.apply.executor import PartitionProgress, Work, WorkOrder
from consumers.processors.core.apply.leader import SCHEMAS_PARTITION
from consumers.processors.core.flow_book import FlowBook
from consumers.processors.core.storage.expiry import first_kept_day, has_expired
from consumers.processors.core.storage.files import (
    DataFile,
    PartitionState,
    data_files,
    encode_metadata,
)
from consumers.processors.core.storage.partition import FolderLines, NotedEnd, PartitionLines
from consumers.processors.core.storage.paths import METADATA, PathForm, index_path, indexed_number
from consumers.processors.handover import Handover, Taken
from consumers.processors.sink_source import SinkRecord, Source
from consumers.processors.storage.room import Room
from consumers.processors.storage.states import PartitionStates
from consumers.processors.storage.store import ExpiringStore
from schemas.config.parse.cron import CronSpec, parse_cron
from schemas.errors import BusError, decoding
from schemas.ids import Ts
from schemas.sink.storage_rows import FolderForm
from schemas.sink_figures import LEAST_ROWS, LEAST_US, NO_FIGURES, SinkFigures, Spread, microseconds
from schemas.tidb.time_zone import UTC_NAME, load_zone

log = logging.getLogger(__name__)

BUSY_POLL_S, POLL_S = 0.005, 0.05
_SECONDS_LOOKED_AT = 3_600
"""Of a time in which nobody asked: what was due before is due no more."""
WAITING_BYTES_MAX = 256 << 20
"""Of all partitions; at it they are flushed before their time, or are not read on (:class:`Room`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """What a run needs of the changefeed."""

    changefeed: str
    """Names this life of it, in the paths of its states."""
    paths: PathForm
    topic: str = ""
    """For errors."""
    start_ts: Ts
    time_zone: str = UTC_NAME
    """Of dates in paths."""
    flush_interval_s: float = 5.0
    file_bytes_max: int = 64 << 20
    worker_count: int = 16
    """Files that are written at once."""
    expiration_days: int = 0
    """After which files go; 0: never."""
    cleanup: CronSpec = field(default_factory=lambda: parse_cron("0 0 2 * * *"))
    """When they are looked for."""


class StorageRun:
    """See the module. :meth:`turn` again and again, then :meth:`close`; after an error begin another one."""

    def __init__(
        self,
        source: Source,
        store: ExpiringStore,
        settings: StorageSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        """Begin without any partition."""
        self._source, self._store, self._settings = source, store, settings
        zone = load_zone(settings.time_zone)
        self._clock, self._now = clock, now or (lambda: datetime.now(zone))
        self.partitions: dict[int, PartitionLines] = {}
        self._noted: dict[int, NotedEnd] = {}
        """All before them is in files; their states may be older (:mod:`consumers.processors.storage.states`)."""
        self._numbers: dict[str, int] = {}
        """The last file's number by folder."""
        self._pool = ThreadPoolExecutor(settings.worker_count, thread_name_prefix="storage")
        self._states = PartitionStates(store, settings.changefeed, self._pool, clock)
        self._handover = Handover(source, self._pool, self._locate, self._take)
        self._room = Room(source, WAITING_BYTES_MAX)
        self._schemas_ts = Ts(0)
        """How far schema files are that another processor writes, as far as any leader has said."""
        self._ended: list[WorkOrder] = []
        self._rows: dict[int, int] = {}
        self._figures: dict[int, SinkFigures] = {}
        self._books: dict[int, FlowBook] = {}
        """Of all partitions that it has had."""
        self._flush_at = clock() + settings.flush_interval_s
        self._metadata_ts = Ts(0)
        self._looked_at = self._now()
        self._cleaning: Future[int] | None = None

    @property
    def rows_total(self) -> int:
        """Rows in files, of all partitions that we have had."""
        return sum(self._rows.values())

    # -- which partitions ----------------------------------------------------------------------------------------------

    def obey(self, orders: list[WorkOrder]) -> None:
        """Begin what the executor orders; :meth:`turn` returns what is done.

        Raises:
            StorageUnavailableError: what waited of a partition that is given away cannot be written.
        """
        ends: dict[int, NotedEnd] = {}
        for order in orders:
            if order.work is Work.END:
                self._flush_if_may(order.partition)
                ends[order.partition] = self._noted[order.partition]
                lines = self.partitions[order.partition]
                figures = {**lines.flow.figures, "late_records": lines.late_records}
                log.info("partition is given away", extra={"partition": order.partition, **figures})
                self._ended.append(order)
            elif order.work is Work.FORGET:
                self.partitions.pop(order.partition, None)
                self._noted.pop(order.partition, None)
                self._states.forget(order.partition)
                self._room.forget(order.partition)
        if ends:
            self._states.note(ends, at_once=True)
            self._note_offsets(ends)
        self._handover.obey(orders)

    def progress(self, partition: int) -> PartitionProgress:
        """Return how far a partition is."""
        applied_ts = max(self._settings.start_ts, self._noted[partition].watermark_ts)
        read_ts = max(applied_ts, self.partitions[partition].watermark_ts)
        flow = self.partitions[partition].flow
        return PartitionProgress(
            applied_ts=applied_ts,
            read_ts=read_ts,
            rows_total=self._rows[partition],
            windows_proven=flow.proven,
            windows_unproven=flow.unproven,
            sink=self._figures[partition],
        )

    def _locate(self, parts: list[int]) -> Mapping[int, int]:
        return {part: self._states.read(part).end.offset for part in parts}

    def _take(self, parts: list[int], _: int) -> Mapping[int, Taken[PartitionState]]:
        taken = {}
        for part in parts:
            state = self._states.read(part)
            for folder, name in state.last_files.items():
                self._store.put(index_path(folder), [name.encode() + b"\n"])
            taken[part] = Taken(state, state.end.offset)
        return taken

    def _begin(self, partition: int, state: PartitionState, records: list[SinkRecord]) -> None:
        self._numbers.clear()  # others may have written on
        self.partitions[partition] = PartitionLines.at(state.end, partition, self._settings.topic)
        self._noted[partition] = state.end
        self._states.begin(partition, state.end)
        self._room.forget(partition)
        self.partitions[partition].flow.go_on(self._books.get(partition))
        self._books[partition] = self.partitions[partition].flow
        self._rows.setdefault(partition, 0)
        self._figures.setdefault(partition, NO_FIGURES)
        for record in records:
            self._read(record)

    # -- the work ------------------------------------------------------------------------------------------------------

    def turn(self, barrier: Barrier, *, is_restless: bool) -> list[WorkOrder]:
        """Read what has come, and write what is due; return the orders that are done.

        Args:
            barrier: what the leader has announced.
            is_restless: the caller waits for something else than records.

        Raises:
            BusError: the run is over; what was not noted comes again.
        """
        if barrier.schemas_ts > self._settings.start_ts:  # a leader begins at it, whatever the first partition has read
            self._schemas_ts = max(self._schemas_ts, barrier.schemas_ts)
        for record in self._source.poll(BUSY_POLL_S if is_restless or self._handover.is_busy else POLL_S):
            if record.partition in self.partitions:
                self._read(record)
            else:
                self._handover.add(record)
        done, self._ended = [*self._ended, *self._handover.finished(self._begin)], []
        is_full = self._room.is_full(self.partitions, self._may_flush)
        if is_full or self._clock() >= self._flush_at:
            self._flush_all(notes_at_once=False)
        return done

    def flush(self) -> None:
        """Write everything that waits and may be written, and note how far that is, for a stop.

        Raises:
            StorageUnavailableError: the storage does not answer.
        """
        self._flush_all(notes_at_once=True)

    def _flush_all(self, *, notes_at_once: bool) -> None:
        for number in self.partitions:
            self._flush_if_may(number)
        self._states.note(self._noted, at_once=notes_at_once)
        self._note_offsets(self._noted)
        self._flush_at = self._clock() + self._settings.flush_interval_s

    def note_checkpoint(self, checkpoint_ts: Ts) -> None:
        """Write the metadata file, if the changefeed's checkpoint has moved.

        Raises:
            StorageUnavailableError: the storage does not answer.
        """
        if checkpoint_ts > self._metadata_ts:
            self._store.put(METADATA, [encode_metadata(checkpoint_ts)])
            self._metadata_ts = checkpoint_ts
        self._clean_up(checkpoint_ts)

    def _clean_up(self, checkpoint_ts: Ts) -> None:
        """Remove files of days long ago, when that is due, beside the rest of the work."""
        settings, now = self._settings, self._now()
        missed = min(int((now - self._looked_at).total_seconds()), _SECONDS_LOOKED_AT)
        if not settings.expiration_days or settings.paths.date_separator != "day" or missed < 1:
            return
        seconds = (now - timedelta(seconds=ago) for ago in range(missed))
        is_due, self._looked_at = any(map(settings.cleanup.is_due, seconds)), now
        if self._cleaning is not None and self._cleaning.done():
            try:
                log.info("old files removed", extra={"files": self._cleaning.result()})
            except BusError as error:
                log.warning("old files could not be removed, and will be looked for again", extra={"error": str(error)})
            self._cleaning = None
        if is_due and self._cleaning is None:
            kept_from = first_kept_day(checkpoint_ts, settings.expiration_days, now.tzinfo)
            self._cleaning = self._pool.submit(self._store.remove_if, lambda path: has_expired(path, kept_from))

    def close(self) -> None:
        """Wait for files that are being written."""
        self._pool.shutdown(wait=True)

    def _read(self, record: SinkRecord) -> None:
        lines = self.partitions[record.partition]
        with decoding(partition=record.partition, offset=record.offset):
            schema_file = lines.take(record.offset, record.key, record.value, record.position, record.fence)
        if schema_file is not None and (schema_file.is_ddl or self._store.get(schema_file.path) is None):
            self._store.put(schema_file.path, [schema_file.content.encode("utf-8", "surrogateescape")])

    def _may_flush(self, number: int) -> bool:
        """Tell whether no schema file of a partition's lines may be missing, which stand in the first one only."""
        schemas = self.partitions.get(SCHEMAS_PARTITION)
        schemas_ts = self._schemas_ts if schemas is None else max(self._schemas_ts, schemas.watermark_ts)
        return number == SCHEMAS_PARTITION or self.partitions[number].newest_version <= schemas_ts

    def _flush_if_may(self, number: int) -> None:
        if self._may_flush(number):
            self._flush(number, self.partitions[number])

    def _flush(self, number: int, lines: PartitionLines) -> None:
        files = [file for form, waiting in lines.waiting() for file in self._files_of(form, waiting)]
        if files:
            begun_s = self._clock()
            for done in [self._pool.submit(self._store.put, file.path, file.chunks) for file in files]:
                done.result()
            last_files = {file.folder: file.name for file in files}
            self._states.write(number, PartitionState(lines.end, last_files))
            self._put_indexes(last_files)
            rows = sum(waiting.rows for _, waiting in lines.waiting())
            self._rows[number] += rows
            size = sum(len(chunk) for file in files for chunk in file.chunks)
            self._figures[number] = self._figures[number].plus(
                SinkFigures(
                    flushes_us=Spread().of(microseconds(self._clock() - begun_s), LEAST_US),
                    batch_rows=Spread().of(rows, LEAST_ROWS),
                    files=len(files),
                    file_bytes=size,
                )
            )
            log.debug("files written", extra={"files": len(files), "bytes": size})
        self._noted[number] = lines.end
        lines.flushed()

    def _files_of(self, form: FolderForm, waiting: FolderLines) -> list[DataFile]:
        paths = self._settings.paths
        folder = paths.folder(form, self._now())
        if folder not in self._numbers:
            index = self._store.get(index_path(folder))
            self._numbers[folder] = 0 if index is None else indexed_number(index, index_path(folder))
        first = self._numbers[folder] + 1
        files = list(data_files(paths, form, waiting, folder, first, self._settings.file_bytes_max))
        self._numbers[folder] += len(files)
        return files

    def _note_offsets(self, ends: Mapping[int, NotedEnd]) -> None:
        self._source.note({number: end.offset for number, end in ends.items()})

    def _put_indexes(self, last_files: Mapping[str, str]) -> None:
        writes: list[Future[None]] = [
            self._pool.submit(self._store.put, index_path(folder), [name.encode() + b"\n"])
            for folder, name in last_files.items()
        ]
        for done in writes:
            done.result()
