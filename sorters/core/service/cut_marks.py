"""Where epochs of changefeeds that are behind together end, so that they run the same cuts: pure.

::

    frontier   r r r r r r|r r r r r r r|r r r r r r|r r r        |: a mark, CUT_BYTES of raw records after the last
    behind       ^------->
    too            ^----->^------------->                          from here on the same cut, which is shared
    keeps up                                    ^------->          to the newest

Without them each would take all that there is by its turn: another cut than the others', of more rows each time, until
none is small enough to be shared. A service that has more to do than it can would do several times as much from then
on.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

CUT_BYTES: Final = 2 * 1024 * 1024
"""Raw bytes between two marks, some 9,000 rows: what a cut costs whatever is in it is a thirtieth of what these cost,
and their rows and messages, by all protocols, fit into what is kept (:mod:`sorters.service.shared_cuts`)."""
NEAR: Final = 16
"""Marks ahead up to which others are about to run the same cuts, or have just run them, where there are many: some
150,000 rows. Who is further behind than that, and with few others, has a backlog of its own."""
CROWD: Final = 5
"""Changefeeds that stand below a mark, from which on they stop at it. A further one costs a third where cuts are
shared: so many are caught up sooner by one core than each by Spark, on two."""


class CutMarks:
    """Offsets of the frontier topic, in their order."""

    def __init__(self) -> None:
        self._marks: list[int] = []
        self._from: int | None = None
        """Raw records that the log had at the last mark; None: no record was taken."""

    def take(self, high: Sequence[int], next_offset: int, record_bytes: float) -> None:
        """Take the frontier record below ``next_offset``, by which the log has got to ``high``.

        ``record_bytes`` is the mean size of raw records now.
        """
        landed = sum(high)
        if self._from is None or landed < self._from:  # an owner's first record may go back
            self._from = landed
        elif (landed - self._from) * record_bytes >= CUT_BYTES:
            self._marks.append(next_offset)
            self._from = landed

    def end(self, start: int, starts: Iterable[int], *, is_full: bool = False) -> int | None:
        """Return up to where an epoch may go that begins at ``start``; None: as far as there is anything.

        Args:
            starts: from where on changefeeds read, this one's among them.
            is_full: there are more changefeeds than may run at once. Each that begins then, as after a restart all do
                one after the other, takes its place among those that come after it, wherever these stand by now.
        """
        at = bisect_right(self._marks, start)
        if at == len(self._marks):
            return None
        mark = self._marks[at]
        if is_full and len(self._marks) - at <= NEAR:
            return mark
        return mark if sum(stands_at < mark for stands_at in starts) >= CROWD else None

    def forget(self, first: int) -> None:
        """Forget the marks below ``first``: nobody asks from there."""
        del self._marks[: bisect_right(self._marks, first)]
