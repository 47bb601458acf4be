"""What the routes ask for: the bus as seen by one capture. ``compose`` makes it of ZooKeeper, Kafka and PD."""

from collections.abc import Sequence
from typing import Any, Protocol

from consumers.api.bodies import FeedRequest, StoredFeed
from consumers.api.metrics import Snapshot
from consumers.capture_registry import CaptureInfo
from consumers.changefeed_control import ConfigChange
from schemas.changefeed import ChangefeedInfo
from schemas.ids import CaptureId, Ts, UpstreamId


class Backend(Protocol):
    """Every method may raise a BusError, which becomes the answer. Safe from several threads."""

    capture: CaptureInfo
    cluster: str

    def is_stopping(self) -> bool:
        """Tell whether this capture is on its way out."""
        ...

    def owner(self) -> CaptureId | None: ...

    def captures(self) -> Sequence[CaptureInfo]: ...

    def upstream_id(self, upstream: UpstreamId) -> int:
        """Return PD's cluster id of an upstream, 0 where it is not this capture's or PD does not answer."""
        ...

    def now_ts(self) -> Ts:
        """Return a new TSO of PD."""
        ...

    def feeds(self, namespace: str) -> Sequence[StoredFeed]: ...

    def feed(self, changefeed_id: str, namespace: str) -> StoredFeed: ...

    def create(self, request: FeedRequest, namespace: str) -> ChangefeedInfo: ...

    def configure(self, changefeed_id: str, namespace: str, change: ConfigChange) -> ChangefeedInfo: ...

    def pause(self, changefeed_id: str, namespace: str) -> None: ...

    def resume(self, changefeed_id: str, namespace: str, overwrite_checkpoint_ts: Ts | None) -> None: ...

    def remove(self, changefeed_id: str, namespace: str) -> None: ...

    def tables(self, request: FeedRequest) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the ineligible and the eligible tables of a changefeed that has not been created yet."""
        ...

    def metrics(self) -> Snapshot:
        """Return what a scrape shows; that ZooKeeper does not answer is part of it, not an error."""
        ...

    def check_health(self) -> None:
        """Raise what keeps the bus from moving."""
        ...
