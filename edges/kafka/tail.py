"""Follows the frontier topic: records as they are published, from an offset on, and none of them missing."""

import contextlib
import logging
import math
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Self

from confluent_kafka import KafkaException

from edges.kafka.errors import KafkaUnreachableError, address_of
from edges.kafka.offsets import NextRecords, offsets_consumer, partition_bounds
from schemas.errors import decoding
from schemas.rawlog.frontier import NOBODYS, FrontierRecord, decode_frontier, is_nobodys

log = logging.getLogger(__name__)

_FETCH_WAIT_MS = 500
"""A fetch that has nothing to bring waits so long at the broker; what is published meanwhile it brings at once."""
SILENCE_S = 10.0
"""Without a record, after which the broker is asked how far the topic goes. An owner that lives has a new one several
times a second."""
_ANSWER_S = 5.0


class FrontierTail:
    """Follows the frontier topic from an offset on; a context manager."""

    def __init__(self, config: Mapping[str, object], topic: str, start: int) -> None:
        """``config`` is librdkafka's: servers, TLS, SASL."""
        self._config, self._topic, self._at = config, topic, {0: start}
        self._consumer, self._records = self._connect()
        self._asks_at_s = math.inf
        """When the broker is asked next."""
        self._known_end = start
        """As the broker said when it was asked last, in a silence that has lasted since."""
        self._is_another = False
        """Whether the consumer has taken the place of one that got nothing, and has not got anything yet."""

    def _connect(self) -> tuple[Any, NextRecords]:
        consumer = offsets_consumer(self._config, self._topic, fetch_wait_ms=_FETCH_WAIT_MS)
        return consumer, NextRecords(consumer, self._topic, self._at, lambda: False, config=self._config)

    def __enter__(self) -> Self:
        self._records.assign()
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self, count: int, timeout_s: float) -> list[FrontierRecord]:
        """Return the next records, up to ``count``, as soon as there are any; none after ``timeout_s``.

        Raises:
            CorruptDataError: one does not decode.
            HistoryLostError: they are gone.
            KafkaUnreachableError: there are some, and neither this consumer nor the one before it gets them.
        """
        records = self._records.peek(count, timeout_s)
        now_s = time.monotonic()
        if records or self._asks_at_s == math.inf:
            self._asks_at_s, self._known_end = now_s + SILENCE_S, self._at[0]
            self._is_another = self._is_another and not records
        elif now_s >= self._asks_at_s:
            self._asks_at_s = now_s + SILENCE_S
            records = self._check_silence()
        return [decoded_frontier(value, self._topic, offset) for _, offset, value in records]

    def _check_silence(self) -> list[tuple[int, int, bytes]]:
        """Return markers of a stranger's transactions, if they are what does not come.

        Compare how far the topic goes with what has come since that was asked last; a broker that does not answer is
        waited for. A consumer that has got nothing meanwhile gives way to another one, and so does one that stands
        behind the end: it may know a topic of this name that was there before, and say nothing of the new one.
        """
        if self._known_end <= self._at[0]:
            with contextlib.suppress(KafkaException):
                _, self._known_end = partition_bounds(
                    self._consumer, self._topic, 0, answer_s=_ANSWER_S, patience_s=0.0
                )
            if self._known_end >= self._at[0]:
                return []
        if markers := self._records.markers(0, self._known_end):
            self._known_end = self._at[0]
            return markers
        where = {"topic": self._topic, "at": self._at[0], "end": self._known_end, "address": address_of(self._config)}
        if self._is_another:
            raise KafkaUnreachableError("records did not come", **where)
        log.warning("records of the frontier topic did not come; another consumer asks for them", extra=where)
        self._consumer.close()
        self._consumer, self._records = self._connect()
        self._records.assign()
        self._is_another = True
        return []


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
