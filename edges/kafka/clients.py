"""The one place where clients of Kafka are made.

``config`` is :meth:`edges.kafka.access.KafkaAccess.config` for the bus's own cluster, or what a changefeed's sink says
of its own (:mod:`schemas.config.client_options`), with what the caller's work needs.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from edges.kafka.errors import KafkaSettingsError

_shared: "WeakValueDictionary[tuple[tuple[str, object], ...], AdminClient]" = WeakValueDictionary()
"""Admin clients by their settings."""
_sharing = threading.Lock()
_Client = TypeVar("_Client")


def kafka_consumer(config: Mapping[str, object], log: logging.Logger | None = None) -> Any:
    """Return a consumer; ``log`` takes librdkafka's own words, which go to stderr otherwise.

    Raises:
        KafkaSettingsError: librdkafka refuses the settings.
    """
    return _made(Consumer, config, log)


def kafka_producer(config: Mapping[str, object], log: logging.Logger | None = None) -> Any:
    """Return a producer; see :func:`kafka_consumer`.

    Raises:
        KafkaSettingsError: librdkafka refuses the settings.
    """
    return _made(Producer, config, log)


def kafka_admin(config: Mapping[str, object], log: logging.Logger | None = None) -> AdminClient:
    """Return an admin client; see :func:`kafka_consumer`.

    Raises:
        KafkaSettingsError: librdkafka refuses the settings.
    """
    return _made(AdminClient, config, log)


def shared_admin(config: Mapping[str, object], log: logging.Logger | None = None) -> AdminClient:
    """Return an admin client that all have in this process who ask with the same settings, as long as any of them does:
    each one is three threads and a connection. From any thread.

    Raises:
        KafkaSettingsError: librdkafka refuses the settings.
    """
    key = tuple(sorted(config.items()))
    with _sharing:
        admin = _shared.get(key)
        if admin is None:
            admin = _shared[key] = kafka_admin(config, log)
    return admin


def _made(kind: Callable[..., _Client], config: Mapping[str, object], log: logging.Logger | None) -> _Client:
    try:
        return kind(dict(config), **({} if log is None else {"logger": log}))
    except (KafkaException, TypeError, ValueError) as error:
        # A file that is not there or no PEM, a key that does not fit its certificate, a value that is none.
        reason = error.args[0].str() if isinstance(error, KafkaException) else error
        raise KafkaSettingsError(
            "Kafka's client refuses its settings", kafka=config.get("bootstrap.servers"), reason=reason
        ) from error
