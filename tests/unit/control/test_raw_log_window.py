"""Where the raw log's partitions start, from a broker that is between two leaders."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

import consumers.control.log.raw_log
import edges.kafka.offsets
from consumers.control.log.raw_log import _log_start


class Consumer:
    """Answers with what it was given, in turn."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def get_watermark_offsets(self, partition: TopicPartition, *, timeout: float) -> tuple[int, int]:
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            raise KafkaException(KafkaError(answer))
        start, end = answer
        return start, end


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edges.kafka.offsets, "_LEADER_RETRY_S", 0.001)


def test_log_start_while_the_leader_moves_is_asked_again() -> None:
    consumer = Consumer(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, (7, 9))
    assert _log_start(consumer, "t", 0) == 7
    assert consumer.answers == []


def test_log_start_other_errors_are_told_at_once() -> None:
    consumer = Consumer(KafkaError.TOPIC_AUTHORIZATION_FAILED, (7, 9))
    with pytest.raises(KafkaException):
        _log_start(consumer, "t", 0)


def test_log_start_without_a_leader_for_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers.control.log.raw_log, "ADMIN_TIMEOUT_S", 0.0)
    with pytest.raises(KafkaException):
        _log_start(Consumer(KafkaError.LEADER_NOT_AVAILABLE, (7, 9)), "t", 0)
