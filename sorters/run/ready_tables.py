"""Topics and registered schemas of tables: there before a table's first row, and not before it is needed.

Topics as TiCDC makes them. A protocol with watermarks has the topics of all tables when its changefeed begins, for the
first watermark goes to all of them (tiflow ``cdc/sink/ddlsink/mq/mq_ddl_sink.go``, ``WriteCheckpointTs``, and
``GetPartitionNum`` of its topic manager); one without, such as Avro, has a table's when the first row of it comes.
Schemas are registered when rows that need them come, in any protocol: with 100,000 tables, most of which have nothing
to say, a changefeed would begin with 200,000 requests, and stop for schemas that no row has.
"""

from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import Protocol

from schemas.ddl.schema_change import StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import Action, BusError
from schemas.ids import TableId, Ts
from schemas.tidb.table import TableVersion
from sorters.core.cut.cut import Cut
from sorters.core.encode.wire.protocol import CompanionEncoder, Partitions, SchemaIds, SchemaKey, SchemaText
from sorters.core.feed.companions import ddl_topics
from sorters.core.feed.feed import CompiledFeed
from sorters.core.feed.initial_schemas import initial_topics
from sorters.core.feed.scope import tables_at, tables_made_between
from sorters.log.topic_admin import SinkTopicLimits
from sorters.registry.registry import SchemaRegistry

REQUESTS_AT_ONCE = 8
"""To the registry; it answers one in some milliseconds, most of which is its own log's acknowledgement."""


class SchemaAmbiguousError(BusError):
    """One table version has two schemas under one subject: the driver's bug, by which rows would name the wrong one."""

    code, action = "sorter.schema_ambiguous", Action.CRASH


class SinkTopics(Protocol):
    """Where topics are made."""

    def ensure(self, topics: Iterable[str]) -> dict[str, SinkTopicLimits]:
        """Return all ``topics`` as they are, having created those that were missing."""
        ...


class ReadyTables:
    """Knows which tables' rows may come; on the driver. Cuts come in ts order."""

    def __init__(self, feed: CompiledFeed, topics: SinkTopics, registry: SchemaRegistry | None) -> None:
        self._topics, self._registry = topics, registry
        self._all_topics = feed.encoder.watermark_partitions is not Partitions.NONE or feed.bootstraps is not None
        self._waiting: set[TableId] | None = None

    @property
    def waiting(self) -> int:
        """Physical tables whose rows are not ready to come."""
        return len(self._waiting or ())

    @property
    def waiting_tables(self) -> frozenset[TableId]:
        """These tables."""
        return frozenset(self._waiting or ())

    def begin(self, cut: Cut, ready_upto: Ts | None, store: SchemaStore, feed: CompiledFeed) -> CompiledFeed:
        """Return the feed with the topics that a cut needs in any case, and note the tables that it may have rows of.

        Args:
            ready_upto: the end of the last cut that this was called for, None before the first one. With 100,000 tables
                no DDL may go through all of them.

        Raises:
            BusError: see :meth:`make_ready`.
        """
        tables: list[StoredTable] = []
        names = {feed.default_topic}
        if self._waiting is None or ready_upto is None:
            self._waiting, ready_upto = set(), cut.after_ts
            feed = self._with_companions(feed)
            names |= initial_topics(store, cut.after_ts, feed)
            tables = list(tables_at(store, cut.after_ts, feed))
        tables += tables_made_between(store, ready_upto, cut.upto_ts, feed)
        if feed.encoder.ddl_partitions is not Partitions.NONE:
            names |= ddl_topics(store, cut.after_ts, cut.upto_ts, feed)
        if self._all_topics:
            names |= {feed.topic(stored.schema, stored.table) for stored in tables}
        if not self._all_topics or self._registry is not None:
            self._waiting.update(physical_id for stored in tables for physical_id in stored.physical_ids)
        return self._with_topics(feed, names)

    def make_ready(
        self, cut: Cut, tables: Collection[TableId] | None, store: SchemaStore, feed: CompiledFeed
    ) -> CompiledFeed | None:
        """Return the feed with all that rows of these physical tables need (None: of all that wait); None: it has it.

        Raises:
            BusError: a topic or schema is refused, or Kafka or the registry does not answer.
        """
        waiting = self._waiting or set()
        wanted = set(waiting) if tables is None else waiting.intersection(tables)
        if not wanted:
            return None
        # By identity: the partitions of a table share its versions.
        each = {id(version): version for table in sorted(wanted) for version in _versions(store, table, cut, feed)}
        versions = list(each.values())
        ready = self._with_topics(feed, {feed.topic(version.schema, version.table) for version in versions})
        if self._registry is not None:
            ready = replace(ready, schema_ids=self._registered(versions, feed, self._registry))
        waiting -= wanted
        return ready

    def _with_companions(self, feed: CompiledFeed) -> CompiledFeed:
        """Return the feed with what its DDL and watermarks need of a registry."""
        if self._registry is None or not isinstance(feed.encoder, CompanionEncoder):
            return feed
        texts = feed.encoder.companion_schemas()
        ids = {text.key: self._registry.register(text.subject, text.text, table=text.subject) for text in texts}
        return replace(feed, encoder=feed.encoder.with_companions(ids))

    def _with_topics(self, feed: CompiledFeed, names: set[str]) -> CompiledFeed:
        unknown = names - feed.partitions.keys()  # of others it is known, and here, whether they have grown
        if not unknown:
            return feed
        topics = self._topics.ensure(unknown)
        limits = {name: topic.message_bytes_max for name, topic in topics.items()}
        return replace(
            feed,
            partitions={**feed.partitions, **{name: topic.partitions for name, topic in topics.items()}},
            topic_message_bytes={**feed.topic_message_bytes, **limits},
        )

    def _registered(self, versions: Iterable[TableVersion], feed: CompiledFeed, registry: SchemaRegistry) -> SchemaIds:
        """Register schemas, those of one subject in their order; return all ids. A client of a registry knows which
        texts it has registered: what a version had before asks for nothing.
        """
        subjects: dict[str, list[tuple[SchemaText, str]]] = {}
        for version in versions:
            for schema in feed.row_schemas(version):
                subjects.setdefault(schema.subject, []).append((schema, version.name))

        def register(schemas: list[tuple[SchemaText, str]]) -> list[tuple[SchemaKey, str, int]]:
            return [
                (schema.key, table, registry.register(schema.subject, schema.text, table=table))
                for schema, table in schemas
            ]

        schema_ids = dict(feed.schema_ids)
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            for key, table, schema_id in chain.from_iterable(pool.map(register, subjects.values())):
                known = schema_ids.setdefault(key, schema_id)
                if known != schema_id:
                    ids = f"{known}, {schema_id}"
                    raise SchemaAmbiguousError("a table version has two schemas", subject=key[0], table=table, ids=ids)
        return schema_ids


def _versions(store: SchemaStore, table: TableId, cut: Cut, feed: CompiledFeed) -> Iterator[TableVersion]:
    """Yield the schemas of a physical table that go with its rows in the cut."""
    versions = store.versions_of(table)
    for at, (valid_after, version) in enumerate(versions):
        over = at + 1 < len(versions) and versions[at + 1][0] <= cut.after_ts
        if version is None or over or valid_after > cut.upto_ts:
            continue
        if feed.contains(version.schema, version.table, eligible=version.eligible):
            yield version
