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
    """Whether all that a processor does goes on; mutable and deterministic.

    A partition that stands, as its rows are locked or there is no room for them, is not taken for well because others
    go on: nobody would ever hear of it.
    """

    _seen: tuple[Ts, int] | None = None
    """The changefeed's checkpoint, and how many DDL have run."""
    _stood: dict[int, tuple[Ts, int]] = field(default_factory=dict)
    """Where each partition stood when all had moved the last time."""

    def has_moved(self, checkpoint_ts: Ts, ddl_total: int, partitions: Mapping[int, tuple[Ts, int]]) -> bool:
        """Tell whether the whole has moved since the last time that it had.

        Args:
            checkpoint_ts: of the changefeed, where this processor leads; else 0.
            ddl_total: DDL that it has run.
            partitions: its own: applied ts, and rows applied.
        """
        before, self._seen = self._seen, (checkpoint_ts, ddl_total)
        new = {part: at for part, at in partitions.items() if part not in self._stood}
        self._stood = {part: at for part, at in self._stood.items() if part in partitions} | new
        all_moved = bool(partitions) and all(self._stood[part] != at for part, at in partitions.items())
        if all_moved:
            self._stood = dict(partitions)
        return all_moved or (before is not None and before != self._seen)
