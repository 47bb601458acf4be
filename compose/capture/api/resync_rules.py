"""Of which tables a changefeed can write the rows once more, and delete what their images lack: by its settings, the
tables, and the encoders.
"""

from collections.abc import Iterable

from consumers.control.changefeeds.image_requests import ImageRefusedError
from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DDL_TYPE_NAMES, DdlType
from schemas.ddl.schema_change import StoredTable
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.rawlog.images import ImageMode
from schemas.sink.position import RowOp
from sorters.core.encode.sql.key_ranges import range_misfit
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.feed.resync_events import truncate_query

_WITHOUT_DDL = frozenset({"avro", "debezium-avro"})
_NO_TRUNCATE = "an event filter of the changefeed leaves the TRUNCATE TABLE out by which consumers empty it"


def check_backfill(info: ChangefeedInfo, tables: Iterable[StoredTable]) -> None:
    """Refuse rows once more where they would stand there twice: in a database, in a table without a key.

    Raises:
        ImageRefusedError: they would; ``fields`` name the table.
        BusError: the settings are not allowed any more.
    """
    if load_changefeed(info.sink_uri, info.config).uri.server is None:
        return
    for stored in tables:
        if not stored.eligible:
            raise ImageRefusedError(
                "rows of a table without a key would stand in the database twice; empty it there, and create a "
                "changefeed with `initial` for it",
                changefeed=info.changefeed_id,
                mode=ImageMode.BACKFILL,
                table=f"{stored.schema}.{stored.table}",
            )


def check_resync(info: ChangefeedInfo, tables: Iterable[StoredTable], *, is_part: bool = False) -> None:
    """Refuse a resync of tables with which it would be none.

    Args:
        is_part: only a range of a table's keys is asked for.

    Raises:
        ImageRefusedError: it would; ``fields`` name the table and why. A backfill is possible all the same.
        BusError: the settings are not allowed any more, or a TableInfo does not decode.
    """
    config = load_changefeed(info.sink_uri, info.config)
    feed = compile_feed(config, info.namespace)
    if not feed.has_processors and config.protocol in _WITHOUT_DDL:
        raise ImageRefusedError(
            "a resync empties tables at consumers by a DDL message, which the protocol lacks; `backfill` is possible",
            changefeed=info.changefeed_id,
            mode=ImageMode.RESYNC,
            protocol=config.protocol,
        )
    is_lake = config.uri.is_lake
    if is_lake and config.sink.iceberg.mode != "upsert":
        raise ImageRefusedError(
            "lake tables of mode append hold each change, and lose none; `backfill` is possible",
            changefeed=info.changefeed_id,
            mode=ImageMode.RESYNC,
        )
    for stored in tables:
        if why := _misfit(feed, stored, is_lake=is_lake, is_part=is_part):
            raise ImageRefusedError(
                "rows that the table's image lacks cannot be deleted, so it has no resync; `backfill` is possible",
                changefeed=info.changefeed_id,
                mode=ImageMode.RESYNC,
                table=f"{stored.schema}.{stored.table}",
                reason=why,
            )


def _misfit(feed: CompiledFeed, stored: StoredTable, *, is_lake: bool, is_part: bool) -> str | None:
    if not feed.has_processors and not is_lake:
        return _NO_TRUNCATE if _ignores_truncate(feed, stored) else None
    if RowOp.DELETE in feed.events.ignored_ops(stored.schema, stored.table):
        return "an event filter of the changefeed leaves its deletes out"
    if is_lake:
        return None
    if not stored.eligible:
        return "it has no key, so rows that come with an image and with changes would stand there twice"
    why = range_misfit(stored.decode()) if is_part else None
    return why and f"{why}; all of it can be resynced, without a range of keys"


def _ignores_truncate(feed: CompiledFeed, stored: StoredTable) -> bool:
    truncate = DDL_TYPE_NAMES[DdlType.TRUNCATE_TABLE]
    return feed.events.ignores_ddl(truncate, truncate_query(stored), stored.schema, stored.table)
