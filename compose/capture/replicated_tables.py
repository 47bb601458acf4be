"""Which tables a changefeed contains, by the sorters' compiler: the control plane knows no sorter."""

from collections.abc import Callable

from consumers.control.owner.held_feeds import HeldTable
from schemas.config.changefeed import load_changefeed
from schemas.errors import BusError
from schemas.nodes.changefeed import ChangefeedInfo
from sorters.core.feed.feed import compile_feed


def replicated_tables(info: ChangefeedInfo) -> Callable[[HeldTable], bool]:
    """Return which tables a changefeed contains (:class:`~consumers.control.owner.held_feeds.ReplicatedTables`)."""
    try:
        config = load_changefeed(info.sink_uri, info.config)
        table_filter = compile_feed(config, info.namespace).filter
    except BusError:  # its sorter says so, and fails
        return lambda _: False
    return lambda table: (table.eligible or config.force_replicate) and table_filter.matches(table.schema, table.table)
