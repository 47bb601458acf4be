"""Child processes that never outlive us: each in its own process group, known to the watchdog, with its own log."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from compose.log_files import opener
from compose.stack.child_logs import turn_over
from compose.stack.errors import ChildError
from compose.stack.groups import signal_group
from edges.process_marks import started_at

log = logging.getLogger(__name__)

STOP_S = 15.0
"""How long a child may take to end after SIGTERM; a broker flushes and a sorter finishes its batch in well under it."""
_POLL_S = 0.05
TAIL_LINES = 12
PYTHON = (sys.executable, "-P")
"""Begins a Python of ours. Without ``-P`` it would take modules from the folder that we were started in before its own:
code of whoever may write there."""
TIDEBUS = (*PYTHON, "-m", "compose.cli")
"""Begins a command of our own, whatever is on the PATH."""
_WHEN_TOLD = ("/bin/sh", "-c", 'read -r go && exec "$@"', "sh")
"""Begins a command when it reads a line. We may be killed between a child's start and the watchdog's knowing of it: the
line never comes then, and nothing is left running."""


class Nursery:
    """Starts children and stops them in the reverse order; a context manager."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._watchdog: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> "Child":
        """Start ``command`` with its output appended to ``log``; ``env`` is added to ours.

        Raises:
            ChildError: see :meth:`Child.start`.
        """
        child = Child(name=name, command=list(command), log=log, env=dict(env or {}), cwd=cwd, nursery=self)
        self._children.append(child)  # first: who is interrupted meanwhile stops it, too
        try:
            child.start()
        except ChildError:
            self._children.remove(child)
            raise
        return child

    def forget(self, child: "Child") -> None:
        """Take a child that has ended off the list: its process id may be another's by the time of :meth:`stop`."""
        self._children.remove(child)

    def stop(self) -> None:
        """Stop every child, last started first, then let the watchdog go."""
        while self._children:
            self._children.pop().stop()
        self._end_watchdog()

    def stop_together(self, grace_s: float) -> None:
        """Stop every child, all told first and given ``grace_s`` in all; then let the watchdog go."""
        for child in self._children:
            child.terminate()
        deadline = time.monotonic() + grace_s
        while self._children:
            self._children.pop().stop(max(0.0, deadline - time.monotonic()))
        self.stop()

    def tell_watchdog(self, line: str) -> None:
        """Put a process group on the watchdog's list, or take it off.

        Of one that has died, whatever ended it, another takes over all that runs.

        Raises:
            OSError: there is no room for another.
        """
        if self._watchdog is not None and self._say(self._watchdog, line):
            return
        running = [child.pid for child in self._children if child.is_running()]
        if running and self._watchdog is not None:
            log.warning("watchdog of children has died; another takes over")
        self._end_watchdog()
        if running:
            self._watchdog = subprocess.Popen(
                [*PYTHON, "-m", "compose.stack.watchdog"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            self._say(self._watchdog, "\n".join(f"add {pid}" for pid in running))

    def _say(self, watchdog: "subprocess.Popen[str]", line: str) -> bool:
        """Tell the watchdog; return whether it lives."""
        assert watchdog.stdin is not None
        try:
            watchdog.stdin.write(line + "\n")
            watchdog.stdin.flush()
        except BrokenPipeError:
            return False
        return watchdog.poll() is None

    def _end_watchdog(self) -> None:
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None and watchdog.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has died, and what it was told last is in our buffer
                watchdog.stdin.close()
            watchdog.wait()


@dataclass(kw_only=True)
class Child:
    """One process; may be started again after it ended or was killed, with the same command and log."""

    name: str
    command: list[str]
    log: Path
    env: dict[str, str]
    cwd: Path | None
    nursery: Nursery
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _started: int | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        """The process id, of the group too."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it (again).

        Raises:
            ChildError: there is no room for its log, or for another process.
        """
        assert not self.is_running()
        self._end(0.0)  # what the last one has left behind
        output: IO[bytes]
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with open(self.log, "ab", opener=opener) as output:  # pathlib's has no opener
                self._process = subprocess.Popen(
                    [*_WHEN_TOLD, *self.command],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self.env},
                    cwd=self.cwd,
                    start_new_session=True,
                )
            self._started = started_at(self.pid)
            self.nursery.tell_watchdog(f"add {self.pid}")
        except OSError as error:
            with contextlib.suppress(OSError):
                self._end(0.0)  # it waits for a line that never comes
            raise ChildError(f"{self.name} cannot be started", log=self.log, reason=error) from error
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(b"\n")

    def is_running(self) -> bool:
        """Tell whether it runs now."""
        return self._process is not None and self._process.poll() is None

    def exit_status(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    def stop(self, grace_s: float = STOP_S) -> None:
        """Ask it to end, and kill it after ``grace_s``. Nothing happens when it has ended.

        Only the process itself is asked: a sorter needs its JVM until it has stopped.
        """
        self.terminate()
        self._end(grace_s)

    def discard(self, grace_s: float = STOP_S) -> None:
        """Stop it, with whatever it has left behind, and take it off the nursery's list."""
        self.stop(grace_s)
        self.nursery.forget(self)

    def terminate(self) -> None:
        """Ask it to end and do not wait."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it as ``kill -9`` does, with whatever it has started in its group."""
        self._kill_group()
        self._end(STOP_S)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for it to end; return the exit status, or None when the time is over."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def wait_ready(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until ``is_ready`` says so.

        Raises:
            ChildError: it ended, or was not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if not self.is_running():
                raise ChildError(
                    f"{self.name} ended while starting", status=self.exit_status(), log=self.log, last=self.tail()
                )
            if time.monotonic() > deadline:
                raise ChildError(f"{self.name} was not ready in {timeout_s:.0f} s", log=self.log, last=self.tail())
            time.sleep(_POLL_S)

    def turn_over_log(self) -> None:
        """Set the log aside if it has grown too large; whoever supervises a child for long calls this now and then."""
        turn_over(self.log)

    def tail(self, lines: int = TAIL_LINES) -> str:
        """Return the last lines of its log; '': there is none, or nobody can read it."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 400 * lines))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
        return ""

    def _end(self, grace_s: float) -> None:
        if self._process is None:
            return
        if self.wait(grace_s) is None:
            self._kill_group()
            self._process.wait()
        self._kill_group()  # what it left behind
        with contextlib.suppress(OSError):  # no room for another watchdog: whoever is started next asks again
            self.nursery.tell_watchdog(f"remove {self.pid}")

    def _kill_group(self) -> None:
        signal_group(self.pid, self._started, signal.SIGKILL)
