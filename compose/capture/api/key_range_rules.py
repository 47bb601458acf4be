"""The raw keys of a range of a table's key that a user names, or why there are none."""

from consumers.control.changefeeds.image_requests import ImageRefusedError
from schemas.ddl.schema_change import StoredTable
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.rawlog.images import ImageMode, KeyRange
from schemas.sink.topic import has_processors
from schemas.tidb.handle_range import parse_handle_range
from schemas.tidb.table import HandleKind, TableVersion


def raw_keys(info: ChangefeedInfo, mode: ImageMode, stored: StoredTable, text: str) -> tuple[KeyRange, ...]:
    """Return what of a table is to be imaged, ascending.

    Args:
        info: the changefeed, of which the table is.
        mode: in which.
        stored: the table.
        text: ``START:END``, values of its integer key; END is not included.

    Raises:
        ImageRefusedError: the table has no such key, the text is no range of it, or the changefeed could not resync
            that alone; ``fields`` name the table and why.
    """
    table = stored.decode()
    try:
        if why := _misfit(info, mode, table):
            raise ValueError(why)
        keys = parse_handle_range(text).raw_keys(table.table_id, is_unsigned=_is_unsigned(table))
    except ValueError as error:
        raise ImageRefusedError(
            "this part of the table cannot be imaged by itself",
            changefeed=info.changefeed_id,
            mode=mode,
            table=f"{stored.schema}.{stored.table}",
            key_range=text[:100],
            reason=str(error),
        ) from error
    return tuple(KeyRange(*bounds) for bounds in keys)


def _misfit(info: ChangefeedInfo, mode: ImageMode, table: TableVersion) -> str | None:
    if table.partitions:
        return "it is partitioned, and a range of keys lies in many partitions"
    if table.handle_kind is HandleKind.COMMON:
        return "its rows are ordered by a clustered key that is not one whole number"
    if mode is ImageMode.RESYNC and not has_processors(info.sink_uri):
        return "a resync empties the whole table at consumers of a topic; `backfill` is possible"
    return None


def _is_unsigned(table: TableVersion) -> bool:
    return table.handle_kind is HandleKind.INT and table.columns[table.key_columns[0]].unsigned
