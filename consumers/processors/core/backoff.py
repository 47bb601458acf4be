"""Whether trouble that may pass is waited for: so long after the last progress, and longer each time."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.errors import Action, BusError
from schemas.ids import Ts


@dataclass(slots=True)
class Backoff:
    """Waits for one task; mutable and deterministic."""

    total_s: float
    first_s: float = 0.2
    most_s: float = 5.0
    _since_s: float | None = None
    _next_s: float = 0.0

    def progress(self) -> None:
        """Something has moved: the trouble, if there was any, is over."""
        self._since_s = None

    def wait_s(self, error: BusError, now_s: float) -> float | None:
        """Return how long to wait before the next try; None: there is none, the error is for an operator."""
        if error.action is not Action.RETRY:
            return None
        if self._since_s is None:
            self._since_s, self._next_s = now_s, self.first_s
        if now_s - self._since_s >= self.total_s:
            return None
        waits, self._next_s = self._next_s, min(2 * self._next_s, self.most_s)
        return waits


@dataclass(slots=True)
class Movement:
    """Whether all that a processor does goes on, over all its runs of one epoch; mutable and deterministic.

    A partition that stands, as its rows are locked or there is no room for them, is not taken for well because others
    go on: nobody would ever hear of it. Nor is a run that has come as far as the one before it, or that leads again.
    """

    epoch: int = 0
    """The changefeed's: under another one a user may have set its checkpoint back."""
    _checkpoint_ts: Ts = Ts(0)
    """The highest that was seen; 0: none yet."""
    _ddl_total: int = 0
    _stood: dict[int, tuple[Ts, int]] = field(default_factory=dict)
    """Where each partition stood when all had moved the last time."""
    _at: dict[int, tuple[Ts, int]] = field(default_factory=dict)
    """Where each of them was seen last."""

    def has_moved(
        self, checkpoint_ts: Ts, ddl_total: int, partitions: Mapping[int, tuple[Ts, int]], *, is_steady: bool
    ) -> bool:
        """Tell whether the whole has moved since the last time that it had.

        Args:
            checkpoint_ts: of the changefeed, where this processor leads; else 0.
            ddl_total: DDL that its run has run.
            partitions: its own: applied ts (0: that is not known yet), and rows that its run has applied.
            is_steady: its run has lasted for long. Until then one that was given away is waited for, too: each run that
                fails begins with a few partitions, mostly not with that by which it will fail.
        """
        has_run_ddl, self._ddl_total = ddl_total > self._ddl_total, ddl_total
        is_further = checkpoint_ts > self._checkpoint_ts > 0
        self._checkpoint_ts = max(self._checkpoint_ts, checkpoint_ts)
        if is_steady:
            self._stood = {part: at for part, at in self._stood.items() if part in partitions}
        known = {part: at for part, at in partitions.items() if at[0]}
        self._stood = known | self._stood
        self._at |= known
        all_moved = bool(known) and all(self._at[part] > at for part, at in self._stood.items())
        if all_moved:
            self._stood = {part: self._at[part] for part in self._stood}
        return all_moved or is_further or has_run_ddl
