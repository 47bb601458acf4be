"""When the frontier moved: the frontier topic's own records and their times of publishing, by this machine's clock."""

from dataclasses import dataclass
from itertools import pairwise

from compose.kafka_follower import TopicFollower
from edges.kafka.access import KafkaAccess
from schemas.ids import UpstreamId
from schemas.rawlog.frontier import decode_frontier
from schemas.rawlog.topics import raw_topics


@dataclass(frozen=True, slots=True)
class Advance:
    """R moved."""

    at_s: float
    """Unix time at which the owner sent the record."""
    resolved_ts: int
    owner_rev: int
    held: int
    """Tables that this record holds back."""


def read_advances(kafka: str, upstream: UpstreamId) -> list[Advance]:
    """Return every record that took readers further, in order; records of replaced owners are left out."""
    advances: list[Advance] = []
    revision = resolved_ts = 0
    with TopicFollower(KafkaAccess(kafka), raw_topics(upstream).frontier) as follower:
        for raw in follower.read_to_end():
            if raw.value is None:
                continue
            record = decode_frontier(raw.value)
            if record.owner_rev < revision:
                continue
            revision = record.owner_rev
            if record.resolved_ts > resolved_ts:
                resolved_ts = record.resolved_ts
                held = sum(len(group.tables) for group in record.held)
                advances.append(Advance(raw.timestamp_ms / 1000, resolved_ts, revision, held))
    return advances


def longest_pause_s(advances: list[Advance], from_s: float, to_s: float) -> float:
    """Return the longest time between two advances, one of them inside ``from_s`` to ``to_s``."""
    times = [advance.at_s for advance in advances]
    gaps = [after - before for before, after in pairwise(times) if after >= from_s and before <= to_s]
    return max(gaps, default=to_s - from_s)
