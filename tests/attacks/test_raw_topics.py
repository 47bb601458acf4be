"""Raw topics that are deleted, made anew, cut short or given more partitions, on a real Kafka."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from compose.cli import run_cli
from compose.stack.local import Addresses
from consumers.control.core.frontier.frontier import first_record
from consumers.control.log.log_watch import check_topics, look_at_log, watched_log
from edges.kafka.access import KafkaAccess
from edges.kafka.topic_state import topic_states
from schemas.errors import BusError
from schemas.ids import Ts
from schemas.rawlog.frontier import FrontierRecord, TopicIds
from schemas.rawlog.log_state import RawLogLostError, RawLogRecreatedError, TopicState, check_raw_log
from schemas.rawlog.topic_settings import Complaint, RawTopicSettingsError, SeenTopic, check_settings, complaints
from schemas.rawlog.topics import RawTopics
from tests.support.rawlog.raw_log import RawLog, create_topic
from tests.support.upstream.feed_sink import wait_until

TOPICS = RawTopics(region_events="e", ddl="d", frontier="f", images="i")
IDS = TopicIds(events="one", ddl="two")
RECORD = replace(first_record(1, Ts(1), 2), high=(5, 0), ddl_high=3, topic_ids=IDS)


def states(events: TopicState, ddl: TopicState | None = None) -> dict[str, TopicState]:
    return {"e": events, "d": ddl or TopicState(topic_id="two", ends=(3,))}


def test_log_that_holds_what_was_promised_is_read_on() -> None:
    whole = TopicState(topic_id="one", ends=(5, 0))
    check_raw_log(RECORD, TOPICS, states(whole))
    check_raw_log(RECORD, TOPICS, states(replace(whole, ends=(9, 9, 4))))
    check_raw_log(RECORD, TOPICS, states(replace(whole, topic_id="")))
    check_raw_log(replace(RECORD, topic_ids=TopicIds()), TOPICS, states(replace(whole, topic_id="other")))


@pytest.mark.parametrize(
    ("events", "ddl", "kind", "named"),
    [
        (TopicState(topic_id="other", ends=(5, 0)), None, RawLogRecreatedError, "topic=e"),
        (TopicState(topic_id="one", ends=(5,)), None, RawLogRecreatedError, "topic=e"),
        (TopicState(topic_id="one", ends=(4, 9)), None, RawLogLostError, "partition=0"),
        (TopicState(topic_id="one", ends=(5, 0)), TopicState(topic_id="x", ends=(3,)), RawLogRecreatedError, "topic=d"),
        (TopicState(topic_id="one", ends=(5, 0)), TopicState(topic_id="two", ends=(2,)), RawLogLostError, "topic=d"),
    ],
)
def test_log_that_does_not_is_refused_by_name(
    events: TopicState, ddl: TopicState | None, kind: type[BusError], named: str
) -> None:
    with pytest.raises(kind, match=named) as refused:
        check_raw_log(RECORD, TOPICS, states(events, ddl))
    assert "\n" not in str(refused.value)


@pytest.fixture
def log(stack: Addresses, fresh_name: Callable[[str], str]) -> RawLog:
    filled = RawLog(stack.kafka, fresh_name("raw"))
    for partition in (0, 0, 1):
        filled.raw(b"record", partition)
    filled._producer.flush(30)
    return filled


def record_of(log: RawLog, **changed: object) -> FrontierRecord:
    record = replace(first_record(1, Ts(1), 2), high=tuple(log.ends))
    return replace(record, **changed)  # type: ignore[arg-type]


def test_topic_that_was_deleted_and_created_anew_is_noticed(log: RawLog) -> None:
    kafka, failures = KafkaAccess(log.kafka), list[BusError]()
    ids = look_at_log(kafka, log.topics, record_of(log))
    assert ids.events and ids.ddl and ids.events != ids.ddl
    record = record_of(log, topic_ids=ids)
    assert look_at_log(kafka, log.topics, record) == ids
    with watched_log(kafka, log.topics, lambda: record, failures.append, look_s=0.2):
        admin = AdminClient({"bootstrap.servers": log.kafka})
        admin.delete_topics([log.topics.region_events])[log.topics.region_events].result(30)
        wait_until(lambda: log.topics.region_events not in admin.list_topics(timeout=10).topics, lambda: None)
        create_topic(log.kafka, log.topics.region_events, 2, {})
        wait_until(lambda: bool(failures), lambda: failures)
    assert failures[0].code == "rawlog.recreated" and log.topics.region_events in str(failures[0])
    with pytest.raises(RawLogLostError):
        look_at_log(kafka, log.topics, record_of(log))


def test_partitions_that_come_are_counted_and_nothing_is_lost(log: RawLog) -> None:
    kafka, events = KafkaAccess(log.kafka), log.topics.region_events
    ids = look_at_log(kafka, log.topics, record_of(log))
    admin = AdminClient({"bootstrap.servers": log.kafka})
    admin.create_partitions([NewPartitions(events, 4)])[events].result(30)

    def ends() -> tuple[int, ...]:
        return topic_states(kafka.config(), [events])[events].ends

    deadline = time.monotonic() + 30
    while len(ends()) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ends() == (2, 1, 0, 0)
    assert look_at_log(kafka, log.topics, record_of(log, topic_ids=ids)) == ids


# -- how the topics are set

SAFE = SeenTopic(
    replicas=3,
    settings={"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "min.insync.replicas": "2"},
)


def seen(topic: str, **changed: str) -> dict[str, SeenTopic]:
    named = {name.replace("_", "."): value for name, value in changed.items()}
    return dict.fromkeys("edf", SAFE) | {topic: replace(SAFE, settings={**SAFE.settings, **named})}


def test_topics_that_keep_everything_are_taken() -> None:
    assert complaints(TOPICS, seen("e", retention_ms="1000", retention_bytes="5")) == []
    assert complaints(TOPICS, {}) == []
    hidden = dict.fromkeys("edf", SeenTopic(replicas=3))
    assert complaints(TOPICS, hidden) == [], "what brokers do not show is not judged"
    kept = seen("f", retention_ms="608400000") | {"i": SAFE, "e": SeenTopic(replicas=3)}
    assert complaints(TOPICS, kept) == [], "nor what is kept against what nobody knows"


@pytest.mark.parametrize(
    ("topic", "setting", "value"),
    [
        ("d", "retention_ms", "604800000"),
        ("d", "retention_bytes", "1000000"),
        ("d", "cleanup_policy", "compact"),
        ("e", "cleanup_policy", "compact,delete"),
        ("f", "cleanup_policy", "compact"),
        ("f", "retention_ms", "1000"),
        ("f", "retention_bytes", "1"),
        ("i", "cleanup_policy", "compact"),
        ("i", "retention_ms", "1000"),
    ],
)
def test_topic_that_loses_records_is_refused_by_name(topic: str, setting: str, value: str) -> None:
    named = setting.replace("_", ".")
    with pytest.raises(RawTopicSettingsError, match=rf"topic={topic}, setting={named}, seen={value}") as refused:
        check_settings(TOPICS, seen(topic, **{setting: value}))
    assert "\n" not in str(refused.value)


def test_topic_that_a_brokers_fall_may_cut_is_warned_of() -> None:
    lone = dict.fromkeys("edf", replace(SAFE, replicas=1))
    assert {complaint.setting for complaint in check_settings(TOPICS, lone)} == {"replication factor"}
    for changed in ({"unclean_leader_election_enable": "true"}, {"min_insync_replicas": "1"}):
        (complaint,) = check_settings(TOPICS, seen("e", **changed))
        assert not complaint.loses
    assert check_settings(TOPICS, seen("e", min_insync_replicas="3"))


def test_real_topics_are_judged_by_capture_and_doctor(
    stack: Addresses, log: RawLog, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = KafkaAccess(stack.kafka)
    warned: set[Complaint] = set()
    check_topics(kafka, log.topics, warned)
    said = {vars(record)["topic"]: vars(record)["said"] for record in caplog.records if "said" in vars(record)}
    assert len(said) == len([record for record in caplog.records if "said" in vars(record)]), "a line a topic"
    assert "replication factor is 1" in said[log.topics.ddl]
    caplog.clear()
    check_topics(kafka, log.topics, warned)
    assert not [record for record in caplog.records if "said" in vars(record)], "the next life says nothing anew"
    doctor = ["doctor", "--kafka", stack.kafka, "--upstream", log.upstream]
    run_cli(doctor)
    assert "FAIL  raw log" not in capsys.readouterr().out
    resource = ConfigResource(
        ResourceType.TOPIC,
        log.topics.ddl,
        incremental_configs=[ConfigEntry("retention.ms", "604800000", incremental_operation=AlterConfigOpType.SET)],
    )
    admin = AdminClient({"bootstrap.servers": log.kafka})
    admin.incremental_alter_configs([resource])[resource].result(30)

    def is_refused() -> bool:
        try:
            check_topics(kafka, log.topics, warned)
        except RawTopicSettingsError as error:
            return log.topics.ddl in str(error)
        return False

    wait_until(is_refused, lambda: None)
    assert run_cli(doctor) == 1
    assert f"FAIL  raw log {log.topics.ddl}: retention.ms is 604800000" in capsys.readouterr().out
