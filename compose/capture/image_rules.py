"""Which tables a changefeed wants images of, by its settings and the sorters' compiler: control knows no sorter."""

from collections.abc import Callable

from compose.capture.settings.options import CaptureOptions
from consumers.control.owner.images.image_wishes import ImageRules, ImageWishes
from edges.zookeeper.session import Session
from schemas.config.changefeed import load_changefeed
from schemas.ddl.schema_change import StoredTable
from schemas.errors import BusError
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths
from sorters.core.feed.feed import compile_feed
from sorters.core.filter.initial_tables import initial_tables
from sorters.core.filter.table_filter import TableFilter


def image_wishes(options: CaptureOptions, session: Session, on_failure: Callable[[BusError], None]) -> ImageWishes:
    """Return what knows, for one reign, which changefeeds want table images."""
    return ImageWishes(session, ZkPaths(options.cluster), options.upstream, image_rules, on_fatal=on_failure)


def image_rules(info: ChangefeedInfo) -> ImageRules:
    """Return what a changefeed's settings say (:data:`consumers.control.owner.images.image_wishes.RulesOf`).

    Raises:
        BusError: they do not compile.
    """
    config = load_changefeed(info.sink_uri, info.config)
    table_filter = compile_feed(config, info.namespace).filter
    initial = initial_tables(config)
    images = config.table_images
    first = [TableFilter([rule], config.case_sensitive) for rule in images.first]

    def contains(table: StoredTable) -> bool:
        return (table.eligible or config.force_replicate) and table_filter.matches(table.schema, table.table)

    def wants(table: StoredTable) -> bool:
        return initial.wants(table.schema, table.table)

    def rank(table: StoredTable) -> int | None:
        ranks = (at for at, rule in enumerate(first) if rule.matches(table.schema, table.table))
        return next(ranks, None)

    return ImageRules(
        contains=contains,
        wants=wants,
        wants_initial=initial.any,
        rank=rank,
        scans_max=images.tables_at_once,
        lag_max_s=images.lag_max_s,
    )
