"""Children of a parent that is killed before its watchdog has heard of them."""

import subprocess
import sys
import time
import uuid

import psutil

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
    found = []
    for process in psutil.process_iter():
        try:
            found.append(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return [command for command in found if mark in command]
