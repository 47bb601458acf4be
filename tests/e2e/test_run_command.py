"""`tidebus run` as a newcomer types it: ends by itself, checks its promises, leaves no process behind."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.control.pauses import growing_pauses
from tests.support.recorded.recording import TIDB_DATA

RUN_S = 1_200.0
WAIT_S = 180.0
NIGHTLY = pytest.mark.skipif(
    not os.environ.get("NIGHTLY_RUN"),
    reason="test_recording_through_the_bus plays it to its end; make nightly does so by this command, too",
)


@pytest.mark.parametrize(
    "flags",
    [
        ("--for", "3s"),
        ("--for", "3s", "--secure"),
        pytest.param(("--exit-at-end", "--secure"), marks=NIGHTLY),
        pytest.param(("--exit-at-end",), marks=NIGHTLY),
    ],
    ids=["open, for a time", "locked down, for a time", "locked down, to the end", "open, to the end"],
)
def test_run_of_the_recording_holds_its_promises(flags: tuple[str, ...], tmp_path: Path) -> None:
    data = tmp_path / "run"
    command = [sys.executable, "-m", "compose.cli", "run", "--recording", str(TIDB_DATA)]
    ran = subprocess.run(
        [*command, *flags, "--data-dir", str(data)],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        stdin=subprocess.DEVNULL,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert ran.stdout.count("promises hold") == 2
    assert "PROMISES BROKEN" not in ran.stdout and "Traceback" not in ran.stdout + ran.stderr
    assert "canal-json-demo" in ran.stdout and "avro-demo" in ran.stdout
    if flags == ("--exit-at-end",):  # elsewhere the run may end before Spark is there
        assert re.search(r"Spark's UI is at http://127\.0\.0\.1:\d+: it runs every cut of avro-demo", ran.stdout)
        assert re.search(r"^ *avro-demo +[\d,]+ +[\d,]+ +100% ", ran.stdout, re.MULTILINE), "Spark ran all of its cuts"
    _assert_all_gone(data)


def test_run_killed_by_kill_nine_leaves_no_process(tmp_path: Path) -> None:
    data = tmp_path / "run"
    command = [sys.executable, "-m", "compose.cli", "run", "--data-dir", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if "PD at" in line:
                break
        assert len(_processes_of(data)) >= 3
        run.kill()
    _assert_all_gone(data)


def test_run_interrupted_while_starting_stops_cleanly(tmp_path: Path) -> None:
    data = tmp_path / "run"
    command = [sys.executable, "-m", "compose.cli", "run", "--data-dir", str(data)]
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
    )
    deadline, pauses = time.monotonic() + WAIT_S, growing_pauses()
    while not _processes_of(data) and time.monotonic() < deadline:
        time.sleep(next(pauses))
    os.kill(run.pid, signal.SIGINT)
    shown, _ = run.communicate(timeout=WAIT_S)
    assert run.returncode == 130, shown
    assert "Traceback" not in shown
    _assert_all_gone(data)


def _assert_all_gone(data: Path) -> None:
    deadline, pauses = time.monotonic() + WAIT_S, growing_pauses()
    while _processes_of(data) and time.monotonic() < deadline:
        time.sleep(next(pauses))
    assert _processes_of(data) == []


def _processes_of(data: Path) -> list[str]:
    """Return the command lines of processes that work in a folder; the run itself names it too, and is left out."""
    commands = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            ours = any(str(data) in word for word in words) and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if ours and "run" not in words:
            commands.append(" ".join(words)[:200])
    return commands
