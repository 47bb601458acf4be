"""Which entries a sorter service has in which of its nodes, and which of those are to be written: pure.

    put, drop --> the entry's nodes are dirty --dirty()--> what to write --written()--> clean, unless changed since

Entries stand in two nodes of the same number: in one how far the changefeeds are, in the other their figures, which
nobody needs so soon, so that they are written less often.

An entry that stands there from before (of this service's last life) stays until its changefeed is here again, or goes
elsewhere: it may be the only word on what was begun.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from schemas.nodes.feed_figures import NOTHING_COUNTED
from schemas.nodes.sorter_service import ENTRIES_MAX, FeedEntry, FeedName

TRANSACTION_BYTES_MAX: Final = 768 * 1024
"""Of nodes that are written together: ZooKeeper takes 1 MiB."""
FeedKey = tuple[FeedName, int]
"""A changefeed's name and its creation."""
_Key = TypeVar("_Key")


class Part(Enum):
    """What of entries a node holds."""

    PROGRESS = "progress"
    FIGURES = "figures"


class NodeKey(NamedTuple):
    """One node of a service."""

    part: Part
    number: int


def key_of(entry: FeedEntry) -> FeedKey:
    return entry.name, entry.created_zxid


def in_transactions(nodes: Mapping[_Key, bytes], bytes_max: int = TRANSACTION_BYTES_MAX) -> list[dict[_Key, bytes]]:
    """Return nodes in their order as so many transactions as they need; no nodes are one, which checks and writes none.

    A node that is larger alone has one of its own.
    """
    parts: list[dict[_Key, bytes]] = [{}]
    for key, node in nodes.items():
        if parts[-1] and sum(map(len, parts[-1].values())) + len(node) > bytes_max:
            parts.append({})
        parts[-1][key] = node
    return parts


class ProgressBook:
    """The entries of one service."""

    def __init__(self, stored: Mapping[int, Iterable[FeedEntry]] | None = None) -> None:
        """``stored`` is what its nodes hold, by number, figures included."""
        self._nodes: dict[int, dict[FeedKey, FeedEntry]] = {
            number: {key_of(entry): entry for entry in entries} for number, entries in (stored or {}).items()
        }
        self._node_of = {key: number for number, entries in self._nodes.items() for key in entries}
        self._changes: Counter[NodeKey] = Counter()
        """How often each node has changed."""
        self._written: dict[NodeKey, int] = {}
        self._dropped: dict[NodeKey, int] = {}
        """At which change each node was left by an entry last."""

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
        known, entries[key] = entries.get(key), entry
        if known is None or replace(known, figures=entry.figures) != entry:
            self._changes[NodeKey(Part.PROGRESS, number)] += 1
        if (NOTHING_COUNTED if known is None else known.figures) != entry.figures:
            self._changes[NodeKey(Part.FIGURES, number)] += 1

    def drop(self, key: FeedKey) -> None:
        """Take a changefeed's entry away."""
        number = self._node_of.pop(key, None)
        if number is not None:
            del self._nodes[number][key]
            for node in (NodeKey(part, number) for part in Part):
                self._changes[node] += 1
                self._dropped[node] = self._changes[node]

    def dirty(self, *, are_figures_due: bool) -> dict[NodeKey, tuple[int, tuple[FeedEntry, ...]]]:
        """Return the nodes to write: for each the change that it is of, and its entries.

        Figures that are not due are among them only where an entry has gone: a later run of its changefeed must not be
        taken to have counted them.
        """
        return {
            node: (change, tuple(self._nodes[node.number].values()))
            for node, change in self._changes.items()
            if (written := self._written.get(node, 0)) != change
            and (node.part is Part.PROGRESS or are_figures_due or written < self._dropped.get(node, 0))
        }

    def written(self, node: NodeKey, change: int) -> None:
        """A node was written as it was at a change."""
        self._written[node] = max(self._written.get(node, 0), change)
