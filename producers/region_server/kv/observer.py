"""The observer of applied writes: the hook between the store and the CDC endpoints.

The store calls it in the very step in which it applies a command, so an endpoint that takes a snapshot in between two
commands sees every write exactly once.
"""

from collections.abc import Sequence
from typing import Protocol

from producers.region_server.core.store.mvcc import Change
from producers.region_server.core.store.regions import Region
from schemas.ids import RegionId, StoreId


class StoreObserver(Protocol):
    """What a CDC endpoint wants to know of the store."""

    def on_applied(self, region: Region, changes: Sequence[Change]) -> None:
        """A command changed data or locks of a region."""

    def on_epoch_changed(self, region_ids: Sequence[RegionId], current: Sequence[Region]) -> None:
        """Regions were split or merged: all that was known of ``region_ids`` is void; ``current`` took their place."""

    def on_leader_changed(self, region: Region, before: StoreId) -> None:
        """A region is led by another store now."""
