"""A service that stands still in its own loop ends, and says where that was."""

import subprocess
import sys
from pathlib import Path

import pytest

from schemas.running_feeds import read_threads

SERVICE = """
import logging, sys, threading, time
from pathlib import Path
from schemas.running_feeds import RunningFeeds
from sorters.service import vitals
from sorters.service.feed_shares import FeedShares

vitals.BEAT_S, vitals.LOOP_S_MAX = 0.05, 1.0
logging.basicConfig(format="%(message)s still_s=%(still_s)s stack=%(stack)s")
running = RunningFeeds(Path(sys.argv[1]), 4)
running.note(0, ("default", "innocent"))
watch = vitals.Vitals(running, FeedShares(running, 1), 0, lambda: None)

def stand_still():
    time.sleep(2.5)

watch.start()
for _ in range(30):
    watch.note_tick()
    time.sleep(0.05)
if sys.argv[2] == "leaves":
    watch.note_last_tick()
stand_still()
watch.stop()
"""


@pytest.mark.parametrize(("how", "status"), [("stays", 1), ("leaves", 0)])
def test_service_ends_where_its_loop_does_not_go_on(tmp_path: Path, how: str, status: int) -> None:
    file = tmp_path / "running"
    ended = subprocess.run([sys.executable, "-c", SERVICE, file, how], capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended.stderr
    if how == "leaves":
        assert ended.stderr == ""
        return
    assert "takes in no assignments" in ended.stderr and ":stand_still:" in ended.stderr
    assert read_threads(file) == [], "it is no changefeed's fault"
