"""Sink topics while the brokers have not all heard of a new one, which a real broker shows by chance only."""

from collections import deque
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from edges.kafka import topics
from schemas.config.changefeed import load_changefeed
from schemas.sink.topic import own_topic_config
from sorters.log import topic_admin
from sorters.log.failures import KafkaUnreachableError
from sorters.log.topic_admin import MESSAGE_OVERHEAD_BYTES, SinkTopicLimits, TopicAdmin

UNHEARD = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
SETTINGS = {"max.message.bytes": SimpleNamespace(value="1000"), "min.insync.replicas": SimpleNamespace(value="1")}


class SlowCluster:
    """An admin client whose answers are given: the topics of each look, then the settings of each look."""

    def __init__(self, looks: list[dict[str, int]], settings: list[object]) -> None:
        self._looks, self._settings = deque(looks), deque(settings)
        self.created: list[Any] = []
        self.refusal: KafkaException | None = None

    def list_topics(self, timeout: float) -> Any:
        partition_counts = self._looks.popleft() if len(self._looks) > 1 else self._looks[0]
        listed = {
            name: SimpleNamespace(error=None, partitions=range(count)) for name, count in partition_counts.items()
        }
        return SimpleNamespace(topics=listed, brokers={})

    def create_topics(self, new: list[Any], **_: float) -> dict[str, Future[None]]:
        self.created += new
        return {topic.topic: _answer(self.refusal) for topic in new}

    def describe_configs(self, resources: list[Any], **_: float) -> dict[Any, Future[object]]:
        answer = self._settings.popleft() if len(self._settings) > 1 else self._settings[0]
        return {resource: _answer(answer) for resource in resources}


def _answer(answer: object) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return future


def _admin(monkeypatch: pytest.MonkeyPatch, cluster: SlowCluster) -> TopicAdmin:
    monkeypatch.setattr(topic_admin, "shared_admin", lambda _config, _log: cluster)
    monkeypatch.setattr(topics, "APPEAR_POLL_S", 0.001)
    return TopicAdmin({"bootstrap.servers": "k:1"}, partitions=None, replication=1, auto_create=True)


def test_ensure_new_topic_that_brokers_learn_of_late_is_awaited_and_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = SlowCluster([{}, {}, {}, {"t": 7}], [UNHEARD, UNHEARD, SETTINGS])
    want = {"t": SinkTopicLimits(partitions=7, message_bytes_max=1000 - MESSAGE_OVERHEAD_BYTES)}
    assert _admin(monkeypatch, cluster).ensure(["t"]) == want


@pytest.mark.parametrize(
    ("looks", "settings"), [([{}], SETTINGS), ([{"t": 1}], UNHEARD)], ids=["not listed", "no settings"]
)
def test_ensure_new_topic_that_never_appears_is_retried_later_naming_the_address(
    monkeypatch: pytest.MonkeyPatch, looks: list[dict[str, int]], settings: object
) -> None:
    monkeypatch.setattr(topic_admin, "TIMEOUT_S", 0.05)
    with pytest.raises(KafkaUnreachableError, match="address=k:1"):
        _admin(monkeypatch, SlowCluster(looks, [settings])).ensure(["t"])


@pytest.mark.parametrize(
    "code", [KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_CONTROLLER, KafkaError.THROTTLING_QUOTA_EXCEEDED]
)
def test_ensure_new_topic_that_brokers_do_not_make_just_now_is_retried_later(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    cluster = SlowCluster([{}], [SETTINGS])
    cluster.refusal = KafkaException(KafkaError(code))
    with pytest.raises(KafkaUnreachableError, match=r"was not created in time.*topic=t"):
        _admin(monkeypatch, cluster).ensure(["t"])


def test_ensure_new_topic_is_created_with_the_settings_that_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SlowCluster([{}, {"t": 3}], [SETTINGS])
    monkeypatch.setattr(topic_admin, "shared_admin", lambda _config, _log: cluster)
    monkeypatch.setattr(topics, "APPEAR_POLL_S", 0.001)
    own = own_topic_config(load_changefeed("mysql://root@127.0.0.1:3306/"))
    admin = TopicAdmin({}, partitions=3, replication=1, auto_create=True, topic_config=own)
    admin.ensure(["t"])
    assert [(topic.topic, topic.num_partitions, topic.config) for topic in cluster.created] == [("t", 3, own)]
    assert int(own["max.message.bytes"]) > 1_000_000
    assert own_topic_config(load_changefeed("kafka://127.0.0.1:9092/t?protocol=canal-json")) == {}
