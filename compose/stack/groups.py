"""Process groups by id *and* start: an id that has ended may be another's by now, and that one is left alone."""

import contextlib
import os

from edges.process_marks import started_at


def signal_group(pid: int, started: int | None, number: int) -> None:
    """Send a signal to the group that the process ``pid`` has led since ``started``, if any of it is left.

    A leader that has ended leaves its id to its group while that has members, and to nobody else before.
    """
    now = started_at(pid)
    if now is not None and started is not None and now != started:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
