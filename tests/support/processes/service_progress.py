"""What a sorter service writes into ZooKeeper of how far its changefeeds are, without any service."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from schemas.ids import Ts
from schemas.nodes.changefeed import ZkPaths
from schemas.nodes.feed_figures import encode_figures
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import ENTRIES_MAX, FeedEntry, FeedName, encode_entries


@dataclass
class WrittenProgress:
    """Entries of one service; ``client`` is a connected KazooClient, perhaps of another session than a reader's."""

    client: Any
    paths: ZkPaths
    service: str = "service-a"
    entries: dict[FeedName, FeedEntry] = field(default_factory=dict)
    _counted: dict[str, bytes] = field(default_factory=dict)
    """Figures as they were written last: those that are as they were are not written again."""

    def prepare(self, *entries: FeedEntry) -> None:
        """Set entries, and make the nodes that they need."""
        self.entries |= {entry.name: entry for entry in entries}
        for path, node in (self._progress() | self._figures()).items():
            if self.client.exists(path) is None:
                self.client.create(path, node, makepath=True)

    def write(self, *entries: FeedEntry) -> None:
        """Set entries, and write all nodes as a service does: in one transaction, one request."""
        if not self.entries.keys() >= {entry.name for entry in entries}:
            self.prepare(*entries)
        self.entries |= {entry.name: entry for entry in entries}
        self._commit()

    def drop(self, *names: FeedName) -> None:
        """Take entries away."""
        for name in names:
            del self.entries[name]
        self._commit()

    def _parts(self) -> Iterator[tuple[int, list[FeedEntry]]]:
        entries = list(self.entries.values())
        for start in range(0, max(1, len(entries)), ENTRIES_MAX):
            yield start // ENTRIES_MAX, entries[start : start + ENTRIES_MAX]

    def _progress(self) -> dict[str, bytes]:
        paths = ServicePaths(self.paths)
        return {paths.entries(self.service, number): encode_entries(part) for number, part in self._parts()}

    def _figures(self) -> dict[str, bytes]:
        paths = ServicePaths(self.paths)
        return {
            paths.entry_figures(self.service, number): encode_figures((each.run, each.figures) for each in part)
            for number, part in self._parts()
        }

    def _commit(self) -> None:
        figures = self._figures()
        nodes = self._progress() | {path: node for path, node in figures.items() if self._counted.get(path) != node}
        transaction = self.client.transaction()
        for path, node in nodes.items():
            transaction.set_data(path, node)
        results = transaction.commit()
        assert not any(isinstance(result, Exception) for result in results), results
        self._counted = figures


def entry(name: FeedName, created_zxid: int, checkpoint_ts: int, **more: Any) -> FeedEntry:
    """Return an entry of the first epoch and assignment, unless ``more`` says otherwise."""
    fields: dict[str, Any] = {"epoch": 0, "revision": 1, "resolved_ts": Ts(checkpoint_ts), **more}
    return FeedEntry(
        namespace=name[0],
        changefeed_id=name[1],
        created_zxid=created_zxid,
        checkpoint_ts=Ts(checkpoint_ts),
        **fields,
    )
