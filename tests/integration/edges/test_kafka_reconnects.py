"""How often Kafka's clients connect while no broker takes them."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from edges.kafka.clients import RECONNECT_MS_MAX, kafka_consumer, kafka_producer

pytestmark = pytest.mark.integration
SECONDS = 3.0


class Closing:
    """Takes connections and ends them."""

    def __init__(self) -> None:
        self.times = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.times += 1
            connection.close()


@pytest.fixture
def closing() -> Iterator[Closing]:
    """Give what takes connections and ends them."""
    server = Closing()
    yield server
    server.close()


@pytest.mark.parametrize(("kind", "times_max"), [("consumer", 100), ("producer", 20)])
def test_kafka_is_away_then_clients_do_not_hammer_it(closing: Closing, kind: str, times_max: int) -> None:
    """A consumer's pause does not grow: 39 times in 3 s, where it was 236 with the pause of the others."""
    config = {"bootstrap.servers": closing.address, "log_level": 0}
    client: Any = kafka_producer(config) if kind == "producer" else kafka_consumer({**config, "group.id": "any"})
    ends_at_s = time.monotonic() + SECONDS
    while time.monotonic() < ends_at_s:
        client.poll(0.1)
    assert closing.times <= times_max
    client.close()


def test_kafka_operators_pause_may_be_longer_than_our_longest(closing: Closing) -> None:
    """librdkafka refuses a first pause above the longest."""
    longer_ms = 8 * RECONNECT_MS_MAX
    client = kafka_producer({"bootstrap.servers": closing.address, "log_level": 0, "reconnect.backoff.ms": longer_ms})
    client.close()
