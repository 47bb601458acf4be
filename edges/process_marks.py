"""Which process a file is of: its id *and* its start, for ids come again, in a container at each of its starts."""

import os
import re
from pathlib import Path
from typing import Final

_STARTED: Final = 19
"""Place of the start time (clock ticks since boot) in ``/proc/PID/stat``, behind the name in brackets: field 22."""
_MARK: Final = re.compile(r"([1-9][0-9]*)-([0-9]+)")


def started_at(pid: int) -> int | None:
    """Return when a process was started, in units of this machine's own; None: there is none, or nobody can tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[_STARTED])
    except (OSError, ValueError, IndexError):
        return None


def process_mark() -> str:
    """Return this process's mark, ``PID-START``, which may be a part of a file's name."""
    return f"{os.getpid()}-{started_at(os.getpid()) or 0}"


def is_of_dead(text: str) -> bool:
    """Tell whether a text is the mark of a process that has ended; what is no mark is not known to be."""
    mark = _MARK.fullmatch(text)
    if mark is None:
        return False
    pid, start = int(mark[1]), int(mark[2])
    now = started_at(pid)
    return not is_running(pid) if now is None else now != start


def is_running(pid: int) -> bool:
    """Tell whether some process has an id."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
