"""Keeps the bus's own processes running: a dead one is named with its last words and started again after a pause."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from compose.stack.errors import ChildError

PAUSE_FIRST_S, PAUSE_MAX_S = 1.0, 30.0
"""Doubles from the one to the other while a process keeps dying."""
STEADY_S = 60.0
"""A process that has run this long starts again with the shortest pause."""


class Process(Protocol):
    """What is supervised: :class:`compose.stack.children.Child`, or a stand-in in tests."""

    name: str

    def start(self) -> None: ...
    def is_running(self) -> bool: ...
    def exit_status(self) -> int | None: ...
    def tail(self, lines: int = ...) -> str: ...


@dataclass(slots=True)
class _Charge:
    process: Process
    restart: bool
    started_at: float
    pause_s: float = PAUSE_FIRST_S
    start_at: float | None = None
    deaths: int = 0


@dataclass(slots=True)
class Supervisor:
    """Call :meth:`tick` a few times a second from the thread that started the processes."""

    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _charges: dict[str, _Charge] = field(default_factory=dict)

    def add(self, process: Process, *, restart: bool) -> None:
        """Watch a started process.

        Args:
            process: the process.
            restart: start it again when it dies; else its death ends the bus.
        """
        self._charges[process.name] = _Charge(process, restart, self.clock())

    def deaths(self) -> dict[str, int]:
        """Return how often each process has died, of those that have."""
        return {name: charge.deaths for name, charge in self._charges.items() if charge.deaths}

    def tick(self) -> None:
        """Look at every process once.

        Raises:
            ChildError: a process that is not restarted has died.
        """
        now = self.clock()
        for name, charge in self._charges.items():
            process = charge.process
            if charge.start_at is not None:
                if now >= charge.start_at:
                    charge.start_at, charge.started_at = None, now
                    process.start()
                continue
            if process.is_running():
                continue
            charge.deaths += 1
            if not charge.restart:
                raise ChildError(f"{name} has ended", status=process.exit_status(), last=process.tail())
            if now - charge.started_at > STEADY_S:
                charge.pause_s = PAUSE_FIRST_S
            self.say(
                f"{name} has ended with status {process.exit_status()}; again in {charge.pause_s:.0f} s. "
                f"Its last words:\n{process.tail()}"
            )
            charge.start_at = now + charge.pause_s
            charge.pause_s = min(charge.pause_s * 2, PAUSE_MAX_S)
