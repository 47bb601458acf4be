"""What stands in the ddl topic behind a record that Kafka refuses for good: nothing."""

import random
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from compose.stack.local import Addresses
from edges.kafka.offsets import TopicReader
from producers.errors import DeliveryFailedError
from producers.pull.landing.raw_producer import close_producer, raw_log_producer, serve_gapless
from schemas.errors import Action

SMALL, LARGE = b"small", random.Random(1).randbytes(3 << 20)


@pytest.fixture
def narrow_topic(stack: Addresses, fresh_name: Callable[[str], str]) -> str:
    """Return a topic that somebody has made beforehand, for records of up to 1 MiB."""
    name = fresh_name("ddl")
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    for future in admin.create_topics([NewTopic(name, 1, 1, config={"max.message.bytes": str(1 << 20)})]).values():
        future.result(120)
    return name


def test_ddl_record_is_refused_then_none_stands_behind_it(stack: Addresses, narrow_topic: str) -> None:
    errors: list[KafkaError] = []
    outcomes: list[KafkaError | None] = []
    producer = raw_log_producer(stack.kafka_access, "none", errors.append, is_gapless=True)

    class Reports:
        """Holds the producer, as the feed's callback does."""

        held = producer

        def take(self, error: KafkaError | None, _: object) -> None:
            outcomes.append(error)

    def produce(value: bytes) -> None:
        producer.produce(narrow_topic, value=value, partition=0, on_delivery=Reports().take)

    for value in (SMALL, LARGE, *[SMALL] * 20):
        produce(value)
    with pytest.raises(DeliveryFailedError, match="gets none behind it") as caught:
        while len(outcomes) < 22:
            serve_gapless(producer, 0.1, narrow_topic)
    assert caught.value.action is Action.RETRY
    with pytest.raises(KafkaException):
        produce(SMALL)
    close_producer(producer)
    assert len(outcomes) == 22, "it holds no callback any more"
    reader = TopicReader({"bootstrap.servers": stack.kafka}, narrow_topic)
    held = [value for _, value in reader.read(*reader.bounds())]
    reader.close()
    assert held in ([], [SMALL]), "the first may be in one batch with the refused one"
    assert sum(error is None for error in outcomes) <= len(held)
