"""Each way into a Kafka cluster, by librdkafka and by Spark's own source, and the reader of exact ranges over it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from compose.stack.spark_files import name_spark_files
from edges.kafka.access import KafkaAccess
from edges.kafka.errors import KafkaUnreachableError
from edges.kafka.java_properties import NoJavaWordError, spark_options
from edges.kafka.offsets import TopicReader
from edges.kafka.producer import ordered_producer
from schemas.errors import CorruptDataError
from sorters.cut.record_window import RecordWindow
from sorters.spark.session import create_session
from tests.support.processes.guarded_kafka import PASSWORD, USER, GuardedKafka, guarded_kafka

VALUES = [b"one", b"two", b"three"]
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "TLS": ("TLS", {"security.protocol": "SSL"}),
    "mutual TLS": ("MUTUAL", {"security.protocol": "SSL", "ssl.certificate.location": "", "ssl.key.location": ""}),
    "PLAIN in clear": ("CLEAR", {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}),
    "PLAIN": ("SASL", {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}),
    "SCRAM-SHA-256": ("SASL", {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256"}),
    "SCRAM-SHA-512": ("SASL", {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}),
    "OAUTHBEARER": (
        "SASL",
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": f"principal={USER}",
        },
    ),
    "OIDC": (
        "OIDC",
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": USER,
            "sasl.oauthbearer.client.secret": "s3cret",
        },
    ),
}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedKafka]:
    with guarded_kafka(tmp_path_factory.mktemp("guarded")) as broker:
        yield broker


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    name_spark_files()
    session = create_session("local[1]", "edges", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def topic(kafka: GuardedKafka, fresh_name: Callable[[str], str]) -> str:
    name = fresh_name("edges")
    admin = AdminClient({"bootstrap.servers": kafka.servers("OPEN")})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    return name


def access_to(kafka: GuardedKafka, way: str, folder: Path, **other: str) -> KafkaAccess:
    """Write the file that lets us in, read it as a command does; ``other`` values are wrong ones."""
    listener, settings = WAYS[way]
    settings = dict(settings)
    if "ssl.key.location" in settings:
        pair = kafka.authority.issue("client")
        settings |= {"ssl.certificate.location": pair.cert, "ssl.key.location": pair.key}
    if "SSL" in settings["security.protocol"]:
        settings["ssl.ca.location"] = kafka.authority.path
    if settings.get("sasl.mechanism", "OAUTHBEARER") != "OAUTHBEARER":
        settings |= {"sasl.username": USER, "sasl.password": PASSWORD}
    if "sasl.oauthbearer.method" in settings:
        settings["sasl.oauthbearer.token.endpoint.url"] = kafka.token_url
    settings |= {key.replace("_", "."): value for key, value in other.items()}
    file = folder / "kafka.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    file.chmod(0o600)
    return KafkaAccess.read(kafka.servers(listener), file)


def write(access: KafkaAccess, topic: str, values: list[bytes]) -> None:
    """Append records, and wait until all are acknowledged."""
    producer = ordered_producer(access.config())
    outcomes: list[object] = []
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(30) == 0
    assert outcomes == [None] * len(values)


def refusal(access: KafkaAccess, topic: str) -> str:
    """Return what a reader says that is not let in."""
    reader = TopicReader({**access.config(), "log_level": 0}, topic, timeout_s=2.0)
    with closing(reader), pytest.raises(KafkaUnreachableError) as refused:
        reader.bounds()
    return str(refused.value)


@pytest.mark.parametrize("way", WAYS)
def test_each_way_lets_librdkafka_and_spark_in(
    way: str, kafka: GuardedKafka, spark: Any, topic: str, tmp_path: Path
) -> None:
    access = access_to(kafka, way, tmp_path)
    write(access, topic, VALUES)
    with closing(TopicReader(access.with_texts().config(), topic)) as reader:
        assert reader.bounds() == (0, 3)
        assert list(reader.read(0, 3)) == list(enumerate(VALUES))
    frame = (
        spark.read.format("kafka")
        .options(**spark_options(access))
        .option("assign", json.dumps({topic: [0]}))
        .load()
        .select("offset", "value")
    )
    assert sorted((row.offset, bytes(row.value)) for row in frame.collect()) == list(enumerate(VALUES))


@pytest.mark.parametrize(
    ("way", "wrong"),
    [
        ("PLAIN", {"sasl_password": "wrong"}),
        ("SCRAM-SHA-256", {"sasl_password": "wrong"}),
        ("SCRAM-SHA-512", {"sasl_username": "nobody"}),
        ("OIDC", {"sasl_oauthbearer_client_secret": "wrong"}),
    ],
)
def test_who_does_not_know_the_password_is_not_let_in(
    way: str, wrong: dict[str, str], kafka: GuardedKafka, topic: str, tmp_path: Path
) -> None:
    access = access_to(kafka, way, tmp_path, **wrong)
    reason = refusal(access, topic)
    assert PASSWORD not in reason


@pytest.mark.parametrize("listener", ["TLS", "MUTUAL", "SASL", "CLEAR", "OIDC"])
def test_who_shows_nothing_is_not_let_in(listener: str, kafka: GuardedKafka, topic: str) -> None:
    refusal(KafkaAccess(kafka.servers(listener)), topic)


def test_broker_of_another_ca_is_not_trusted(kafka: GuardedKafka, topic: str, tmp_path: Path) -> None:
    pair = kafka.authority.issue("no-ca")
    access = access_to(kafka, "TLS", tmp_path, ssl_ca_location=pair.cert)
    refusal(access, topic)


def test_spark_is_not_let_in_without_what_java_has_no_word_for(kafka: GuardedKafka, tmp_path: Path) -> None:
    access = access_to(kafka, "TLS", tmp_path, enable_ssl_certificate_verification="false")
    with pytest.raises(NoJavaWordError) as refused:
        spark_options(access)
    assert refused.value.fields["key"] == "enable.ssl.certificate.verification"


@pytest.mark.parametrize("are_checked", [False, True])
def test_bit_that_the_brokers_disk_has_changed_is_named_unless_the_records_are_checked(
    are_checked: bool, kafka: GuardedKafka, topic: str
) -> None:
    access = KafkaAccess(kafka.servers("OPEN"))
    for value in VALUES:
        write(access, topic, [value])  # a batch each
    (file,) = (kafka.folder / "log" / f"{topic}-0").glob("*.log")
    with file.open("r+b") as stored:
        stored.seek(file.read_bytes().index(b"two"))
        stored.write(b"Two")
    with closing(TopicReader(access.config(), topic, are_checked=are_checked)) as reader:
        if are_checked:
            assert list(reader.read(0, 3)) == [(0, b"one"), (1, b"Two"), (2, b"three")]
            return
        assert list(reader.read(0, 1)) == [(0, b"one")]
        with pytest.raises(CorruptDataError, match="damaged") as caught:
            list(reader.read(0, 3))
        assert {name: caught.value.fields[name] for name in ("topic", "partition", "offset")} == {
            "topic": topic, "partition": 0, "offset": 1,
        }  # fmt: skip
        assert list(reader.read(2, 3)) == [(2, b"three")]


LZ4_FRAME = bytes.fromhex("04224d18")
"""Its magic number; two bytes follow that describe it, a checksum of these, and the size of its first block."""
IN_BLOCK_SIZE, IN_BLOCK = 8, 13


def damage_batch(kafka: GuardedKafka, topic: str, at: int, number: int = 0) -> None:
    """Write two compressed batches of 20 records, and flip a bit of one's frame in the broker's file."""
    compressing = {"compression.type": "lz4", "linger.ms": 60_000}
    for _ in range(2):
        producer = ordered_producer({**KafkaAccess(kafka.servers("OPEN")).config(), **compressing})
        for row in range(20):
            producer.produce(topic, b"row %d " % row * 40, partition=0)
        assert producer.flush(30) == 0
    (file,) = (kafka.folder / "log" / f"{topic}-0").glob("*.log")
    with file.open("r+b") as stored:
        content = stored.read()
        assert content.count(LZ4_FRAME) == 2
        frames = [content.index(LZ4_FRAME), content.rindex(LZ4_FRAME)]
        where = frames[number] + at
        stored.seek(where)
        stored.write(bytes([content[where] ^ 0x10]))


def test_compressed_batch_that_brings_too_few_records_is_named_and_is_not_a_silent_broker(
    kafka: GuardedKafka, topic: str
) -> None:
    damage_batch(kafka, topic, IN_BLOCK)
    config = KafkaAccess(kafka.servers("OPEN")).config()
    with closing(TopicReader(config, topic, timeout_s=2.0, are_checked=True)) as reader:
        with pytest.raises(CorruptDataError, match="a batch of records is damaged") as caught:
            list(reader.read(0, 40))
        assert (caught.value.fields["topic"], caught.value.fields["partition"]) == (topic, 0)
        assert caught.value.fields["offset"] in range(20)
        assert [offset for offset, _ in reader.read(20, 40)] == list(range(20, 40))


def test_compressed_batch_that_kafkas_client_does_not_survive_is_named_by_who_checks_batches(
    kafka: GuardedKafka, topic: str
) -> None:
    damage_batch(kafka, topic, IN_BLOCK_SIZE)
    access = KafkaAccess(kafka.servers("OPEN"))
    program = (
        "import sys; from edges.kafka.offsets import TopicReader; list(TopicReader({'bootstrap.servers': "
        "sys.argv[1]}, sys.argv[2], are_checked=True).read(0, 40))"
    )
    command = [sys.executable, "-c", program, access.servers, topic]
    ended = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=60, check=False
    )
    assert ended.returncode == -signal.SIGABRT, "the client survives it now: what follows an abort may go"
    with closing(TopicReader(access.checking_batches().config(), topic, are_checked=True)) as reader:
        with pytest.raises(CorruptDataError, match="a batch of records is damaged") as caught:
            list(reader.read(0, 40))
        assert caught.value.fields["offset"] == 0


def test_batch_that_a_read_has_fetched_ahead_is_named_by_the_one_that_needs_it(kafka: GuardedKafka, topic: str) -> None:
    damage_batch(kafka, topic, IN_BLOCK_SIZE, number=1)
    config = KafkaAccess(kafka.servers("OPEN")).checking_batches().config()
    with closing(RecordWindow(config, topic)) as window:
        for _ in range(2):
            assert [offset for _, offset, _ in window.read_all({0: (0, 20)})] == list(range(20))
            with pytest.raises(CorruptDataError, match="a batch of records is damaged") as caught:
                list(window.read_all({0: (20, 25)}))
            assert caught.value.fields["offset"] == 20


def test_reader_goes_on_where_it_was_when_the_broker_restarts(kafka: GuardedKafka, topic: str, tmp_path: Path) -> None:
    access = access_to(kafka, "SCRAM-SHA-512", tmp_path)
    count = 4_000
    write(access, topic, [b"%d" % number for number in range(count)])
    config = {**access.config(), "queued.max.messages.kbytes": 1, "fetch.message.max.bytes": 1024, "log_level": 0}
    taken: list[tuple[int, bytes]] = []
    with closing(TopicReader(config, topic, timeout_s=60.0)) as reader:
        records = reader.read(0, count)
        taken += [next(records) for _ in range(100)]
        kafka.process.kill()
        kafka.process.wait(30)
        back = threading.Thread(target=kafka.process.start)
        back.start()
        taken += records
        back.join()
    assert taken == [(number, b"%d" % number) for number in range(count)]
    kafka.wait_ready()
