"""The one place where clients of Kafka are made.

``config`` is :meth:`edges.kafka.access.KafkaAccess.config` for the bus's own cluster, or what a changefeed's sink says
of its own (:mod:`schemas.config.client_options`), with what the caller's work needs.
"""

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient


def kafka_consumer(config: Mapping[str, Any], log: logging.Logger | None = None) -> Any:
    """Return a consumer; ``log`` takes librdkafka's own words, which go to stderr otherwise.

    Raises:
        KafkaException: librdkafka refuses the settings.
    """
    return Consumer(dict(config), **_logged(log))


def kafka_producer(config: Mapping[str, Any], log: logging.Logger | None = None) -> Any:
    """Return a producer; see :func:`kafka_consumer`.

    Raises:
        KafkaException: librdkafka refuses the settings.
    """
    return Producer(dict(config), **_logged(log))


def kafka_admin(config: Mapping[str, Any], log: logging.Logger | None = None) -> Any:
    """Return an admin client; see :func:`kafka_consumer`.

    Raises:
        KafkaException: librdkafka refuses the settings.
    """
    return AdminClient(dict(config), **_logged(log))


def _logged(log: logging.Logger | None) -> dict[str, logging.Logger]:
    return {} if log is None else {"logger": log}
