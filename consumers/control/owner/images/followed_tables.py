"""Which tables changefeeds have that have or may have images, as DDL and settings come."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from consumers.control.core.images.feed_tables import FeedTables
from consumers.control.owner.images.image_wishes import UNKNOWN, ImageWish
from schemas.ddl.schema_change import SchemaChange
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.rawlog.frontier import FrontierRecord, needed_ts
from schemas.rawlog.images import ImageState


class FollowedTables:
    """An owner's; not thread-safe."""

    def __init__(self) -> None:
        """Begin with no changefeed."""
        self._tables: dict[str, tuple[object, FeedTables]] = {}
        self._sorted: dict[str, tuple[FeedTables, Ts, list[TableId]]] = {}
        self._come_in: dict[str, frozenset[TableId]] = {}
        """What other settings have brought into a registered changefeed, until a published record says so."""
        self._newest_ddl_ts = Ts(0)

    @property
    def names(self) -> Collection[str]:
        """The changefeeds."""
        return self._tables.keys()

    def of(self, name: str) -> FeedTables:
        """Return a changefeed's."""
        return self._tables[name][1]

    def come_in(self, name: str) -> Collection[TableId]:
        """Return what other settings have brought into a changefeed, by what R has passed, and no record says yet."""
        return self._come_in.get(name, ())

    def own(self, name: str, since_ts: Ts) -> Sequence[TableId]:
        """Return ``FeedTables.tables(since_ts)``, sorted anew only where it can be other than before."""
        tables, known = self.of(name), self._sorted.get(name)
        if known is None or known[0] is not tables or (tables.lost and known[1] != since_ts):
            self._sorted[name] = known = tables, since_ts, tables.tables(since_ts)
        return known[2]

    def take(self, change: SchemaChange) -> None:
        """Take a DDL job that the schema has taken."""
        self._newest_ddl_ts = change.job.finished_ts
        self._tables = {name: (key, tables.with_ddl(change)) for name, (key, tables) in self._tables.items()}

    def forget_below(self, ts: Ts) -> None:
        """Forget DDL below ``ts``."""
        self._tables = {name: (key, tables.forget_below(ts)) for name, (key, tables) in self._tables.items()}

    def follow(self, store: SchemaStore, published: FrontierRecord, wishes: Mapping[str, ImageWish]) -> None:
        """Follow these changefeeds and no others.

        Args:
            store: with every DDL job that was taken.
            published: the newest record; no schema that its readers need was forgotten.
            wishes: of each changefeed that is to be followed.
        """
        for name in self._tables.keys() - wishes.keys():
            del self._tables[name]
            self._sorted.pop(name, None)
        for name, wish in wishes.items():
            known = self._tables.get(name)
            if known is None or known[0] != wish.key:
                if known is not None and wish.wants_initial:
                    self._note_come_in(name, store, published.resolved_ts, (known[1], wish))
                self._tables[name] = wish.key, self._tables_of(store, published, wish)
        self._come_in = {
            name: left
            for name, tables in self._come_in.items()
            if name in self._tables and (left := self._still_to_come(name, tables, published))
        }

    def _tables_of(self, store: SchemaStore, published: FrontierRecord, wish: ImageWish) -> FeedTables:
        at_ts = min(published.resolved_ts, max(told_ts(published), store.snapshot_ts or Ts(0)))
        tables = FeedTables.at(store.stored_at(at_ts), wish.contains, wish.wants, wish.rank, is_known=wish.has_rules)
        # What went or came since then is still to come by the frontier.
        for change in store.changes_between(at_ts, max(at_ts, self._newest_ddl_ts)):
            tables = tables.with_ddl(change)
        return tables

    def _note_come_in(
        self, name: str, store: SchemaStore, published_ts: Ts, changed: tuple[FeedTables, ImageWish]
    ) -> None:
        """Note which tables settings bring in by what R has passed: who wrote them knew only what was there then."""
        before, wish = changed
        come = {
            table
            for stored in store.stored_at(published_ts)
            if wish.contains(stored) and wish.wants(stored) and not before.contains(stored)
            for table in stored.physical_ids
        }
        self._come_in[name] = self._come_in.get(name, frozenset()) | come

    def _still_to_come(self, name: str, tables: frozenset[TableId], published: FrontierRecord) -> frozenset[TableId]:
        """Return what of ``tables`` a changefeed has and does not wait for by the published record."""
        feed = published.images.feed(name)
        if feed is None:
            return frozenset()  # it is registered with all that it has
        own = self.own(name, told_ts(published))
        return frozenset(table for table in tables if feed.mode_of(table) is None and holds(own, table))


def told_ts(record: FrontierRecord) -> Ts:
    """Return up to where all readers have got all DDL by a record. A job that it holds is still to come: an owner that
    can read it frees it with a later one.
    """
    return min((needed_ts(record), *(Ts(held.ts - 1) for held in record.held_ddl)))


def holds(tables: Sequence[TableId], table: TableId) -> bool:
    """Tell whether a table is among some that ascend."""
    at = bisect_left(tables, table)
    return at < len(tables) and tables[at] == table


def wishes_now(
    known: Mapping[str, ImageWish] | None, before: Mapping[str, ImageWish] | None, images: ImageState
) -> Mapping[str, ImageWish]:
    """Return what to go by: of changefeeds that nobody can read now the rules that were read last, and no new barrier.

    Args:
        known: what is said now; None: nothing is known.
        before: what was gone by before.
        images: those that are published.
    """
    before = before or {}
    if known is None:
        unread = {feed.feed: UNKNOWN for feed in images.feeds} | dict(before)
        return {name: _unread(wish) for name, wish in unread.items()}
    return {name: wish if wish.is_readable else _unread(before.get(name, wish)) for name, wish in known.items()}


def _unread(wish: ImageWish) -> ImageWish:
    return replace(wish, is_running=False, is_readable=False)
