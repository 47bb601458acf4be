"""The producer that keeps order and loses nothing: of the raw log and of the frontier."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from edges.kafka.clients import kafka_producer

KEEPS_ORDER: Final = {"enable.idempotence": True, "acks": "all"}


def ordered_producer(config: Mapping[str, object], log: logging.Logger | None = None) -> Any:
    """Return a producer whose records are acknowledged by all replicas in sync, once each and in their order.

    Args:
        config: an access's, with what the caller's work needs. None of it weakens the promise.
        log: takes librdkafka's own words, which go to stderr otherwise.

    Raises:
        KafkaSettingsError: librdkafka refuses the settings.
    """
    return kafka_producer({**config, **KEEPS_ORDER}, log)
