"""That a cut may be written: asked for when the cut begins, waited for before its first record.

What is read, mounted and encoded meanwhile is seen by nobody, so a cut need not wait for ZooKeeper before that.
"""

from collections.abc import Callable
from typing import Final, Protocol


class Leave(Protocol):
    """Of one cut: what it begins stands in ZooKeeper, and this is its changefeed's one sorter."""

    @property
    def is_given(self) -> bool:
        """Whether :meth:`wait` returns at once."""
        ...

    def wait(self) -> None:
        """Return when it is given. It may be called again.

        Raises:
            SorterLockLostError: it is refused: nothing may be written for the changefeed, nor said of it.
        """
        ...


class _Given:
    is_given: Final = True

    def wait(self) -> None:
        """It was given before."""


GIVEN: Final[Leave] = _Given()
"""Where nobody else could be the sorter, or that was asked before."""


def asked_at_once(ask: Callable[[], None]) -> Leave:
    """Return the leave that a call gives by returning, and refuses by raising."""
    ask()
    return GIVEN
