"""What producers of a changefeed have done at its brokers, by librdkafka's statistics: sums that fade within a minute.

A sum loses of each part ``exp(-age / FADE_S)``, and so do the seconds that it spans. So one divided by the other is a
rate like that of a meter with a moving average of a minute, which TiCDC shows, and right from its first second on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from math import exp
from operator import add, attrgetter
from typing import Final

FADE_S: Final = 60.0
BROKERS_MAX: Final = 16
"""The brokers with the most requests that a node tells of: it holds the figures of many changefeeds."""


@dataclass(frozen=True, slots=True)
class BrokerFigures:
    """What went to one broker, and came from it."""

    broker: int
    """Kafka's number of it."""
    requests: float = 0
    responses: float = 0
    sent_bytes: float = 0
    trips: float = 0
    """Requests whose response has come, as far as it was timed."""
    trips_us: float = 0
    trip_p99s_us: float = 0
    """The 99th percentile that statistics tell, times the requests that it is of: so that it is averaged over all."""
    throttles: float = 0
    """Responses by which the broker asked for a pause."""
    throttles_ms: float = 0
    throttle_p99s_ms: float = 0
    in_flight: float = 0
    """Requests that waited for a response when the last statistics were made."""


@dataclass(frozen=True, slots=True)
class ProducerFigures:
    """Of one producer, of those of a cut, or of a changefeed."""

    seconds: float = 0
    """That the sums span."""
    brokers: tuple[BrokerFigures, ...] = ()
    """In order; those of which statistics were heard."""
    batches: float = 0
    records: float = 0
    """Of the batches."""
    batch_bytes: float = 0
    """As they were sent."""
    packed_bytes: float = 0
    """Of the records in them, without the batches' heads."""
    plain_bytes: float = 0
    """The same, before they were compressed."""
    batch_p99s: float = 0
    """Of records, likewise times the batches."""
    waits: float = 0
    """Messages whose waiting for their batch to be made was timed."""
    waits_us: float = 0
    retries: float = 0
    """Of requests. Like the errors these do not fade."""
    errors: float = 0

    def over(self, seconds: float) -> "ProducerFigures":
        """Return what was done, as of so many seconds."""
        return ProducerFigures(seconds) if self == NO_PRODUCER else replace(self, seconds=seconds)

    def plus(self, other: "ProducerFigures") -> "ProducerFigures":
        """Return what both did at once."""
        if NO_PRODUCER in (self, other):
            return self if other == NO_PRODUCER else other
        _, *sums = map(add, _numbers(self), _numbers(other))
        return ProducerFigures(max(self.seconds, other.seconds), _merged(self, other, _at_once), *sums)

    def then(self, later: "ProducerFigures") -> "ProducerFigures":
        """Return these, faded by the seconds that ``later`` spans, with what was done in those."""
        if self == NO_PRODUCER:
            return later
        fade = exp(-later.seconds / FADE_S)

        sums = [old * fade + new for old, new in zip(_numbers(self), _numbers(later), strict=True)]
        sums[-2:] = self.retries + later.retries, self.errors + later.errors
        brokers = _merged(self, later, lambda old, new: _afterwards(old, new, fade))
        return ProducerFigures(sums[0], brokers, *sums[1:])


_BrokerPair = Callable[[BrokerFigures | None, BrokerFigures | None], BrokerFigures]
NO_PRODUCER: Final = ProducerFigures()
_WHOLE_FROM: Final = 1_000
_PLAIN: Final = tuple(field.name for field in fields(ProducerFigures) if field.name != "brokers")
_OF_BROKER: Final = tuple(field.name for field in fields(BrokerFigures))
# In the order of the fields, so that the classes take them by position: the seconds first, retries and errors last.
_numbers: Callable[[ProducerFigures], tuple[float, ...]] = attrgetter(*_PLAIN)
_broker_sums: Callable[[BrokerFigures], tuple[float, ...]] = attrgetter(*_OF_BROKER[1:])


def producer_json(figures: ProducerFigures) -> dict[str, object]:
    """Return figures for a node, to a tenth, and large ones to a whole; nothing for none."""
    if figures == NO_PRODUCER:
        return {}
    busiest = sorted(figures.brokers, key=lambda broker: (-broker.requests, broker.broker))[:BROKERS_MAX]
    brokers = sorted(([_short(getattr(each, name)) for name in _OF_BROKER] for each in busiest), key=lambda row: row[0])
    return {"all": [_short(getattr(figures, name)) for name in _PLAIN], "brokers": brokers}


def read_producer(raw: object) -> ProducerFigures:
    """Read what :func:`producer_json` returns.

    Raises:
        ValueError, TypeError: it is none.
    """
    if not isinstance(raw, Mapping):
        raise TypeError("a producer's figures are no object")
    if not raw:
        return NO_PRODUCER
    rows = raw.get("brokers", [])
    if not isinstance(rows, list) or len(rows) > BROKERS_MAX:
        raise ValueError(f"brokers are no list of at most {BROKERS_MAX}")
    brokers = tuple(BrokerFigures(int(number), *rest) for number, *rest in (_row(row, _OF_BROKER) for row in rows))
    return ProducerFigures(**dict(zip(_PLAIN, _row(raw.get("all"), _PLAIN), strict=True)), brokers=brokers)


def _row(raw: object, names: tuple[str, ...]) -> list[float]:
    if not isinstance(raw, list) or len(raw) != len(names):
        raise ValueError(f"figures are no list of {len(names)}")
    for name, value in zip(names, raw, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 64:
            raise ValueError(f"{name} is {str(value)[:40]}")
    return raw


def _short(value: float) -> float:
    rounded = round(value, 1)
    return round(value) if value >= _WHOLE_FROM or rounded == int(rounded) else rounded


def _merged(first: ProducerFigures, second: ProducerFigures, do: _BrokerPair) -> tuple[BrokerFigures, ...]:
    old = {broker.broker: broker for broker in first.brokers}
    new = {broker.broker: broker for broker in second.brokers}
    return tuple(do(old.get(number), new.get(number)) for number in sorted(old.keys() | new.keys()))


def _at_once(first: BrokerFigures | None, second: BrokerFigures | None) -> BrokerFigures:
    if first is None or second is None:
        return first or second or BrokerFigures(0)
    return BrokerFigures(first.broker, *map(add, _broker_sums(first), _broker_sums(second)))


def _afterwards(old: BrokerFigures | None, new: BrokerFigures | None, fade: float) -> BrokerFigures:
    """``new`` is None where no statistics were heard since: requests in flight are those of the last ones then."""
    was, now = old or BrokerFigures(0), new or BrokerFigures(0)
    sums = [before * fade + after for before, after in zip(_broker_sums(was), _broker_sums(now), strict=True)]
    sums[-1] = was.in_flight if new is None else now.in_flight
    return BrokerFigures((new or was).broker, *sums)
