"""Whether settings that name columns fit the tables that a changefeed starts with: all misfits of a kind in one error.

TiCDC checks the same when a changefeed is created (tiflow ``VerifyTables`` of ``EventRouter`` and ``ColumnSelectors``),
and stops at the first table. A table that comes later is checked when its first row is routed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError
from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from sorters.core.feed.ddl_route import check_targets
from sorters.core.feed.feed import CompiledFeed
from sorters.core.feed.scope import tables_between
from sorters.core.filter.row_conditions import ExpressionColumnNotFoundError, ExpressionMisfitError
from sorters.core.route.column_selector import ColumnSelectorError
from sorters.core.route.dispatch import DispatchError

SHOWN_MAX = 30
"""Tables that an error spells out: it must fit a ZooKeeper node and a screen."""


MISFITS: Final[Mapping[type[BusError], str]] = {
    DispatchError: "dispatcher rules",
    ColumnSelectorError: "column selectors",
    ExpressionColumnNotFoundError: "value expressions",
    ExpressionMisfitError: "value expressions",
}
"""Errors of settings that do not fit a table; the first kind that there is is said."""


def check_routes(store: SchemaStore, ts: Ts, feed: CompiledFeed) -> None:
    """Hold the settings that name columns against the changefeed's tables as they stand at ``ts``.

    Raises:
        DispatchError: an index or a column is not there, or the index is not unique; it says so of every such table.
        ColumnSelectorError: all rules fit, but a selector leaves out what a table needs; it says so of every such one.
        ExpressionColumnNotFoundError, ExpressionMisfitError: those fit, but value expressions do not.
        TableRouteConflictError: two tables are routed to one.
    """
    check_targets(store, ts, feed)
    faults = sorted(_faults(feed, _asked(store, ts, feed)), key=lambda fault: str(fault.fields["table"]))
    for kind, what in MISFITS.items():
        of_kind = [fault for fault in faults if type(fault) is kind]
        if len(of_kind) == 1:
            raise of_kind[0]
        if of_kind:
            message, fields = _joined(what, of_kind)
            raise kind(message, **fields)


def _asked(store: SchemaStore, ts: Ts, feed: CompiledFeed) -> Iterator[TableVersion]:
    """Yield the tables whose columns may not fit; no other one is decoded, and there may be 100,000."""
    for stored in tables_between(store, ts, ts, feed):
        if feed.asks_for_columns(stored.schema, stored.table):
            yield store.decoded(stored)


def _faults(feed: CompiledFeed, tables: Iterable[TableVersion]) -> Iterator[BusError]:
    for table in tables:
        try:
            feed.select(table)
            feed.events.conditions(table)
        except tuple(MISFITS) as fault:
            yield fault


def _joined(what: str, faults: Sequence[BusError]) -> tuple[str, dict[str, object]]:
    """Return message and fields of the one error that stands for all of these."""
    said = [f"{fault.fields['table']}: {fault.message} ({_where(fault)})" for fault in faults[:SHOWN_MAX]]
    if len(faults) > SHOWN_MAX:
        said.append(f"and {len(faults) - SHOWN_MAX} tables more")
    keys = sorted({str(fault.fields["key"]) for fault in faults})
    return f"{what} do not fit {len(faults)} tables: {'; '.join(said)}", {"tables": len(faults), "keys": ",".join(keys)}


def _where(fault: BusError) -> str:
    fields = fault.fields
    line = f", line {fields['line']}" if "line" in fields else ""
    return f"{fields['key']}{line}"
