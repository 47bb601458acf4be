"""``tidebus verify`` of a changefeed to Kafka: its topics, from their beginning, against the TiDB they come from."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaException

from consumers.client.stream import ChangeStream
from consumers.verify.reader import Name
from consumers.verify.table_check import Proofs, SourceAt, TablePair
from consumers.verify.topic_check import TopicCheck, topic_tables
from edges.kafka.clients import kafka_consumer
from edges.kafka.errors import address_of
from edges.kafka.offsets import partition_bounds
from schemas.avro_name import sanitize_name
from schemas.config.client_options import librdkafka_options
from schemas.config.settings import ChangefeedConfig
from schemas.errors import ConfigError
from schemas.ids import Ts
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.log.failures import KafkaUnreachableError

ANSWER_S: Final = 15.0
GROUP: Final = "tidebus-verify-"
"""What the name of the consumer group begins with; each run has its own, and commits nothing."""


def check_protocol(config: ChangefeedConfig) -> None:
    """Refuse topics that the reader's library does not read, or without watermarks.

    Raises:
        ConfigError: they are such.
    """
    codec = config.codec
    is_read = codec.enable_tidb_extension and (
        config.protocol == "canal-json" or (config.protocol == "avro" and codec.avro_enable_watermark)
    )
    if not config.uri.brokers or not is_read:
        raise ConfigError(
            "verify reads databases, and topics of canal-json (enable-tidb-extension=true) and avro "
            "(avro-enable-watermark=true too)",
            scheme=config.uri.scheme,
            protocol=config.protocol,
        )


def topic_check(  # what a check takes, once
    config: ChangefeedConfig,
    namespace: str,
    pairs: Sequence[TablePair],
    source: SourceAt,
    *,
    upto_ts: Ts,
    wait_s: float,
    keys_max: int,
    proofs: Proofs | None,
) -> TopicCheck:
    """Read the topics of some tables, up to a watermark at or above ``upto_ts``, and return what compares them.

    Raises:
        ConfigError: Avro without an address of its registry.
        KafkaUnreachableError, StreamUnavailableError: Kafka does not serve the topics.
        MessageError, NoPositionError, CorruptDataError: a record is none of a changefeed's.
    """
    check_protocol(config)
    options, feed = librdkafka_options(config), compile_feed(config, namespace)
    changes_names = config.protocol == "avro"
    tables = topic_tables(
        pairs,
        source,
        feed.selectors.keeps,
        name_of=sanitize_name if changes_names else str,
        others=_names(feed, source) if changes_names else (),
    )
    topics = _topics(feed, pairs)
    cut_off = _cut_off(options, set(topics.values()))
    for name, topic in topics.items():
        if topic in cut_off:
            tables.tables.pop(name, None)
            tables.lost[name] = f"topic {topic} has lost its first records, by retention or compaction"
    registry = config.sink.schema_registry
    if tables.tables:
        with ChangeStream(
            str(options["bootstrap.servers"]),
            sorted({*topics.values(), feed.default_topic}),
            group=f"{GROUP}{uuid.uuid4()}",
            protocol=config.protocol,
            schema_registry=registry.reveal() if registry else "",
            kafka=options,
        ) as stream:
            tables.read(stream.poll, upto_ts, wait_s)
    return TopicCheck(source_at=source, tables=tables, proofs=proofs, keys_max=keys_max, wait_s=wait_s)


def _topics(feed: CompiledFeed, pairs: Sequence[TablePair]) -> dict[Name, str]:
    """Return the topic of each table, by its name at the destination."""
    return {pair.destination: feed.topic(*pair.source) for pair in pairs}


def _names(feed: CompiledFeed, source: SourceAt) -> list[Name]:
    """Return what all tables of a changefeed are called at the destination."""
    with source(Ts(0)) as now:
        return [feed.routes.name(*name) for name in now.tables() if feed.contains(*name, eligible=True)]


def _cut_off(options: Mapping[str, object], topics: Collection[str]) -> set[str]:
    """Return the topics of which a partition does not begin with its first record; one that is not there is none."""
    consumer = kafka_consumer({**options, "group.id": f"{GROUP}bounds", "enable.auto.commit": False})
    cut_off = set()
    try:
        there = consumer.list_topics(timeout=ANSWER_S).topics
        for topic in topics:
            partitions = there[topic].partitions if topic in there else ()
            if any(partition_bounds(consumer, topic, number, answer_s=ANSWER_S)[0] > 0 for number in partitions):
                cut_off.add(topic)
    except KafkaException as error:
        raise KafkaUnreachableError(
            "topics are not readable",
            topics=sorted(topics),
            address=address_of(options),
            reason=error.args[0].str(),
        ) from error
    finally:
        consumer.close()
    return cut_off
