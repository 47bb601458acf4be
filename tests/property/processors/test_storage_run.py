"""A storage processor that is stopped at any write, over a topic in which a sorter has repeated itself."""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce

import pytest

from consumers.processors.core.storage.files import decode_state, state_path
from consumers.processors.core.storage.paths import METADATA, PathForm
from consumers.processors.sink_source import SinkRecord
from consumers.processors.storage.begin import FilesLead, FilesShare
from consumers.processors.storage.run import StorageRun, StorageSettings
from consumers.processors.storage.store import Chunk, StorageUnavailableError
from schemas.sink_figures import SinkFigures
from tests.support.topics.storage_share import WholeStorage
from tests.support.topics.storage_topic import PARTITIONS, START_TS, Topic, check_schema_files, topic_of, visible

PATHS = PathForm(extension="csv", date_separator="day", file_index_digit=6)
SETTINGS = StorageSettings(
    changefeed="default.f.1", paths=PATHS, start_ts=START_TS, flush_interval_s=0.0, file_bytes_max=60, worker_count=1
)


@dataclass
class MemoryStore:
    """Files in memory; fails from one put on, as a storage that goes away, or a process that is killed."""

    files: dict[str, bytes] = field(default_factory=dict)
    puts_left: int = 10**9

    def put(self, path: str, chunks: Iterable[Chunk], may_show: Callable[[], None] = lambda: None) -> None:
        may_show()
        if self.puts_left <= 0:
            raise StorageUnavailableError("gone")
        self.puts_left -= 1
        self.files[path] = b"".join(chunks)

    def get(self, path: str) -> bytes | None:
        return self.files.get(path)

    def remove_if(self, is_old: Callable[[str], bool], check: Callable[[], None] = lambda: None) -> int:
        old = [path for path in self.files if is_old(path)]
        for path in old:
            check()
            del self.files[path]
        return len(old)


class ListSource:
    """A topic; hands out a few records of any partition at a time."""

    def __init__(self, topic: Topic, rng: random.Random, *, flows: bool) -> None:
        self._topic, self._at, self._rng = topic, dict[int, int](), rng
        self.flows = flows
        """Records come while partitions are taken over: how many of them are read ahead then no seed decides, as
        threads take them over."""
        self.handed_out = 0
        """Records, by which time goes on here: how many turns a take-over needs no seed decides."""

    @property
    def is_at_end(self) -> bool:
        return all(self._at[number] == len(records) for number, records in self._topic.items())

    def poll(self, timeout_s: float) -> list[SinkRecord]:
        waiting = [number for number, at in self._at.items() if at < len(self._topic[number])]
        if not waiting or not self.flows:
            return []
        number = self._rng.choice(waiting)
        first = self._at[number]
        self._at[number] = min(len(self._topic[number]), first + self._rng.randint(1, 4))
        self.handed_out += self._at[number] - first
        return self._topic[number][first : self._at[number]]

    def check(self, offsets: Mapping[int, int]) -> None: ...
    def begin(self, offsets: Mapping[int, int]) -> None:
        self._at.update(offsets)

    def end(self, partition: int) -> None: ...
    def pause(self, partition: int) -> None: ...
    def resume(self, partition: int) -> None: ...
    def note(self, offsets: Mapping[int, int]) -> None: ...
    def close(self) -> None: ...


def read_to_end(topic: Topic, store: MemoryStore, rng: random.Random, *, flows: bool) -> int:
    return counted_to_end(topic, store, rng, flows=flows)[0]


def counted_to_end(
    topic: Topic, store: MemoryStore, rng: random.Random, *, flows: bool
) -> tuple[int, int, SinkFigures]:
    """Return the checkpoint, the rows in files, and what was counted of their writes."""
    source = ListSource(topic, rng, flows=flows)
    now = datetime(2026, 1, 2, tzinfo=UTC)
    run = StorageRun(source, store, SETTINGS, clock=lambda: 7.0 * source.handed_out, now=lambda: now)
    try:
        whole = WholeStorage(FilesShare(run), FilesLead(run), PARTITIONS)
        source.flows = True
        while not source.is_at_end:
            whole.turn()
            check_schema_files(store.files)
        whole.finish()
        figures = (run.progress(number).sink for number in range(PARTITIONS))
        return whole.checkpoint_ts, run.rows_total, reduce(SinkFigures.plus, figures)
    finally:
        run.close()


@pytest.mark.parametrize("seed", range(5))
def test_storage_run_counts_the_files_and_rows_that_it_has_written(seed: int) -> None:
    store = MemoryStore()
    _, rows, counted = counted_to_end(topic_of(random.Random(seed))[0], store, random.Random(seed), flows=seed == 0)
    written = [content for path, content in store.files.items() if path.endswith(".csv")]
    assert (counted.files, counted.file_bytes) == (len(written), sum(map(len, written)))
    assert (counted.batch_rows.total, counted.batch_rows.count) == (rows, counted.flushes_us.count)


@pytest.mark.parametrize("seed", range(25))
def test_storage_run_stopped_at_each_write_shows_every_line_once_in_order(seed: int) -> None:
    flows = seed % 3 == 0
    topic, meant, last_ts = topic_of(random.Random(seed))
    whole = MemoryStore()
    assert read_to_end(topic, whole, random.Random(seed), flows=flows) == last_ts
    assert visible(whole.files) == meant
    assert whole.files[METADATA] == b'{"checkpoint-ts":%d}' % last_ts
    writes, stopped = 10**9 - whole.puts_left, 0
    for puts in range(writes):
        store = MemoryStore(puts_left=puts)
        try:
            assert read_to_end(topic, store, random.Random(seed), flows=flows) == last_ts
        except StorageUnavailableError:
            stopped += 1
        before = visible(store.files)
        assert all(lines == meant[table][: len(lines)] for table, lines in before.items())
        store.puts_left = 10**9
        assert read_to_end(topic, store, random.Random(puts), flows=puts % 3 == 0) == last_ts
        assert visible(store.files) == meant, puts
    # What is read ahead at once is written at once: such a run may end with fewer writes than the first one had.
    assert 0 < stopped <= writes if flows else stopped == writes
    for number, records in topic.items():
        end = decode_state(whole.files[state_path(SETTINGS.changefeed, number)], "").end
        assert (end.offset, end.watermark_ts) == (len(records), last_ts)
