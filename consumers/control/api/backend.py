"""What the routes ask for: the bus as seen by one capture. ``compose`` makes it of ZooKeeper, Kafka and PD."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from consumers.control.api.bodies import FeedRequest, StoredFeed
from consumers.control.api.metrics import MetricsSnapshot
from consumers.control.changefeeds.asked_images import AskedImages
from consumers.control.changefeeds.processor_nodes import Share
from consumers.control.changefeeds.service_nodes import StoredServices
from consumers.control.changefeeds.verbs import ConfigChange
from consumers.control.cluster.capture_registry import CaptureInfo
from schemas.ids import CaptureId, RegionId, TableId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.rawlog.images import ImageMode


class Scheduling(Protocol):
    """What the owner does with the tables of its upstream. Calls come from any thread; none of them waits for a move.

    Each may raise a BusError: NotInitializedError while a new owner has not heard of all captures, DrainRefusedError, …
    """

    def check_ready(self) -> None:
        """Raise unless every capture has answered this owner, so that it schedules."""
        ...

    def tables(self) -> Mapping[CaptureId, Collection[TableId]]:
        """Return the tables that each capture pulls; a split one may be at several."""
        ...

    def drain(self, capture: CaptureId) -> int:
        """Move all spans of a capture away; return how many it has now."""
        ...

    def move_table(self, table: TableId, capture: CaptureId) -> None:
        """Move a table, with all its spans."""
        ...

    def rebalance(self) -> None:
        """Give every capture its share at once."""
        ...

    def resign(self) -> None:
        """End this reign; the next capture in line becomes the owner."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamView:
    """What the owner last said of an upstream: its node in ZooKeeper, as it is."""

    upstream: UpstreamId
    status: Mapping[str, Any]


class Backend(Protocol):
    """Every method may raise a BusError, which becomes the answer. Safe from several threads."""

    capture: CaptureInfo
    cluster: str

    def is_stopping(self) -> bool:
        """Tell whether this capture is on its way out."""
        ...

    def owner(self) -> CaptureId | None: ...

    def scheduling(self) -> Scheduling | None:
        """Return what an owner can do; None where this capture is not the owner, or its reign has not begun."""
        ...

    def captures(self) -> Sequence[CaptureInfo]: ...

    def settings(self) -> Mapping[str, object]:
        """Return what this capture was started with, without secrets, by TiCDC's names where it has them."""
        ...

    def upstreams(self) -> Sequence[UpstreamView]: ...

    def upstream_id(self, upstream: UpstreamId) -> int:
        """Return PD's cluster id of an upstream, 0 where it is not this capture's or PD does not answer."""
        ...

    def now_ts(self) -> Ts:
        """Return a new TSO of PD."""
        ...

    def feeds(self, namespace: str) -> Sequence[StoredFeed]: ...

    def all_feeds(self) -> Sequence[StoredFeed]:
        """Return the changefeeds of all namespaces."""
        ...

    def feed(self, changefeed_id: str, namespace: str) -> StoredFeed: ...

    def feed_tables(self, feed: StoredFeed) -> Collection[TableId]:
        """Return the tables that a changefeed's filter lets through now; partitions and not their table."""
        ...

    def refused_tables(self, feed: StoredFeed) -> Sequence[Mapping[str, str]]:
        """Return the tables that a changefeed's sink refuses or passes over as they are now: ``table``, ``code``,
        ``reason``, ``what_helps``. Lakes alone say so.
        """
        ...

    def processor_shares(self, feed: StoredFeed) -> Sequence[Share]:
        """Return which partitions of a changefeed's topic each processor applies; none where its sink is Kafka."""
        ...

    def sorter(self, changefeed_id: str, namespace: str) -> Mapping[str, object] | None:
        """Return what is known of the changefeed's sorter process (``host``, ``pid``, …); None: none runs."""
        ...

    def services(self) -> StoredServices:
        """Return the sorter services, and what each has."""
        ...

    def pin(self, changefeed_id: str, namespace: str, service: str) -> None:
        """Keep a changefeed on a sorter service, by its id or its capture's address
        (:func:`~consumers.control.changefeeds.pins.service_at`); '': on none in particular.
        """
        ...

    def request_images(
        self,
        changefeed_id: str,
        namespace: str,
        mode: ImageMode,
        tables: Sequence[str],
        key_range: str | None = None,
    ) -> Sequence[TableId]:
        """Ask for images of tables of a changefeed, ``schema.table`` each; return their physical ids.

        Raises:
            ImageRefusedError: a range of keys is named, and several tables or one that has no such range.
        """
        ...

    def pause_images(self, changefeed_id: str, namespace: str, tables: Sequence[str]) -> AskedImages:
        """Begin no more chunks of tables, ``schema.table`` each; none named: of any. Return what is asked then."""
        ...

    def resume_images(self, changefeed_id: str, namespace: str, tables: Sequence[str]) -> AskedImages:
        """Go on with images of tables; none named: of all. Return what is asked then."""
        ...

    def proofs(self, feed: StoredFeed, records_max: int) -> Sequence[Mapping[str, object]]:
        """Return a changefeed's newest proofs, oldest first, among so many of its upstream's newest.

        Raises:
            KafkaUnreachableError: the topic does not answer, or no sorter has made it yet.
        """
        ...

    def create(self, request: FeedRequest, namespace: str) -> ChangefeedInfo: ...

    def configure(self, changefeed_id: str, namespace: str, change: ConfigChange) -> ChangefeedInfo: ...

    def pause(self, changefeed_id: str, namespace: str) -> None: ...

    def resume(self, changefeed_id: str, namespace: str, overwrite_checkpoint_ts: Ts | None) -> None: ...

    def remove(self, changefeed_id: str, namespace: str) -> None: ...

    def tables(self, request: FeedRequest) -> dict[str, Any]:
        """Return a Tables: ineligible_tables and eligible_tables of a changefeed that has not been created yet, and
        all_tables of the schemas that it looks at.
        """
        ...

    def table_names(self, names_max: int) -> dict[str, Any]:
        """Return the first physical tables of this capture's upstream by name, ``items`` of ``id``, ``name`` and
        ``partition`` ('': of none), and how many there are, ``total``.
        """
        ...

    def explain(self, request: FeedRequest) -> dict[str, object]:
        """Return for every table where its rows go and in what; of a Kafka which rights that needs, of another sink
        ``kind`` (database, files, lake, nowhere).
        """
        ...

    def first_messages(self, request: FeedRequest) -> dict[str, object]:
        """Return some messages that a changefeed would write, of rows that the raw log has, and what would stop it; the
        rows themselves (``is_rows``) where its sink is no Kafka. It writes nowhere.
        """
        ...

    def log_lines(self) -> Sequence[Mapping[str, object]]:
        """Return the newest warnings and errors of this capture's log, oldest first, as JSON logs have them, redacted
        as the log is.
        """
        ...

    def checks(self) -> Sequence[Mapping[str, object]]:
        """Return what this machine has and lacks, and how upstream and raw log stand: name, ok, needed, said."""
        ...

    def check_upstream(self, pd_addresses: Sequence[str]) -> None:
        """Raise if PD's addresses are given and are not our upstream's."""
        ...

    def metadata(self) -> Sequence[tuple[str, str]]:
        """Return all nodes of the cluster in ZooKeeper with their values, secrets masked, by path."""
        ...

    def resolve_lock(self, region: RegionId, ts: Ts | None) -> Mapping[str, object]:
        """Resolve the locks in a region; return what was done."""
        ...

    def delete_service_gc_safepoint(self) -> str:
        """Let PD collect what this bus has still to pull; return the name of the entry that is gone."""
        ...

    def metrics(self) -> MetricsSnapshot:
        """Return what a scrape shows; that ZooKeeper does not answer is part of it, not an error."""
        ...

    def check_health(self) -> None:
        """Raise what keeps the bus from moving."""
        ...
