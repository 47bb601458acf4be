"""`make test` runs its two lanes at once: both must end well, and one that fails ends the other."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import lanes

AUTOGROUP = Path("/proc/self/autogroup")


def test_lanes_that_all_end_well_are_shown_one_after_the_other(capfd: pytest.CaptureFixture[str]) -> None:
    assert lanes.run(["sleep 1; echo first", "sh -c 'echo second; echo trouble >&2'"]) == 0
    shown = capfd.readouterr().out
    assert "second\ntrouble" in shown
    assert "first" in shown


@pytest.mark.parametrize("failing", [0, 1])
def test_lane_that_fails_ends_the_others_with_all_their_children(
    failing: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pid = tmp_path / "pid"
    commands = [f"sh -c 'sleep 600 & echo $! > {pid}; wait'"]
    commands.insert(failing, f"sh -c 'while [ ! -s {pid} ]; do sleep 0.1; done; echo oh no; exit 7'")
    began_at = time.monotonic()
    assert lanes.run(commands) == 1
    assert time.monotonic() - began_at < 300
    shown = capfd.readouterr().out
    assert "oh no" in shown
    assert "failed, exit status 7" in shown
    _wait_gone(int(pid.read_text()))


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler], ids=["in the background", "by hand"])
def test_lane_ended_by_another_says_first_what_it_has_seen(
    handler: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    former = signal.signal(signal.SIGINT, handler)
    try:
        _lane_is_asked(tmp_path)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, former)
    assert "two have failed" in capfd.readouterr().out


def _lane_is_asked(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    asked = f"sh -c 'trap \"echo two have failed; exit 1\" INT; touch {ready}; while :; do sleep 0.1; done'"
    assert lanes.run([asked, f"sh -c 'while [ ! -e {ready} ]; do sleep 0.1; done; exit 7'"]) == 1


def test_lanes_beside_the_first_leave_it_the_processor(capfd: pytest.CaptureFixture[str]) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert lanes.run(["true", "nice"]) == 0
    assert str(min(19, before + lanes.NICENESS)) in capfd.readouterr().out.split()


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel does not group processes by session")
def test_lanes_beside_the_first_leave_it_the_processor_as_sessions_too(capfd: pytest.CaptureFixture[str]) -> None:
    assert lanes.run(["true", f"cat {AUTOGROUP}"]) == 0
    assert f" nice {lanes.NICENESS}" in capfd.readouterr().out


def _wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return
        except psutil.NoSuchProcess:
            return
        time.sleep(0.1)
    raise AssertionError(f"process {pid} still runs")
