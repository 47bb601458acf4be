"""What owners, sorters and new changefeeds do when Kafka's retention has taken the frontier topic's oldest records."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from compose.stack.local import Addresses
from consumers.control.changefeeds.store import ChangefeedRequest, ChangefeedStore, StartTsError
from consumers.control.core.frontier.frontier import FrontierInputs, first_record
from consumers.control.log.frontier_topic import FrontierLostError, FrontierTopic
from consumers.control.log.raw_log import RetainedFrontier, retained_frontier
from consumers.control.owner.owner import Owner
from producers.pull.landing.raw_log import FRONTIER_MARGIN_MS, RawLogSettings, ensure_raw_topics
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ZkPaths
from schemas.rawlog.topics import RawTopics, raw_topics
from sorters.log.failures import HistoryLostError
from sorters.log.frontier_reader import FrontierReader
from tests.support.control.lasting_session import lasting_session

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def topics(stack: Addresses, fresh_name: Callable[[str], str]) -> RawTopics:
    topics = raw_topics(UpstreamId(fresh_name("u")))
    ensure_raw_topics(stack.kafka_access, topics, RawLogSettings(partitions=2, retention_ms=DAY_MS))
    return topics


@pytest.fixture
def frontier(stack: Addresses, topics: RawTopics) -> Iterator[FrontierTopic]:
    """Return a topic with records of R = 10, 11, … 15 at offsets 0 … 5."""
    with contextlib.closing(FrontierTopic(stack.kafka_access, topics.frontier)) as topic:
        for ts in range(10, 16):
            topic.publish(first_record(1, Ts(ts), 2))
        yield topic


@pytest.fixture
def reader(stack: Addresses, topics: RawTopics) -> Iterator[FrontierReader]:
    with contextlib.closing(FrontierReader({"bootstrap.servers": stack.kafka}, topics.frontier)) as reader:
        yield reader


def expire(kafka: str, topic: str, before: int) -> None:
    """Do what retention does: remove the records below an offset."""
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result(120)


def test_frontier_topic_is_kept_a_little_longer_than_the_rows(stack: Addresses, topics: RawTopics) -> None:
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    kept = {}
    for name in (topics.region_events, topics.frontier, topics.ddl):
        resource = ConfigResource(ResourceType.TOPIC, name)
        kept[name] = int(admin.describe_configs([resource])[resource].result(120)["retention.ms"].value)
    assert list(kept.values()) == [DAY_MS, DAY_MS + FRONTIER_MARGIN_MS, -1]


def test_frontier_whose_head_is_gone_owner_and_window_begin_at_the_oldest_that_is_left(
    stack: Addresses, topics: RawTopics, frontier: FrontierTopic, fresh_name: Callable[[str], str]
) -> None:
    expire(stack.kafka, topics.frontier, 3)
    window = retained_frontier(stack.kafka_access, topics)
    assert window == RetainedFrontier(Ts(13), Ts(15))
    with lasting_session(stack.zookeeper_access) as session:
        record = Owner(frontier, session, 2, 2).start(lambda: Ts(0))
        assert (record.owner_rev, record.resolved_ts) == (2, 15)
        store = ChangefeedStore(session, ZkPaths(fresh_name("cluster")))
        sink = "kafka://127.0.0.1:9092/t?protocol=canal-json"
        with pytest.raises(StartTsError, match="oldest possible start-ts is 13"):
            store.create(ChangefeedRequest(upstream=UpstreamId("u"), sink_uri=sink, config={}, start_ts=Ts(12)), window)


def test_frontier_whose_head_is_gone_sorter_starts_within_it_and_names_the_oldest_ts_below_it(
    stack: Addresses, topics: RawTopics, frontier: FrontierTopic, reader: FrontierReader
) -> None:
    expire(stack.kafka, topics.frontier, 3)
    assert reader.find(Ts(13)) == 4
    assert reader.record_before(5).resolved_ts == 14
    for lost in (lambda: reader.find(Ts(12)), lambda: reader.record_before(3)):
        with pytest.raises(HistoryLostError, match="oldest_ts=13"):
            lost()


def test_frontier_of_which_nothing_is_left_nobody_goes_on(
    stack: Addresses, topics: RawTopics, frontier: FrontierTopic, reader: FrontierReader
) -> None:
    expire(stack.kafka, topics.frontier, 6)
    with pytest.raises(FrontierLostError, match="create changefeeds anew"):
        frontier.newest()
    with pytest.raises(HistoryLostError, match="oldest_ts=None"):
        reader.find(Ts(15))


def test_owner_when_nothing_moves_publishes_its_place_again_after_a_while(
    stack: Addresses, frontier: FrontierTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lasting_session(stack.zookeeper_access) as session:
        owner = Owner(frontier, session, 2, 2)
        record = owner.start(lambda: Ts(0))
        assert owner.tick(FrontierInputs({}, None, {})) is None
        monkeypatch.setattr("consumers.control.owner.owner.REPEAT_S", 0.0)
        assert owner.tick(FrontierInputs({}, None, {})) == record
        assert frontier.offsets() == (0, 8)
