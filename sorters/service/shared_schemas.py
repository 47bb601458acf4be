"""The schemas of an upstream, read once for all changefeeds, and kept from the lowest checkpoint on.

ddl topic --advance--> a copy of the store, fed, and forgotten up to the lowest checkpoint --> published
changefeed: its view is the store as published when it last asked for more; that one never changes
"""

import threading
from collections.abc import Mapping, Sequence

from schemas.ddl.bad_jobs import BadJob
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts
from sorters.run.schema_feed import SchemaFeed


class SharedSchemas:
    """One reader of a ddl topic. :meth:`close` must be called."""

    def __init__(self, config: Mapping[str, object], topic: str) -> None:
        """``config`` is librdkafka's."""
        self._feed = SchemaFeed(config, topic)
        self._advancing, self._lock = threading.Lock(), threading.Lock()
        """The first is held while Kafka is asked, the second over who needs what, and never for long."""
        self._upto = 0
        """Offset below which all is in what is published."""
        self._needs: dict[object, Ts] = {}
        self._kept_from: Ts | None = None
        """What stands below is forgotten, or is about to be; None: nothing is."""
        self.published: tuple[SchemaStore, Sequence[BadJob]] = (self._feed.store, ())

    def view(self, checkpoint_ts: Ts) -> "SchemaView | None":
        """Return a changefeed's view; None: what it needs from ``checkpoint_ts`` on is forgotten."""
        with self._lock:
            if self._kept_from is not None and self._kept_from > checkpoint_ts:
                return None
            view = SchemaView(self)
            self._needs[view] = checkpoint_ts
            return view

    def advance(self, ddl_end: int) -> bool:
        """Publish at least what stands below offset ``ddl_end``; tell whether that was more than before.

        Raises:
            CorruptDataError, HistoryLostError, KafkaUnreachableError: see :meth:`SchemaFeed.advance`.
        """
        if ddl_end <= self._upto:
            return False
        with self._advancing:
            if ddl_end <= self._upto:
                return False
            feed = self._feed
            feed.store = feed.store.copy()
            if (upto_ts := self._forgets_upto(feed.store.snapshot_ts)) is not None:
                feed.store.gc(upto_ts)
            try:
                changed = feed.advance(ddl_end)
            finally:
                with self._lock:
                    self.published, self._kept_from = (feed.store, feed.bad), feed.store.snapshot_ts
            self._upto = ddl_end
            return changed

    def _forgets_upto(self, snapshot_ts: Ts | None) -> Ts | None:
        """Return up to where nobody needs anything, and give out no view from below that; None: nobody says so."""
        with self._lock:
            if not self._needs or snapshot_ts is None:
                return None
            lowest_ts = min(self._needs.values())
            self._kept_from = max(snapshot_ts, lowest_ts)
            return lowest_ts

    def note_need(self, view: "SchemaView", checkpoint_ts: Ts) -> None:
        """A changefeed needs nothing more of what only rows at or below its checkpoint need."""
        with self._lock:
            if view in self._needs:
                self._needs[view] = checkpoint_ts

    def leave(self, view: "SchemaView") -> None:
        """A changefeed needs nothing any more."""
        with self._lock:
            self._needs.pop(view, None)

    def close(self) -> None:
        with self._advancing:
            self._feed.close()


class SchemaView:
    """What one changefeed has of the shared schemas."""

    def __init__(self, shared: SharedSchemas) -> None:
        self._shared = shared
        self._store, self._bad = shared.published

    @property
    def store(self) -> SchemaStore:
        """See :class:`~sorters.run.sources.SchemaSource`."""
        return self._store

    @property
    def bad(self) -> Sequence[BadJob]:
        """See :class:`~sorters.run.sources.SchemaSource`."""
        return self._bad

    def advance(self, ddl_end: int) -> bool:
        """See :class:`~sorters.run.sources.SchemaSource`."""
        self._shared.advance(ddl_end)
        before = self._store
        self._store, self._bad = self._shared.published
        return self._store is not before

    def forget(self, checkpoint_ts: Ts) -> None:
        """See :class:`~sorters.run.sources.SchemaSource`."""
        self._shared.note_need(self, checkpoint_ts)

    def close(self) -> None:
        self._shared.leave(self)
