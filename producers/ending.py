"""How a part of the producer ends by itself: by its first error, which is logged and told once."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from confluent_kafka import KafkaError

from producers.errors import DeliveryFailedError
from schemas.errors import Action, BusError

log = logging.getLogger(__name__)


class Ending:
    """May be set from any thread; later errors follow from the first and are dropped."""

    def __init__(self, part: str, tell: Callable[[BusError], None]) -> None:
        """``part`` is what the log calls it; ``tell`` runs in the thread in which the error came up."""
        self.failure: Future[BusError] = Future()
        self._part, self._tell = part, tell
        self._lock = threading.Lock()

    def fail(self, error: BusError) -> None:
        """Note an error."""
        with self._lock:
            if self.failure.done():
                return
            self.failure.set_result(error)
        level = logging.WARNING if error.action is Action.RETRY else logging.ERROR
        log.log(level, "%s failed", self._part, extra={"code": error.code, "error": str(error)})
        self._tell(error)

    def kafka_error(self, error: KafkaError) -> None:
        """Take librdkafka's own trouble: a broker that is away heals, a fatal error does not (idempotence is lost)."""
        if error.fatal():
            self.fail(DeliveryFailedError("the Kafka producer cannot go on", reason=error.str()))
