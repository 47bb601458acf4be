"""Views that go out with the schemas of the start, behind the tables and the views that they read.

The stream sends a view's DDL whatever the view reads. Here that is not enough: a view over a table that the destination
is not told of would be refused there, and stop the changefeed before its first row. Such a view is left out, and so is
one whose text cannot be written with the names that routes give its tables. Sequences are left out, as the stream does
(TiCDC discards their DDL). What is left out is said with its reason (:class:`NotToldError`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from schemas.ddl.job import DDL_TYPE_NAMES, DdlType
from schemas.ddl.schema_change import StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import Action, BusError
from schemas.ids import Ts
from sorters.core.encode.sql.create_view import create_view
from sorters.core.feed.ddl_route import routed_event
from sorters.core.feed.feed import CompiledFeed
from sorters.core.filter.table_filter import fold
from sorters.core.route.table_route import TableRoutingError
from sorters.core.sql.ddl_event import DdlEvent, event_of_no_job
from sorters.core.sql.select import tables_read
from sorters.core.sql.table_names import Name
from sorters.core.sql.tokens import MODE_NO_BACKSLASH_ESCAPES, UnsupportedSqlError

_NAMED_MAX: Final = 10


class NotToldError(BusError):
    """Views or sequences that `initial-schema` leaves out; ``fields`` name them, each with its reason. Nothing stops:
    who needs them at the destination makes them there by hand.
    """

    code, action = "sorter.not_told", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True)
class ToldViews:
    """What a destination is told of views, in an order in which each finds what it reads; and what it is not told."""

    events: Sequence[tuple[StoredTable, DdlEvent]] = ()
    """Views as the upstream has them, and their DDL as the destination gets it."""
    left_out: Sequence[tuple[str, str]] = ()
    """Names and reasons."""

    def note(self) -> NotToldError | None:
        """Return what is to be said of those that are left out; None: none is."""
        if not self.left_out:
            return None
        named = "; ".join(f"{name}: {reason}" for name, reason in self.left_out[:_NAMED_MAX])
        return NotToldError("initial-schema leaves out views or sequences", not_told=named, count=len(self.left_out))


@dataclass(slots=True, eq=False)
class _View:
    stored: StoredTable
    event: DdlEvent
    reads: set[Name] = field(default_factory=set)


def told_views(store: SchemaStore, ts: Ts, feed: CompiledFeed, tables: Iterable[StoredTable]) -> ToldViews:
    """Return the views of ``ts`` that the filter lets through, and of these the ones that can be told.

    Args:
        tables: the tables that the destination is told of, as the upstream has them.

    Raises:
        CorruptDataError: a TableInfo does not decode.
    """
    left_out: list[tuple[str, str]] = []
    views: list[_View] = []
    for stored in sorted(store.stored_at(ts), key=lambda each: each.table_id):
        if stored.has_rows or not feed.filter.matches(stored.schema, stored.table):
            continue
        if stored.is_sequence:
            left_out.append((_text(stored), "ddl of sequences is not replicated"))
            continue
        try:
            view = _view(stored, ts, feed)
        except (UnsupportedSqlError, TableRoutingError) as error:
            left_out.append((_text(stored), str(error.fields["reason"] if isinstance(error, BusError) else error)))
            continue
        if view is not None:
            views.append(view)
    known = {_folded(table.schema, table.table) for table in tables}
    events = [(view.stored, view.event) for view in _in_order(views, known)]
    lacking = ((view.stored, sorted(view.reads - known)) for view in views)
    left_out += (
        (_text(stored), f"it reads {'.'.join(missing[0])}, which is not told") for stored, missing in lacking if missing
    )
    return ToldViews(events, left_out)


def _view(stored: StoredTable, ts: Ts, feed: CompiledFeed) -> _View | None:
    """Return a view that may be told; None: an event filter takes its DDL.

    Raises:
        UnsupportedSqlError, TableRoutingError: it cannot be written.
    """
    query = create_view(stored)
    if feed.events.ignores_ddl(DDL_TYPE_NAMES[DdlType.CREATE_VIEW], query, stored.schema, stored.table):
        return None
    event = event_of_no_job(DdlType.CREATE_VIEW, ts, stored.schema, query, start_ts=Ts(0), post=stored)
    event = routed_event(replace(event, sql_mode=MODE_NO_BACKSLASH_ESCAPES), feed.routes)
    selected = str(stored.info()["view"]["view_select"])
    return _View(stored, event, {_folded(*name) for name in tables_read(selected)})


def _in_order(views: Sequence[_View], known: set[Name]) -> Iterator[_View]:
    """Yield the views that read nothing but what is known, and add each to that."""
    waiting = list(views)
    while waiting:
        ready = [view for view in waiting if view.reads <= known]
        if not ready:
            return
        for view in ready:
            known.add(_folded(view.stored.schema, view.stored.table))
            yield view
        waiting = [view for view in waiting if view not in ready]


def _folded(schema: str, table: str) -> Name:
    """TiDB's names ignore case."""
    return fold(schema), fold(table)


def _text(stored: StoredTable) -> str:
    return f"{stored.schema}.{stored.table}"
