"""That a cut may be written: asked for when the cut begins, waited for before its first record.

What is read, mounted and encoded meanwhile is seen by nobody, so a cut need not wait for ZooKeeper before that.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class AskedAtOnce:
    """A :class:`Leave` that is asked for by a call that returns when it is given, and raises where it is refused."""

    ask: Callable[[], None]
    is_given: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.ask()
        self.is_given = True

    def wait(self) -> None:
        """It was asked for before."""


GIVEN: Final[Leave] = AskedAtOnce(lambda: None)
"""Where nobody else could be the sorter."""
