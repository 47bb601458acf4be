"""Reads librdkafka's statistics of a producer: what it has done since they were read last.

A document tells of every partition, some hundred bytes each. Only the parts that are wanted are decoded; what one
costs is in docs/decisions/2026-11-28-statistics-of-producers.md.
"""

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from schemas.producer_figures import NO_PRODUCER, BrokerFigures, ProducerFigures

log = logging.getLogger(__name__)

BATCH_HEAD_BYTES: Final = 61
"""Of a batch in Kafka's format 2."""
RECORD_FRAME_BYTES: Final = 9
"""Of a record in it, beside key, value and headers: six to twelve."""
HEADER_FRAME_BYTES: Final = 2
"""Of a header, beside its name and value."""
STATISTICS: Final = "statistics.interval.ms"
"""Librdkafka's option; without it there are none."""
WITH_STATISTICS: Final = {STATISTICS: 10_000}
_DECODER: Final = json.JSONDecoder()
_COUNTERS: Final = ("tx", "rx", "txbytes", "txretries", "txerrs")
"""Of a broker; they only grow."""
_OF_TOPICS: Final = frozenset({"batchcnt", "batchsize"})
"""Which a producer may have none of yet."""


class ProducerMeter:
    """Of one producer. :meth:`take` is its ``stats_cb``, and is called where the producer is polled."""

    def __init__(self, *, is_compressed: bool) -> None:
        self._is_compressed = is_compressed
        self._counted: dict[int, dict[str, int]] = {}
        """What brokers' counters stood at."""
        self._message_bytes = 0
        self._figures = NO_PRODUCER
        self._records = self._header_bytes = 0
        self._has_warned = False

    def queued(self, records: int, headers: int, header_bytes: int) -> None:
        """Note records that are queued, with so many headers each, and how many bytes names and values of all are."""
        self._records += records
        self._header_bytes += header_bytes + records * headers * HEADER_FRAME_BYTES

    def take(self, document: str) -> None:
        """Add what statistics say. What cannot be read is left out, and said once: no changefeed stops by it."""
        try:
            self._add(document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if not self._has_warned:
                self._has_warned = True
                log.warning("statistics of librdkafka do not decode", extra={"reason": repr(error)})

    def figures(self) -> ProducerFigures:
        """Return what was done since the last call, as far as statistics have told by now."""
        figures, self._figures = self._figures, NO_PRODUCER
        return figures

    def _add(self, document: str) -> None:
        brokers = {broker.broker: broker for broker in self._figures.brokers}
        counted, message_bytes = dict(self._counted), int(next(_values(document, "txmsg_bytes")))
        done = self._batches(document, message_bytes - self._message_bytes)
        for broker in next(_values(document, "brokers")).values():
            number, waits = int(broker["nodeid"]), broker["int_latency"]
            if number < 0 or broker["source"] == "logical":  # an address that is no broker's yet, or a role of one
                continue
            counters = {name: int(broker[name]) for name in _COUNTERS}
            grown, counted[number] = _grown(counted.get(number, {}), counters), counters
            brokers[number] = _with_more(brokers.get(number, BrokerFigures(number)), grown, broker)
            done = replace(
                done,
                retries=done.retries + grown["txretries"],
                errors=done.errors + grown["txerrs"],
                waits=done.waits + int(waits["cnt"]),
                waits_us=done.waits_us + int(waits["sum"]),
            )
        in_order = tuple(brokers[number] for number in sorted(brokers))
        self._figures = replace(self._figures.plus(done), brokers=in_order)
        self._counted, self._message_bytes = counted, message_bytes

    def _batches(self, document: str, message_bytes: int) -> ProducerFigures:
        """Return what the topics of a document say of the batches since the one before, which hold so many bytes of
        keys and values.
        """
        counts, sizes = list(_values(document, "batchcnt")), list(_values(document, "batchsize"))
        batches, records = sum(int(each["cnt"]) for each in counts), sum(int(each["sum"]) for each in counts)
        sent_bytes = sum(int(each["sum"]) for each in sizes)
        packed_bytes = max(0, sent_bytes - batches * BATCH_HEAD_BYTES)
        framed_bytes = RECORD_FRAME_BYTES + (self._header_bytes / self._records if self._records else 0)
        return ProducerFigures(
            batches=batches,
            records=records,
            batch_bytes=sent_bytes,
            packed_bytes=packed_bytes,
            plain_bytes=message_bytes + records * framed_bytes if self._is_compressed else packed_bytes,
            batch_p99s=sum(int(each["p99"]) * int(each["cnt"]) for each in counts),
        )


def _grown(before: dict[str, int], counters: dict[str, int]) -> dict[str, int]:
    # One that librdkafka has forgotten, and heard of anew, counts from 0.
    starts = {name: before.get(name, 0) if before.get(name, 0) <= value else 0 for name, value in counters.items()}
    return {name: value - starts[name] for name, value in counters.items()}


def _with_more(known: BrokerFigures, grown: dict[str, int], broker: dict[str, Any]) -> BrokerFigures:
    trips, throttles = broker["rtt"], broker["throttle"]
    return BrokerFigures(
        known.broker,
        requests=known.requests + grown["tx"],
        responses=known.responses + grown["rx"],
        sent_bytes=known.sent_bytes + grown["txbytes"],
        trips=known.trips + int(trips["cnt"]),
        trips_us=known.trips_us + int(trips["sum"]),
        trip_p99s_us=known.trip_p99s_us + int(trips["p99"]) * int(trips["cnt"]),
        throttles=known.throttles + int(throttles["cnt"]),
        throttles_ms=known.throttles_ms + int(throttles["sum"]),
        throttle_p99s_ms=known.throttle_p99s_ms + int(throttles["p99"]) * int(throttles["cnt"]),
        in_flight=int(broker["waitresp_cnt"]),
    )


def _values(document: str, name: str) -> Iterator[Any]:
    """Yield the values of a name, wherever in a document it stands; topics' names hold no quotes.

    Raises:
        ValueError: there is none, or it is no JSON.
    """
    starts = [at.end() for at in re.finditer(rf'"{name}":\s*', document)]
    if not starts and name not in _OF_TOPICS:
        raise ValueError(f"there is no {name}")
    for start in starts:
        yield _DECODER.raw_decode(document, start)[0]
