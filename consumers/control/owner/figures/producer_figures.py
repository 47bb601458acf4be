"""What the owner's metrics say of the producers that write changefeeds to Kafka, by TiCDC's names.

TiCDC's gauges are sarama's and, of its other client, kafka-go's. Where those have a histogram's mean and its 99th
percentile, the mean here is of the last minute, and the percentile that of each 10 s, averaged over the minute.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric, UntypedMetricFamily

from consumers.control.changefeeds.stored_feed import StoredFeed
from schemas.producer_figures import BrokerFigures, ProducerFigures

_FEED: Final = ("namespace", "changefeed")
_PREFIX: Final = "ticdc_sink_kafka_producer_"
_US: Final = 1e6


@dataclass(frozen=True, slots=True)
class _OfBroker:
    """A gauge that has one sample a broker, or one for each type."""

    name: str
    text: str
    values: Callable[[BrokerFigures, float], dict[str, float]]
    """By type, '' for none, of a broker and the seconds that its figures span."""
    has_type: bool = False


@dataclass(frozen=True, slots=True)
class _OfFeed:
    """A gauge of a changefeed, or one for each type."""

    name: str
    text: str
    values: Callable[[ProducerFigures], dict[str, float]]
    has_type: bool = False


def _rate(count: float, seconds: float) -> dict[str, float]:
    return {"": count / seconds} if seconds else {}


def _spread(count: float, total: float, p99s: float) -> dict[str, float]:
    return {"avg": total / count, "p99": p99s / count} if count else {}


_OF_BROKERS: Final = (
    _OfBroker("in_flight_requests", "Requests that wait for a response", lambda broker, _: {"": broker.in_flight}),
    _OfBroker("outgoing_byte_rate", "Bytes sent a second", lambda broker, s: _rate(broker.sent_bytes, s)),
    _OfBroker("request_rate", "Requests a second", lambda broker, s: _rate(broker.requests, s)),
    _OfBroker("response_rate", "Responses a second", lambda broker, s: _rate(broker.responses, s)),
    _OfBroker(
        "request_latency",
        "From a request to its response, in seconds",
        lambda broker, _: _spread(broker.trips, broker.trips_us / _US, broker.trip_p99s_us / _US),
        has_type=True,
    ),
    _OfBroker(
        "throttle_time",
        "Pauses that the broker asked for, in milliseconds",
        lambda broker, _: (
            _spread(broker.throttles, broker.throttles_ms, broker.throttle_p99s_ms) or {"avg": 0.0, "p99": 0.0}
        ),
        has_type=True,
    ),
)
_OF_FEEDS: Final = (
    _OfFeed(
        "records_per_request",
        "Records of a batch, which is a request of its own",
        lambda all_: _spread(all_.batches, all_.records, all_.batch_p99s),
        has_type=True,
    ),
    _OfFeed(
        "compression_ratio",
        "Bytes of records before compression to those after, times 100",
        lambda all_: {"avg": 100 * all_.plain_bytes / all_.packed_bytes} if all_.packed_bytes else {},
        has_type=True,
    ),
    _OfFeed(
        "batch_message_count",
        "Messages of a batch, on the average of a minute",
        lambda all_: {"": all_.records / all_.batches} if all_.batches else {},
    ),
    _OfFeed(
        "batch_size",
        "Bytes of a batch as it is sent, likewise",
        lambda all_: {"": all_.batch_bytes / all_.batches} if all_.batches else {},
    ),
    _OfFeed(
        "batch_duration",
        "How long a message waits for its batch to be made, in seconds, likewise",
        lambda all_: {"": all_.waits_us / _US / all_.waits} if all_.waits else {},
    ),
)
_COUNTS: Final[Mapping[str, tuple[str, Callable[[ProducerFigures], float]]]] = {
    "retry_count": ("Requests sent again", lambda all_: all_.retries),
    "err_count": ("Requests that could not be sent", lambda all_: all_.errors),
}
"""Since the changefeed began to run where it runs."""


def producer_metrics(feeds: Sequence[StoredFeed]) -> Iterator[Metric]:
    """Yield what is known of producers; there are samples once their first statistics were made."""
    heard = [feed for feed in feeds if feed.sink.producer.brokers]
    for of_broker in _OF_BROKERS:
        labels = (*_FEED, "broker", *_type_label(of_broker.has_type))
        family = GaugeMetricFamily(f"{_PREFIX}{of_broker.name}", of_broker.text, labels=labels)
        for feed in heard:
            producer = feed.sink.producer
            for broker in producer.brokers:
                for kind, value in of_broker.values(broker, producer.seconds).items():
                    family.add_metric((*_key(feed), str(broker.broker), *([kind] if kind else [])), value)
        yield family
    for of_feed in _OF_FEEDS:
        labels = (*_FEED, *_type_label(of_feed.has_type))
        family = GaugeMetricFamily(f"{_PREFIX}{of_feed.name}", of_feed.text, labels=labels)
        for feed in heard:
            for kind, value in of_feed.values(feed.sink.producer).items():
                family.add_metric((*_key(feed), *([kind] if kind else [])), value)
        yield family
    for name, (text, count) in _COUNTS.items():
        counts = UntypedMetricFamily(f"{_PREFIX}{name}", text, labels=_FEED)
        for feed in heard:
            counts.add_metric(_key(feed), count(feed.sink.producer))
        yield counts


def _type_label(has_type: bool) -> tuple[str, ...]:
    return ("type",) if has_type else ()


def _key(feed: StoredFeed) -> tuple[str, str]:
    """The values of ``_FEED``."""
    return feed.info.namespace, feed.info.changefeed_id
