"""A module of the benches in a process of its own, so that each figure is of what it names."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def module_process(arguments: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    """Start a module; it ends when its standard input does."""
    started = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert started.stdin is not None
    try:
        yield started
    finally:
        started.stdin.close()
        try:
            started.wait(60)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
