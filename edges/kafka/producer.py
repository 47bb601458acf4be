"""The producer that keeps order and loses nothing: of the raw log and of the frontier."""

import logging
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError

from edges.kafka.clients import kafka_producer

KEEPS_ORDER: Final = {"enable.idempotence": True, "acks": "all"}
HEAD_START_S: Final = 0.1
"""How old a producer that keeps order is to be before its first record. One that is asked for a topic before brokers
have said who they are is let in half a second later (docs/decisions/2026-11-29-head-start-of-clients.md)."""


class Delivered(Protocol):
    """A record that a broker has acknowledged."""

    def offset(self) -> int | None:
        """Return where it stands in its partition; None: the broker does not know it any more."""


def landed_at(error: KafkaError | None, message: Delivered) -> tuple[int | None, str]:
    """Return a record's offset; or None, and why it has none that is known.

    Of records that a broker has had before it may say no more than that. The client reports None for the first of a
    batch then, without an error, and offsets from 0 on for those behind it, which are none: they must not count.
    """
    if error is not None:
        return None, error.str()
    offset = message.offset()
    return offset, "" if offset is not None else "the broker had it already, and does not say where"


def rest_of_head_start(made_at_s: float) -> None:
    """Wait until a producer that was made then, by the monotonic clock, is old enough for its first record."""
    time.sleep(max(0.0, made_at_s + HEAD_START_S - time.monotonic()))


def ordered_producer(config: Mapping[str, object], log: logging.Logger | None = None) -> Any:
    """Return a producer whose records are acknowledged by all replicas in sync, once each and in their order.

    Args:
        config: an access's, with what the caller's work needs. None of it weakens the promise.
        log: takes librdkafka's own words, which go to stderr otherwise.

    Raises:
        KafkaSettingsError: librdkafka refuses the settings.
    """
    return kafka_producer({**config, **KEEPS_ORDER}, log)
