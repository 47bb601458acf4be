"""What the owner's metrics say of sinks, by TiCDC's names: their errors, and what is counted of the writes to them.

Labels are those of both of TiCDC's architectures. Its workers are partitions here, and shown as one, `all`:
which of the threads writes a transaction means nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric, UntypedMetricFamily

from consumers.control.changefeeds.stored_feed import StoredFeed
from consumers.control.owner.figures.producer_figures import producer_metrics
from schemas.config.sink.schemes import sink_scheme
from schemas.sink_figures import LEAST_BATCH, LEAST_BATCH_US, LEAST_DDL_US, LEAST_ROWS, LEAST_US, SinkFigures, Spread

_FEED: Final = ("namespace", "changefeed")
_DATABASE: Final = "TxnSink"
_STORAGE: Final = "cloudstorage"
_KAFKA: Final = "sink"
_TYPES: Final = {
    **dict.fromkeys(("mysql", "tidb"), _DATABASE),
    **dict.fromkeys(("file", "s3", "gs", "gcs", "azure", "azblob"), _STORAGE),
}
"""TiCDC's words for kinds of sinks, by the scheme without ``+ssl``; any other is Kafka's."""
_SECOND_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class _Histogram:
    """A histogram of TiCDC's, of sinks of one kind."""

    name: str
    text: str
    kind: str
    spread: Callable[[SinkFigures], Spread]
    bounds: int
    least: int = LEAST_US
    label: str = ""
    """Beside the changefeed's."""
    unit: int = _SECOND_US


@dataclass(frozen=True, slots=True)
class _Count:
    """A counter of TiCDC's, of sinks of some kinds."""

    name: str
    text: str
    kinds: tuple[str, ...]
    value: Callable[[SinkFigures], int]
    label: str = ""


_HISTOGRAMS: Final = (
    _Histogram(
        "ticdc_sink_txn_worker_flush_duration", "Transactions", _DATABASE, lambda sink: sink.flushes_us, 20, label="id"
    ),
    _Histogram("ticdc_sink_txn_sink_dml_batch_commit", "Transactions too", _DATABASE, lambda sink: sink.flushes_us, 20),
    _Histogram("ticdc_sink_txn_queue_duration", "Waiting for a worker", _DATABASE, lambda sink: sink.queued_us, 20),
    _Histogram(
        "ticdc_sink_txn_worker_total_duration", "Rounds", _DATABASE, lambda sink: sink.rounds_us, 20, label="id"
    ),
    _Histogram("ticdc_sink_ddl_exec_duration", "DDL", _DATABASE, lambda sink: sink.ddls_us, 18, LEAST_DDL_US, "type"),
    _Histogram(
        "ticdc_sink_cloud_storage_flush_duration_seconds", "Flushes", _STORAGE, lambda sink: sink.flushes_us, 13
    ),
    _Histogram(
        "ticdc_sink_mq_worker_send_message_duration",
        "Sending of a cut",
        _KAFKA,
        lambda sink: sink.flushes_us,
        20,
    ),
    _Histogram(
        "ticdc_sink_mq_worker_batch_duration",
        "A cut without its sending",
        _KAFKA,
        lambda sink: sink.queued_us,
        10,
        LEAST_BATCH_US,
    ),
    _Histogram(
        "ticdc_sink_mq_worker_batch_size",
        "Messages of a cut",
        _KAFKA,
        lambda sink: sink.batch_rows,
        18,
        LEAST_BATCH,
        unit=1,
    ),
)
_COUNTS: Final = (
    _Count("ticdc_sink_ddl_exec_count", "DDL that has run", (_DATABASE,), lambda sink: sink.ddls_us.count, "type"),
    _Count("ticdc_sink_txn_worker_handled_rows", "Rows", (_DATABASE,), lambda sink: sink.batch_rows.total, "id"),
    _Count("ticdc_sink_cloud_storage_file_count", "Files written", (_STORAGE,), lambda sink: sink.files),
    _Count("ticdc_sink_cloud_storage_write_bytes_total", "Their bytes", (_STORAGE,), lambda sink: sink.file_bytes),
    _Count("ticdc_sink_cloud_storage_flush_bytes_sum", "Their bytes too", (_STORAGE,), lambda sink: sink.file_bytes),
    _Count("ticdc_sink_cloud_storage_flush_bytes_count", "Flushes", (_STORAGE,), lambda sink: sink.flushes_us.count),
    _Count(
        "ticdc_sink_write_bytes_total",
        "Bytes written",
        (_STORAGE, _KAFKA),
        lambda sink: sink.file_bytes,
        "type",
    ),
)
_WORKERS: Final = "all"


def sink_metrics(feeds: Sequence[StoredFeed]) -> Iterator[Metric]:
    """Yield what is known of the sinks of changefeeds."""
    errors = UntypedMetricFamily(
        "ticdc_sink_execution_error",
        "How often rows or a DDL that could not be written have ended a run",
        labels=(*_FEED, "type", "event_type"),
    )
    for feed in feeds:
        counts = {"dml": 0, "ddl": 0}
        if feed.status is not None:
            counts = {"dml": feed.status.dml_errors, "ddl": feed.status.ddl_errors}
        for event_type, count in counts.items():
            errors.add_metric((*_key(feed), _type_of(feed), event_type), count)
    yield errors
    yield from _histograms(feeds)
    yield from _batches(feeds)
    yield from _counts(feeds)
    yield from producer_metrics(feeds)


def _histograms(feeds: Sequence[StoredFeed]) -> Iterator[Metric]:
    for shown in _HISTOGRAMS:
        text = f"{shown.text}, in seconds" if shown.unit == _SECOND_US else shown.text
        family = HistogramMetricFamily(shown.name, text, labels=_labels(shown.label))
        for feed in feeds:
            if _type_of(feed) == shown.kind:
                spread = shown.spread(feed.sink)
                buckets = _buckets(spread, shown.least, shown.bounds, shown.unit)
                family.add_metric(_values(feed, shown.label), buckets, spread.total / shown.unit)
        yield family


def _batches(feeds: Sequence[StoredFeed]) -> Iterator[Metric]:
    """Rows of a write: of what processors write. Its sum, also of Kafka's sinks, stands among the rows written."""
    name, labels = "ticdc_sink_batch_row_count", (*_FEED, "type")
    counts = UntypedMetricFamily(f"{name}_count", "Transactions or flushes of processors", labels=labels)
    buckets = UntypedMetricFamily(f"{name}_bucket", "Transactions or flushes by their rows", labels=(*labels, "le"))
    for feed in feeds:
        if (kind := _type_of(feed)) in (_DATABASE, _STORAGE):
            spread = feed.sink.batch_rows
            counts.add_metric((*_key(feed), kind), spread.count)
            for bound, count in _buckets(spread, LEAST_ROWS, 18, 1):
                buckets.add_metric((*_key(feed), kind, bound), count)
    yield from (counts, buckets)


def _counts(feeds: Sequence[StoredFeed]) -> Iterator[Metric]:
    for shown in _COUNTS:
        family = UntypedMetricFamily(shown.name, shown.text, labels=_labels(shown.label))
        for feed in feeds:
            if _type_of(feed) in shown.kinds:
                family.add_metric(_values(feed, shown.label), shown.value(feed.sink))
        yield family


def _labels(label: str) -> tuple[str, ...]:
    return (*_FEED, label) if label else _FEED


def _values(feed: StoredFeed, label: str) -> tuple[str, ...]:
    """The values of :func:`_labels`."""
    value = {"id": _WORKERS, "type": _type_of(feed)}.get(label)
    return _key(feed) if value is None else (*_key(feed), value)


def _buckets(spread: Spread, least: int, bounds: int, unit: int) -> list[tuple[str, float]]:
    """Return bounds as Prometheus writes them, with how many values are at or below each."""
    uppers = [str(least * 2**power / unit) for power in range(bounds)]
    return [*zip(uppers, map(float, spread.cumulative(bounds)), strict=True), ("+Inf", float(spread.count))]


def _key(feed: StoredFeed) -> tuple[str, str]:
    """The values of ``_FEED``."""
    return feed.info.namespace, feed.info.changefeed_id


def _type_of(feed: StoredFeed) -> str:
    return _TYPES.get(sink_scheme(feed.info.sink_uri).partition("+")[0], _KAFKA)
