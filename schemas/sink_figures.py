"""What processors and sorters count of their writes to a sink, spread over buckets as TiCDC's histograms have them.

A bucket takes twice as much as the one below; the least bound is a histogram's own. Figures are counted a write, never
a row, and added up over partitions and processors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest
from typing import Final

from schemas.json_text import read_int
from schemas.producer_figures import NO_PRODUCER, ProducerFigures, producer_json, read_producer

BUCKETS_MAX: Final = 20
"""Below the one that takes all else."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How whole numbers (microseconds, rows) are spread."""

    counts: tuple[int, ...] = ()
    """By bucket, without empty ones at the end."""
    total: int = 0
    """Of all values."""

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts)

    def of(self, value: int, least: int) -> "Spread":
        """Return it with one value more; ``least``: up to where the first bucket goes."""
        bucket = min(max(0, -(-value // least) - 1).bit_length(), BUCKETS_MAX)
        counts = [*self.counts, *[0] * (bucket + 1 - len(self.counts))]
        counts[bucket] += 1
        return Spread(tuple(counts), self.total + value)

    def plus(self, other: "Spread") -> "Spread":
        """Return both as one."""
        if not (self.counts and other.counts):
            return self if self.counts else other
        counts = tuple(a + b for a, b in zip_longest(self.counts, other.counts, fillvalue=0))
        return Spread(counts, self.total + other.total)

    def cumulative(self, buckets: int) -> list[int]:
        """Return for each of so many bounds how many values are below it or at it."""
        sums = list(accumulate(self.counts[:buckets]))
        return [*sums, *[sums[-1] if sums else 0] * (buckets - len(sums))]


@dataclass(frozen=True, slots=True)
class SinkFigures:
    """Of one partition, or of a changefeed."""

    flushes_us: Spread = Spread()
    """How long transactions of a database took, flushes of files, or the sending of a cut's messages to Kafka."""
    queued_us: Spread = Spread()
    """How long transactions waited for a worker of the processor, or how long a cut took without its sending."""
    batch_rows: Spread = Spread()
    """Rows of a transaction or flush, or messages of a cut."""
    rounds_us: Spread = Spread()
    """From the end of one transaction of a partition to the end of the next: what part of it is work tells how busy the
    destination keeps us."""
    ddls_us: Spread = Spread()
    """How long DDL took, as the leader ran it."""
    files: int = 0
    file_bytes: int = 0
    """Of files, or of messages."""
    producer: ProducerFigures = NO_PRODUCER
    """What those who write messages to Kafka have done at its brokers."""

    def of_batch(self, batch_s: float, since_s: float) -> "SinkFigures":
        """Return the figures of one cut's messages with how long the cut took without sending them, on the average of
        the tasks that did. ``since_s`` is how long ago the cut before had ended, when this one ended.
        """
        queued_us, producer = self.queued_us, self.producer.over(since_s)
        if writes := self.flushes_us.count:
            sent_us = self.flushes_us.total // writes
            queued_us = NO_SPREAD.of(max(0, microseconds(batch_s) - sent_us), LEAST_BATCH_US)
        return replace(self, queued_us=queued_us, producer=producer)

    def then(self, later: "SinkFigures") -> "SinkFigures":
        """Return these with those of the time behind it."""
        return self._with(later, self.producer.then(later.producer))

    def plus(self, other: "SinkFigures") -> "SinkFigures":
        """Return both as one; of producers, what they did at once."""
        return self._with(other, self.producer.plus(other.producer))

    def _with(self, other: "SinkFigures", producer: ProducerFigures) -> "SinkFigures":
        return SinkFigures(
            flushes_us=self.flushes_us.plus(other.flushes_us),
            queued_us=self.queued_us.plus(other.queued_us),
            batch_rows=self.batch_rows.plus(other.batch_rows),
            rounds_us=self.rounds_us.plus(other.rounds_us),
            ddls_us=self.ddls_us.plus(other.ddls_us),
            files=self.files + other.files,
            file_bytes=self.file_bytes + other.file_bytes,
            producer=producer,
        )


LEAST_US: Final = 1_000
"""Of durations of writes, as TiCDC's."""
LEAST_BATCH_US: Final = 4_000
"""Of the time without sending."""
LEAST_DDL_US: Final = 10_000
LEAST_ROWS: Final = 1
LEAST_BATCH: Final = 4
"""Of messages that go to Kafka in one write."""
SPREADS: Final = ("flushes_us", "queued_us", "batch_rows", "rounds_us", "ddls_us")
NO_SPREAD: Final = Spread()
NO_FIGURES: Final = SinkFigures()


def microseconds(seconds: float) -> int:
    """Return a duration as it is counted."""
    return max(0, round(seconds * 1e6))


def figures_json(figures: SinkFigures) -> dict[str, object]:
    """Return figures for a node, without what is 0."""
    shown: dict[str, object] = {
        name: [spread.total, *spread.counts] for name in SPREADS if (spread := getattr(figures, name)).counts
    }
    shown |= {name: value for name in ("files", "file_bytes") if (value := getattr(figures, name))}
    return shown | ({"producer": producer} if (producer := producer_json(figures.producer)) else {})


def read_figures(raw: object) -> SinkFigures:
    """Read what :func:`figures_json` returns.

    Raises:
        ValueError, TypeError: it is none.
    """
    if not isinstance(raw, Mapping):
        raise TypeError("figures are no object")
    spreads = {}
    for name in SPREADS:
        total, *counts = [read_int(value) for value in raw.get(name, [0])]
        if len(counts) > BUCKETS_MAX + 1:
            raise ValueError(f"{name} has {len(counts)} buckets")
        spreads[name] = Spread(tuple(counts), total)
    return SinkFigures(
        **spreads,
        files=read_int(raw.get("files", 0)),
        file_bytes=read_int(raw.get("file_bytes", 0)),
        producer=read_producer(raw.get("producer", {})),
    )
