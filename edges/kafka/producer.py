"""The producer that keeps order and loses nothing: of the raw log and of the frontier."""

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from edges.kafka.clients import kafka_producer

KEEPS_ORDER: Final = {"enable.idempotence": True, "acks": "all"}
HEAD_START_S: Final = 0.1
"""How old a producer that keeps order is to be before its first record. One that is asked for a topic before brokers
have said who they are is let in half a second later (docs/decisions/2026-11-29-head-start-of-clients.md)."""


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
