"""What a raw topic is now, against what the frontier says of it: loss and recreation are told apart from growth."""

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.errors import Action, BusError
from schemas.rawlog.frontier import FrontierRecord, TopicIds
from schemas.rawlog.topics import RawTopics

_RESTART = "delete its three raw topics, start a capture as for a new upstream, and create changefeeds anew from a copy"


class RawLogRecreatedError(BusError):
    """A raw topic is not the one that the frontier was published over: it was deleted and created anew."""

    code, action = "rawlog.recreated", Action.STOP_CHANGEFEED


class RawLogLostError(BusError):
    """A raw topic ends below what its brokers had acknowledged: records are lost, and others take their offsets."""

    code, action = "rawlog.lost", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """One topic at one moment. ``topic_id`` is '' where the brokers have none (before Kafka 2.8)."""

    topic_id: str
    ends: tuple[int, ...]
    """Of each partition, the offset after the last record."""


def topic_ids(topics: RawTopics, states: Mapping[str, TopicState]) -> TopicIds:
    """Return the ids to keep in the frontier."""
    return TopicIds(events=states[topics.region_events].topic_id, ddl=states[topics.ddl].topic_id)


def check_raw_log(record: FrontierRecord, topics: RawTopics, states: Mapping[str, TopicState]) -> None:
    """Check that the raw log holds all that a frontier record says, below the offsets that it says.

    Raises:
        RawLogRecreatedError: a topic has another id, or fewer partitions.
        RawLogLostError: a topic ends too early.
    """
    promised = (
        (topics.region_events, record.topic_ids.events, record.high),
        (topics.ddl, record.topic_ids.ddl, (record.ddl_high,)),
    )
    for topic, known_id, highs in promised:
        state = states[topic]
        if known_id and state.topic_id and known_id != state.topic_id:
            raise RawLogRecreatedError(
                f"the topic was deleted and created anew, and all changes in it are gone; {_RESTART}",
                topic=topic,
                topic_id=state.topic_id,
                frontier_topic_id=known_id,
            )
        if len(state.ends) < len(highs):
            raise RawLogRecreatedError(
                f"the topic has fewer partitions than its frontier: it was created anew; {_RESTART}",
                topic=topic,
                partitions=len(state.ends),
                frontier_partitions=len(highs),
            )
        for partition, (end, high) in enumerate(zip(state.ends, highs, strict=False)):
            if end < high:
                raise RawLogLostError(
                    f"the topic ends below what was acknowledged: changes are lost; {_RESTART}",
                    topic=topic,
                    partition=partition,
                    end=end,
                    frontier_high=high,
                )
