"""Follows the frontier topic: records as they are published, from an offset on, and none of them missing."""

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Self

from confluent_kafka import TopicPartition

from edges.kafka.errors import address_of
from edges.kafka.offsets import NextRecords, offsets_consumer
from schemas.errors import decoding
from schemas.rawlog.frontier import NOBODYS, FrontierRecord, decode_frontier, is_nobodys

log = logging.getLogger(__name__)

_FETCH_WAIT_MS = 500
"""A fetch that has nothing to bring waits so long at the broker; what is published meanwhile it brings at once."""


class FrontierTail:
    """Follows the frontier topic from an offset on; a context manager."""

    def __init__(self, config: Mapping[str, object], topic: str, start: int) -> None:
        """``config`` is librdkafka's: servers, TLS, SASL."""
        self._topic, self._at = topic, {0: start}
        self._consumer = offsets_consumer(config, topic, fetch_wait_ms=_FETCH_WAIT_MS)
        self._records = NextRecords(self._consumer, topic, self._at, lambda: False, address=address_of(config))

    def __enter__(self) -> Self:
        self._consumer.assign([TopicPartition(self._topic, 0, self._at[0])])
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self, count: int, timeout_s: float) -> list[FrontierRecord]:
        """Return the next records, up to ``count``, as soon as there are any; none after ``timeout_s``.

        Raises:
            CorruptDataError: one does not decode.
            HistoryLostError: they are gone.
        """
        return [
            decoded_frontier(value, self._topic, offset) for _, offset, value in self._records.peek(count, timeout_s)
        ]


def decoded_frontier(value: bytes, topic: str, offset: int) -> FrontierRecord:
    """Return a record of the frontier topic; :data:`NOBODYS` in place of one that no owner has written.

    Raises:
        CorruptDataError: it is an owner's and does not decode; its topic and offset are said.
    """
    if is_nobodys(value):
        _say_stray(topic, offset, len(value))
        return NOBODYS
    with decoding(topic=topic, offset=offset):
        return decode_frontier(value)


@lru_cache(maxsize=1024)
def _say_stray(topic: str, offset: int, size: int) -> None:
    """Say it once a process: each run of each changefeed looks some records back."""
    extra = {"topic": topic, "offset": offset, "bytes": size}
    log.error("a record of the frontier topic is no owner's, and is passed over", extra=extra)
