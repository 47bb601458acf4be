"""By which changefeed the memory of a service has grown: pure.

A process has one memory, and nobody tells whose a byte is. So growth from a cut's beginning to its end, when all that
the cut held has been let go, is its changefeed's: what that keeps adds up. Cuts under way at the same time share what
the process has grown by; what they take and let go of adds up to little.
"""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

BLAME_SHARE_MIN: Final = 0.1
"""Of the bound: who has grown by less is not to blame for all that there is."""

Name = TypeVar("Name", bound=Hashable)


class MemoryGrowth(Generic[Name]):
    """Bytes that changefeeds have grown by since they came."""

    def __init__(self) -> None:
        self._grown: dict[Name, int] = {}

    def note(self, name: Name, grown_bytes: int, cuts: int = 1) -> None:
        """Take in by how much the process has grown over a changefeed's cut; below 0: it has shrunk.

        ``cuts`` is how many were under way, this one among them.
        """
        self._grown[name] = max(0, self._grown.get(name, 0) + grown_bytes // max(1, cuts))

    def forget(self, name: Name) -> None:
        self._grown.pop(name, None)

    def to_blame(self, memory_bytes_max: int) -> Name | None:
        """Return by whom the process has come to its bound; None: by nobody in particular."""
        largest = max(self._grown, key=lambda name: self._grown[name], default=None)
        if largest is None or self._grown[largest] < BLAME_SHARE_MIN * memory_bytes_max:
            return None
        return largest
