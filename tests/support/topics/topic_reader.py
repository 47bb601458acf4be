"""A consumer that materialises tables from their topics, and holds them against the source at many watermarks.

A table is held against it from the watermark on that says that its image is whole.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from consumers.client import ChangeStream
from consumers.client.materialised import MaterialisedTable
from edges.kafka.access import KafkaAccess
from schemas.ids import Ts
from tests.support.database.written_source import WrittenSource

LOOK_S, LOOK_RESTS = 4.0, 3
"""Between two looks, at least, and how many times what the last one took: it hashes each row of all tables, while the
source writes in the same process.
"""


@dataclass(kw_only=True)
class TopicReader:
    """``run`` it in a thread of its own, until it is told a ``last_ts`` and has read up to there."""

    kafka: KafkaAccess
    pattern: str
    """Of the topics."""
    source: WrittenSource
    tables: Mapping[str, MaterialisedTable]
    only_in_the_end: frozenset[str]
    """Tables that are held against the source at the last watermark alone."""
    looked: Counter[Ts] = field(default_factory=Counter)
    """How many tables were the same, by watermark."""
    passed_over: Counter[Ts] = field(default_factory=Counter)
    """How many had an image under way, by watermark: they have no proof."""
    different: list[tuple[str, Ts]] = field(default_factory=list)
    watermark_ts: Ts = Ts(0)
    last_ts: Ts | None = None

    def run(self) -> None:
        settings, look_at = dict(self.kafka.config()), 0.0
        with ChangeStream(settings["bootstrap.servers"], [self.pattern], group="states", kafka=settings) as stream:
            while self.last_ts is None or self.watermark_ts < self.last_ts:
                batch = stream.poll(1.0)
                if batch is None:
                    continue
                assert batch.watermark_ts >= self.watermark_ts, "new topics are held until they have caught up"
                for table in self.tables.values():
                    table.apply(batch)
                self.watermark_ts = batch.watermark_ts
                if (began_at := time.monotonic()) > look_at:
                    self._look([name for name in self.tables if name not in self.only_in_the_end])
                    ended_at = time.monotonic()
                    look_at = ended_at + max(LOOK_S, LOOK_RESTS * (ended_at - began_at))
        partial = [name for name, table in self.tables.items() if not table.is_whole]
        assert not partial, f"images are whole, and the topics do not say so of {partial}"
        self._look(list(self.tables))

    def _look(self, names: list[str]) -> None:
        self.looked.pop(self.watermark_ts, None)  # it may have been looked at the last watermark just now
        self.passed_over.pop(self.watermark_ts, None)
        for name in names:
            if not self.tables[name].is_whole:
                self.passed_over[self.watermark_ts] += 1
            elif self.tables[name].proof() == self.source.proof(name, self.watermark_ts):
                self.looked[self.watermark_ts] += 1
            else:
                self.different.append((name, self.watermark_ts))
