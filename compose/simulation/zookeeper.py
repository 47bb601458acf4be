"""ZooKeeper as the simulation has it: sessions, their ephemeral nodes, an election, and one number by compare-and-set.

All times are ticks. A session ends some time after its holder was last answered, never sooner than SESSION_TICKS; the
holder counts on two thirds of that (``edges.zookeeper.session``).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from consumers.control.cluster.capture_registry import CaptureInfo
from edges.zookeeper.session import LeaseLostError
from schemas.ids import CaptureId

SESSION_TICKS = 12
LEASE_TICKS = 8


@dataclass(slots=True)
class ZooKeeper:
    """``captures`` are the registered ones; ``candidates`` stand in line."""

    random: Random
    ends_at: dict[CaptureId, int] = field(default_factory=dict)
    captures: dict[CaptureId, CaptureInfo] = field(default_factory=dict)
    candidates: list[CaptureId] = field(default_factory=list)
    revision: int = 0
    epoch: int = 1
    """The changefeed epoch of the upstream."""
    is_down_until: int = 0
    """Until then it answers nobody; sessions last, as a restarted ensemble gives them their whole timeout again."""
    is_down: bool = False

    def open(self, capture: CaptureId, now: int) -> None:
        """Begin a session."""
        self.ends_at[capture] = now + SESSION_TICKS

    def renew(self, capture: CaptureId, now: int) -> bool:
        """Answer a request of a session; False: no answer, or it has ended."""
        if self.is_down or capture not in self.ends_at:
            return False
        self.ends_at[capture] = now + SESSION_TICKS + self.random.randint(0, 3)
        return True

    def end(self, capture: CaptureId) -> None:
        """End a session: what was ephemeral goes with it."""
        self.ends_at.pop(capture, None)
        self.captures.pop(capture, None)
        if capture in self.candidates:
            self.candidates.remove(capture)

    def expire(self, now: int) -> list[CaptureId]:
        """End the sessions whose time is over, and return whose they were."""
        self.is_down = now < self.is_down_until
        if self.is_down:
            self.ends_at = {capture: max(at, now + SESSION_TICKS) for capture, at in self.ends_at.items()}
            return []
        over = [capture for capture, at in self.ends_at.items() if at <= now]
        for capture in over:
            self.end(capture)
        return over

    def take_revision(self, capture: CaptureId) -> int | None:
        """Give the first candidate the next revision; None: it is not first any more."""
        if self.is_down or not self.candidates or self.candidates[0] != capture:
            return None
        self.revision += 1
        return self.revision


class SimSession:
    """One capture's session, with the methods of ``edges.zookeeper.session.Session`` that owners call."""

    def __init__(self, capture: CaptureId, zookeeper: ZooKeeper, now: Callable[[], int]) -> None:
        self.capture, self.zookeeper, self._now = capture, zookeeper, now
        self.answered_at = now()
        self.checked: Callable[[], None] = lambda: None
        """Called after each check that went well: there a process may be paused."""
        zookeeper.open(capture, now())

    def renew(self) -> None:
        """Ask for anything; an answer renews the lease."""
        if self.zookeeper.renew(self.capture, self._now()):
            self.answered_at = self._now()

    def lease_left_s(self) -> float:
        """Return for how long (in ticks) this process may act as the holder of its session."""
        return max(0.0, self.answered_at + LEASE_TICKS - self._now())

    def check_lease(self) -> None:
        """Raise LeaseLostError when the lease is over."""
        if self.lease_left_s() <= 0:
            raise LeaseLostError("the simulated session cannot be confirmed", capture=self.capture)
        self.checked()
