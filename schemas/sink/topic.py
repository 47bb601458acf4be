"""The topic between a changefeed's sorter and its processors, where the sink is no Kafka.

It belongs to one *life* of the changefeed: one that is removed and created again, or resumed from another checkpoint,
gets another topic and other positions, so that nothing of the life before is taken for its own.

The format on a page: docs/formats/sink-topic.md §1.
"""

import dataclasses
import hashlib
import zlib

from schemas.config.settings import ChangefeedConfig
from schemas.config.sink.kafka import KafkaConfig
from schemas.config.sink.schemes import is_lake_scheme, sink_scheme
from schemas.config.sink.sink_uri import DATABASE_SCHEMES, TOPIC_LENGTH_MAX
from schemas.config.sink.storage import STORAGE_SCHEMES
from schemas.nodes.changefeed import ChangefeedInfo

PARTITIONS = 16
"""Tables share them by the hash of their names; each is written by one connection at a time."""
REPLICATION_FACTOR = -1
"""What the brokers' default.replication.factor says, as of the raw log."""
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""Of a message or a part of one: what the raw log's topic takes, too."""
ROW_MESSAGE_BYTES_MAX = 1 << 30
"""Of a row's message, in parts (:mod:`schemas.sink.parts`). TiDB's largest row is 120 MiB, bytes as hex take twice as
much, and no server takes a statement of more (``max_allowed_packet``)."""


def life_of(info: ChangefeedInfo) -> str:
    """Return what tells this life of the changefeed from others of its name."""
    life = f"{info.start_ts}-{zlib.crc32(info.create_time.encode()):08x}"
    return f"{life}-{info.life_epoch}" if info.life_epoch else life


def sink_topic(info: ChangefeedInfo) -> str:
    """Return the topic's name."""
    name = f"tidebus.sink.{info.namespace}.{info.changefeed_id}.{life_of(info)}"
    if len(name) <= TOPIC_LENGTH_MAX:
        return name
    digest = hashlib.sha256(f"{info.namespace}.{info.changefeed_id}".encode()).hexdigest()
    return f"tidebus.sink.{digest}.{life_of(info)}"


def destination_feed(cluster: str, info: ChangefeedInfo) -> str:
    """Return what this life of the changefeed is called in the schema ``tidebus`` of its destination."""
    return f"{cluster}/{info.namespace}/{info.changefeed_id}/{life_of(info)}"


def has_processors(sink_uri: str) -> bool:
    """Tell from a changefeed's sink URI whether processors write to its destination."""
    return sink_scheme(sink_uri) in (*DATABASE_SCHEMES, *STORAGE_SCHEMES)


def names_by_life(sink_uri: str) -> bool:
    """Tell from a changefeed's sink URI whether its life names what is written: a topic between, or lake tables."""
    return has_processors(sink_uri) or is_lake_scheme(sink_scheme(sink_uri))


def writes_own_topic(config: ChangefeedConfig) -> bool:
    """Tell whether a sorter writes to the topic between it and processors, which stands in the bus's own Kafka."""
    return config.uri.server is not None or config.uri.storage is not None


def own_topic_config(config: ChangefeedConfig) -> dict[str, str]:
    """Return what the sorter creates its topics with: for a Kafka sink nothing of ours; the topic between sorter and
    processors must take any row, whatever the brokers' default is.
    """
    if not writes_own_topic(config):
        return {}
    return {"max.message.bytes": str(config.kafka.max_message_bytes)}


def group_id(info: ChangefeedInfo) -> str:
    """Return the consumer group whose offsets show how far the processors are."""
    return f"tidebus-{info.namespace}-{info.changefeed_id}"


def sorter_config(config: ChangefeedConfig, info: ChangefeedInfo, kafka: str) -> ChangefeedConfig:
    """Return the settings that the sorter runs with: in the changefeed's time zone; of another sink than Kafka with the
    topic between.

    Args:
        config: of ``info``.
        kafka: bootstrap servers of the brokers that hold the raw log.
    """
    if config.time_zone != info.time_zone:
        config = dataclasses.replace(config, time_zone=info.time_zone)
    if not writes_own_topic(config):
        return config
    brokers = tuple(broker.strip() for broker in kafka.split(","))
    uri = dataclasses.replace(config.uri, scheme="kafka", brokers=brokers, default_topic=sink_topic(info))
    own = KafkaConfig(
        partition_num=PARTITIONS,
        replication_factor=REPLICATION_FACTOR,
        max_message_bytes=MESSAGE_BYTES_MAX,
        compression="lz4",
        codec=config.codec,
    )
    # Of dispatchers only the names at the destination stay: there is one topic, and its partitions are the bus's.
    routes = tuple(
        dataclasses.replace(rule, topic="", partition=None, dispatcher=None, index="", columns=())
        for rule in config.sink.dispatchers
    )
    sink = dataclasses.replace(config.sink, kafka=own, dispatchers=routes)
    return dataclasses.replace(config, uri=uri, sink=sink, start_ts=info.start_ts)
