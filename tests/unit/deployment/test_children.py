"""Children that are killed with their parent, with nobody else in their place, and before the watchdog knows them; and
whose modules they take.
"""

import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from compose.stack.children import TIDEBUS, Nursery
from compose.stack.groups import signal_group
from compose.stack.parts import start_registry_proxy
from edges.process_marks import started_at

PARENT = """
import os, signal, sys
from pathlib import Path
from compose.stack.children import Nursery

Nursery.tell_watchdog = lambda self, line: os.kill(os.getpid(), signal.SIGKILL)
Nursery().start("child", [sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]], log=Path(os.devnull))
"""
ORPHANS = """
import os, signal, sys, time
from pathlib import Path
from compose.stack.children import Nursery

def start():
    command = [sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]]
    return nursery.start("child", command, log=Path(os.devnull))

nursery = Nursery()
first = start()
nursery._watchdog.kill()
nursery._watchdog.wait()
second = start()
assert first.is_running() and second.is_running()
os.kill(os.getpid(), signal.SIGKILL)
"""
DEADLINE_S = 60.0


def test_child_whose_parent_is_killed_before_the_watchdog_knows_of_it_does_not_begin() -> None:
    mark = f"child-{uuid.uuid4()}"
    parent = subprocess.run([sys.executable, "-c", PARENT, mark], timeout=DEADLINE_S)
    assert parent.returncode == -9
    _wait_for_the_end_of(mark)


def test_children_of_a_killed_parent_end_though_their_first_watchdog_had_died() -> None:
    """The out-of-memory killer's work, say: the next start sees it, and another watches over all children."""
    mark = f"child-{uuid.uuid4()}"
    parent = subprocess.run([sys.executable, "-c", ORPHANS, mark], timeout=DEADLINE_S)
    assert parent.returncode == -9
    _wait_for_the_end_of(mark)


@pytest.mark.parametrize("others", [0, 1])
def test_nursery_whose_watchdog_has_died_stops_its_children_and_says_so_once(
    others: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nursery = Nursery()
    children = [
        nursery.start(f"sleeper {number}", ["sleep", "60"], log=tmp_path / "log") for number in range(2 + others)
    ]
    assert nursery._watchdog is not None
    nursery._watchdog.kill()
    nursery._watchdog.wait()
    if others:
        children.pop().discard(0.0)
        assert nursery._watchdog is not None and nursery._watchdog.poll() is None
    nursery.stop()
    assert not any(child.is_running() for child in children)
    assert [record.message for record in caplog.records] == ["watchdog of children has died; another takes over"]


def _wait_for_the_end_of(mark: str) -> None:
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


def test_children_take_no_module_from_the_folder_that_we_were_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("click", "compose", "signal", "time"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit(77)")
    monkeypatch.chdir(tmp_path)
    with Nursery() as nursery:
        child = nursery.start("command", [*TIDEBUS, "capture", "--help"], log=tmp_path / "log")
        assert child.wait(DEADLINE_S) == 0, child.tail()
        assert nursery._watchdog is not None and nursery._watchdog.poll() is None


def test_registrys_proxy_takes_no_module_from_the_folder_that_we_were_started_in(tmp_path: Path) -> None:
    """Without its arguments it says which it needs: it was found, and nothing else in its place."""
    (tmp_path / "argparse.py").write_text("raise SystemExit(77)")
    started: list[list[str]] = []
    nursery = SimpleNamespace(start=lambda _, command, **__: started.append(command))
    pair = SimpleNamespace(cert="cert", key="key")
    secrets = SimpleNamespace(servers={"registry": pair}, password=lambda _: "secret")
    start_registry_proxy(cast(Any, nursery), tmp_path, 1, 2, cast(Any, secrets))
    command = started[0][: started[0].index("--port")]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S)
    assert ran.returncode == 2 and "--port" in ran.stderr


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
