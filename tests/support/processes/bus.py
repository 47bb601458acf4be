"""The whole bus as real processes, for end-to-end tests: what it was given, and what a plain consumer reads from it."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec
from kazoo.exceptions import NoNodeError

from compose.kafka_follower import Record, TopicFollower
from compose.local.bus import LocalBus
from compose.stack.errors import ChildError
from consumers.control.changefeeds.store import ChangefeedExistsError, ChangefeedRequest, ChangefeedStore
from consumers.control.log.raw_log import retained_frontier
from edges.kafka.access import KafkaAccess
from producers.region_server.core.store.mvcc import LockKind, Write
from producers.region_server.kv.store import ClusterStore
from schemas.errors import Action, BusError
from schemas.ids import TableId
from schemas.nodes.changefeed import NAMESPACE_DEFAULT, ChangefeedStatus
from schemas.rawlog.topics import raw_topics
from schemas.sink.position import POSITION_HEADER
from tests.support.control.lasting_session import lasting_session
from tests.support.control.pauses import LONGEST_S, growing_pauses
from tests.support.recorded.recording import oracle
from tests.support.topics.messages import TopicRecord
from tests.support.topics.validator import UpstreamChange

READ_S = 300.0
"""For all records of a topic, from a broker that many ask."""
LOSSY_SOURCE_BITS = 0xFF00
NO_LEADER_YET = (
    KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART,
)  # fmt: skip


def wait_until(
    done: Callable[[], bool],
    timeout_s: float,
    what: str,
    bus: LocalBus | None = None,
    *,
    longest_s: float = LONGEST_S,
) -> None:
    """Wait, letting the bus's supervisor look meanwhile; fail with the processes' last words. While a part that is
    asked does not answer it is not so. ``longest_s``: between two looks.
    """
    deadline, unanswered, pauses = time.monotonic() + timeout_s, "", growing_pauses(longest_s)
    while True:
        try:
            if done():
                return
            unanswered = ""
        except ChildError:
            raise
        except BusError as error:
            if error.action is not Action.RETRY:
                raise
            unanswered = f" ({error})"
        if bus is not None:
            bus.tick()
        if time.monotonic() > deadline:
            words = {name: child.tail(15) for name, child in bus.processes.items()} if bus is not None else {}
            said = "\n".join(map(str, words.items()))
            raise AssertionError(f"{what}: not within {timeout_s:.0f} s{unanswered}\n{said}")
        time.sleep(next(pauses))


def create_from_the_start(bus: LocalBus, request: ChangefeedRequest) -> int:
    """Create a changefeed at the raw log's first ts, as soon as there is one, and return that ts."""
    start: list[int] = []

    def created() -> bool:
        window = retained_frontier(bus.addresses.kafka_access, raw_topics(request.upstream))
        if window is None:
            return False
        with contextlib.suppress(ChangefeedExistsError):  # the answer to the attempt before was lost
            bus.create_changefeed(replace(request, start_ts=window.oldest_ts))
        with lasting_session(bus.addresses.zookeeper_access) as session:
            start.append(ChangefeedStore(session, bus.zk_paths).get(str(request.changefeed_id)).start_ts)
        return True

    wait_until(created, 240, "first frontier", bus)
    return start[0]


def sorter_pid(bus: LocalBus, changefeed_id: str) -> int | None:
    """Return the process id of the sorter that holds the changefeed's lock; None: nobody does."""
    path = bus.zk_paths.changefeed_sorter(NAMESPACE_DEFAULT, changefeed_id)
    with (
        lasting_session(bus.addresses.zookeeper_access) as session,
        session.requests("reading a sorter's lock") as client,
    ):
        try:
            return int(json.loads(client.get(path)[0])["pid"])
        except NoNodeError:
            return None


def kill_sorter(bus: LocalBus, changefeed_id: str) -> None:
    """``kill -9`` of a changefeed's sorter with all that it has started: its JVM, its Python workers."""
    pid = sorter_pid(bus, changefeed_id)
    assert pid is not None
    os.killpg(pid, signal.SIGKILL)


def status(bus: LocalBus, changefeed_id: str) -> ChangefeedStatus | None:
    """Return how far the changefeed is."""
    with lasting_session(bus.addresses.zookeeper_access) as session:
        return ChangefeedStore(session, bus.zk_paths).status(changefeed_id)


def wait_checkpoint(bus: LocalBus, changefeed_id: str, ts: int, timeout_s: float) -> None:
    """Wait until the changefeed has passed ``ts``; one that fails ends the wait."""
    with lasting_session(bus.addresses.zookeeper_access) as session:
        store = ChangefeedStore(session, bus.zk_paths)

        def passed() -> bool:
            now = store.status(changefeed_id)
            if now is not None and now.state == "failed":
                raise ChildError(f"changefeed {changefeed_id} failed", error=now.error)
            return now is not None and now.checkpoint_ts >= ts

        wait_until(passed, timeout_s, f"checkpoint of {changefeed_id} at {ts}", bus)


def topic_names(kafka: KafkaAccess, prefix: str) -> list[str]:
    """Return the topics whose names start so."""
    topics = AdminClient({**kafka.config(), "log_level": 0}).list_topics(timeout=READ_S).topics
    return sorted(name for name in topics if name.startswith(prefix))


def topic_records(kafka: KafkaAccess, prefix: str) -> Iterator[TopicRecord]:
    """Yield what a consumer reads from all topics with a prefix, each partition in its order."""
    for topic in topic_names(kafka, prefix):
        for record in _all_records(kafka, topic):
            position = dict(record.headers).get(POSITION_HEADER)
            yield TopicRecord(topic, record.partition, record.offset, record.key, record.value, position)


def _all_records(kafka: KafkaAccess, topic: str) -> list[Record]:
    """Read a topic to its end, and again from its start while the broker has no time."""
    read: list[list[Record]] = []

    def is_read() -> bool:
        with TopicFollower(kafka, topic) as follower:
            read.append(list(follower.read_to_end()))
        return True

    wait_until(is_read, READ_S, f"all of {topic}")
    return read[-1]


def topic_count(kafka: KafkaAccess, prefix: str) -> int:
    """Return how many records the topics with a prefix hold."""
    return sum(topic_ends(kafka, prefix).values())


def topic_ends(kafka: KafkaAccess, prefix: str) -> dict[tuple[str, int], int]:
    """Return where the partitions of all topics with a prefix end, by topic and number; in two requests, so that
    whoever waits for a moment comes in time.
    """
    admin = AdminClient({**kafka.config(), "log_level": 0})
    topics = admin.list_topics(timeout=READ_S).topics
    partitions = [
        TopicPartition(name, number)
        for name, topic in topics.items()
        if name.startswith(prefix)
        for number in topic.partitions
    ]
    if not partitions:
        return {}
    ends = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest()), request_timeout=READ_S)
    return {(partition.topic, partition.partition): _end_offset(end) for partition, end in ends.items()}


def _end_offset(end: "Future[ListOffsetsResultInfo]") -> int:
    try:
        return int(end.result().offset)
    except KafkaException as error:
        if error.args[0].code() not in NO_LEADER_YET:
            raise
        return 0  # the topic was made a moment ago


def recorded_upstream(*, after_ts: int, without: frozenset[str]) -> Iterator[UpstreamChange]:
    """Yield the recording's row changes as TiCDC's own mounter found them; lossy-DDL rows are never delivered."""
    for row in oracle("mounted"):
        name = f"{row['schema']}.{row['table']}"
        if row["commit_ts"] > after_ts and name not in without and not row.get("txn_source", 0) & LOSSY_SOURCE_BITS:
            key = bytes.fromhex(row["key"])
            yield UpstreamChange(row["commit_ts"], row["start_ts"], key, row["op"], name)


def stored_upstream(store: ClusterStore, tables: dict[TableId, str]) -> list[UpstreamChange]:
    """Return every committed version that the region server's store holds of some tables, by physical id."""
    changes: list[UpstreamChange] = []
    for region in store.regions:
        for key, newest in region.data.writes.items():
            table = (
                TableId(int.from_bytes(key[1:9], "big") ^ (1 << 63)) if key[:1] == b"t" and key[9:11] == b"_r" else None
            )
            if table in tables:
                changes += _versions(key, newest, tables[table])
    return changes


def _versions(key: bytes, newest: Write | None, name: str) -> Iterator[UpstreamChange]:
    version = newest
    while version is not None:
        before = version.previous
        there = before is not None and before.op == LockKind.PUT
        if version.op == LockKind.PUT:
            yield UpstreamChange(version.commit_ts, version.start_ts, key, "update" if there else "insert", name)
        elif there:
            yield UpstreamChange(version.commit_ts, version.start_ts, key, "delete", name)
        version = before
