"""One run of a storage processor: reads its partitions and writes their lines into files, every ``flush-interval``.

    poll → lines wait by partition and folder → due, or too many: flush the partition
    flush: data files (side by side) → the partition's state → index files;  then metadata, when all have moved

The order of a flush, and what a crash in the middle of it leaves, is :mod:`consumers.core.storage.files`'s.
"""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from consumers.apply.source import Source
from consumers.core.storage.files import (
    DataFile,
    PartitionState,
    data_files,
    decode_state,
    encode_metadata,
    encode_state,
    state_path,
)
from consumers.core.storage.partition import FolderLines, NotedPlace, PartitionLines
from consumers.core.storage.paths import METADATA, PathForm, index_path, indexed_number
from consumers.storage.store import FileStore
from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.storage_rows import FolderForm

log = logging.getLogger(__name__)

SCHEMA_PARTITION = 0
"""Where schema files stand."""
POLL_S = 0.05
WAITING_BYTES_MAX = 256 << 20
"""Of all partitions; at it they are flushed before their time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """What a run needs of the changefeed."""

    changefeed: str
    """Names this life of it, in the paths of its states."""
    paths: PathForm
    start_ts: Ts
    flush_interval_s: float = 5.0
    file_bytes_max: int = 64 << 20
    worker_count: int = 16
    """Files that are written at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """How far a run is."""

    checkpoint_ts: Ts
    rows_total: int
    files_total: int
    bytes_total: int


def noted_places(store: FileStore, changefeed: str, partitions: int) -> dict[int, PartitionState]:
    """Return where each partition's files end; one without a state begins at its topic's first record.

    Raises:
        StorageUnavailableError: the storage does not answer.
        CorruptDataError: a state does not decode.
    """
    states = {}
    for partition in range(partitions):
        path = state_path(changefeed, partition)
        found = store.get(path)
        states[partition] = PartitionState(NotedPlace(), {}) if found is None else decode_state(found, path)
    return states


class StorageRun:
    """See the module. :meth:`turn` again and again, then :meth:`close`; after an error begin another one."""

    def __init__(
        self,
        source: Source,
        store: FileStore,
        settings: StorageSettings,
        states: Mapping[int, PartitionState],
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC).astimezone(),
    ) -> None:
        """``states`` are :func:`noted_places`; ``source`` reads from their offsets.

        Raises:
            StorageUnavailableError: index files of the last flushes cannot be written.
        """
        self._source, self._store, self._settings = source, store, settings
        self._clock, self._now = clock, now
        self.partitions = {number: PartitionLines.at(state.place) for number, state in states.items()}
        self._noted = {number: state.place for number, state in states.items()}
        self._numbers: dict[str, int] = {}
        """The last file's number by folder."""
        self._pool = ThreadPoolExecutor(settings.worker_count, thread_name_prefix="storage")
        self._rows = self._files = self._bytes = 0
        self._flush_at = clock() + settings.flush_interval_s
        self._metadata_ts = Ts(0)
        for state in states.values():
            self._put_indexes(state.last_files)

    @property
    def written(self) -> Written:
        """How far it is: everything up to the checkpoint is in files."""
        return Written(
            checkpoint_ts=max(self._settings.start_ts, min(place.watermark_ts for place in self._noted.values())),
            rows_total=self._rows,
            files_total=self._files,
            bytes_total=self._bytes,
        )

    def turn(self) -> None:
        """Read what has come, and write what is due.

        Raises:
            BusError: the run is over; what was not noted comes again.
        """
        for record in self._source.poll(POLL_S):
            lines = self.partitions[record.partition]
            try:
                schema_file = lines.take(record.offset, record.key, record.value, record.position)
            except CorruptDataError as error:
                where = {"partition": record.partition, "offset": record.offset}
                raise CorruptDataError(error.message, **{**error.fields, **where}) from error
            if schema_file is not None and (schema_file.is_ddl or self._store.get(schema_file.path) is None):
                self._store.put(schema_file.path, [schema_file.content.encode("utf-8", "surrogateescape")])
        is_full = sum(lines.bytes_total for lines in self.partitions.values()) > WAITING_BYTES_MAX
        if is_full or self._clock() >= self._flush_at:
            self.flush()

    def flush(self) -> None:
        """Write everything that waits and may be written.

        Raises:
            StorageUnavailableError: the storage does not answer.
        """
        schemas_ts = self.partitions[SCHEMA_PARTITION].watermark_ts if SCHEMA_PARTITION in self.partitions else None
        for number, lines in self.partitions.items():
            # A table's schema file stands before its lines only in the first partition; the others wait for it.
            if schemas_ts is None or lines.newest_version <= schemas_ts or number == SCHEMA_PARTITION:
                self._flush(number, lines)
        checkpoint_ts = self.written.checkpoint_ts
        if checkpoint_ts > self._metadata_ts:
            self._store.put(METADATA, [encode_metadata(checkpoint_ts)])
            self._metadata_ts = checkpoint_ts
        self._source.note({number: place.offset for number, place in self._noted.items()})
        self._flush_at = self._clock() + self._settings.flush_interval_s

    def close(self) -> None:
        """Wait for files that are being written."""
        self._pool.shutdown(wait=True)

    def _flush(self, number: int, lines: PartitionLines) -> None:
        files = [file for form, waiting in lines.waiting() for file in self._files_of(form, waiting)]
        if files:
            for done in [self._pool.submit(self._store.put, file.path, file.chunks) for file in files]:
                done.result()
            last_files = {file.folder: file.name for file in files}
            state = PartitionState(lines.place, last_files)
            self._store.put(state_path(self._settings.changefeed, number), [encode_state(state)])
            self._put_indexes(last_files)
            self._count(files, lines)
        self._noted[number] = lines.place
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

    def _put_indexes(self, last_files: Mapping[str, str]) -> None:
        writes: list[Future[None]] = [
            self._pool.submit(self._store.put, index_path(folder), [name.encode() + b"\n"])
            for folder, name in last_files.items()
        ]
        for done in writes:
            done.result()

    def _count(self, files: list[DataFile], lines: PartitionLines) -> None:
        size = sum(len(chunk) for file in files for chunk in file.chunks)
        self._files, self._bytes = self._files + len(files), self._bytes + size
        self._rows += sum(waiting.rows for _, waiting in lines.waiting())
        log.debug("files written", extra={"files": len(files), "bytes": size})
