"""Runs commands side by side, so that one computes while the other waits: `python -m tests.lanes "make a" "make b"`.

Tests of real processes mostly wait, pure ones only compute. The first command has the terminal; what the others say is
shown when they end, and they have what the first leaves of the processor. The first that fails ends all.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

NICENESS = 10
"""Of all but the first: a tenth of the first's share where both want the processor."""
STOP_S = 20.0
"""How long commands that are to end may take; test brokers are children of a watchdog, and end by themselves."""
_LOOK_S = 0.2
_YIELD = f"{{ echo {NICENESS} > /proc/self/autogroup; }} 2> /dev/null; "
"""Linux may share the processor among sessions first and heed niceness only inside each: the session has its own."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One command that runs, in a process group of its own."""

    command: str
    process: "subprocess.Popen[bytes]"
    output: Path | None
    """Where its output is kept until it ends; None: it has the terminal."""


def run(commands: Sequence[str]) -> int:
    """Run all; return 0 when all have ended well, 1 as soon as one has not."""
    with TemporaryDirectory() as folder, _heeding_interrupts():
        running = [
            _start(command, None if number == 0 else Path(folder) / str(number))
            for number, command in enumerate(commands)
        ]
        try:
            while running:
                time.sleep(_LOOK_S)
                for lane in [lane for lane in running if lane.process.poll() is not None]:
                    running.remove(lane)
                    _show(lane)
                    if lane.process.returncode != 0:
                        print(f"{lane.command}: failed, exit status {lane.process.returncode}", flush=True)
                        return 1
        finally:
            _end(running)
    return 0


@contextmanager
def _heeding_interrupts() -> Iterator[None]:
    """Let commands be asked by SIGINT, which a process ignores that a shell has started in the background."""
    former = signal.getsignal(signal.SIGINT)
    if former is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def _start(command: str, output: Path | None) -> Lane:
    kept = output.open("wb") if output else None
    try:
        process = subprocess.Popen(
            command if output is None else f"{_YIELD}nice -n {NICENESS} {command}",
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=kept,
            stderr=subprocess.STDOUT if kept else None,
            start_new_session=True,
        )
    finally:
        if kept:
            kept.close()
    return Lane(command, process, output)


def _show(lane: Lane) -> None:
    if lane.output is not None:
        print(f"\n{lane.command}:\n{lane.output.read_text(errors='replace')}", flush=True)


def _end(lanes: Sequence[Lane]) -> None:
    """End what still runs, with all that it has started, and show how far it was."""
    for kill in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):  # asked by the first, pytest says what has failed
        for lane in lanes:
            try:
                os.killpg(lane.process.pid, kill)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + STOP_S
        while any(lane.process.poll() is None for lane in lanes) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
    for lane in lanes:
        _show(lane)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(run(sys.argv[1:]))
