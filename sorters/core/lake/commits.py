"""Which commits a cut becomes, and where a run goes on that finds the lake tables of the one before.

    stage: rows go to a branch of the run's own ─▶ publish: main moves to it, with the watermark in its summary
    ... each table by itself; once all have it ─▶ tag each table wm_TS; DDL stand between the commits of a cut

Every table says for itself how far it is, by the newest summary on main. So a commit that was interrupted needs no
memory of it: a table takes the rows above its own watermark, whatever the next cut is, and a row is written once. The
next cut may end below what some table has already: then it is no watermark to tag, for that table's main shows more.

Rows of a table image go with the changes of the cut that ends at their ts S, and by the same rule: a table whose
watermark is at S or above has them. While changes are left out for images to come, nothing is tagged.
"""

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import SchemaChange, StoredTable, TableChange
from schemas.ids import TableId, Ts
from schemas.tidb.table import TableVersion
from sorters.core.cut.images import LeftOut
from sorters.core.lake.errors import LakeSchemaError
from sorters.core.lake.refusals import BEGIN_ANEW

TAG_PREFIX = "wm_"
_WITHOUT_ROWS = frozenset({DdlType.DROP_PARTITION, DdlType.TRUNCATE_PARTITION, DdlType.EXCHANGE_PARTITION})
"""DDL that make rows come or go with no row change."""
_RECOVERS = frozenset({DdlType.RECOVER_TABLE, DdlType.RECOVER_SCHEMA})
_TO = re.compile(r"\sTO\s", re.IGNORECASE)
_EMPTIES = frozenset({DdlType.TRUNCATE_TABLE, DdlType.CREATE_TABLE, DdlType.CREATE_TABLES})


@dataclass(frozen=True, slots=True)
class LakeProgress:
    """How far a lake table says it is."""

    watermark_ts: Ts
    """Every change up to it is in main."""
    tags: frozenset[Ts]
    image_to_come: bool = False
    """It was made for rows of its image, and main has never been known to show all of them."""
    noted_ts: Ts = Ts(0)
    """What a property of the table says: the last transaction of the catalog that it has had, with rows or without."""
    made_behind_ts: Ts = Ts(0)
    """The newest tag of all tables when this one was made, where that was beyond its first watermark."""


def tag_name(watermark_ts: Ts) -> str:
    """Return the name of a watermark's tag."""
    return f"{TAG_PREFIX}{watermark_ts}"


def tag_ts(name: str) -> Ts | None:
    """Return the watermark of a tag; None: the tag is somebody else's."""
    digits = name.removeprefix(TAG_PREFIX)
    return Ts(int(digits)) if digits != name and digits.isascii() and digits.isdecimal() else None


def expired_tags(tags: Iterable[Ts], kept: int) -> tuple[Ts, ...]:
    """Return the tags that go where only the newest ``kept`` stay."""
    return tuple(sorted(tags)[:-kept])


def unfinished_tag(tables: Mapping[str, LakeProgress]) -> tuple[Ts, frozenset[str]] | None:
    """Return the watermark that a run had begun to tag, and the tables that it is for, of which not all have it; None:
    there is none.

    Tagging begins when all tables have the watermark, and the next commit when all have the tag. So what no table is
    beyond may be tagged everywhere, but for a table whose image is to come: no tag was ever meant for it.
    """
    whole = {name: table for name, table in tables.items() if not table.image_to_come}
    newest = max((ts for table in whole.values() for ts in table.tags), default=None)
    if newest is None or any(table.watermark_ts > newest for table in whole.values()):
        return None
    return (newest, frozenset(whole)) if any(newest not in table.tags for table in whole.values()) else None


def is_torn(tables: Mapping[str, LakeProgress], unfinished: tuple[Ts, frozenset[str]]) -> bool:
    """Tell of an unfinished tag whether a transaction of the catalog was to set it, rows and tag at once, and has moved
    some tables only: then the others may lack the rows, and the tag was never on all tables.

    A catalog that says it has transactions may still do them table by table, and die in between. A table that was made
    when the others had the tag had no part in it.
    """
    ts, names = unfinished
    said = (tables[name] for name in names)
    return any(ts not in each.tags and max(each.noted_ts, each.made_behind_ts) < ts for each in said)


def may_tag(tables: Iterable[LakeProgress], watermark_ts: Ts) -> bool:
    """Tell whether main shows every table as it was at a watermark that all of them have, and none stands beyond it."""
    return all(max([table.watermark_ts, *table.tags]) <= watermark_ts for table in tables)


def shows_all(left_out: LeftOut | None) -> bool:
    """Tell whether main shows tables as they were at the end of a cut that leaves this out: what it leaves out comes
    with images only, of which the last may stand in this very cut.
    """
    return left_out is None


def steps_of_cut(after_ts: Ts, upto_ts: Ts, ddl_ts: Iterable[Ts]) -> tuple[tuple[Ts, Ts], ...]:
    """Divide the rows of a cut at the DDL within it: ``(after, upto]`` each; a DDL follows the rows up to its ts."""
    borders = sorted({ts for ts in ddl_ts if after_ts < ts < upto_ts} | {after_ts, upto_ts})
    return tuple(pairwise(borders))


def is_imaged(table: TableVersion, left_out: LeftOut | None) -> bool:
    """Tell whether a table's rows are to come by an image, as a cut says that leaves them out."""
    return left_out is not None and any(map(left_out.of_table, table.physical_ids))


def check_rows(
    change: SchemaChange, lake_table: str, *, is_there: bool, imaged: bool, is_anothers: bool = False
) -> None:
    """Let a lake table that shows rows as they are follow a DDL that stays within what row changes and images say.

    Args:
        is_there: it has been made.
        imaged: as :func:`is_imaged` says.
        is_anothers: it has been another table's meanwhile.

    Raises:
        LakeSchemaError: the DDL makes rows come or go that neither speaks of.
    """
    pass_by = f"add {change.job.start_ts} to ignore-txn-start-ts under [filter] and resume; then"
    if is_there and change.job.type in _WITHOUT_ROWS:
        reason = "it makes rows come or go with no row change"
        resync = "`tidebus table resync` of each table that it names mends them (until then tags show rows of before)"
        helps = f"{pass_by} {resync}; or {BEGIN_ANEW}"
    elif not imaged and change.job.type in _RECOVERS and (is_anothers or _TO.search(change.job.query)):
        reason = "a table comes back with rows under a name by which no lake table has them"
        helps = f"{pass_by} `tidebus table backfill` brings the rows"
    else:
        return
    raise LakeSchemaError("lake table cannot follow a ddl", table=lake_table, reason=reason, what_helps=helps)


def empties(change: SchemaChange) -> bool:
    """Tell whether a table has no rows after a DDL, whatever its lake table holds."""
    return change.job.type in _EMPTIES


def ends_resync(change: SchemaChange, stays: bool) -> bool:
    """Tell whether a DDL ends the resync of a table of the changefeed that it changes: by it, or from there on, rows
    come or go of which neither a change nor a chunk speaks. ``stays``: the table is the changefeed's behind it, too.
    """
    return not stays or change.job.type in _WITHOUT_ROWS


def is_anothers(table_id: TableId, sides: TableChange) -> bool:
    """Tell whether a lake table, which says this id, holds another table's rows than those of a DDL's table: of an
    earlier one of the name.
    """
    return all(side is None or side.table_id != table_id for side in (sides.pre, sides.post))


def is_renamed(pre: StoredTable, post: StoredTable) -> bool:
    """Tell whether a DDL has moved a table to another name."""
    return (pre.schema, pre.table) != (post.schema, post.table)


def filled_columns(
    pre: TableVersion, post: TableVersion, remade: Container[int] = (), left: Container[str] = ()
) -> tuple[int, ...]:
    """Return the offsets of columns that a DDL has added, whose values in rows of before no change brings: a default,
    or NULL where the lake table holds others.

    Args:
        remade: ids of columns that it has made of others.
        left: lower-case names of fields that the lake table goes on with, also of columns that a filter has let nobody
            drop.
    """
    known = {column.id for column in pre.columns}
    names = {column.name.lower() for column in pre.columns}
    return tuple(
        column.offset
        for column in post.columns
        if column.id not in known
        and column.id not in remade
        and column.name.lower() not in names
        and (column.absent_value is not None or column.name.lower() in left)
    )
