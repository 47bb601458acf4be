"""Kills the children when their parent is gone, however it went: also by ``kill -9``.

Runs as its own process in its own session, ``python -m compose.stack.watchdog``, with a pipe from the parent as
standard input. Lines: ``add PGID`` and ``remove PGID``. When the pipe ends, every group still on the list is killed.
Works wherever there are pipes and process groups, unlike Linux's parent-death signal, which also goes off when only the
*thread* that started a child has ended.
"""

import signal
import sys
import time

from compose.stack.groups import signal_group
from edges.process_marks import started_at

GRACE_S = 1.0
"""Between asking and killing; Spark's Python workers end by themselves when their JVM does."""


def main() -> None:
    """Read orders until the parent is gone, then kill."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups: dict[int, int | None] = {}
    for line in sys.stdin:
        order, _, group = line.strip().partition(" ")
        if order == "add":
            groups[int(group)] = started_at(int(group))
        else:
            groups.pop(int(group), None)
    for kill in (signal.SIGTERM, signal.SIGKILL):
        for group, started in groups.items():
            signal_group(group, started, kill)
        if groups and kill is signal.SIGTERM:
            time.sleep(GRACE_S)


if __name__ == "__main__":
    main()
