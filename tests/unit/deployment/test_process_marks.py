"""Which process a file is of, where ids come again."""

import os
import subprocess
import sys

from edges.process_marks import is_of_dead, process_mark, started_at


def test_mark_is_of_a_dead_process_once_that_has_ended_or_another_has_its_id() -> None:
    program = "import edges.process_marks as marks; print(marks.process_mark(), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None and other.stdout is not None
        mark = other.stdout.readline().decode().strip()
        assert mark.startswith(f"{other.pid}-")
        assert not is_of_dead(mark)
        other.stdin.close()
        other.wait(60)
    assert is_of_dead(mark)
    started = started_at(os.getpid())
    assert started is not None
    assert not is_of_dead(process_mark())
    assert is_of_dead(f"{os.getpid()}-{started - 1}")


def test_what_is_no_mark_is_of_no_dead_process() -> None:
    for text in ("", "blockmgr-1", "1", "0-1", "-1-1", "1-1-1", "mine", "99999999-x"):
        assert not is_of_dead(text), text
    assert is_of_dead(f"{10**30}-1")
