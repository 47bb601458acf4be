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


@pytest.mark.parametrize("kind", ["consumer", "producer"])
def test_kafka_is_away_then_clients_wait_longer_each_time(closing: Closing, kind: str) -> None:
    config = {"bootstrap.servers": closing.address, "log_level": 0}
    client: Any = kafka_producer(config) if kind == "producer" else kafka_consumer({**config, "group.id": "any"})
    ends_at_s = time.monotonic() + SECONDS
    while time.monotonic() < ends_at_s:
        client.poll(0.1)
    # 20, 40, 80 ms and so on: six until the longest pause, with a fifth less or half more of each.
    assert 2 <= closing.times <= 8 + 2 * SECONDS * 1000 / RECONNECT_MS_MAX
    client.close()


def test_kafka_operators_longer_pause_is_taken(closing: Closing) -> None:
    config = {"bootstrap.servers": closing.address, "log_level": 0, "reconnect.backoff.ms": 5_000}
    client = kafka_producer(config)
    client.poll(1.0)
    assert closing.times == 1
    client.close()
