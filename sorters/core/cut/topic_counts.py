"""How many partitions of its sink topics a changefeed uses, as it stands in ZooKeeper: pure.

An epoch that is run again must give each record the partition that it had. So what is used stands beside the begun
epoch, in some tens of nodes: of 100,000 topics a change of one must not write all. What a topic has got since is used
from the next epoch on that nobody has begun, whose first ts is the border.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from zlib import crc32

from schemas.ids import Ts
from schemas.json_text import read_int, read_json

SHARDS = 64


@dataclass(frozen=True, slots=True)
class TopicCount:
    """What a changefeed uses of a topic."""

    partitions: int
    before: int = 0
    """How many it used before the topic grew; 0: it has not grown."""
    border_ts: Ts = Ts(0)
    """The new ones hold what is above it."""

    def seen(self, partitions: int, border_ts: Ts) -> "TopicCount":
        """Return what is used from ``border_ts`` on of a topic that has so many partitions then."""
        if partitions > self.partitions:
            return TopicCount(partitions, self.partitions, border_ts)
        return self if partitions == self.partitions else TopicCount(partitions)


def shard_of(topic: str) -> int:
    """Return which node holds the topic."""
    return crc32(topic.encode()) % SHARDS


def new_partitions(counts: Iterable[tuple[str, TopicCount]], border_ts: Ts) -> dict[str, range]:
    """Return the partitions that are used from ``border_ts`` on and were not before, by topic."""
    return {
        topic: range(count.before, count.partitions)
        for topic, count in counts
        if count.before and count.border_ts == border_ts
    }


def encode_counts(counts: Mapping[str, TopicCount]) -> bytes:
    """Return a node's text: an object with ``[partitions, before, border_ts]`` by topic."""
    raw = {topic: [count.partitions, count.before, count.border_ts] for topic, count in sorted(counts.items())}
    return json.dumps(raw, separators=(",", ":")).encode()


def decode_counts(content: bytes) -> dict[str, TopicCount]:
    """Return what stands in a node; of one that does not read, nothing: topics are used as they are then."""
    try:
        raw = read_json(content)
        counts = {
            topic: TopicCount(
                read_int(partitions, bits=31), read_int(before, bits=31), Ts(read_int(border_ts, bits=63))
            )
            for topic, (partitions, before, border_ts) in raw.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}
    return counts if all(0 <= count.before < count.partitions for count in counts.values()) else {}
