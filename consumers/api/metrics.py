"""What `GET /metrics` shows, in Prometheus' text format: one snapshot of the bus for each scrape, nothing a row.

TiCDC's names (reference/metrics-and-ops.md §1) stand for what means the same here, so that its alerts fire; all else is
``tidebus_…``. TiCDC's counters have no ``_total``, which Prometheus' client would add: they are shown untyped, which
``rate()`` and ``changes()`` do not mind. Metrics of changefeeds, frontier and puller come from the owner alone: a sum
over captures counts nothing twice.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UntypedMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from consumers.api.bodies import StoredFeed
from schemas.ids import TableId, Ts, UpstreamId, physical_ms

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
STALLS_SHOWN: Final = 20
"""Tables that are named; a bus of 100,000 whose store is away must not become 100,000 series."""
STATES: Final = {"normal": 0, "pending": 1, "failed": 2, "stopped": 3, "finished": 4, "removed": 5, "warning": 6}
"""TiCDC's numbers; anything else is -1."""
MOVING: Final = frozenset({"normal", "pending", "warning"})
"""States in which a lag means something: a changefeed that was stopped lags on purpose."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A span that something holds back."""

    table_id: TableId
    kind: str
    """Why, as one of few words (producers.span_watch)."""
    still_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """What this capture pulls of one upstream as its owner; counts are since its reign began."""

    upstream: UpstreamId
    owner_s: float
    """For how long it has been owner."""
    resolved_ts: Ts
    """Of the newest published frontier record."""
    tables: int
    spans: int
    regions: int
    regions_initialized: int
    scans_running: int
    scans_waiting: int
    streams: int
    messages: int
    message_bytes: int
    events: int
    changes: int
    stream_failures: int
    troubles: Mapping[str, int]
    stalls: Sequence[Stall]
    held_bytes: int
    spilled_bytes: int
    landed_rows: int
    landed_records: int
    landed_bytes: int
    acked_rows: int
    acked_records: int
    in_flight: int
    broker_waits: bool
    locks: Mapping[str, int]
    """Transactions by what became of their locks."""
    held_ddl: int
    held_tables: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The bus at one moment."""

    at_s: float
    """This machine's clock; lags are against it."""
    pull: Pull | None
    """None: this capture is not the owner."""
    feeds: Sequence[StoredFeed] | None
    """None: they could not be read."""


_LABELS: Final = ("upstream",)
_GAUGES: Final[tuple[tuple[str, str, Callable[[Pull], float]], ...]] = (
    ("tidebus_frontier_resolved_ts", "Published resolved ts, physical ms", lambda pull: physical_ms(pull.resolved_ts)),
    ("tidebus_frontier_held_ddl", "DDL jobs that cannot be read and hold changefeeds back", lambda pull: pull.held_ddl),
    ("tidebus_frontier_held_tables", "Tables left behind by the frontier", lambda pull: pull.held_tables),
    ("tidebus_puller_tables", "Tables pulled", lambda pull: pull.tables),
    ("tidebus_puller_spans", "Spans pulled; more than tables where some are split", lambda pull: pull.spans),
    ("tidebus_puller_regions", "Regions registered or to be registered", lambda pull: pull.regions),
    ("tidebus_puller_regions_initialized", "Regions with a complete scan", lambda pull: pull.regions_initialized),
    (
        "tidebus_puller_scans_running",
        "Incremental scans asked of stores, not complete",
        lambda pull: pull.scans_running,
    ),
    ("tidebus_puller_scans_waiting", "Regions that wait for their scan's turn", lambda pull: pull.scans_waiting),
    ("ticdc_kvclient_event_feed_count", "Open streams", lambda pull: pull.streams),
    ("tidebus_matcher_held_bytes", "Open transactions in memory", lambda pull: pull.held_bytes),
    ("tidebus_matcher_spilled_bytes", "Open transactions on disk", lambda pull: pull.spilled_bytes),
    ("tidebus_landing_in_flight_records", "Records that Kafka has not acknowledged", lambda pull: pull.in_flight),
    ("tidebus_landing_waits_for_kafka", "1 while landing waits for Kafka", lambda pull: pull.broker_waits),
)
_COUNTERS: Final[tuple[tuple[str, str, Callable[[Pull], float]], ...]] = (
    ("tidebus_feed_messages", "Messages of the stores", lambda pull: pull.messages),
    ("tidebus_feed_message_bytes", "Bytes of the stores' messages", lambda pull: pull.message_bytes),
    ("tidebus_feed_events", "Events in the stores' messages", lambda pull: pull.events),
    ("tidebus_feed_changes", "Committed row changes matched", lambda pull: pull.changes),
    ("tidebus_feed_stream_failures", "Streams that ended", lambda pull: pull.stream_failures),
    ("tidebus_landing_rows", "Row changes sent to the raw log", lambda pull: pull.landed_rows),
    ("tidebus_landing_records", "Records sent to the raw log", lambda pull: pull.landed_records),
    ("tidebus_landing_bytes", "Encoded bytes sent to the raw log, uncompressed", lambda pull: pull.landed_bytes),
    ("tidebus_landing_acked_rows", "Row changes that Kafka acknowledged", lambda pull: pull.acked_rows),
    ("tidebus_landing_acked_records", "Records that Kafka acknowledged", lambda pull: pull.acked_records),
)


def metrics_text(snapshot: Snapshot) -> bytes:
    """Return the page for one scrape."""
    return generate_latest(SnapshotCollector(snapshot))


class SnapshotCollector(Collector):
    """Metrics of one snapshot, and of this process."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield all families; one that has nothing to say here is left out."""
        snapshot, pull = self._snapshot, self._snapshot.pull
        # Every capture has it: the sum of rates tells how many owners there are, and that there is none.
        ownership = UntypedMetricFamily("ticdc_owner_ownership_counter", "Seconds for which this capture was owner")
        ownership.add_metric([], pull.owner_s if pull else 0.0)
        yield ownership
        if pull is not None:
            yield from _feed_metrics(snapshot)
            yield from _pull_metrics(pull, snapshot.at_s)
        yield from ProcessCollector(registry=None).collect()


def _feed_metrics(snapshot: Snapshot) -> Iterator[Metric]:
    readable = GaugeMetricFamily("tidebus_metadata_readable", "0 while changefeeds cannot be read from ZooKeeper")
    readable.add_metric([], snapshot.feeds is not None)
    yield readable
    labels = ("namespace", "changefeed")
    status = GaugeMetricFamily("ticdc_owner_status", "State of the changefeed, by TiCDC's numbers", labels=labels)
    deaths = GaugeMetricFamily(
        "tidebus_sorter_deaths", "Sorters that ended without a word since the changefeed was resumed", labels=labels
    )
    families = [status, deaths]
    shown: dict[str, tuple[GaugeMetricFamily, GaugeMetricFamily]] = {}
    for what in ("checkpoint_ts", "resolved_ts"):
        ts = GaugeMetricFamily(f"ticdc_owner_{what}", f"The changefeed's {what}, physical ms", labels=labels)
        lag = GaugeMetricFamily(f"ticdc_owner_{what}_lag", f"Seconds since its {what}", labels=labels)
        shown[what] = ts, lag
        families += shown[what]
    for feed in snapshot.feeds or ():
        key = (feed.info.namespace, feed.info.changefeed_id)
        status.add_metric(key, STATES.get(feed.state, -1))
        deaths.add_metric(key, feed.status.sorter_deaths if feed.status else 0)
        for what, value in (("checkpoint_ts", feed.checkpoint_ts), ("resolved_ts", feed.resolved_ts)):
            ts, lag = shown[what]
            ts.add_metric(key, physical_ms(value))
            if feed.state in MOVING:
                lag.add_metric(key, _lag_s(value, snapshot.at_s))
    yield from families


def _pull_metrics(pull: Pull, at_s: float) -> Iterator[Metric]:
    key = (pull.upstream,)
    lag = GaugeMetricFamily("tidebus_frontier_resolved_ts_lag", "Seconds since the published ts", labels=_LABELS)
    lag.add_metric(key, _lag_s(pull.resolved_ts, at_s))
    yield lag
    for name, text, value in _GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=_LABELS)
        gauge.add_metric(key, value(pull))
        yield gauge
    for name, text, value in _COUNTERS:
        counter = CounterMetricFamily(name, text, labels=_LABELS)
        counter.add_metric(key, value(pull))
        yield counter
    errors = UntypedMetricFamily(
        "ticdc_kvclient_event_feed_error_count", "Errors of regions, streams and data", labels=(*_LABELS, "type")
    )
    for kind, count in sorted(pull.troubles.items()):
        errors.add_metric((*key, kind), count)
    yield errors
    locks = CounterMetricFamily("tidebus_locks", "Transactions looked at for their locks", labels=(*_LABELS, "outcome"))
    for outcome, count in sorted(pull.locks.items()):
        locks.add_metric((*key, outcome), count)
    yield locks
    yield from _stall_metrics(pull)


def _stall_metrics(pull: Pull) -> Iterator[Metric]:
    counts = Counter(stall.kind for stall in pull.stalls)
    stalled = GaugeMetricFamily("tidebus_spans_stalled", "Spans held back, by the reason", labels=(*_LABELS, "kind"))
    for kind, count in sorted(counts.items()):
        stalled.add_metric((pull.upstream, kind), count)
    yield stalled
    # One series a table: of its spans the one that has stood longest.
    longest: dict[TableId, Stall] = {}
    for stall in sorted(pull.stalls, key=lambda stall: (-stall.still_s, stall.table_id)):
        if len(longest) == STALLS_SHOWN:
            break
        longest.setdefault(stall.table_id, stall)
    still = GaugeMetricFamily(
        "tidebus_span_stalled_seconds",
        f"Seconds without progress, of the {STALLS_SHOWN} tables that have stood longest",
        labels=(*_LABELS, "table_id", "kind"),
    )
    for stall in longest.values():
        still.add_metric((pull.upstream, str(stall.table_id), stall.kind), stall.still_s)
    yield still


def _lag_s(ts: Ts, at_s: float) -> float:
    return max(0.0, round(at_s - physical_ms(ts) / 1000, 3))
