"""Children that are killed with their parent, with nobody else in their place, and before the watchdog knows them."""

import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil

from compose.stack.children import Nursery
from compose.stack.groups import signal_group, started_at

PARENT = """
import os, signal, sys
from pathlib import Path
from compose.stack.children import Nursery

Nursery.tell_watchdog = lambda self, line: os.kill(os.getpid(), signal.SIGKILL)
Nursery().start("child", [sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]], log=Path(os.devnull))
"""
DEADLINE_S = 60.0


def test_child_whose_parent_is_killed_before_the_watchdog_knows_of_it_does_not_begin() -> None:
    mark = f"child-{uuid.uuid4()}"
    parent = subprocess.run([sys.executable, "-c", PARENT, mark], timeout=DEADLINE_S)
    assert parent.returncode == -9
    deadline = time.monotonic() + DEADLINE_S
    while left := _with(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def _with(mark: str) -> list[list[str]]:
    matching = []
    for process in psutil.process_iter():
        try:
            matching.append(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return [command for command in matching if mark in command]


def test_group_whose_id_is_another_processes_by_now_is_left_alone(tmp_path: Path) -> None:
    with Nursery() as nursery:
        child = nursery.start("sleeper", ["sleep", "60"], log=tmp_path / "log")
        started = started_at(child.pid)
        assert started is not None
        signal_group(child.pid, started - 1, signal.SIGKILL)  # of one that had the id before
        assert child.is_running()
        signal_group(child.pid, started, signal.SIGKILL)
        assert child.wait(30.0) == -signal.SIGKILL


def test_child_that_is_started_again_leaves_nothing_of_the_last_one(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with Nursery() as nursery:
        child = nursery.start("forker", ["sh", "-c", f"sleep 60 & echo $! >> {pid_file}"], log=tmp_path / "log")
        assert child.wait(30.0) == 0
        first = int(pid_file.read_text().split()[0])
        assert started_at(first) is not None
        child.start()
        assert child.wait(30.0) == 0
        deadline = time.monotonic() + 30.0
        while not _is_gone(first):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # nobody waits for an orphan on some machines
    except psutil.NoSuchProcess:
        return True
