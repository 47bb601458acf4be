"""How a lake table follows a DDL: by TiDB's column ids, which Iceberg's fields carry in their doc.

A field keeps Iceberg's own id through all of it, so older snapshots are read as they were.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from schemas.ids import Ts
from sorters.core.lake.columns import CHANGE_COLUMN_IDS, LakeColumn, widens
from sorters.core.lake.errors import LakeSchemaError
from sorters.core.lake.refusals import BEGIN_ANEW
from sorters.core.lake.remade import Remade

_DOC = "tidebus column "
_NEW_COLUMN: Final = "say type-change=new-column in the sink URI and resume: the column goes on as a new field"
SET_ASIDE_DOC = "what a column held before its type changed, or another table of this name"
"""Of a field that is no column's any more."""


@dataclass(frozen=True, slots=True)
class LakeField:
    """A field that a lake table has."""

    name: str
    type: str
    doc: str | None

    @property
    def column_id(self) -> int | None:
        """TiDB's id of the column; None: the field is somebody else's."""
        text = (self.doc or "").removeprefix(_DOC)
        return int(text) if self.doc != text and text.lstrip("-").isdecimal() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """What is to be done to a lake table's fields in one step: what is added comes last, and may take any name that the
    rest frees.
    """

    set_aside: tuple[tuple[str, str], ...] = ()
    """Fields that are nobody's from here on, and what they are called then; what follows may take their names."""
    drops: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    """From and to."""
    widened: tuple[tuple[str, str], ...] = ()
    """Old name of the field, and its new type."""
    adds: tuple[LakeColumn, ...] = ()
    docs: tuple[tuple[str, str], ...] = ()
    """Old name of the field, and its new doc."""

    @property
    def is_empty(self) -> bool:
        return not (self.set_aside or self.drops or self.renames or self.widened or self.adds or self.docs)


def says_changes(fields: Iterable[LakeField]) -> bool:
    """Tell whether a table has the columns that say what changed."""
    return any(field.column_id in CHANGE_COLUMN_IDS.values() for field in fields)


def field_doc(column: LakeColumn) -> str:
    """Return the doc of a column's field."""
    return f"{_DOC}{column.id}"


def check_fields(fields: Iterable[LakeField], wanted: Iterable[LakeColumn], table: str, lake_table: str) -> None:
    """Let a lake table have rows of these columns, whoever has changed its fields meanwhile.

    Raises:
        LakeSchemaError: it has no field of a column's name any more: what rows hold there would be lost.
    """
    fields = tuple(fields)
    names, called = {field.name for field in fields}, {field.column_id: field.name for field in fields}
    missing = [column for column in wanted if column.name not in names]
    if not missing:
        return
    renamed = [f"{called[column.id]} to {column.name}" for column in missing if column.id in called]
    is_gone = len(renamed) < len(missing)
    helps = BEGIN_ANEW if is_gone else f"rename in the lake table {', '.join(renamed)}, and resume; or {BEGIN_ANEW}"
    raise LakeSchemaError(
        "rows do not fit their lake table",
        table=table,
        lake_table=lake_table,
        columns=", ".join(column.name for column in missing),
        reason=f"somebody else has {'dropped' if is_gone else 'renamed'} fields of it",
        what_helps=helps,
    )


def plan_evolution(
    fields: Sequence[LakeField],
    wanted: Sequence[LakeColumn],
    table: str,
    laid_by: Collection[str] = (),
    *,
    set_aside_at: Ts | None = None,
    keys: Collection[str] = (),
    remade: Remade | None = None,
) -> Evolution:
    """Plan how a table with these fields comes to have the wanted columns. Fields of others stay.

    A column that TiDB has made anew under its old name (a change of type that rewrites rows) is the same field if
    Iceberg can widen it, and its values surely stay.

    Args:
        laid_by: names of fields that partitions or the sort order go by.
        set_aside_at: the DDL's ts, where a field of another type is to stay beside a new one; None: that is an error.
        keys: columns by which rows are found again, whose fields hold all of the table's values.
        remade: what is known of columns with new ids, where rows of before are to be as TiDB's; None: there are none,
            or they are changes, which stay as they were.

    Raises:
        LakeSchemaError: a column gets a type that Iceberg cannot widen its field to, values that no row change brings,
            or the name of another's field; or one is dropped that the table is laid out by.
    """
    by_id = {field.column_id: field for field in fields if field.column_id is not None}
    ids = {column.id for column in wanted}
    free = {field.name.lower(): field for field in fields if field.column_id is not None and field.column_id not in ids}
    others = {field.name.lower() for field in fields if field.column_id is None}
    kept: list[tuple[LakeField, LakeColumn]] = []
    adds: list[LakeColumn] = []
    set_aside: list[tuple[str, str]] = []
    for column in wanted:
        former = by_id.get(remade.former.get(column.id, 0)) if remade is not None else None
        field = by_id.get(column.id) or free.pop((former or column).name.lower(), None)
        _check_free(column, others, table)
        if field is None:
            adds.append(column)
            continue
        misfit = _misfit(field, column, remade)
        if misfit:
            may_go_on = field.name not in laid_by and column.name not in keys
            if set_aside_at is not None and may_go_on:
                set_aside.append((field.name, f"{field.name}_until_{set_aside_at}"))
                adds.append(column)
                continue
            helps = f"{_NEW_COLUMN}; or {BEGIN_ANEW}" if may_go_on else BEGIN_ANEW
            raise _refused(table, column.name, misfit, helps)
        kept.append((field, column))
    drops = _gone(fields, {field.name for field, _ in kept} | {name for name, _ in set_aside}, table, laid_by)
    return _evolution(kept, adds, drops, set_aside)


def plan_anew(
    fields: Sequence[LakeField],
    wanted: Sequence[LakeColumn],
    table: str,
    laid_by: Collection[str] = (),
    *,
    set_aside_at: Ts | None,
) -> Evolution:
    """Plan how a table whose fields are another table's comes to have the wanted columns: by their names, for the ids
    that the fields say are the other table's.

    Args:
        laid_by: names of fields that partitions or the sort order go by.
        set_aside_at: the DDL's ts, where what the other table has written stays; None: nothing does.

    Raises:
        LakeSchemaError: a column gets the name of another's field; or the table is laid out by a field that goes.
    """
    ours = {field.name.lower(): field for field in fields if field.column_id is not None}
    others = {field.name.lower() for field in fields if field.column_id is None}
    kept: list[tuple[LakeField, LakeColumn]] = []
    adds: list[LakeColumn] = []
    for column in wanted:
        _check_free(column, others, table)
        field = ours.get(column.name.lower())
        if field is not None and _fits(field, column):
            kept.append((field, column))
        else:
            adds.append(column)
    gone = _gone(fields, {field.name for field, _ in kept}, table, laid_by)
    if set_aside_at is None:
        return _evolution(kept, adds, gone, ())
    return _evolution(kept, adds, (), [(name, f"{name}_until_{set_aside_at}") for name in gone])


def _check_free(column: LakeColumn, others: Collection[str], table: str) -> None:
    if column.name.lower() in others:
        reason = "a field of this name stands in the lake table already, and is not ours"
        raise _refused(table, column.name, reason, "rename or drop that field in the lake table, and resume")


def _gone(
    fields: Sequence[LakeField], staying: Collection[str], table: str, laid_by: Collection[str]
) -> tuple[str, ...]:
    """Return which of our fields are no column's any more.

    Raises:
        LakeSchemaError: the table is laid out by one.
    """
    gone = tuple(field.name for field in fields if field.column_id is not None and field.name not in staying)
    for name in gone:
        if name in laid_by:
            raise _refused(table, name, "the lake table's partitions or sort order go by it", BEGIN_ANEW)
    return gone


def _evolution(
    kept: Sequence[tuple[LakeField, LakeColumn]],
    adds: Sequence[LakeColumn],
    drops: tuple[str, ...],
    set_aside: Sequence[tuple[str, str]],
) -> Evolution:
    return Evolution(
        set_aside=tuple(set_aside),
        drops=drops,
        renames=tuple((field.name, column.name) for field, column in kept if field.name != column.name),
        widened=tuple((field.name, column.type) for field, column in kept if field.type != column.type),
        adds=tuple(adds),
        docs=tuple((field.name, field_doc(column)) for field, column in kept if field.doc != field_doc(column)),
    )


def _fits(field: LakeField, column: LakeColumn) -> bool:
    return field.type == column.type or widens(field.type, column.type)


def _misfit(field: LakeField, column: LakeColumn, remade: Remade | None) -> str:
    """Return why a field cannot be a column's from here on; '': it can."""
    if not _fits(field, column):
        return f"Iceberg cannot make {column.type} of {field.type}"
    if remade is None or field.column_id is None or field.column_id == column.id:
        return ""
    if remade.keeps_values(field.column_id, field.type, column):
        return ""
    return "it was made anew with another type, which may change values, and no row change brings these"


def _refused(table: str, column: str, reason: str, helps: str) -> LakeSchemaError:
    where = {"table": table, "column": column}
    return LakeSchemaError("lake table cannot follow a ddl", **where, reason=reason, what_helps=helps)
