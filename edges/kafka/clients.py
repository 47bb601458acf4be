"""The one place where clients of Kafka are made.

``config`` is :meth:`edges.kafka.access.KafkaAccess.config` for the bus's own cluster, or what a changefeed's sink says
of its own (:mod:`schemas.config.client_options`), with what the caller's work needs.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from edges.kafka.errors import KafkaSettingsError
from edges.kafka.settings import CHECK_BATCHES

_shared: "WeakValueDictionary[tuple[tuple[str, object], ...], AdminClient]" = WeakValueDictionary()
"""Admin clients by their settings."""
_sharing = threading.Lock()
_Client = TypeVar("_Client")
RECONNECT_MS, RECONNECT_MS_MAX = 20, 1_000
"""Before a broker is tried again, the first time; it doubles each time, up to the second. librdkafka also lets half of
the first pass between connections to two brokers, and a broker is another one once it has said who it is: with its
default of 100 ms each client can ask its first question 50 ms later."""
CONSUMER_RECONNECT_MS: Final = 100
"""For consumers that pause never grows while no broker is left: librdkafka begins anew with the given addresses then,
and forgets it. With 20 ms each would connect eighty times a second."""
SAY_AGAIN_S: Final = 30.0
"""Between two lines of one client that say the same: a broker that is away makes it say so several times a second."""
_TEXTS_MAX: Final = 100
_HOW_LONG: Final = re.compile(r"\(after [^()]*(?:error\(s\) suppressed)?\)")
"""librdkafka says itself, and counts, what it has not said again within half a minute."""


def kafka_consumer(config: Mapping[str, object], log: logging.Logger | None = None) -> Any:
    """Return a consumer; ``log`` takes librdkafka's own words, which go to stderr otherwise.

    Raises:
        KafkaSettingsError: librdkafka refuses the settings.
    """
    return _made(Consumer, config, log, CONSUMER_RECONNECT_MS)


def kafka_producer(config: Mapping[str, object], log: logging.Logger | None = None) -> Any:
    """Return a producer; see :func:`kafka_consumer`.

    Raises:
        KafkaSettingsError: librdkafka refuses the settings.
    """
    return _made(Producer, _of_no_consumer(config), log)


def kafka_admin(config: Mapping[str, object], log: logging.Logger | None = None) -> AdminClient:
    """Return an admin client; see :func:`kafka_consumer`.

    Raises:
        KafkaSettingsError: librdkafka refuses the settings.
    """
    return _made(AdminClient, _of_no_consumer(config), log)


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


def _of_no_consumer(config: Mapping[str, object]) -> Mapping[str, object]:
    """Leave out what only consumers have: librdkafka warns of it otherwise."""
    return {key: value for key, value in config.items() if key != CHECK_BATCHES}


def _made(
    kind: Callable[..., _Client],
    config: Mapping[str, object],
    log: logging.Logger | None,
    reconnect_ms: int = RECONNECT_MS,
) -> _Client:
    reconnecting: dict[str, object] = {}
    if "reconnect.backoff.ms" not in config:  # theirs may be longer than the longest, which librdkafka refuses
        reconnecting = {"reconnect.backoff.ms": reconnect_ms, "reconnect.backoff.max.ms": RECONNECT_MS_MAX}
    try:
        return kind({**reconnecting, **config}, **({} if log is None else {"logger": ClientWords(log)}))
    except (KafkaException, TypeError, ValueError) as error:
        # A file that is not there or no PEM, a key that does not fit its certificate, a value that is none.
        reason = error.args[0].str() if isinstance(error, KafkaException) else error
        raise KafkaSettingsError(
            "Kafka's client refuses its settings", kafka=config.get("bootstrap.servers"), reason=reason
        ) from error


class ClientWords:
    """librdkafka's own words on their way into a log. It tries again by itself, so what it calls an error is a warning
    here, and what it says again and again is said once in a while. What ends a client comes as an exception.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._said_at_s: dict[str, float] = {}

    def log(self, level: int, message: str, *args: object) -> None:
        """Take a line; librdkafka calls it as :meth:`logging.Logger.log`."""
        text, now_s = _HOW_LONG.sub("", message % args), self._clock()
        if now_s < self._said_at_s.get(text, -SAY_AGAIN_S) + SAY_AGAIN_S:
            return
        if len(self._said_at_s) >= _TEXTS_MAX:
            self._said_at_s.clear()
        self._said_at_s[text] = now_s
        self._log.log(logging.WARNING if level == logging.ERROR else level, message, *args)
