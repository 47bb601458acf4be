"""A blackhole sink: what its URI and settings may say, and what it does with records."""

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.errors import ConfigError
from schemas.sink.topic import has_processors, writes_own_topic
from sorters.core.encode.avro.encoder import AvroEncoder
from sorters.core.encode.storage.rows import StorageEncoder
from sorters.core.feed.feed import compile_feed
from sorters.core.records.order import join_records
from sorters.cut.record_writer import NOWHERE, record_writer
from sorters.log.blackhole_topics import BlackholeTopics
from sorters.log.failures import KafkaUnreachableError


def test_blackhole_needs_neither_host_nor_topic_nor_protocol() -> None:
    config = load_changefeed("blackhole://")
    assert (config.protocol, config.default_topic, config.notes) == ("canal-json", "blackhole", ())
    assert not writes_own_topic(config) and not has_processors("blackhole://")
    named = load_changefeed("blackhole://somewhere/orders?protocol=simple")
    assert (named.protocol, named.default_topic) == ("simple", "orders")
    assert named.notes[0] == ("sink URI: nobody reads its host; TiCDC passes over unknown parameters, and so do we")


def test_blackhole_takes_any_protocol_and_asks_for_no_registry() -> None:
    assert isinstance(compile_feed(load_changefeed("blackhole://?protocol=avro"), "default").encoder, AvroEncoder)
    files = load_changefeed("blackhole://?protocol=csv", "[sink.csv]\ndelimiter = '|'")
    assert isinstance(compile_feed(files, "default").encoder, StorageEncoder)
    assert files.notes == ()
    noted = load_changefeed("blackhole://?protocol=open-protocol", "[sink.csv]\ndelimiter = '|'").notes
    assert noted == ("sink.csv.delimiter has no effect: it is for storage sinks",)
    with pytest.raises(ConfigError, match="delimiter must have one to three characters"):
        load_changefeed("blackhole://?protocol=csv", "[sink.csv]\ndelimiter = '|||||'")


def test_blackhole_writes_no_files_of_large_messages_either() -> None:
    uri = "blackhole://?enable-tidb-extension=true"
    with pytest.raises(ConfigError, match="a blackhole sink has none"):
        load_changefeed(
            uri,
            "[sink.kafka-config.large-message-handle]\nlarge-message-handle-option = 'claim-check'\n"
            "claim-check-storage-uri = 'file:///claims'",
        )


def test_blackhole_has_every_topic_with_the_partitions_that_it_was_given() -> None:
    given = BlackholeTopics(load_changefeed("blackhole://?partition-num=7&max-message-bytes=5000"))
    limits = given.ensure(["a", "b"])
    assert {name: (topic.partitions, topic.message_bytes_max) for name, topic in limits.items()} == {
        "a": (7, 5000),
        "b": (7, 5000),
    }
    assert given.recount(["a"]) == {"a": 7}
    assert BlackholeTopics(load_changefeed("blackhole://")).ensure(["a"])["a"].partitions == 3


def test_blackhole_takes_records_until_the_cut_is_given_up() -> None:
    stopped = False
    writer = record_writer(NOWHERE, stopped=lambda: stopped)
    writer.write(join_records([]))
    writer.finish()
    stopped = True
    with pytest.raises(KafkaUnreachableError, match="stopped"):
        writer.write(join_records([]))
