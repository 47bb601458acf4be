"""How a record of Kafka's own is told from one that is gone, over a consumer that plays what brokers do."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from edges.kafka import markers
from edges.kafka.markers import is_marker


class Consumer:
    """Whose position passes offset 4 as ``passes_to`` says; ``answer`` is what it hands out, an error's code or 0."""

    def __init__(self, passes_to: int, answer: int | None) -> None:
        self._passes_to, self._answer = passes_to, answer

    def assign(self, _partitions: object) -> None:
        """It begins at 4."""

    def poll(self, _timeout_s: float) -> Any:
        return None if self._answer is None else self

    def error(self) -> KafkaError | None:
        return KafkaError(self._answer) if self._answer else None

    def position(self, _partitions: object) -> list[TopicPartition]:
        return [TopicPartition("t", 0, self._passes_to)]

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("passes_to", "answer", "expected"),
    [
        (5, None, True),
        (5, KafkaError._PARTITION_EOF, True),
        (4, KafkaError._PARTITION_EOF, False),
        (5, 0, False),
        # Records are gone, and the marker is behind them.
        (9, None, False),
    ],
)
def test_marker_is_what_a_position_passes_alone_and_without_a_message(
    monkeypatch: pytest.MonkeyPatch, passes_to: int, answer: int | None, expected: bool
) -> None:
    monkeypatch.setattr(markers, "kafka_consumer", lambda _config: Consumer(passes_to, answer))
    assert is_marker({}, "t", 0, 4) is expected
