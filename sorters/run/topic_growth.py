"""Partitions that an operator adds to a sink topic while its changefeed runs, and before it runs again.

They are looked for as TiCDC's topic manager does (tiflow ``cdc/sink/dmlsink/mq/manager/kafka_manager.go``, which looks
every ten minutes), and used from the next epoch on: never within one, so that an epoch that is run again writes to the
partitions that it wrote to (:mod:`sorters.core.cut.topic_counts`).
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from schemas.errors import Action, BusError
from schemas.ids import Ts
from sorters.core.cut.topic_counts import TopicCount, decode_counts, encode_counts, new_partitions, shard_of
from sorters.log.failures import KafkaUnreachableError
from sorters.log.topic_admin import SinkTopicLimits

log = logging.getLogger(__name__)
LOOK_S = 60.0
"""Between two looks whether topics have grown."""
LOOKS_SHARE = 0.01
"""Of a sorter's time that looks may take: over 100,000 topics one takes a second."""
_NAMED_MAX = 10


class TopicGrownError(BusError):
    """A sink topic has got more partitions. They are used above the named ts, where a key may go to another one."""

    code, action = "sorter.topic_grown", Action.RETRY


class TopicCounter(Protocol):
    """Who knows how many partitions topics have (:class:`sorters.log.topic_admin.TopicAdmin`)."""

    def ensure(self, topics: Iterable[str]) -> dict[str, SinkTopicLimits]:
        """Return all ``topics`` as they were when first asked for, having created those that were missing."""
        ...

    def recount(self, topics: Iterable[str]) -> dict[str, int]:
        """Return how many partitions of ``topics`` may be used now."""
        ...


class CountStore(Protocol):
    """Where it stands what the changefeed's sorters use, by :func:`~sorters.core.cut.topic_counts.shard_of`."""

    def read(self) -> list[bytes]:
        """Return what is there."""
        ...

    def write(self, shard: int, counts: bytes) -> None:
        """Replace one shard."""
        ...


class TopicGrowth:
    """The sink topics of one run, with the partitions that are used of them."""

    def __init__(
        self, admin: TopicCounter, store: CountStore | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``store`` None: nothing is known of earlier runs, nor left for later ones; nor need it be, for topics of our
        own.
        """
        self._admin, self._store, self._clock = admin, store, clock
        self._shards: dict[int, dict[str, TopicCount]] = {}
        for content in store.read() if store is not None else ():
            for topic, count in decode_counts(content).items():
                self._shards.setdefault(shard_of(topic), {})[topic] = count
        self._unwritten: set[int] = set()
        self._repeats, self._border_ts = True, Ts(0)
        self._look_at_s = 0.0

    def ensure(self, topics: Iterable[str]) -> dict[str, SinkTopicLimits]:
        """Return all ``topics`` with the partitions to use, having created those that were missing."""
        limits = self._admin.ensure(topics)
        if self._repeats:
            for topic, count in self._known(limits):
                partitions = min(count.partitions, limits[topic].partitions)
                limits[topic] = replace(limits[topic], partitions=partitions)
        self._note({topic: limit.partitions for topic, limit in limits.items()})
        return limits

    def settle(self) -> None:
        """From here on epochs are new: topics are used as they are."""
        self._repeats, self._look_at_s = False, self._clock()

    def begin(self, after_ts: Ts) -> None:
        """Note where the cut begins that topics are asked for from here on."""
        self._border_ts = after_ts

    def look(self, used: Mapping[str, int]) -> dict[str, int]:
        """Return which of the topics that are in use have more partitions now; at the border before a new epoch.

        It asks once a minute; a broker that does not answer is asked a minute later, for the epoch will find out
        whether that matters.
        """
        if self._repeats or self._clock() < self._look_at_s:
            return {}
        started = self._clock()
        try:
            counts = self._admin.recount(used)
        except KafkaUnreachableError as error:
            log.warning("whether sink topics have grown is not known", extra={"code": error.code, "said": str(error)})
            counts = {}
        ended = self._clock()
        self._look_at_s = ended + max(LOOK_S, (ended - started) / LOOKS_SHARE)
        grown = {topic: count for topic, count in counts.items() if count > used[topic]}
        self._note(grown)
        return grown

    def new_partitions(self, border_ts: Ts) -> dict[str, range]:
        """Return the partitions that are used from ``border_ts`` on and were not before, by topic."""
        every = (item for shard in self._shards.values() for item in shard.items())
        return new_partitions(every, border_ts)

    @property
    def is_unwritten(self) -> bool:
        """Whether :meth:`write` has something to write."""
        return bool(self._unwritten)

    def write(self) -> None:
        """Write down what is used, once the epoch is written down and before anything of it goes to the sink.

        Before the epoch it would be wrong: the one before may have to be run again still.

        Raises:
            ZooKeeperUnreachableError
        """
        for shard in sorted(self._unwritten):
            if self._store is not None:
                self._store.write(shard, encode_counts(self._shards[shard]))
            self._unwritten.discard(shard)

    def _known(self, topics: Iterable[str]) -> Iterator[tuple[str, TopicCount]]:
        for topic in topics:
            count = self._shards.get(shard_of(topic), {}).get(topic)
            if count is not None:
                yield topic, count

    def _note(self, partitions: Mapping[str, int]) -> None:
        known, grown = dict(self._known(partitions)), {}
        for topic, now in partitions.items():
            old = known.get(topic)
            count = TopicCount(now) if old is None else old.seen(now, self._border_ts)
            if count == old:
                continue
            shard = shard_of(topic)
            self._shards.setdefault(shard, {})[topic] = count
            self._unwritten.add(shard)
            if old is not None and now > old.partitions:
                grown[topic] = f"{topic}: {old.partitions} to {now}"
        if grown:
            named = ", ".join(sorted(grown.values())[:_NAMED_MAX])
            said = TopicGrownError(
                "sink topics have more partitions", topics=named, count=len(grown), border_ts=self._border_ts
            )
            log.warning("sink topics have grown", extra={"code": said.code, "said": str(said)})
