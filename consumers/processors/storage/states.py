"""Where partitions' files end, as their states in the storage say it (:mod:`consumers.processors.core.storage.files`).

A state is put with files. A partition without new rows has none, and its end moves on with watermarks alone: that is
noted once a minute, when the partition is given away, and at a stop. Kafka drops what stands at an older end in time,
and then nobody could read on from there.

Such a state names no files: when nothing waits, index files of all flushes before are written, by this run, which a
flush that fails ends, or by its take-over of the partition. So none of them must be written again.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from consumers.processors.core.storage.files import PartitionState, decode_state, encode_state, state_path
from consumers.processors.core.storage.partition import NotedEnd
from consumers.processors.storage.store import FileStore

QUIET_S = 60.0
"""Between two states of a partition without rows: object storages charge for each; a restart reads so much again."""


class PartitionStates:
    """Of the partitions that one processor has. All but :meth:`read` is for one thread."""

    def __init__(self, store: FileStore, changefeed: str, pool: ThreadPoolExecutor, clock: Callable[[], float]) -> None:
        """``changefeed`` names this life of it; ``pool`` writes states side by side."""
        self._store, self._changefeed, self._pool, self._clock = store, changefeed, pool, clock
        self._written: dict[int, tuple[NotedEnd, float]] = {}
        """What stands in the storage, and when that was known."""

    def read(self, partition: int) -> PartitionState:
        """Return where a partition's files end; one without a state begins at its topic's first record.

        Raises:
            StorageUnavailableError: the storage does not answer.
            CorruptDataError: the state does not decode.
        """
        path = state_path(self._changefeed, partition)
        content = self._store.get(path)
        return PartitionState(NotedEnd(), {}) if content is None else decode_state(content, path)

    def begin(self, partition: int, end: NotedEnd) -> None:
        """Take that a partition is ours from here on, and what its state says."""
        self._written[partition] = end, self._clock()

    def forget(self, partition: int) -> None:
        """Take that it is not ours any more."""
        self._written.pop(partition, None)

    def write(self, partition: int, state: PartitionState) -> None:
        """Write a partition's state, between its data files and their index files.

        Raises:
            StorageUnavailableError: the storage does not answer.
        """
        self._put(partition, state)
        self.begin(partition, state.end)

    def note(self, ends: Mapping[int, NotedEnd], *, at_once: bool) -> None:
        """Write the states of partitions whose ends have moved without rows.

        Args:
            ends: all before them is in files, which their index files name.
            at_once: also those that were written less than a minute ago.

        Raises:
            StorageUnavailableError: the storage does not answer.
        """
        due_s = self._clock() - (0.0 if at_once else QUIET_S)
        writes: dict[int, Future[None]] = {}
        for partition, end in ends.items():
            written, written_s = self._written[partition]
            if end != written and written_s <= due_s:
                writes[partition] = self._pool.submit(self._put, partition, PartitionState(end, {}))
        for partition, done in writes.items():
            done.result()
            self.begin(partition, ends[partition])

    def _put(self, partition: int, state: PartitionState) -> None:
        self._store.put(state_path(self._changefeed, partition), [encode_state(state)])
