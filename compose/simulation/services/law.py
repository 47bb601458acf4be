"""What must hold of the cuts that sorter services write, whatever happens to them.

- A changefeed has one sorter: what a process writes belongs to the cut that was begun last, by whomever.
- An owner never gives a changefeed to two services.
- What was begun is repeated as it was begun: two cuts of a life of a changefeed are the same, or do not overlap.
- Nothing is passed over: a cut begins where all before it is written.
- What is counted of a changefeed is what its present holder has counted.
"""

from collections import Counter
from dataclasses import dataclass, field

from compose.simulation.law import BrokenPromiseError
from schemas.nodes.feed_figures import RunKey

Cut = tuple[int, int]
"""Rows above the first ts, up to the second one."""


@dataclass(slots=True)
class Written:
    """One changefeed's destination in one life, which begins when a user sets its checkpoint."""

    life: int
    done_ts: int
    """All up to here is written."""
    begun: dict[Cut, int] = field(default_factory=dict)
    """With the highest row of each that was written."""
    writer: tuple[str, int] = ("", 0)
    """Process and number of the cut that was begun last."""
    cut: Cut = (0, 0)


class ServiceLaw:
    """Over all changefeeds."""

    def __init__(self) -> None:
        self.written: dict[str, Written] = {}
        self.start_ts: dict[tuple[str, int], int] = {}
        """By changefeed and life where it begins."""
        self.ended: Counter[RunKey] = Counter()
        """Cuts by the run that has ended them."""
        self._cuts = 0

    def begin(self, feed: str, process: str, cut: Cut, life: int) -> int:
        """Note that a process begins a cut; return its number."""
        written = self.written.get(feed)
        if written is None or written.life < life:
            written = self.written[feed] = Written(life, self.start_ts[feed, life])
        elif written.life > life:
            raise BrokenPromiseError(f"{process} begins {feed} where it was before its checkpoint was set")
        if cut[0] > written.done_ts:
            raise BrokenPromiseError(f"{process} begins {feed} at {cut[0]}; only up to {written.done_ts} is written")
        self._cuts += 1
        written.writer, written.cut = (process, self._cuts), cut
        return self._cuts

    def write(self, feed: str, process: str, number: int, ts: int) -> None:
        """Note one row of a cut that is under way."""
        written = self.written[feed]
        if written.writer != (process, number):
            raise BrokenPromiseError(f"{process} still writes {feed}, which {written.writer[0]} has begun since")
        cut = written.cut
        for other in written.begun:
            if other != cut and cut[0] < other[1] and other[0] < cut[1]:
                raise BrokenPromiseError(f"{process} cuts {feed} at {cut}, and {other} was begun")
        written.begun[cut] = max(written.begun.get(cut, 0), ts)
        if ts == cut[1]:
            written.done_ts = max(written.done_ts, ts)

    def counted(self, run: RunKey, cuts: int) -> None:
        """Check how many cuts a reader takes a run to have ended."""
        if cuts > self.ended[run]:
            raise BrokenPromiseError(
                f"{run.changefeed_id} shows {cuts} cuts, and its holder has ended {self.ended[run]}"
            )

    def assigned(self, assignments: dict[str, list[str]]) -> None:
        """Check what an owner has written: changefeeds by service."""
        holder: dict[str, str] = {}
        for service, feeds in assignments.items():
            for feed in feeds:
                if feed in holder:
                    raise BrokenPromiseError(f"{feed} is assigned to {holder[feed]} and to {service}")
                holder[feed] = service
