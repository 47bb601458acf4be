"""What a changefeed would do with each table: topic, partition, key, largest message, subjects; the rights it needs.

Source of the rights: Kafka's documentation, "Authorization Primitives", and what the sorter asks of its clients.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from schemas.config.settings import ChangefeedConfig
from schemas.config.sink.kafka import MESSAGE_OVERHEAD_BYTES, PARTITIONS_DEFAULT
from schemas.ddl.schema_change import StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError
from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from sorters.core.feed.feed import CompiledFeed
from sorters.core.feed.initial_schemas import not_told
from sorters.core.feed.widest_row import widest_message
from sorters.core.route.dispatch import PartitionRule, Route

_KEYS: Final = {
    "canal-json": "none",
    "canal": "none",
    "simple": "none",
    "open-protocol": "JSON: ts, schema, table",
    "default": "JSON: ts, schema, table",
}
"""What stands in the messages' keys; the other protocols take the handle key's columns."""

_RECOVERS: Final = (
    "RECOVER TABLE, FLASHBACK TABLE and FLASHBACK DATABASE need a TiDB that still has what was dropped; any other "
    "destination stops with apply.recover_refused, which says what to make there by hand"
)


class SinkTopicFacts(Protocol):
    """What a broker says of a topic that is there."""

    @property
    def partitions(self) -> int: ...
    @property
    def message_bytes_max(self) -> int:
        """Key, value and overhead."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedTable:
    """One table. What cannot be said, because the settings do not fit it, is None; ``trouble`` says why."""

    table: str
    replicated: bool
    target: str | None = None
    """Its name at the destination, where a route gives it another one."""
    topic: str | None = None
    topic_exists: bool | None = None
    """None: nobody asked."""
    partitions: int | None = None
    partition_by: str | None = None
    message_key: str | None = None
    columns: int | None = None
    """In its messages."""
    largest_message_bytes: int | None = None
    """Estimate, with a message's overhead."""
    limit_bytes: int | None = None
    """The largest message that changefeed and topic allow."""
    row_capped: bool = False
    """The estimate is of the largest row that TiDB takes; its columns would allow more."""
    if_too_large: str | None = None
    subjects: tuple[str, ...] = ()
    trouble: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class NeededAcl:
    """A right that the changefeed's user needs at the sink's brokers."""

    resource: str
    """topic or cluster."""
    name: str
    operations: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything."""

    ts: Ts
    tables: tuple[ExplainedTable, ...]
    acls: tuple[NeededAcl, ...]
    notes: tuple[str, ...] = field(default=())


def explain(
    store: SchemaStore,
    ts: Ts,
    config: ChangefeedConfig,
    feed: CompiledFeed,
    topics: Mapping[str, SinkTopicFacts] | None = None,
) -> Explanation:
    """Explain a changefeed over the tables as they stand at ``ts``.

    Args:
        topics: those that the sink has, by name; None: nobody asked its brokers.

    Raises:
        CorruptDataError: a TableInfo does not decode.
    """
    stored = [
        table for table in store.stored_at(ts) if table.has_rows and feed.filter.matches(table.schema, table.table)
    ]
    stored.sort(key=lambda table: (table.schema, table.table))
    tables = tuple(_table(store, table, config, feed, topics) for table in stored)
    used = {table.topic for table in tables if table.topic is not None} | {config.default_topic}
    left_out = not_told(store, ts, feed)
    notes = (*config.notes, *_shared_subjects(tables), *([str(left_out)] if left_out else []))
    if config.uri.server is not None:
        notes += (_RECOVERS,)
    return Explanation(ts=ts, tables=tables, acls=_acls(sorted(used), config, topics), notes=notes)


def topics_of(store: SchemaStore, ts: Ts, feed: CompiledFeed) -> set[str]:
    """Return the topics that :func:`explain` speaks of."""
    named = (
        table for table in store.stored_at(ts) if table.has_rows and feed.filter.matches(table.schema, table.table)
    )
    return {feed.topic(table.schema, table.table) for table in named} | {feed.default_topic}


def _table(
    store: SchemaStore,
    stored: StoredTable,
    config: ChangefeedConfig,
    feed: CompiledFeed,
    topics: Mapping[str, SinkTopicFacts] | None,
) -> ExplainedTable:
    name = f"{stored.schema}.{stored.table}"
    if not feed.contains(stored.schema, stored.table, eligible=stored.eligible):
        why = "no primary key and no not-null unique key, and force-replicate is off"
        return ExplainedTable(table=name, replicated=False, trouble=(why,))
    table = store.decoded(stored)
    topic = feed.topic(stored.schema, stored.table)
    facts = None if topics is None else topics.get(topic)
    limit = min(config.kafka.max_message_bytes, facts.message_bytes_max if facts else config.kafka.max_message_bytes)
    trouble: list[str] = []
    try:
        route, selection = feed.select(table)
        feed.events.conditions(table)
    except BusError as misfit:
        return ExplainedTable(table=name, replicated=True, topic=topic, limit_bytes=limit, trouble=(str(misfit),))
    sent = feed.routes.version(table if selection is None else selection.table)
    partitions = _partitions(config, facts, trouble)
    largest, capped = None, False
    try:
        widest = widest_message(sent, feed.encoder, topic)
        largest, capped = widest.bytes + MESSAGE_OVERHEAD_BYTES, widest.row_capped
    except BusError as refused:
        trouble.append(str(refused))
    if largest is not None and largest > limit:
        trouble.append(f"a row may become a message of some {largest} bytes, {limit} are allowed")
    return ExplainedTable(
        table=name,
        replicated=True,
        target=sent.name if sent.name != table.name else None,
        topic=topic,
        topic_exists=None if topics is None else facts is not None,
        partitions=partitions,
        partition_by=_partition_by(route),
        message_key=_message_key(config, sent),
        columns=len(sent.columns),
        largest_message_bytes=largest,
        limit_bytes=limit,
        row_capped=capped,
        if_too_large=_if_too_large(config),
        subjects=tuple(text.subject for text in feed.row_schemas(table)),
        trouble=tuple(trouble),
    )


def _partitions(config: ChangefeedConfig, facts: SinkTopicFacts | None, trouble: list[str]) -> int:
    wanted = config.kafka.partition_num
    if facts is None:
        return wanted or PARTITIONS_DEFAULT
    if wanted is not None and wanted > facts.partitions:
        trouble.append(f"partition-num is {wanted}, and the topic has {facts.partitions}")
    return min(wanted or facts.partitions, facts.partitions)


def _partition_by(route: Route) -> str:
    if route.rule is PartitionRule.TS:
        return "commit_ts"
    return "table, " + ", ".join(route.column_names) if route.column_names else "table"


def _message_key(config: ChangefeedConfig, table: TableVersion) -> str:
    fixed = _KEYS.get(config.protocol)
    if fixed is not None:
        return fixed
    return ", ".join(table.columns[at].name for at in table.handle_columns) or "none"


def _if_too_large(config: ChangefeedConfig) -> str:
    option = config.kafka.large_message_handle.large_message_handle_option
    return "the changefeed stops" if option == "none" else option


def _shared_subjects(tables: Sequence[ExplainedTable]) -> Iterator[str]:
    by_topic = Counter(table.topic for table in tables if table.subjects)
    for topic, count in by_topic.items():
        if count > 1:
            yield f"topic {topic}: {count} tables share its subjects, and must be compatible with each other"


def _acls(
    used: Sequence[str], config: ChangefeedConfig, topics: Mapping[str, SinkTopicFacts] | None
) -> tuple[NeededAcl, ...]:
    acls = []
    for topic in used:
        missing = topics is None or topic not in topics
        create = ("Create",) if missing and config.kafka.auto_create_topic else ()
        acls.append(NeededAcl("topic", topic, ("Describe", "DescribeConfigs", "Write", *create)))
    if config.kafka.required_acks == -1:
        # Brokers before 2.8 want it of producers that are idempotent; the broker's settings are asked for min.insync.
        acls.append(NeededAcl("cluster", "kafka-cluster", ("DescribeConfigs", "IdempotentWrite")))
    return tuple(acls)
