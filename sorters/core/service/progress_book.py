"""Which entries a sorter service has in which of its progress nodes, and which of those are to be written: pure.

    put, drop --> the entry's node is dirty --dirty()--> what to write --written()--> clean, unless changed since

An entry that stands there from before (of this service's last life) stays until its changefeed is here again, or goes
elsewhere: it may be the only word on what was begun.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from schemas.nodes.sorter_service import ENTRIES_MAX, FeedEntry, FeedName

TRANSACTION_BYTES_MAX: Final = 768 * 1024
"""Of nodes that are written together: ZooKeeper takes 1 MiB."""
FeedKey = tuple[FeedName, int]
"""A changefeed's name and its creation."""


def key_of(entry: FeedEntry) -> FeedKey:
    return entry.name, entry.created_zxid


def in_transactions(nodes: Mapping[int, bytes], bytes_max: int = TRANSACTION_BYTES_MAX) -> list[dict[int, bytes]]:
    """Return nodes in their order as so many transactions as they need; no nodes are one, which checks and writes none.

    A node that is larger alone has one of its own.
    """
    parts: list[dict[int, bytes]] = [{}]
    for number, node in nodes.items():
        if parts[-1] and sum(map(len, parts[-1].values())) + len(node) > bytes_max:
            parts.append({})
        parts[-1][number] = node
    return parts


class ProgressBook:
    """The entries of one service."""

    def __init__(self, stored: Mapping[int, Iterable[FeedEntry]] | None = None) -> None:
        """``stored`` is what its nodes hold, by number."""
        self._nodes: dict[int, dict[FeedKey, FeedEntry]] = {
            number: {key_of(entry): entry for entry in entries} for number, entries in (stored or {}).items()
        }
        self._node_of = {key: number for number, entries in self._nodes.items() for key in entries}
        self._changes: dict[int, int] = {}
        """How often each node has changed."""
        self._written: dict[int, int] = {}

    def entry(self, key: FeedKey) -> FeedEntry | None:
        """Return a changefeed's entry."""
        number = self._node_of.get(key)
        return None if number is None else self._nodes[number][key]

    @property
    def entries(self) -> list[FeedEntry]:
        """All of them."""
        return [entry for entries in self._nodes.values() for entry in entries.values()]

    def put(self, entry: FeedEntry) -> None:
        """Set a changefeed's entry, in the node that has it already or in one that has room."""
        key = key_of(entry)
        number = self._node_of.get(key)
        if number is None:
            number = 0
            while len(self._nodes.get(number, ())) >= ENTRIES_MAX:
                number += 1
            self._node_of[key] = number
        entries = self._nodes.setdefault(number, {})
        if entries.get(key) != entry:
            entries[key] = entry
            self._changes[number] = self._changes.get(number, 0) + 1

    def drop(self, key: FeedKey) -> None:
        """Take a changefeed's entry away."""
        number = self._node_of.pop(key, None)
        if number is not None:
            del self._nodes[number][key]
            self._changes[number] = self._changes.get(number, 0) + 1

    def dirty(self) -> dict[int, tuple[int, tuple[FeedEntry, ...]]]:
        """Return the nodes to write: for each the change that it is of, and its entries."""
        return {
            number: (change, tuple(self._nodes[number].values()))
            for number, change in self._changes.items()
            if self._written.get(number, 0) != change
        }

    def written(self, number: int, change: int) -> None:
        """A node was written as it was at a change."""
        self._written[number] = max(self._written.get(number, 0), change)
