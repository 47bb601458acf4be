"""What a DDL leaves behind by name: columns, indexes and partitions that are there, or gone.

A server refuses a DDL of several changes for one that is so already ("duplicate column name"), and does none of the
others. Whether all have been done, as when a DDL comes again that another tool has run, only a look at each of them
tells; so does whether one that was begun has run, where a destination looks otherwise for another reason, too. The text
is read as far as names go, in the form in which sorters write it (as TiDB restores it); the rest is unknown.
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
_OF_INDEX = frozenset({"UNIQUE", "FULLTEXT", "SPATIAL", "INDEX", "KEY"})
_MANNERS = frozenset({("ALGORITHM",), ("LOCK",), ("WITH", "VALIDATION"), ("WITHOUT", "VALIDATION")})
"""How a server is to go about it: nothing of a table is changed by them."""
_SETTINGS = frozenset(
    {
        *("MODIFY", "CHANGE", "ALTER", "COMMENT", "DEFAULT", "CHARACTER", "CHARSET", "CONVERT", "COLLATE", "ENGINE"),
        *("FORCE", "TTL", "TTL_ENABLE", "TTL_JOB_INTERVAL", "ROW_FORMAT", "SHARD_ROW_ID_BITS", "PRE_SPLIT_REGIONS"),
        *("AUTO_INCREMENT", "AUTO_ID_CACHE", "AUTO_RANDOM_BASE"),
    }
)
"""What changes begin with that say how something is to be: done again, they find it so."""
_SETTINGS_OF_TWO = frozenset(
    {("REMOVE", "TTL"), ("PARTITION", "BY"), ("REORGANIZE", "PARTITION"), ("TRUNCATE", "PARTITION")}
)
_STATEMENTS_OF_TWO = frozenset({("ALTER", "DATABASE"), ("ALTER", "SCHEMA"), ("CREATE", "OR"), ("TRUNCATE", "TABLE")})


class Kind(StrEnum):
    """What an effect is about."""

    COLUMN = "column"
    INDEX = "index"
    INDEX_ON = "index on"
    """One without a name, by its columns: ``v,w``, or ``unique v,w``."""
    PARTITION = "partition"
    FOREIGN_KEY = "foreign key"


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
    likely: tuple[Effect, ...] = ()
    """Of those: what is there once they have been done, though it may be there without them, or lack behind them."""
    once: tuple[str, ...] = ()
    """Of those: changes of which nothing is likely either, and which a second time would spoil or end in an error."""


def is_one_change(ddl: SqlDdl) -> bool:
    """Tell whether an error by which something is there already, or gone, says that all of a DDL has been done."""
    return ddl.ddl_type in _ONE_CHANGE


def effects_of(ddl: SqlDdl) -> Effects:
    """Return what a DDL that changes a table leaves behind."""
    tokens = _tokens(ddl)
    if (changes := _changes(tokens)) is None:
        is_setting = _words(tokens, 2) in _STATEMENTS_OF_TWO
        return Effects((), (ddl.query,), once=() if is_setting else (ddl.query,))
    parts = [changes] if _words(changes, 2)[1:] == ("PARTITION",) else list(_divided(changes))
    named, unknown, likely, once = list[Effect](), list[str](), list[Effect](), list[str]()
    added = set[Effect]()
    for part in parts:
        if _MANNERS & {_words(part, 1), _words(part, 2)}:
            continue
        effects = list(_effects(part))
        named += effects
        if effects:
            added.update(effects if _words(part, 1) != ("RENAME",) else ())
            continue
        unknown.append(" ".join(part))
        guesses = list(_likely(part))
        likely += guesses
        if not guesses and not _is_setting(part):
            once.append(" ".join(part))
    # A name that comes anew tells nothing: the one from before is there as well.
    again = {it for it in (*named, *likely) if Effect(it.kind, it.name, not it.is_there) in (*named, *likely)}
    unknown += sorted({_told(it) for it in again & set(named)})
    # Dropped and added once more it is the same; of names that go round, each time makes others.
    once += sorted({_told(it) for it in again - added})
    return Effects(
        tuple(it for it in named if it not in again),
        tuple(unknown),
        tuple(it for it in likely if it not in again),
        tuple(once),
    )


def exchanged_partition(ddl: SqlDdl) -> str:
    """Return the partition that an EXCHANGE PARTITION is about, as it is written; empty: the text does not tell."""
    changes = _changes(_tokens(ddl)) or []
    is_exchange = _words(changes, 2) == ("EXCHANGE", "PARTITION") and len(changes) > 2
    return _unquoted(changes[2]) if is_exchange else ""


def _tokens(ddl: SqlDdl) -> list[str]:
    """Return a statement's words, names and signs; none, where it cannot be read."""
    pattern = _PLAIN if ddl.plain_backslashes else _ESCAPED
    pieces = [text for text in pattern.findall(ddl.query) if not text.isspace()]
    tokens = [text for text in pieces if not text.startswith("/*")]
    is_read = {"'", '"', "`", ";"}.isdisjoint(tokens) and not any(text.startswith("/*!") for text in pieces)
    return tokens if is_read else []


def _changes(tokens: Sequence[str]) -> list[str] | None:
    """Return what stands behind the name of an ALTER TABLE; CREATE and DROP INDEX as one. None: it is another."""
    if _words(tokens, 2) == ("ALTER", "TABLE"):
        return list(tokens[5 if tokens[3:4] == ["."] else 3 :])
    words = _words(tokens, 10)
    if words[:1] not in (("CREATE",), ("DROP",)) or "INDEX" not in words[1:3] or "ON" not in words:
        return None
    on = words.index("ON")
    verb = "ADD" if words[0] == "CREATE" else "DROP"
    behind = tokens[on + (4 if tokens[on + 2 : on + 3] == ["."] else 2) :]
    # Behind the table's name a DROP says no more than how it is to be done.
    return [verb, *tokens[1:on], *(behind if verb == "ADD" else ())]


def _effects(change: Sequence[str]) -> Iterator[Effect]:
    """Yield what one change leaves behind; nothing, if that is unknown."""
    match _words(change, 3):
        case (_, "PARTITION", *_):
            yield from _of_partitions(change)
        case ("ADD" | "DROP" as verb, "PRIMARY", "KEY"):
            yield Effect(Kind.INDEX, "primary", verb == "ADD")
        case ("ADD", "UNIQUE" | "INDEX" | "KEY", *_):
            yield from _of_index(change[1:])
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


def _likely(change: Sequence[str]) -> Iterator[Effect]:
    """Yield what is there behind a change of which :func:`_effects` tells nothing."""
    match _words(change, 4):
        case ("CHANGE", *rest):
            at = 2 if rest[:1] == ["COLUMN"] else 1
            names = [_name(text) for text in change[at : at + 2]]
            if len(set(names)) == 2:
                yield Effect(Kind.COLUMN, names[1])
                yield Effect(Kind.COLUMN, names[0], is_there=False)
        case ("ADD", "UNIQUE" | "INDEX" | "KEY" as word, *_):
            if columns := _plain_columns(change):
                yield Effect(Kind.INDEX_ON, "unique " * (word == "UNIQUE") + ",".join(columns))
        case ("ADD", "FULLTEXT" | "SPATIAL", *_):
            yield from _of_index(change[1:])
        case ("ADD", "CONSTRAINT", _, "FOREIGN"):
            yield Effect(Kind.FOREIGN_KEY, _name(change[2]))
        case ("DROP", "FOREIGN", "KEY", _) if len(change) == 4:
            yield Effect(Kind.FOREIGN_KEY, _name(change[3]), is_there=False)


def _is_setting(change: Sequence[str]) -> bool:
    """Tell whether a change may be done once more without harm. Nothing at all is left of a TiDB's own settings."""
    words = _words(change, 2)
    return not words or words[0] in _SETTINGS or words in _SETTINGS_OF_TWO


def _of_index(change: Sequence[str]) -> Iterator[Effect]:
    rest = [text for text in change[:2] if text.upper() in _OF_INDEX]
    if (name := change[len(rest) : 1 + len(rest)]) not in ([], ["("]):
        yield Effect(Kind.INDEX, _name(name[0]))


def _plain_columns(change: Sequence[str]) -> list[str]:
    """Return the columns of an index; none, if it is over an expression."""
    begin = change.index("(") + 1 if "(" in change else len(change)
    depth, columns, is_first = 0, list[str](), True
    for text in change[begin:]:
        if is_first and text == "(":
            return []
        if is_first:
            columns.append(_name(text))
        depth += (text == "(") - (text == ")")
        if depth < 0:
            return columns
        is_first = text == "," and not depth
    return []


def _of_columns(verb: str, change: Sequence[str]) -> Iterator[Effect]:
    if verb == "ADD" and change[:1] == ["("] and change[-1] == ")":
        for column in _divided(change[1:-1]):
            yield from _effects(["ADD", *column])
    elif change and (verb == "ADD" or len(change) == 1):
        yield Effect(Kind.COLUMN, _name(change[0]), verb == "ADD")


def _of_partitions(change: Sequence[str]) -> Iterator[Effect]:
    verb, rest = change[0].upper(), change[2:]
    # One that is not there holds nothing, so it need not be emptied. ALL, which no partition is called, names none.
    if verb in ("DROP", "TRUNCATE") and _words(rest, 2) != ("ALL",):
        yield from (Effect(Kind.PARTITION, _name(text), is_there=False) for text in rest if text != ",")
    at = next((at for at, text in enumerate(rest) if text.upper() == "INTO"), 0) + 1 if verb == "REORGANIZE" else 0
    if verb not in ("ADD", "REORGANIZE") or rest[at : at + 1] != ["("]:
        return
    made = [_name(part[1]) for part in _divided(rest[at + 1 : -1]) if _words(part, 1) == ("PARTITION",) and part[1:]]
    gone = [_name(text) for text in rest[: max(0, at - 1)] if text != ","]
    if set(made) == set(gone):
        return  # other bounds of the same names
    yield from (Effect(Kind.PARTITION, name) for name in made)
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
    return change if "IF" not in _words(change, 4) else head + change[6:]


def _words(tokens: Sequence[str], count: int) -> tuple[str, ...]:
    """Return the first tokens as keywords are compared."""
    return tuple(text.upper() for text in tokens[:count])


def _name(text: str) -> str:
    return _unquoted(text).lower()


def _unquoted(text: str) -> str:
    return text[1:-1].replace("``", "`") if text.startswith("`") else text


def _told(effect: Effect) -> str:
    return f"{effect.kind} {effect.name}"
