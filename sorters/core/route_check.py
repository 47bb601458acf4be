"""Whether dispatcher rules and column selectors fit the tables that a changefeed starts with: all misfits in one error.

TiCDC checks the same when a changefeed is created (tiflow ``VerifyTables`` of ``EventRouter`` and ``ColumnSelectors``),
and stops at the first table. A table that comes later is checked when its first row is routed.
"""

from collections.abc import Iterable, Iterator, Sequence

from schemas.ids import Ts
from schemas.tidb.schema_store import SchemaStore
from schemas.tidb.table import TableVersion
from sorters.core.column_selector import ColumnSelectorError
from sorters.core.dispatch import DispatchError
from sorters.core.feed import CompiledFeed
from sorters.core.scope import tables_between

SHOWN_MAX = 50
"""Tables that an error spells out: it must fit a ZooKeeper node and a screen."""


def check_routes(store: SchemaStore, ts: Ts, feed: CompiledFeed) -> None:
    """Hold the rules and column selectors against the changefeed's tables as they stand at ``ts``.

    Raises:
        DispatchError: an index or a column is not there, or the index is not unique; it says so of every such table.
        ColumnSelectorError: all rules fit, but a selector leaves out what a table needs; it says so of every such one.
    """
    faults = sorted(_faults(feed, _asked(store, ts, feed)), key=lambda fault: str(fault.fields["table"]))
    of_rules = [fault for fault in faults if isinstance(fault, DispatchError)]
    if len(of_rules or faults) == 1:
        raise (of_rules or faults)[0]
    if of_rules:
        message, fields = _joined("dispatcher rules do", of_rules)
        raise DispatchError(message, **fields)
    if faults:
        message, fields = _joined("column selectors do", faults)
        raise ColumnSelectorError(message, **fields)


def _asked(store: SchemaStore, ts: Ts, feed: CompiledFeed) -> Iterator[TableVersion]:
    """Yield the tables whose columns may not fit; no other one is decoded, and there may be 100,000."""
    for stored in tables_between(store, ts, ts, feed):
        if feed.asks_for_columns(stored.schema, stored.table):
            yield store.decoded(stored)


def _faults(feed: CompiledFeed, tables: Iterable[TableVersion]) -> Iterator[DispatchError | ColumnSelectorError]:
    for table in tables:
        try:
            feed.select(table)
        except (DispatchError, ColumnSelectorError) as fault:
            yield fault


def _joined(what: str, faults: Sequence[DispatchError | ColumnSelectorError]) -> tuple[str, dict[str, object]]:
    """Return message and fields of the one error that stands for all of these."""
    said = [f"{fault.fields['table']}: {fault.message} ({_place(fault)})" for fault in faults[:SHOWN_MAX]]
    if len(faults) > SHOWN_MAX:
        said.append(f"and {len(faults) - SHOWN_MAX} tables more")
    keys = sorted({str(fault.fields["key"]) for fault in faults})
    return f"{what} not fit {len(faults)} tables: {'; '.join(said)}", {"tables": len(faults), "keys": ",".join(keys)}


def _place(fault: DispatchError | ColumnSelectorError) -> str:
    fields = fault.fields
    line = f", line {fields['line']}" if "line" in fields else ""
    return f"{fields['key']}{line}"
