"""Which tables an upstream has now, for answers of the API: read from the ddl topic, and kept for a moment."""

import itertools
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from compose.changefeeds import upstream_tables
from consumers.control.api.bodies import StoredFeed
from consumers.control.changefeeds.kept_settings import readable_part
from edges.kafka.access import KafkaAccess
from schemas.config.changefeed import load_changefeed
from schemas.ddl.schema_change import StoredTable
from schemas.ids import TableId, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.tidb.table_info import enabled_partitions
from sorters.core.feed.feed import compile_feed
from sorters.core.filter.initial_tables import initial_tables

KEPT_S: Final = 10.0
"""Reading 100,000 tables anew takes some seconds; an operator who asks again soon may see them a moment old."""


class UpstreamTables:
    """Of one raw log. Safe from several threads; whoever asks while it is being read waits for that."""

    def __init__(self, kafka: KafkaAccess) -> None:
        self._kafka = kafka
        self._lock = threading.Lock()
        self._known: dict[UpstreamId, tuple[float, Sequence[StoredTable]]] = {}

    def of(self, feed: StoredFeed) -> Collection[TableId]:
        """Return the physical tables that a changefeed's filter lets through and that it can replicate.

        Raises:
            BusError: there is no raw log, Kafka does not answer, or the settings are not allowed any more.
        """
        return {table for stored in self.stored(feed) for table in stored.physical_ids}

    def stored(self, feed: StoredFeed) -> Sequence[StoredTable]:
        """Return the same tables with their names.

        Raises:
            BusError: see :meth:`of`.
        """
        return self.contained(feed.info)

    def contained(self, info: ChangefeedInfo) -> Sequence[StoredTable]:
        """Return the tables that settings would contain.

        Raises:
            BusError: see :meth:`of`.
        """
        return _of(info, self.now(info.upstream))

    def coming_in(self, before: ChangefeedInfo, after: ChangefeedInfo) -> list[TableId]:
        """Return the physical tables that other settings bring in and want images of, as a new changefeed would.

        Raises:
            BusError: see :meth:`of`.
        """
        initial = initial_tables(load_changefeed(after.sink_uri, after.config))
        if not initial.any:
            return []
        # Of former settings that are not allowed any more, those of its tables count; if nor these are, nobody knows
        # what it has, and all that it wants comes.
        part, _ = readable_part(before) or (None, None)
        tables = self._anew(after.upstream)  # one that has come in a moment ago would have no image
        known = {table for stored in (_of(part, tables) if part else ()) for table in stored.physical_ids}
        wanted = (stored for stored in _of(after, tables) if initial.wants(stored.schema, stored.table))
        return sorted({table for stored in wanted for table in stored.physical_ids} - known)

    def now(self, upstream: UpstreamId) -> Sequence[StoredTable]:
        """Return all tables with rows that an upstream has, by name.

        Raises:
            BusError: see :meth:`of`.
        """
        with self._lock:
            read_at, tables = self._known.get(upstream, (0.0, ()))
            return tables if read_at and time.monotonic() <= read_at + KEPT_S else self._read(upstream)

    def names(self, upstream: UpstreamId, names_max: int) -> dict[str, Any]:
        """Return ``total`` and ``items``: the first physical tables by name, each its ``id``, the table's ``name`` and
        its ``partition``, '' of a table without.

        Raises:
            BusError: see :meth:`of`.
        """
        tables = self.now(upstream)
        first = itertools.islice(_names(tables), names_max)
        return {"total": sum(len(stored.physical_ids) for stored in tables), "items": list(first)}

    def _anew(self, upstream: UpstreamId) -> Sequence[StoredTable]:
        with self._lock:
            return self._read(upstream)

    def _read(self, upstream: UpstreamId) -> Sequence[StoredTable]:
        tables = upstream_tables(self._kafka, upstream, None)
        self._known[upstream] = time.monotonic(), tables
        return tables


def _of(info: ChangefeedInfo, tables: Sequence[StoredTable]) -> Sequence[StoredTable]:
    """Return those of ``tables`` that settings would contain."""
    config = load_changefeed(info.sink_uri, info.config)
    table_filter = compile_feed(config, info.namespace).filter
    return [
        stored
        for stored in tables
        if (stored.eligible or config.force_replicate) and table_filter.matches(stored.schema, stored.table)
    ]


def _names(tables: Sequence[StoredTable]) -> Iterator[dict[str, object]]:
    for stored in tables:
        parts = enabled_partitions(stored.info()) if stored.partition_ids else ()
        partition_of = {part.id: part.name for part in parts}
        for table in stored.physical_ids:
            name = f"{stored.schema}.{stored.table}"
            yield {"id": table, "name": name, "partition": partition_of.get(table, "")}
