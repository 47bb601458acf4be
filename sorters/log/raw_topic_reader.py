"""Reads a topic of the raw log by offset."""

from collections.abc import Callable, Mapping

from edges.kafka.offsets import TopicReader
from schemas.rawlog.record_check import RawRecord


def raw_topic_reader(
    config: Mapping[str, object], topic: str, *, stopped: Callable[[], bool] = lambda: False
) -> TopicReader:
    """Return a reader whose records know what their capture has said of them, so that a damaged one is seen when it is
    taken apart (:class:`~schemas.rawlog.record_check.RawRecord`). The caller closes it.

    Args:
        config: librdkafka's.
        stopped: gives up a read that waits.
    """
    return TopicReader(config, topic, stopped=stopped, record_of=RawRecord.of, are_checked=True)
