"""Whether the dispatcher rules fit the tables that a changefeed starts with: all that they do not fit, in one error.

TiCDC checks the same when a changefeed is created (tiflow ``EventRouter.VerifyTables``), and stops at the first table.
A table that comes later is checked when its first row is routed.
"""

from collections.abc import Iterable, Iterator

from schemas.ids import Ts
from schemas.tidb.schema_store import SchemaStore
from schemas.tidb.table import TableVersion
from sorters.core.dispatch import Dispatcher, DispatchError
from sorters.core.feed import CompiledFeed
from sorters.core.scope import tables_between

SHOWN_MAX = 50
"""Tables that an error spells out: it must fit a ZooKeeper node and a screen."""


def check_routes(store: SchemaStore, ts: Ts, feed: CompiledFeed) -> None:
    """Hold the rules against the changefeed's tables as they stand at ``ts``.

    Raises:
        DispatchError: an index or a column is not there, or the index is not unique; it says so of every such table.
    """
    faults = sorted(_faults(feed.dispatcher, _asked(store, ts, feed)), key=lambda fault: str(fault.fields["table"]))
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise _joined(faults)


def _asked(store: SchemaStore, ts: Ts, feed: CompiledFeed) -> Iterator[TableVersion]:
    """Yield the tables whose rule names columns or an index; no other one is decoded, and there may be 100,000."""
    for stored in tables_between(store, ts, ts, feed):
        if feed.dispatcher.rule_for(stored.schema, stored.table).asks_for_columns:
            yield store.decoded(stored)


def _faults(dispatcher: Dispatcher, tables: Iterable[TableVersion]) -> Iterator[DispatchError]:
    for table in tables:
        try:
            dispatcher.route(table)
        except DispatchError as fault:
            yield fault


def _joined(faults: list[DispatchError]) -> DispatchError:
    said = [f"{fault.fields['table']}: {fault.message} ({_place(fault)})" for fault in faults[:SHOWN_MAX]]
    if len(faults) > SHOWN_MAX:
        said.append(f"and {len(faults) - SHOWN_MAX} tables more")
    keys = sorted({str(fault.fields["key"]) for fault in faults})
    message = f"dispatcher rules do not fit {len(faults)} tables: {'; '.join(said)}"
    return DispatchError(message, tables=len(faults), keys=",".join(keys))


def _place(fault: DispatchError) -> str:
    fields = fault.fields
    line = f", line {fields['line']}" if "line" in fields else ""
    return f"{fields['key']}{line}"
