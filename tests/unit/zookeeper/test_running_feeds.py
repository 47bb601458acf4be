"""Which changefeeds a service was working for, as its capture reads it when the service has died."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from consumers.control.core.changefeeds.service_plan import dedicated_id
from consumers.control.fleets.service_fleet import service_log
from schemas.errors import InvariantBrokenError
from schemas.nodes.changefeed import ID_CHARS_MAX
from schemas.running_feeds import (
    SLOT_BYTES,
    RunningFeeds,
    RunningFileError,
    ThreadWork,
    crash_file,
    read_beats,
    read_crashed_thread,
    read_threads,
    running_file,
)


def test_running_feeds_are_those_noted_and_not_cleared(tmp_path: Path) -> None:
    path = running_file(tmp_path / "new", "s1")
    with RunningFeeds(path, 3) as running:
        running.note(0, ("default", "a"))
        running.note(1, ("n" * 128, "i" * 128))
        running.note(2, ("default", "long-name"))
        running.note(2, ("default", "b"), 2**47 + 1)
        running.clear(0)
        assert read_threads(path) == [
            ThreadWork(("n" * 128, "i" * 128), 0, only_prepares=False),
            ThreadWork(("default", "b"), 2**47 + 1, only_prepares=False),
        ]
        running.note(2, ("default", "b"), 2**47 + 1, only_prepares=True)
        assert read_threads(path)[1] == ThreadWork(("default", "b"), 2**47 + 1, only_prepares=True)
        assert {work.name for work in read_threads(path)} == {("n" * 128, "i" * 128), ("default", "b")}
        assert path.stat().st_size == 4 * SLOT_BYTES
    with RunningFeeds(path, 1):
        assert {work.name for work in read_threads(path)} == set(), "a new service begins idle"


def test_running_feeds_outlive_a_killed_writer(tmp_path: Path) -> None:
    path = running_file(tmp_path, "s1")
    script = (
        "import os, signal, sys; from pathlib import Path; from schemas.running_feeds import RunningFeeds\n"
        "RunningFeeds(Path(sys.argv[1]), 4).note(3, ('default', 'poison')); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(path)], env={**os.environ}, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert {work.name for work in read_threads(path)} == {("default", "poison")}


@pytest.mark.parametrize("slot", [b"\xff/a", b"/a", b"a/", b"a", b"a/b/c", b"a/b\0c"])
def test_running_feeds_slot_that_names_nothing_is_left_out(tmp_path: Path, slot: bytes) -> None:
    path = tmp_path / "running"
    path.write_bytes(bytes(SLOT_BYTES) + slot.ljust(SLOT_BYTES, b"\0") + b"default/a".ljust(SLOT_BYTES, b"\0"))
    assert {work.name for work in read_threads(path)} == {("default", "a")}


def test_running_feeds_without_a_file_are_none_and_what_cannot_be_is_refused(tmp_path: Path) -> None:
    assert {work.name for work in read_threads(tmp_path / "absent")} == set()
    with pytest.raises(RunningFileError):
        read_threads(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RunningFileError):
        RunningFeeds(tmp_path / "file" / "running", 1)
    with RunningFeeds(tmp_path / "running", 1) as running:
        with pytest.raises(InvariantBrokenError):
            running.note(1, ("default", "a"))
        with pytest.raises(InvariantBrokenError):
            running.note(0, ("default", "x" * SLOT_BYTES))


def test_running_feeds_heart_beats_and_hides_no_changefeed(tmp_path: Path) -> None:
    path = running_file(tmp_path, "s1")
    assert read_beats(path) == 0
    with RunningFeeds(path, 2) as running:
        assert read_beats(path) == 0
        running.note(0, ("default", "a"))
        for beats in (1, 2, 3):
            running.beat()
            assert read_beats(path) == beats
            assert {work.name for work in read_threads(path)} == {("default", "a")}
    path.write_bytes(b"torn")
    assert read_beats(path) == 0
    with pytest.raises(RunningFileError):
        read_beats(tmp_path)


def test_running_feeds_of_a_process_that_ends_for_a_changefeeds_sake_name_that_alone(tmp_path: Path) -> None:
    path = running_file(tmp_path, "s1")
    with RunningFeeds(path, 3) as running:
        running.beat()
        for slot, name in enumerate("abc"):
            running.note(slot, ("default", name))
        running.note_alone(("default", "b"))
        assert {work.name for work in read_threads(path)} == {("default", "b")}
        assert read_beats(path) == 1
        running.note_alone(None)
        assert {work.name for work in read_threads(path)} == set()


def test_running_feeds_thread_that_crashes_a_process_is_known_among_those_that_work(tmp_path: Path) -> None:
    running, crash = running_file(tmp_path, "s1"), crash_file(tmp_path, "s1")
    script = """
import ctypes, faulthandler, sys, threading, time
from pathlib import Path
from schemas.running_feeds import RunningFeeds
running, barrier = RunningFeeds(Path(sys.argv[1]), 4), threading.Barrier(3)
faulthandler.enable(open(sys.argv[2], "w"))
def work(slot, name):
    running.note(slot, ("default", name), threading.get_ident())
    barrier.wait()
    if name == "poison":
        ctypes.memset(0, 0, 1)
    time.sleep(60)
for slot, name in enumerate(("a", "poison", "b")):
    threading.Thread(target=work, args=(slot, name)).start()
"""
    ended = subprocess.run([sys.executable, "-c", script, str(running), str(crash)], check=False)
    assert ended.returncode == -signal.SIGSEGV
    threads = {work.thread: work.name for work in read_threads(running)}
    assert len(threads) == 3
    crashed = read_crashed_thread(crash)
    assert crashed is not None
    assert threads[crashed] == ("default", "poison")
    assert read_crashed_thread(tmp_path / "absent") is None


def test_files_of_services_of_the_longest_ids_that_changefeeds_may_have_can_be_made_and_are_each_ones_own(
    tmp_path: Path,
) -> None:
    namespace, home = "n" * ID_CHARS_MAX, str(uuid.uuid4())
    names = [(namespace, "f" * (ID_CHARS_MAX - 1) + last) for last in "ab"]
    services = [dedicated_id(home, name) for name in names]
    for slot, service in enumerate(services):
        with RunningFeeds(running_file(tmp_path, service), 2) as running:
            running.note(slot, names[slot])
        crash_file(tmp_path, service).touch()
        log = service_log(tmp_path, names[slot])
        log.parent.mkdir(parents=True)
        log.with_name(f"{log.name}.1").touch()
    assert [read_threads(running_file(tmp_path, service))[0].name for service in services] == names
    assert len([file for file in tmp_path.rglob("*") if file.is_file()]) == 6
