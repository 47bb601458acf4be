"""What a Spark Python worker of ours does between tasks, and how frames and answers are read."""

import importlib
import io
import struct
import subprocess
import sys
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.serializers import SpecialLengths

from schemas.errors import CorruptDataError
from sorters.spark.worker import worker_state
from sorters.spark.worker.python_daemon import (
    GROWTH_BYTES_MAX,
    TASKS_A_COLLECTION,
    WORKER_BYTES_MAX,
    LastWord,
    RareCollector,
)
from sorters.spark.worker.warm_clients import WarmClients
from sorters.spark.worker.work import Frames, split_answers

MIB = 1024 * 1024


class Memory:
    """A process's resident memory, which a collection brings down."""

    def __init__(self, resident: int) -> None:
        self.resident, self.collections = resident, 0

    def collect(self) -> int:
        self.collections += 1
        self.resident = 100 * MIB
        return 7

    def collector(self) -> RareCollector:
        return RareCollector(self.collect, lambda: self.resident)


def test_collector_when_memory_stands_still_collects_once_in_so_many_tasks() -> None:
    memory = Memory(100 * MIB)
    collector = memory.collector()
    gone = [collector.collect() for _ in range(3 * TASKS_A_COLLECTION)]
    assert memory.collections == 3
    assert gone.count(7) == 3


def test_collector_when_memory_grows_by_the_bound_collects_at_once() -> None:
    memory = Memory(100 * MIB)
    collector = memory.collector()
    collector.collect()
    memory.resident += GROWTH_BYTES_MAX - 1
    collector.collect()
    assert memory.collections == 0
    memory.resident += 1
    assert collector.collect() == 7
    assert memory.collections == 1


def test_collector_when_memory_has_fallen_counts_growth_from_there() -> None:
    memory = Memory(500 * MIB)
    collector = memory.collector()
    collector.collect()
    memory.resident = 100 * MIB
    collector.collect()
    memory.resident += GROWTH_BYTES_MAX
    collector.collect()
    assert memory.collections == 1


@pytest.mark.parametrize(
    ("resident", "after", "ends"),
    [
        (WORKER_BYTES_MAX, 0, False),
        (WORKER_BYTES_MAX + 1, WORKER_BYTES_MAX, False),
        (WORKER_BYTES_MAX + 1, WORKER_BYTES_MAX + 1, True),
    ],
    ids=["small", "garbage", "leak"],
)
def test_worker_that_has_leaked_tells_spark_not_to_use_it_again(resident: int, after: int, ends: bool) -> None:
    said, memory = list[int](), [resident]

    def collect() -> int:
        memory.append(after)
        return 0

    word = LastWord(lambda value, stream: said.append(value), collect, lambda: memory[-1])
    word(SpecialLengths.END_OF_DATA_SECTION, None)
    with pytest.raises(SystemExit) if ends else nullcontext():
        word(SpecialLengths.END_OF_STREAM, None)
    last = SpecialLengths.END_OF_DATA_SECTION if ends else SpecialLengths.END_OF_STREAM
    assert said == [SpecialLengths.END_OF_DATA_SECTION, last]


def test_zip_importer_when_caches_are_dropped_keeps_its_directory_and_reads_new_files(tmp_path: Path) -> None:
    for name in ("first", "second"):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.writestr(f"zipped_{name}.py", "x = 1")
    program = (
        "import importlib, sys, zipimport\n"
        "from sorters.spark.worker.python_daemon import keep_zip_directories\n"
        "keep_zip_directories()\n"
        "reads = []\n"
        "read = zipimport._read_directory\n"
        "zipimport._read_directory = lambda path: reads.append(path) or read(path)\n"
        "sys.path.insert(1, sys.argv[1])\n"
        "import zipped_first\n"
        "for _ in range(5): importlib.invalidate_caches()\n"
        "sys.path.insert(1, sys.argv[2])\n"
        "importlib.invalidate_caches()\n"
        "import zipped_second\n"
        "print(len([path for path in reads if path in sys.argv]))\n"
    )
    zips = [str(tmp_path / f"{name}.zip") for name in ("first", "second")]
    ran = subprocess.run([sys.executable, "-c", program, *zips], capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.stderr) == ("2", "")


class Client:
    def __init__(self) -> None:
        self.dropped = False

    def drop(self) -> None:
        self.dropped = True


def test_client_when_its_work_ends_well_is_lent_again_to_who_asks_for_the_same() -> None:
    clients = WarmClients[Client](Client.drop)
    with clients.lend("a", Client) as first:
        pass
    with clients.lend("b", Client) as other, clients.lend("a", Client) as second:
        assert second is first
        assert other is not first
    assert not first.dropped


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_client_when_its_task_fails_or_is_given_up_is_dropped_and_not_lent_again(error: type[BaseException]) -> None:
    clients = WarmClients[Client](Client.drop)
    with clients.lend("b", Client) as neighbour:
        pass
    with pytest.raises(error), clients.lend("a", Client) as failed:
        raise error
    assert failed.dropped
    with clients.lend("a", Client) as next_one, clients.lend("b", Client) as same_neighbour:
        assert next_one is not failed
        assert same_neighbour is neighbour, "what another changefeed uses is kept"


def test_client_while_lent_is_nobody_elses() -> None:
    clients = WarmClients[Client](Client.drop)
    with clients.lend("a", Client) as first, clients.lend("a", Client) as second:
        assert first is not second
    assert [first.dropped, second.dropped] == [False, True]


def test_clients_when_too_many_wait_then_the_one_unused_longest_goes() -> None:
    clients = WarmClients[Client](Client.drop, clients_max=2)
    made = []
    for name in ("a", "b", "a", "c"):
        with clients.lend(name, Client) as client:
            made.append(client)
    assert [client.dropped for client in made] == [False, True, False, False]
    assert made[0] is made[2]


@given(frames=st.lists(st.binary(max_size=50)))
def test_frames_when_written_and_read_are_the_same(frames: list[bytes]) -> None:
    stream = io.BytesIO()
    Frames().dump_stream(frames, stream)
    assert stream.getvalue() == b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    stream.write(struct.pack(">i", -1) + b"what comes after is not ours")
    stream.seek(0)
    assert list(Frames().load_stream(stream)) == frames


def test_frames_as_pyspark_writes_them_are_read() -> None:
    serializers = importlib.import_module("pyspark.serializers")
    stream = io.BytesIO()
    serializers.NoOpSerializer().dump_stream(iter([b"", b"abc"]), stream)
    serializers.write_int(serializers.SpecialLengths.END_OF_DATA_SECTION, stream)
    stream.seek(0)
    assert list(Frames().load_stream(stream)) == [b"", b"abc"]


@pytest.mark.parametrize("text", [b"", b"\0\0\0", b"\0\0\0\x05abc", b"\0\0\0\x03abc"])
def test_frames_that_end_early_are_no_end(text: bytes) -> None:
    with pytest.raises(EOFError):
        list(Frames().load_stream(io.BytesIO(text)))


@given(answers=st.lists(st.binary(max_size=50)))
def test_answers_are_split_at_their_lengths(answers: list[bytes]) -> None:
    joined = b"".join(struct.pack(">i", len(answer)) + answer for answer in answers)
    assert split_answers(joined) == answers


@pytest.mark.parametrize("joined", [b"\0\0", b"\0\0\0\x02a", b"\xff\xff\xff\xff"])
def test_answers_that_are_not_whole_are_refused(joined: bytes) -> None:
    with pytest.raises(CorruptDataError):
        split_answers(joined)


class Waiting:
    """A writer that counts how often it was tended."""

    def __init__(self) -> None:
        self.tended = 0

    def tend(self) -> None:
        self.tended += 1

    def abandon(self) -> None:
        """It has nothing."""


def test_task_that_reads_lets_writers_that_wait_take_in_what_their_clients_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, read = Waiting(), Waiting(), worker_state.lend_reader
    made = iter([first, second])
    monkeypatch.setattr(worker_state, "_WRITERS", WarmClients[Waiting](Waiting.abandon))
    monkeypatch.setattr(worker_state, "_READERS", WarmClients[object](lambda _: None))
    monkeypatch.setattr(worker_state, "record_writer", lambda *_, **__: next(made))
    monkeypatch.setattr(worker_state, "raw_topic_reader", lambda *_: object())
    with worker_state.lend_writer({"a": 1}, 5), worker_state.lend_writer({"a": 2}, 5), read({"a": 1}, "raw"):
        assert (first.tended, second.tended) == (0, 0), "those in use are polled by who uses them"
    with read({"a": 1}, "raw"):
        assert (first.tended, second.tended) == (1, 1)
