"""Where it is noted what a changefeed's sorters have begun."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from schemas.ids import Ts
from sorters.cut.leave import Leave


class BegunStore(Protocol):
    """What the changefeed's sorters have begun last, as :func:`~sorters.core.cut.beginning.encode_begun` writes it."""

    def begun(self) -> bytes | None:
        """Return it; None: nothing yet."""
        ...

    def begin(self, epoch: bytes, after_ts: Ts) -> Leave:
        """Write it down, and before it that the changefeed's checkpoint is ``after_ts``, if that is not known yet.

        Return at once or later; the leave is given when it stands there.

        Raises:
            SorterLockLostError: this is not confirmed to be the changefeed's one sorter; nothing is written then.
        """
        ...


@dataclass(frozen=True, slots=True)
class LastBegun:
    """A :class:`BegunStore` of what was read before, and of a function that writes."""

    last: bytes | None
    write: Callable[[bytes, Ts], Leave]

    def begun(self) -> bytes | None:
        return self.last

    def begin(self, epoch: bytes, after_ts: Ts) -> Leave:
        return self.write(epoch, after_ts)
