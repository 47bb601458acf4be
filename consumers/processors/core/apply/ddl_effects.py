"""What a DDL of several changes leaves behind by name: columns, indexes and partitions that are there, or gone.

A server refuses such a DDL for one change that is so already ("duplicate column name"), and does none of the others.
Whether all have been done, as when a DDL comes again that another tool has run, only a look at each of them tells. The
text is read as far as names go, in the form in which sorters write it (as TiDB restores it); the rest is unknown.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from schemas.ddl.job import DdlType
from schemas.sink.sql_rows import SqlDdl

_NAMES_AND_SIGNS = r"`(?:[^`]|``)*+`|/\*.*?\*/|[\w$\x80-\U0010ffff]+|\s+|."
_ESCAPED = re.compile(rf"'(?:[^'\\]|''|\\.)*+'|\"(?:[^\"\\]|\"\"|\\.)*+\"|{_NAMES_AND_SIGNS}", re.DOTALL | re.ASCII)
_PLAIN = re.compile(rf"'(?:[^']|'')*+'|\"(?:[^\"]|\"\")*+\"|{_NAMES_AND_SIGNS}", re.DOTALL | re.ASCII)
"""Where a backslash within a string means itself."""
_ONE_CHANGE = frozenset(
    {
        *(DdlType.CREATE_SCHEMA, DdlType.DROP_SCHEMA, DdlType.RECOVER_SCHEMA),
        *(DdlType.CREATE_TABLE, DdlType.CREATE_TABLES, DdlType.DROP_TABLE, DdlType.RECOVER_TABLE),
        *(DdlType.CREATE_VIEW, DdlType.DROP_VIEW),
        *(DdlType.ADD_COLUMN, DdlType.DROP_COLUMN, DdlType.ADD_INDEX, DdlType.DROP_INDEX),
        *(DdlType.ADD_PRIMARY_KEY, DdlType.DROP_PRIMARY_KEY, DdlType.ADD_FOREIGN_KEY, DdlType.DROP_FOREIGN_KEY),
    }
)
_NO_COLUMN = frozenset({"CONSTRAINT", "FOREIGN", "CHECK", "FULLTEXT", "SPATIAL", "VECTOR", "COLUMNAR"})


class Kind(StrEnum):
    """What an effect is about."""

    COLUMN = "column"
    INDEX = "index"
    PARTITION = "partition"


@dataclass(frozen=True, slots=True)
class Effect:
    """Something of a table that is there, or gone."""

    kind: Kind
    name: str
    """In lower case."""
    is_there: bool = True


@dataclass(frozen=True, slots=True)
class Effects:
    """What a DDL leaves behind."""

    named: tuple[Effect, ...]
    unknown: tuple[str, ...] = ()
    """Changes that no name tells, such as another type of a column."""


def is_one_change(ddl: SqlDdl) -> bool:
    """Tell whether an error by which something is there already, or gone, says that all of a DDL has been done."""
    return ddl.ddl_type in _ONE_CHANGE


def effects_of(ddl: SqlDdl) -> Effects:
    """Return what a DDL that changes a table leaves behind."""
    pattern = _PLAIN if ddl.plain_backslashes else _ESCAPED
    pieces = [text for text in pattern.findall(ddl.query) if not text.isspace()]
    tokens = [text for text in pieces if not text.startswith("/*")]
    is_read = {"'", '"', "`", ";"}.isdisjoint(tokens) and not any(text.startswith("/*!") for text in pieces)
    if not is_read or _words(tokens, 2) != ("ALTER", "TABLE"):
        return Effects((), (ddl.query,))
    changes = tokens[5 if tokens[3:4] == ["."] else 3 :]
    parts = [changes] if _words(changes, 2)[1:] == ("PARTITION",) else list(_divided(changes))
    named, unknown = list[Effect](), list[str]()
    for part in parts:
        effects = list(_effects(part))
        named += effects
        if not effects:
            unknown.append(" ".join(part))
    # A name that comes anew tells nothing: the one from before is there as well.
    again = {f"{it.kind} {it.name}" for it in named if Effect(it.kind, it.name, not it.is_there) in named}
    return Effects(tuple(named), (*unknown, *sorted(again)))


def _effects(change: Sequence[str]) -> Iterator[Effect]:
    """Yield what one change leaves behind; nothing, if that is unknown."""
    match _words(change, 3):
        case (_, "PARTITION", *_):
            yield from _of_partitions(change)
        case ("ADD" | "DROP" as verb, "PRIMARY", "KEY"):
            yield Effect(Kind.INDEX, "primary", verb == "ADD")
        case ("ADD", "UNIQUE" | "INDEX" | "KEY", *_):
            rest = [text for text in change[1:3] if text.upper() in ("UNIQUE", "INDEX", "KEY")]
            if (name := change[1 + len(rest) : 2 + len(rest)]) not in ([], ["("]):
                yield Effect(Kind.INDEX, _name(name[0]))
        case ("DROP", "INDEX" | "KEY", *_) if len(change) == 3:
            yield Effect(Kind.INDEX, _name(change[2]), is_there=False)
        case ("RENAME", "COLUMN" | "INDEX" | "KEY" as what, *_) if len(change) == 5:
            kind, before, after = Kind.COLUMN if what == "COLUMN" else Kind.INDEX, _name(change[2]), _name(change[4])
            yield Effect(kind, after)
            if before != after:
                yield Effect(kind, before, is_there=False)
        case ("ADD" | "DROP", word, *_) if word in _NO_COLUMN:
            return  # a server may pass over one that it does not know, as an old TiDB does over FULLTEXT
        case ("ADD" | "DROP" as verb, *_):
            yield from _of_columns(verb, change[2:] if _words(change, 2)[1:] == ("COLUMN",) else change[1:])


def _of_columns(verb: str, change: Sequence[str]) -> Iterator[Effect]:
    if verb == "ADD" and change[:1] == ["("] and change[-1] == ")":
        for column in _divided(change[1:-1]):
            yield from _effects(["ADD", *column])
    elif change and (verb == "ADD" or len(change) == 1):
        yield Effect(Kind.COLUMN, _name(change[0]), verb == "ADD")


def _of_partitions(change: Sequence[str]) -> Iterator[Effect]:
    verb, rest = change[0].upper(), change[2:]
    # One that is not there holds nothing, so it need not be emptied.
    if verb in ("DROP", "TRUNCATE"):
        yield from (Effect(Kind.PARTITION, _name(text), is_there=False) for text in rest if text != ",")
    at = next((at for at, text in enumerate(rest) if text.upper() == "INTO"), 0) + 1 if verb == "REORGANIZE" else 0
    if verb not in ("ADD", "REORGANIZE") or rest[at : at + 1] != ["("]:
        return
    made = [_name(part[1]) for part in _divided(rest[at + 1 : -1]) if _words(part, 1) == ("PARTITION",) and part[1:]]
    yield from (Effect(Kind.PARTITION, name) for name in made)
    gone = [_name(text) for text in rest[: max(0, at - 1)] if text != ","]
    yield from (Effect(Kind.PARTITION, name, is_there=False) for name in gone if name not in made)


def _divided(tokens: Sequence[str]) -> Iterator[list[str]]:
    """Yield what stands between commas outside of parentheses, without IF NOT EXISTS."""
    depth, part = 0, list[str]()
    for text in tokens:
        depth += (text == "(") - (text == ")")
        if text == "," and not depth:
            yield _without_if(part)
            part = []
        else:
            part.append(text)
    yield _without_if(part)


def _without_if(change: list[str]) -> list[str]:
    head = [text for text in change[:6] if text.upper() not in ("IF", "NOT", "EXISTS")]
    return change if "IF" not in _words(change, 3) else head + change[6:]


def _words(tokens: Sequence[str], count: int) -> tuple[str, ...]:
    """Return the first tokens as keywords are compared."""
    return tuple(text.upper() for text in tokens[:count])


def _name(text: str) -> str:
    return (text[1:-1].replace("``", "`") if text.startswith("`") else text).lower()
