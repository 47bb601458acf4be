"""What a changefeed's cuts take of a process that others share, as the cuts see it: they say when they do what."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class FeedShare(Protocol):
    """Of one changefeed. ``stopped`` ends a wait: what follows must find out by itself that it is to end."""

    def begin_cut(self, stopped: Callable[[], bool]) -> None:
        """Wait until the changefeed may begin another cut, and begin it."""
        ...

    def end_cut(self, rows: int) -> None:
        """End the cut that was begun; ``rows`` is what it wrote."""
        ...

    def holding(self, raw_bytes: int, stopped: Callable[[], bool]) -> AbstractContextManager[None]:
        """Inside, about so many bytes of raw records are held; entering it may take until others have let go."""
        ...

    def preparing(self) -> AbstractContextManager[None]:
        """Inside, the thread works for the changefeed, but mostly waits."""
        ...

    def computing(self, stopped: Callable[[], bool]) -> AbstractContextManager[None]:
        """Inside, the thread computes; entering it may take until a core is free. Not nested."""
        ...

    def let_others(self) -> None:
        """Let others compute first who wait for it; between two pieces of a cut's work."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """Inside, a thread that computes waits for somebody else; where it does not compute, this does nothing."""
        ...


class WholeProcess:
    """A :class:`FeedShare` where nobody shares."""

    def begin_cut(self, stopped: Callable[[], bool]) -> None:
        """It may at once."""

    def end_cut(self, rows: int) -> None:
        """Nobody counts."""

    def holding(self, raw_bytes: int, stopped: Callable[[], bool]) -> AbstractContextManager[None]:
        return nullcontext()

    def preparing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def computing(self, stopped: Callable[[], bool]) -> AbstractContextManager[None]:
        return nullcontext()

    def let_others(self) -> None:
        """There are none."""

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()
