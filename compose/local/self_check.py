"""`tidebus run` checks its own promises: the raw log's row changes up to the checkpoint are in the topics, in order.

Reads the raw log and the changefeed's topics from Kafka, end to end, and knows nothing of the sorter: what has to be
there follows from the raw batches, the schema store and the table filter alone.
"""

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec, TopicMetadata

from compose.local.promises import Hashes, PartitionCheck, SetDifference, compare_rows, row_hashes, total
from consumers.control.changefeeds.store import ChangefeedStore
from edges.kafka.access import KafkaAccess
from edges.kafka.clients import kafka_admin, kafka_consumer
from edges.kafka.offsets import value_of
from edges.secrets import load_with_secrets
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import Session
from schemas.changes import Op, RowChanges
from schemas.config.client_options import librdkafka_options
from schemas.config.parse.raw_offsets import RawOffsets
from schemas.config.settings import ChangefeedConfig
from schemas.ddl.bad_jobs import BadJobs
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import Action, BusError
from schemas.ids import TableId, Ts
from schemas.nodes.changefeed import NAMESPACE_DEFAULT, ChangefeedInfo, ZkPaths
from schemas.rawlog.ddl_record import read_ddl_record
from schemas.rawlog.record_check import RawRecord
from schemas.rawlog.region_batch import decode_region_batch
from schemas.rawlog.row_parts import PartJoiner
from schemas.rawlog.topics import RAW_MESSAGE_BYTES_MAX, RawTopics, raw_topics
from schemas.sink.position import POSITION_HEADER
from schemas.tidb.table import TableVersion
from sorters.core.filter.table_filter import TableFilter

log = logging.getLogger(__name__)
KafkaSettings = Mapping[str, object]
"""librdkafka's: servers, TLS, SASL."""

READ_TIMEOUT_S = 30.0
"""Without a record from a topic that is known to have more."""
_FETCH_RECORDS = 5_000
_NAMED_MAX = 10
"""Damaged records that a note names."""


class SelfCheckError(BusError):
    """The check itself cannot be made."""

    code, action = "selfcheck.impossible", Action.RETRY


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCheckResult:
    """What was found. ``violations`` holds the first ones of each kind."""

    changefeed_id: str
    checkpoint_ts: Ts
    raw_rows: int
    """Row changes in the raw log, repeats included."""
    expected_rows: int
    """Distinct ones that the topics must hold: above start_ts, up to the checkpoint, of tables that are replicated."""
    topics: int
    partitions: int
    rows: int
    """Row messages, repeats excluded; a split update counts twice, and rows above the checkpoint count too."""
    ddls: int
    watermarks: int
    repeats: int
    seconds: float
    violations: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """No promise was broken."""
        return not self.violations

    def lines(self) -> list[str]:
        """Return the result for people."""
        verdict = "promises hold" if self.ok else "PROMISES BROKEN"
        head = f"self check of {self.changefeed_id}: {verdict} up to checkpoint {self.checkpoint_ts}"
        counted = (
            f"  {self.expected_rows:,} row changes are to be in {self.topics} topics ({self.partitions} partitions); "
            f"read {self.rows:,} rows, {self.ddls:,} DDLs, {self.watermarks:,} watermarks, {self.repeats:,} repeats "
            f"in {self.seconds:.1f} s"
        )
        return [
            head,
            counted,
            *(f"  note: {note}" for note in self.notes),
            *(f"  broken: {text}" for text in self.violations),
        ]


def check_changefeed(
    kafka: KafkaAccess,
    zookeeper: ZooKeeperAccess,
    *,
    cluster: str,
    changefeed_id: str,
    namespace: str = NAMESPACE_DEFAULT,
) -> SelfCheckResult:
    """Check one changefeed against the raw log, up to the checkpoint that it has now.

    Raises:
        SelfCheckError: Kafka does not answer, or the changefeed has no checkpoint yet.
        BusError: ZooKeeper failed, there is no such changefeed, or the raw log does not decode.
    """
    began_at = time.monotonic()
    with Session(zookeeper) as session:
        store = ChangefeedStore(session, ZkPaths(cluster))
        info, status = store.get(changefeed_id, namespace), store.status(changefeed_id, namespace)
    if status is None:
        raise SelfCheckError("changefeed has no checkpoint yet; its sorter has not run", changefeed=changefeed_id)
    config = load_with_secrets(info)
    # The user of a sink may only write. Where the sink is the bus's own Kafka, who checks reads as himself.
    sink = kafka.config() if config.uri.bootstrap_servers == kafka.servers else librdkafka_options(config)
    # Topics first: whatever stands in them has been in the raw log for long.
    names = output_topics(config, _topic_names(sink))
    checks = _check_topics(sink, names)
    raw = _read_raw(kafka.config(), raw_topics(info.upstream), info, config, Ts(status.checkpoint_ts))
    seen = np.concatenate([np.zeros(0, np.uint64), *(check.row_hashes() for check in checks)])
    difference = compare_rows(raw.expected, raw.must, seen)
    notes = list(_notes(config, raw))
    whole = not config.filter.event_filters
    violations = [text for check in checks for text in check.violations]
    if whole:
        violations += _losses(kafka.config(), raw_topics(info.upstream), difference, config.filter.skipped_records)
    if difference.invented.size:
        violations.append(f"{difference.invented.size:,} rows of the topics are in no batch of the raw log")
    counts = total(checks)
    return SelfCheckResult(
        changefeed_id=changefeed_id,
        checkpoint_ts=status.checkpoint_ts,
        raw_rows=raw.rows,
        expected_rows=int(np.unique(raw.must).size),
        topics=len(names),
        partitions=len(checks),
        rows=counts["rows"],
        ddls=counts["ddls"],
        watermarks=counts["watermarks"],
        repeats=counts["repeats"],
        seconds=time.monotonic() - began_at,
        violations=tuple(violations),
        notes=tuple(notes),
    )


def _notes(config: ChangefeedConfig, raw: "_Raw") -> Iterator[str]:
    if config.filter.event_filters:
        yield "the changefeed filters events: whether a row is missing was not checked"
    if raw.skipped:
        named = ", ".join(f"{partition}:{offset}" for partition, offset in raw.skipped[:_NAMED_MAX])
        more = f" and {len(raw.skipped) - _NAMED_MAX:,} more" if len(raw.skipped) > _NAMED_MAX else ""
        yield f"damaged raw records that filter.skip-damaged-records names hold no row that was checked: {named}{more}"


def output_topics(config: ChangefeedConfig, existing: list[str]) -> list[str]:
    """Return those of the existing topics that the changefeed's rules can name: its default topic, and expressions."""
    expressions = [rule.topic for rule in config.sink.dispatchers if rule.topic]
    patterns = [re.escape(config.default_topic)]
    for expression in expressions:
        parts = re.split(r"\{schema\}|\{table\}", expression)
        patterns.append(".+".join(re.escape(part) for part in parts))
    matches = re.compile("|".join(f"(?:{pattern})" for pattern in patterns)).fullmatch
    raw = re.compile(r"tidebus\..*\.(region-events|ddl|frontier)").fullmatch
    return sorted(name for name in existing if matches(name) and not raw(name) and not name.startswith("__"))


@dataclass(slots=True)
class _Raw:
    rows: int
    expected: Hashes
    must: Hashes
    skipped: list[tuple[int, int]]
    """Partition and offset of damaged records that the changefeed passes over."""


def _read_raw(
    kafka: KafkaSettings, topics: RawTopics, info: ChangefeedInfo, config: ChangefeedConfig, upto: Ts
) -> _Raw:
    """Hash the rows that are to be in the topics (``must``: up to ``upto``)."""
    store, bad_jobs = SchemaStore.empty(), BadJobs()
    for message in _read_topics(kafka, [topics.ddl]):
        record = read_ddl_record(value_of(message), topic=topics.ddl, offset=message.offset())
        if record is not None:  # else it is nobody's of ours, as readers take it
            # A bad job stops the changefeeds that it concerns; what they have written is below it.
            bad_jobs.apply(store, record)
    rows, expected, must = 0, [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    replicated = _Replicated(store, config)
    skipped: list[tuple[int, int]] = []
    named = config.filter.skipped_records
    for _, batch in _read_batches(kafka, topics.region_events, named, skipped.append):
        rows += len(batch)
        wanted = (batch.commit_ts > info.start_ts) & replicated.rows(batch.table_id, batch.commit_ts)
        lengths = np.diff(_offsets(batch.value)) + np.diff(_offsets(batch.old_value))
        # A delete of a row that was never there says nothing, and TiCDC drops it.
        wanted &= (batch.op == Op.PUT) | (lengths > 0)
        if config.filter.ignore_txn_start_ts:
            wanted &= ~np.isin(batch.start_ts, np.array(config.filter.ignore_txn_start_ts, np.int64))
        if not wanted.any():
            continue
        keys = [key for key, take in zip(batch.key.to_pylist(), wanted, strict=True) if take]
        deleted = batch.op[wanted] == Op.DELETE
        hashes = row_hashes(batch.commit_ts[wanted], batch.start_ts[wanted], keys, deleted)
        expected.append(hashes)
        must.append(hashes[batch.commit_ts[wanted] <= upto])
    return _Raw(rows, np.concatenate(expected), np.concatenate(must), skipped)


class _Replicated:
    """Which rows have a schema, and one that is replicated."""

    def __init__(self, store: SchemaStore, config: ChangefeedConfig) -> None:
        self._store, self._force = store, config.force_replicate
        # The only code shared with the sorter: what table-filter rules mean is a matter of its own, tested on its own.
        self._filter = TableFilter(config.filter.rules, config.case_sensitive)
        self._known: dict[TableId, tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]] = {}

    def rows(self, table: TableId, commit_ts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return one flag a row: the version valid just before its commit_ts is there and eligible."""
        if table not in self._known:
            versions = self._store.versions_of(table)
            after = np.array([ts for ts, _ in versions], np.int64)
            good = [version is not None and self._takes(version) for _, version in versions]
            self._known[table] = after, np.array([False, *good], bool)
        after, good_after = self._known[table]
        flags: npt.NDArray[np.bool_] = good_after[np.searchsorted(after, commit_ts, side="left")]
        return flags

    def _takes(self, version: TableVersion) -> bool:
        return (version.eligible or self._force) and self._filter.matches(version.schema, version.table)


def _losses(kafka: KafkaSettings, topics: RawTopics, difference: SetDifference, named: RawOffsets) -> list[str]:
    """Describe what is missing; reads the raw log again, which only a broken promise pays for."""
    if not difference.missing.size:
        return []
    texts = [f"{difference.missing.size:,} row changes of the raw log are not in the topics"]
    for message, batch in _read_batches(kafka, topics.region_events, named):
        keys = batch.key.to_pylist()
        hashes = row_hashes(batch.commit_ts, batch.start_ts, keys, batch.op == Op.DELETE)
        texts.extend(
            f"missing: table {batch.table_id} commit_ts {batch.commit_ts[at]} start_ts {batch.start_ts[at]} "
            f"key {keys[at].hex()} (raw record {message.partition()}@{message.offset()})"
            for at in np.flatnonzero(np.isin(hashes, difference.missing))[:3]
        )
        if len(texts) > 3:
            break
    return texts


def _read_batches(
    kafka: KafkaSettings, topic: str, named: RawOffsets, on_skipped: Callable[[tuple[int, int]], None] = lambda _: None
) -> Iterator[tuple[Any, RowChanges]]:
    """Yield the rows of the raw log's records, each with the message that it is in, or the last one that it is in.

    Args:
        named: damaged records among them are passed over, and ``on_skipped`` gets where each stands.

    Raises:
        CorruptDataError: another one is damaged.
    """
    joiner = PartJoiner(keeps_unknown=True)
    for message in _read_topics(kafka, [topic]):
        where = message.partition(), message.offset()
        whole = joiner.take(message.partition(), RawRecord.of(message))
        if whole is None:
            continue
        if where in named and isinstance(whole, RawRecord) and whole.damage is not None:
            on_skipped(where)
            continue
        yield message, decode_region_batch(whole).rows


def _check_topics(kafka: KafkaSettings, topics: list[str]) -> list[PartitionCheck]:
    checks: dict[tuple[str, int], PartitionCheck] = {}
    for message in _read_topics(kafka, topics, checks):
        headers = message.headers() or ()
        position = next((value for name, value in headers if name == POSITION_HEADER), None)
        checks[message.topic(), message.partition()].note(message.offset(), position)
    return list(checks.values())


def _read_topics(
    kafka: KafkaSettings, topics: list[str], checks: dict[tuple[str, int], PartitionCheck] | None = None
) -> Iterator[Any]:
    """Yield the topics' messages up to their present ends; ``checks`` gets each partition, empty ones too."""
    with _consumer(kafka) as consumer:
        ends = _ends(kafka, consumer.list_topics(timeout=READ_TIMEOUT_S).topics, topics)
        if checks is not None:
            checks.update({(topic, number): PartitionCheck(f"{topic}[{number}]") for topic, number in sorted(ends)})
        left = {partition: end for partition, (start, end) in ends.items() if start < end}
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in left])
        heard_at = time.monotonic()
        while left:
            for message in consumer.consume(_FETCH_RECORDS, timeout=1.0):
                heard_at = time.monotonic()
                partition, error = (message.topic(), message.partition()), message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise SelfCheckError(
                        "topic cannot be read", topic=partition[0], partition=partition[1], reason=error
                    )
                if partition not in left:
                    continue
                if error is None and message.offset() < left[partition]:
                    yield message
                # The end of a topic may be a transaction's marker, which is no message: then EOF says so.
                if error is not None or message.offset() + 1 >= left[partition]:
                    del left[partition]
            if time.monotonic() - heard_at > READ_TIMEOUT_S:
                raise SelfCheckError("topics do not come to their end", left=dict(list(left.items())[:5]))


def _ends(
    kafka: KafkaSettings, metadata: dict[str, TopicMetadata], topics: list[str]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the first and next offset of each partition, in two requests however many there are."""
    topic_partitions = []
    for topic in topics:
        if topic not in metadata or metadata[topic].error is not None:
            raise SelfCheckError("there is no such topic", topic=topic)
        topic_partitions += [TopicPartition(topic, number) for number in metadata[topic].partitions]
    admin = kafka_admin(kafka, log)
    bounds: list[dict[tuple[str, int], int]] = []
    for which in (OffsetSpec.earliest(), OffsetSpec.latest()):
        futures = admin.list_offsets(dict.fromkeys(topic_partitions, which), request_timeout=READ_TIMEOUT_S)
        bounds.append({(at.topic, at.partition): int(future.result().offset) for at, future in futures.items()})
    return {partition: (start, bounds[1][partition]) for partition, start in bounds[0].items()}


def _topic_names(kafka: KafkaSettings) -> list[str]:
    with _consumer(kafka) as consumer:
        return list(consumer.list_topics(timeout=READ_TIMEOUT_S).topics)


@contextlib.contextmanager
def _consumer(kafka: KafkaSettings) -> Iterator[Any]:
    consumer = kafka_consumer(
        {
            **kafka,
            "group.id": "tidebus-self-check",  # never joined: partitions are assigned by hand
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.message.max.bytes": RAW_MESSAGE_BYTES_MAX,
        },
        log,
    )
    try:
        yield consumer
    except KafkaException as error:
        raise SelfCheckError("Kafka does not answer", kafka=kafka.get("bootstrap.servers"), reason=error) from error
    finally:
        consumer.close()


def _offsets(column: Any) -> npt.NDArray[np.int32]:
    """Return the int32 offsets of a BinaryArray."""
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
