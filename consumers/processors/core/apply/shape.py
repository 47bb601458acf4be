"""Whether a table of the destination can hold what a table image has of it.

Rows of an image are written over what is there, so a table of another shape would lose rows without a word: with
another key two rows fall into one, or one row becomes two. A table that takes changes alone is not asked: its rows
came from a copy that somebody has made, and a change that does not fit is refused by the server.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from schemas.ids import Ts as Ts
from schemas.sink.sql_rows import TableForm


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredColumn:
    """A column of the destination's table."""

    name: str
    tp: str = ""
    """Its type as the server writes it, such as ``bigint(20) unsigned``."""
    generated: bool = False
    needed: bool = False
    """NOT NULL without a default: a row must bring it."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A unique key of it, of columns alone."""

    columns: tuple[str, ...]
    whole: bool = True
    """False: of a prefix of some. How long those of the source are is not told, so only the columns are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredShape:
    """A table as the destination has it."""

    columns: Sequence[StoredColumn]
    uniques: Sequence[StoredKey]


_WHOLE_NUMBERS = ("tinyint", "smallint", "mediumint", "int", "bigint")


def range_misfits(form: TableForm, stored: StoredShape) -> Iterator[str]:
    """Yield what keeps rows that an image lacks from being told by ranges of a table's key; nothing: they can be.

    >>> form = TableForm(schema="d", table="t", version=Ts(1), columns=(), key=("id",))
    >>> list(range_misfits(form, StoredShape(columns=[StoredColumn(name="ID", tp="text")], uniques=[])))
    ['its key column `ID` is no whole number but text']
    """
    there = {column.name.lower(): column for column in stored.columns}
    for name in form.key:
        column = there.get(name.lower())
        if column is None:
            yield f"it lacks column `{name}`"
        elif not column.tp.lower().startswith(_WHOLE_NUMBERS):
            yield f"its key column `{column.name}` is no whole number but {column.tp}"


def misfits(form: TableForm, stored: StoredShape) -> Iterator[str]:
    """Yield what keeps a table from holding an image's rows, for people; nothing: it fits. Names are compared without
    case, as servers compare those of columns.

    >>> form = TableForm(schema="d", table="t", version=Ts(1), columns=("id", "v"), key=("id",), uniques=(("id",),))
    >>> list(misfits(form, StoredShape(columns=[StoredColumn(name="ID")], uniques=[StoredKey(("ID",))])))
    ['it lacks column `v`']
    """
    there = {column.name.lower(): column for column in stored.columns}
    for name in form.columns:
        column = there.get(name.lower())
        if column is None:
            yield f"it lacks column `{name}`"
        elif column.generated:
            yield f"it generates column `{name}`"
    written = {name.lower() for name in form.columns}
    for name, column in there.items():
        if column.needed and name not in written:
            yield f"its column `{column.name}` has no default, and the source has no such column"
    if not form.is_keyless and all(_names(form.key) != _names(key.columns) for key in stored.uniques):
        yield f"it has no unique key of ({', '.join(form.key)})"
    ours = [_names(unique) for unique in form.uniques or ()]
    for key in stored.uniques:
        if key.whole and not any(own <= _names(key.columns) for own in ours):
            yield f"its unique key of ({', '.join(key.columns)}) may hold one row where the source has several"


def _names(columns: Sequence[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in columns)
