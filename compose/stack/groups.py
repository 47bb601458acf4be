"""Process groups by id *and* start: an id that has ended may be another's by now, and that one is left alone."""

import contextlib
import os
from pathlib import Path

_STARTED = 19
"""Place of the start time (clock ticks since boot) in ``/proc/PID/stat``, behind the name in brackets: field 22."""


def started_at(pid: int) -> int | None:
    """Return when a process was started, in units of this machine's own; None: there is none, or nobody can tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[_STARTED])
    except (OSError, ValueError, IndexError):
        return None


def signal_group(pid: int, started: int | None, number: int) -> None:
    """Send a signal to the group that the process ``pid`` has led since ``started``, if any of it is left.

    A leader that has ended leaves its id to its group while that has members, and to nobody else before.
    """
    now = started_at(pid)
    if now is not None and started is not None and now != started:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
