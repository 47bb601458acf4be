"""The specifications of ALTER TABLE, restored as TiDB does."""

from collections.abc import Callable

from sorters.core.sql.column import column_definition, default_value
from sorters.core.sql.table import (
    CONSTRAINT_STARTS,
    constraint,
    partition_by,
    partition_definitions,
    table_option,
)
from sorters.core.sql.tokens import Cursor, TokenKind

_CHARSET_HEAD = "DEFAULT CHARACTER SET = "
_COLLATE_HEAD = "DEFAULT COLLATE = "


def alter_specs(cursor: Cursor, charset: str) -> str:
    """Restore all specifications, with a leading space; partitioning is set off by a space, the rest by commas.

    Raises:
        UnsupportedSqlError: a specification that is not known here.
    """
    text = ""
    while not cursor.at_end():
        spec, is_partitioning = _spec(cursor, charset)
        if spec:
            text += (" " if not text or is_partitioning else ", ") + spec
        if not cursor.accept_symbol(",") and not cursor.at_end() and not cursor.at_words("PARTITION", "BY"):
            raise cursor.unsupported("a comma")
    return text


def _spec(cursor: Cursor, charset: str) -> tuple[str, bool]:
    if cursor.accept("PARTITION", "BY"):
        return partition_by(cursor, charset), True
    if cursor.accept("REMOVE", "PARTITIONING"):
        return "REMOVE PARTITIONING", True
    if cursor.accept("FORCE", "AUTO_INCREMENT"):
        cursor.accept_symbol("=")
        return f"/*T![force_inc] FORCE */ AUTO_INCREMENT = {cursor.integer()}", False
    if cursor.accept("REMOVE", "TTL"):
        return "/*T![ttl] REMOVE TTL */", False
    restorers: dict[str, Callable[[Cursor, str], str]] = {
        "ADD": _add,
        "DROP": _drop,
        "MODIFY": _modify,
        "CHANGE": _change,
        "RENAME": _rename,
        "ALTER": _alter,
        "CONVERT": _convert,
        "TRUNCATE": _truncate,
        "REORGANIZE": _reorganize,
        "COALESCE": _coalesce,
        "EXCHANGE": _exchange,
        "LOCK": _setting("LOCK"),
        "ALGORITHM": _setting("ALGORITHM"),
    }
    restorer = restorers.get(cursor.peek().upper)
    if restorer is None:
        return _options(cursor), False
    cursor.take()
    return restorer(cursor, charset), False


def _add(cursor: Cursor, charset: str) -> str:
    if cursor.accept("PARTITION"):
        exists = "/*T!  IF NOT EXISTS */" if cursor.accept("IF", "NOT", "EXISTS") else ""
        if cursor.accept("PARTITIONS"):
            return f"ADD PARTITION{exists} PARTITIONS {cursor.integer()}"
        return f"ADD PARTITION{exists} ({', '.join(partition_definitions(cursor, charset))})"
    if cursor.peek().upper in CONSTRAINT_STARTS:
        return "ADD " + constraint(cursor, charset)
    cursor.accept("COLUMN")
    exists = "/*T! IF NOT EXISTS  */" if cursor.accept("IF", "NOT", "EXISTS") else ""
    if not cursor.accept_symbol("("):
        return f"ADD COLUMN {exists}{column_definition(cursor, charset)}{_position(cursor)}"
    columns, constraints = list[str](), list[str]()
    while True:
        if cursor.peek().upper in CONSTRAINT_STARTS:
            constraints.append(constraint(cursor, charset))
        else:
            columns.append(column_definition(cursor, charset))
        if not cursor.accept_symbol(","):
            break
    cursor.expect_symbol(")")
    return f"ADD COLUMN {exists}({', '.join(columns + constraints)})"


def _position(cursor: Cursor) -> str:
    if cursor.accept("FIRST"):
        return " FIRST"
    return f" AFTER {cursor.name()}" if cursor.accept("AFTER") else ""


def _drop(cursor: Cursor, charset: str) -> str:
    if cursor.accept("PRIMARY", "KEY"):
        return "DROP PRIMARY KEY"
    if cursor.accept("FOREIGN", "KEY"):
        return f"DROP FOREIGN KEY {_if_exists(cursor)}{cursor.name()}"
    if cursor.accept_any("CHECK", "CONSTRAINT"):
        return f"DROP CHECK {cursor.name()}"
    if cursor.accept("PARTITION"):
        return f"DROP PARTITION {_if_exists(cursor)}{_names(cursor)}"
    if cursor.accept_any("INDEX", "KEY"):
        return f"DROP INDEX {_if_exists(cursor)}{cursor.name()}"
    cursor.accept("COLUMN")
    text = f"DROP COLUMN {_if_exists(cursor)}{cursor.name()}"
    cursor.accept_any("RESTRICT", "CASCADE")
    return text


def _modify(cursor: Cursor, charset: str) -> str:
    cursor.accept("COLUMN")
    return f"MODIFY COLUMN {_if_exists(cursor)}{column_definition(cursor, charset)}{_position(cursor)}"


def _change(cursor: Cursor, charset: str) -> str:
    cursor.accept("COLUMN")
    exists, old = _if_exists(cursor), cursor.column_name()
    return f"CHANGE COLUMN {exists}{old} {column_definition(cursor, charset)}{_position(cursor)}"


def _rename(cursor: Cursor, charset: str) -> str:
    if cursor.accept("COLUMN"):
        old = cursor.name()
        cursor.expect("TO")
        return f"RENAME COLUMN {old} TO {cursor.name()}"
    if cursor.accept_any("INDEX", "KEY"):
        old = cursor.name()
        cursor.expect("TO")
        return f"RENAME INDEX {old} TO {cursor.name()}"
    if not cursor.accept_any("TO", "AS"):
        cursor.accept_symbol("=")
    return f"RENAME AS {cursor.table_name()}"


def _alter(cursor: Cursor, charset: str) -> str:
    if cursor.accept("INDEX"):
        name, visibility = cursor.name(), cursor.accept_any("VISIBLE", "INVISIBLE")
        if not visibility:
            raise cursor.unsupported("VISIBLE or INVISIBLE")
        return f"ALTER INDEX {name} {visibility}"
    if cursor.accept_any("CHECK", "CONSTRAINT"):
        name, negated = cursor.name(), " NOT" if cursor.accept("NOT") else ""
        cursor.expect("ENFORCED")
        return f"ALTER CHECK {name}{negated} ENFORCED"
    cursor.accept("COLUMN")
    name = cursor.name()
    if cursor.accept("DROP", "DEFAULT"):
        return f"ALTER COLUMN {name} DROP DEFAULT"
    cursor.expect("SET", "DEFAULT")
    return f"ALTER COLUMN {name} SET DEFAULT {default_value(cursor, charset)}"


def _convert(cursor: Cursor, charset: str) -> str:
    cursor.expect("TO")
    if not cursor.accept("CHARSET"):
        cursor.expect("CHARACTER", "SET")
    text = f"CONVERT TO CHARACTER SET {cursor.plain_word(TokenKind.WORD, TokenKind.STRING).upper()}"
    if cursor.accept("COLLATE"):
        cursor.accept_symbol("=")
        text += f" COLLATE {cursor.plain_word(TokenKind.WORD, TokenKind.STRING).upper()}"
    return text


def _truncate(cursor: Cursor, charset: str) -> str:
    cursor.expect("PARTITION")
    return "TRUNCATE PARTITION " + ("ALL" if cursor.accept("ALL") else _names(cursor))


def _reorganize(cursor: Cursor, charset: str) -> str:
    cursor.expect("PARTITION")
    names = _names(cursor)
    cursor.expect("INTO")
    return f"REORGANIZE PARTITION {names} INTO ({', '.join(partition_definitions(cursor, charset))})"


def _coalesce(cursor: Cursor, charset: str) -> str:
    cursor.expect("PARTITION")
    return f"COALESCE PARTITION {cursor.integer()}"


def _exchange(cursor: Cursor, charset: str) -> str:
    cursor.expect("PARTITION")
    name = cursor.name()
    cursor.expect("WITH", "TABLE")
    text = f"EXCHANGE PARTITION {name} WITH TABLE {cursor.table_name()}"
    if cursor.accept("WITHOUT", "VALIDATION"):
        return text + " WITHOUT VALIDATION"
    cursor.accept("WITH", "VALIDATION")
    return text


def _setting(name: str) -> Callable[[Cursor, str], str]:
    def restorer(cursor: Cursor, charset: str) -> str:
        cursor.accept_symbol("=")
        return f"{name} = {cursor.plain_word(TokenKind.WORD).upper()}"

    return restorer


def _options(cursor: Cursor) -> str:
    """Restore table options that stand together; a character set with its collation loses DEFAULT and ``=``."""
    options = list[str]()
    while (option := table_option(cursor)) is not None:
        options += option
    if not options and not cursor.at_symbol(",") and not cursor.at_end():
        raise cursor.unsupported("a specification")
    if len(options) == 2 and options[0].startswith(_CHARSET_HEAD) and options[1].startswith(_COLLATE_HEAD):
        charset, collation = options[0].removeprefix(_CHARSET_HEAD), options[1].removeprefix(_COLLATE_HEAD)
        return f"CHARACTER SET {charset} COLLATE {collation}"
    return " ".join(option for option in options if option)


def _if_exists(cursor: Cursor) -> str:
    return "/*T! IF EXISTS  */" if cursor.accept("IF", "EXISTS") else ""


def _names(cursor: Cursor) -> str:
    names = [cursor.name()]
    while cursor.accept_symbol(","):
        names.append(cursor.name())
    return ",".join(names)
