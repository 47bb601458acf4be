"""What `GET /metrics` shows, in Prometheus' text format: one snapshot of the bus for each scrape, nothing a row.

TiCDC's names (docs/formats/metrics-and-ops.md §1) stand for what means the same here, so that its alerts fire; all else
is ``tidebus_…``. TiCDC's counters have no ``_total``, which Prometheus' client would add: they are shown untyped, which
``rate()`` and ``changes()`` do not mind. What is pulled and landed every capture says for itself; what is said of
changefeeds, frontier and scheduling comes from the owner alone (:mod:`consumers.control.owner.figures.owner_figures`):
a sum over captures counts nothing twice.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UntypedMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from consumers.control.changefeeds.stored_feed import StoredFeed
from consumers.control.owner.figures.owner_figures import Rule, rule_metrics
from consumers.control.owner.figures.service_figures import RunningService, service_metrics
from schemas.ids import TableId, UpstreamId

OPENMETRICS: Final = "application/openmetrics-text"
STALLS_SHOWN: Final = 20
"""Tables that are named; a bus of 100,000 whose store is away must not become 100,000 series."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A span that something holds back."""

    table_id: TableId
    kind: str
    """Why, as one of few words (producers.pull.feed.span_watch)."""
    still_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """What this capture pulls of one upstream; counts are since it was registered."""

    upstream: UpstreamId
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
    image_scans: int
    image_scans_failed: int
    image_rows: int
    image_bytes: int
    locks: Mapping[str, int]
    """Transactions by what became of their locks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot:
    """The bus at one moment."""

    at_s: float
    """This machine's clock; lags are against it."""
    pull: Pull | None
    """None: this capture is only beginning."""
    rule: Rule | None = None
    """None: this capture is not the owner."""
    feeds: Sequence[StoredFeed] | None = None
    """None: they could not be read."""
    services: Sequence[RunningService] = ()
    """Sorter services that live, as the owner reads of them."""


_LABELS: Final = ("upstream",)
_GAUGES: Final[tuple[tuple[str, str, Callable[[Pull], float]], ...]] = (
    ("tidebus_puller_tables", "Tables pulled", lambda pull: pull.tables),
    ("ticdc_processor_num_of_tables", "Tables on this capture", lambda pull: pull.tables),
    ("tidebus_puller_spans", "Spans pulled; more than tables where some are split", lambda pull: pull.spans),
    ("tidebus_puller_regions", "Regions registered or to be registered", lambda pull: pull.regions),
    ("ticdc_subscription_client_subscribed_region_count", "Regions, by TiCDC's name", lambda pull: pull.regions),
    ("tidebus_puller_regions_initialized", "Regions with a complete scan", lambda pull: pull.regions_initialized),
    (
        "tidebus_puller_scans_running",
        "Incremental scans asked of stores, not complete",
        lambda pull: pull.scans_running,
    ),
    ("tidebus_puller_scans_waiting", "Regions that wait for their scan's turn", lambda pull: pull.scans_waiting),
    ("ticdc_event_store_subscription_num", "Spans pulled, by TiCDC's name", lambda pull: pull.spans),
    ("ticdc_schema_store_register_table_num", "Tables pulled, by TiCDC's name", lambda pull: pull.tables),
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
    ("tidebus_image_scans", "Scans of table images that have ended", lambda pull: pull.image_scans),
    ("tidebus_image_scans_failed", "Scans of which nothing came", lambda pull: pull.image_scans_failed),
    ("tidebus_image_scan_rows", "Rows of table images landed", lambda pull: pull.image_rows),
    ("tidebus_image_scan_bytes", "Their keys and values", lambda pull: pull.image_bytes),
)

_BY_TYPE: Final = (*_LABELS, "type")
_TICDCS_COUNTERS: Final[tuple[tuple[str, str, Sequence[str], Callable[[Pull], float]], ...]] = (
    ("ticdc_puller_txn_collect_event_count", "Committed row changes matched", _BY_TYPE, lambda pull: pull.changes),
    ("ticdc_event_store_input_event_count", "Row changes sent to the raw log", _BY_TYPE, lambda pull: pull.landed_rows),
    ("ticdc_event_store_write_bytes", "Bytes sent to it", _LABELS, lambda pull: pull.landed_bytes),
    (
        "ticdc_event_store_write_requests_count",
        "Records sent to the raw log",
        _LABELS,
        lambda pull: pull.landed_records,
    ),
)
"""The raw log is what an event store is to TiCDC. With a type it is of rows: what is resolved is not counted."""


def metrics_text(snapshot: MetricsSnapshot, accept: str = "") -> tuple[bytes, str]:
    """Return the page for one scrape and its type: OpenMetrics where ``accept`` asks for it, else Prometheus' text."""
    if OPENMETRICS in accept:
        text = openmetrics.generate_latest(SnapshotCollector(snapshot))  # type: ignore[no-untyped-call]
        return text, openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(SnapshotCollector(snapshot)), CONTENT_TYPE_PLAIN_0_0_4


class SnapshotCollector(Collector):
    """Metrics of one snapshot, and of this process."""

    def __init__(self, snapshot: MetricsSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield all families; one that has nothing to say here is left out."""
        snapshot = self._snapshot
        yield from rule_metrics(snapshot.rule, snapshot.feeds, snapshot.at_s)
        if snapshot.rule is not None:
            yield from service_metrics(snapshot.services)
        if snapshot.pull is not None:
            yield from _pull_metrics(snapshot.pull)
        yield from ProcessCollector(registry=None).collect()


def _pull_metrics(pull: Pull) -> Iterator[Metric]:
    key = (pull.upstream,)
    for name, text, value in _GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=_LABELS)
        gauge.add_metric(key, value(pull))
        yield gauge
    for name, text, value in _COUNTERS:
        counter = CounterMetricFamily(name, text, labels=_LABELS)
        counter.add_metric(key, value(pull))
        yield counter
    asked = GaugeMetricFamily(
        "ticdc_subscription_client_requested_region_count",
        "Regions whose incremental scan is not complete, or waits for its turn",
        labels=(*_LABELS, "state"),
    )
    for state, count in (("scanning", pull.scans_running), ("waiting", pull.scans_waiting)):
        asked.add_metric((*key, state), count)
    yield asked
    for name, text, labels, value in _TICDCS_COUNTERS:
        untyped = UntypedMetricFamily(name, f"{text}, by TiCDC's name", labels=labels)
        untyped.add_metric(key if labels is _LABELS else (*key, "kv"), value(pull))
        yield untyped
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
