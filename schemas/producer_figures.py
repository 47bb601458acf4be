"""What producers of a changefeed have done at its brokers, by librdkafka's statistics: sums that fade within a minute.

A sum loses of each part ``exp(-age / FADE_S)``, and so do the seconds that it spans. So one divided by the other is a
rate like that of a meter with a moving average of a minute, which TiCDC shows, and right from its first second on.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from math import exp
from operator import add
from typing import Any, Final

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

    def plus(self, other: "ProducerFigures") -> "ProducerFigures":
        """Return what both did at once."""
        both = _each(self, other, add, keep=("seconds",))
        brokers = _merged(self, other, _at_once)
        return replace(both, seconds=max(self.seconds, other.seconds), brokers=brokers)

    def then(self, later: "ProducerFigures") -> "ProducerFigures":
        """Return these, faded by the seconds that ``later`` spans, with what was done in those."""
        fade = exp(-later.seconds / FADE_S)

        def faded(old: float, new: float) -> float:
            return old * fade + new

        both = _each(self, later, faded, keep=("retries", "errors"))
        return replace(
            both,
            retries=self.retries + later.retries,
            errors=self.errors + later.errors,
            brokers=_merged(self, later, lambda old, new: _afterwards(old, new, faded)),
        )


_BrokerPair = Callable[[BrokerFigures | None, BrokerFigures | None], BrokerFigures]
NO_PRODUCER: Final = ProducerFigures()
_WHOLE_FROM: Final = 1_000
_PLAIN: Final = tuple(field.name for field in fields(ProducerFigures) if field.name != "brokers")
_OF_BROKER: Final = tuple(field.name for field in fields(BrokerFigures))


def producer_json(figures: ProducerFigures) -> dict[str, Any]:
    """Return figures for a node, to a tenth, and large ones to a whole; nothing for none."""
    if figures == NO_PRODUCER:
        return {}
    busiest = sorted(figures.brokers, key=lambda broker: (-broker.requests, broker.broker))[:BROKERS_MAX]
    brokers = sorted(([_short(getattr(each, name)) for name in _OF_BROKER] for each in busiest), key=lambda row: row[0])
    return {"all": [_short(getattr(figures, name)) for name in _PLAIN], "brokers": brokers}


def read_producer(raw: Any) -> ProducerFigures:
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


def _row(raw: Any, names: tuple[str, ...]) -> list[float]:
    if not isinstance(raw, list) or len(raw) != len(names):
        raise ValueError(f"figures are no list of {len(names)}")
    for name, value in zip(names, raw, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 64:
            raise ValueError(f"{name} is {str(value)[:40]}")
    return raw


def _short(value: float) -> float:
    rounded = round(value, 1)
    return round(value) if value >= _WHOLE_FROM or rounded == int(rounded) else rounded


def _each(
    first: ProducerFigures, second: ProducerFigures, do: Callable[[float, float], float], *, keep: Iterable[str]
) -> ProducerFigures:
    """Return the second with each number made of both, but those to keep."""
    numbers: dict[str, Any] = {
        name: do(getattr(first, name), getattr(second, name)) for name in _PLAIN if name not in keep
    }
    return replace(second, **numbers)


def _merged(first: ProducerFigures, second: ProducerFigures, do: _BrokerPair) -> tuple[BrokerFigures, ...]:
    old, new = ({broker.broker: broker for broker in figures.brokers} for figures in (first, second))
    return tuple(do(old.get(number), new.get(number)) for number in sorted(old.keys() | new.keys()))


def _at_once(first: BrokerFigures | None, second: BrokerFigures | None) -> BrokerFigures:
    if first is None or second is None:
        return first or second or BrokerFigures(0)
    return BrokerFigures(first.broker, *(getattr(first, name) + getattr(second, name) for name in _OF_BROKER[1:]))


def _afterwards(
    old: BrokerFigures | None, new: BrokerFigures | None, faded: Callable[[float, float], float]
) -> BrokerFigures:
    """``new`` is None where no statistics were heard since: requests in flight are those of the last ones then."""
    was, now = old or BrokerFigures(0), new or BrokerFigures(0)
    sums = [faded(getattr(was, name), getattr(now, name)) for name in _OF_BROKER[1:]]
    figures = BrokerFigures((new or was).broker, *sums)
    return replace(figures, in_flight=was.in_flight if new is None else now.in_flight)
