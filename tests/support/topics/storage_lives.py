"""Lives of a processor of a storage sink over a real Kafka: killed and begun again."""

import random

from confluent_kafka import Producer

from consumers.processors.core.storage.paths import METADATA
from consumers.processors.processor import ProcessorInputs, ProcessorOptions
from consumers.processors.storage.begin import begin_storage_work
from edges.kafka.access import KafkaAccess
from edges.zookeeper.access import ZooKeeperAccess
from schemas.config.changefeed import load_changefeed
from schemas.ids import UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.position import POSITION_HEADER
from tests.support.rawlog.raw_log import create_topic
from tests.support.topics.storage_share import WholeStorage
from tests.support.topics.storage_topic import PARTITIONS, START_TS, Lines, Topic, check_schema_files, visible

SETTINGS = '[sink]\nfile-index-digit = 6\ndate-separator = "none"\n[sink.csv]\n'
TURNS_MAX = 4_000
Files = dict[str, bytes]


def info_of(name: str, uri: str) -> ChangefeedInfo:
    return ChangefeedInfo(changefeed_id=name, upstream=UpstreamId("u"), sink_uri=uri, start_ts=START_TS)


def write_topic(kafka: str, name: str, topic: Topic) -> None:
    create_topic(kafka, name, PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
    for records in topic.values():
        for record in records:
            headers: dict[str, str | bytes | None] = {POSITION_HEADER: record.position}
            producer.produce(name, record.value, record.key, record.partition, headers=headers)
    assert producer.flush(60) == 0


def inputs(kafka: str, info: ChangefeedInfo) -> ProcessorInputs:
    options = ProcessorOptions(
        changefeed_id=info.changefeed_id, kafka=KafkaAccess(kafka), zookeeper=ZooKeeperAccess("")
    )
    config = load_changefeed(info.sink_uri, SETTINGS)
    return ProcessorInputs(options=options, info=info, config=config, stopped=lambda: False)


def apply_with_crashes(kafka: str, info: ChangefeedInfo, last_ts: int, rng: random.Random) -> None:
    """Begin, die after some turns without a word, begin again; the last life reads to the end."""
    for turns in (rng.randint(0, 3), rng.randint(0, 20), TURNS_MAX):
        work = begin_storage_work(inputs(kafka, info))
        try:
            run = WholeStorage(work.share, work.lead(1)[0], PARTITIONS)
            for _ in range(turns):
                run.turn()
                if turns < TURNS_MAX and rng.random() < 0.3:
                    run.finish()  # a flush in the middle of the topic
                if run.checkpoint_ts == last_ts:
                    break
        finally:
            work.close()


def check_files(files: Files, meant: Lines, last_ts: int, extension: str = "csv") -> None:
    """Hold a storage's files against what was meant: each line once, whole, behind its schema file."""
    check_schema_files(files)
    assert visible(files, extension) == meant
    assert files[METADATA] == b'{"checkpoint-ts":%d}' % last_ts
