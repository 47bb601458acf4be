"""What the owner's metrics say of sinks, by TiCDC's names: errors."""

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import Metric, UntypedMetricFamily

from consumers.control.changefeeds.stored_feed import StoredFeed

_FEED: Final = ("namespace", "changefeed")
_TYPES: Final = {
    **dict.fromkeys(("mysql", "tidb"), "TxnSink"),
    **dict.fromkeys(("file", "s3", "gs", "gcs", "azure", "azblob"), "cloudstorage"),
}
"""TiCDC's words for kinds of sinks, by the scheme without ``+ssl``; any other is ``sink``."""


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
            errors.add_metric((*_key(feed), event_type), count)
    yield errors


def _key(feed: StoredFeed) -> tuple[str, str, str]:
    """The values of ``_FEED``, and of ``type``."""
    scheme = feed.info.sink_uri.partition("://")[0].lower().partition("+")[0]
    return feed.info.namespace, feed.info.changefeed_id, _TYPES.get(scheme, "sink")
