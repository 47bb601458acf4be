"""DDL statements restored as TiDB's parser does with TiCDC's flags: the text that goes downstream.

Keywords in capitals, names in back quotes, TiDB's own features in special comments. A statement that this module does
not know raises :class:`UnsupportedSqlError`; the caller then keeps the original text, and a database gets that only as
:mod:`sorters.core.sql.statement` writes it.
Facts from pingcap/tidb ``pkg/parser/ast/ddl.go``; the oracle is ``tests/data/tidb/ddl_events``.
"""

from collections.abc import Callable
from itertools import pairwise

from sorters.core.sql.alter import alter_specs
from sorters.core.sql.column import column_definition
from sorters.core.sql.select import select
from sorters.core.sql.table import CONSTRAINT_STARTS, constraint, index_options, key_parts, partition_by, table_options
from sorters.core.sql.tokens import (
    MODE_HIGH_NOT_PRECEDENCE,
    MODE_NO_BACKSLASH_ESCAPES,
    MODE_PIPES_AS_CONCAT,
    MODE_REAL_AS_FLOAT,
    Cursor,
    SqlToken,
    TableNames,
    TokenKind,
    UnsupportedSqlError,
    quote_name,
    quote_string,
    split_statements,
    tokenize,
)

_CHARSET_DEFAULT = "UTF8MB4"
_DATABASE_OPTIONS = frozenset({"DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "ENCRYPTION"})
_CHECK_OPTIONS = (
    (("LOCAL", "CHECK", "OPTION"), " WITH LOCAL CHECK OPTION"),
    (("CASCADED", "CHECK", "OPTION"), ""),
    (("CHECK", "OPTION"), ""),
)
_AFTER_PLAIN_NOT = frozenset({"NULL", "EXISTS", "ENFORCED"})


def restore(sql: str, *, charset: str = "", sql_mode: int = 0, names: TableNames | None = None) -> str:
    """Restore one statement.

    Args:
        sql: the statement.
        charset: the connection's character set ('' is utf8mb4); string literals get it as introducer.
        sql_mode: bits of the session's sql_mode.
        names: other names for schemas and tables; None: all stay.

    Raises:
        UnsupportedSqlError: not exactly one statement, or one that is not known here.
    """
    statements = split_statements(sql, sql_mode)
    if len(statements) != 1:
        raise UnsupportedSqlError(f"{len(statements)} statements")
    return restore_tokens(statements[0], charset, sql_mode, names)


def restore_tokens(
    tokens: list[SqlToken], charset: str = "", sql_mode: int = 0, names: TableNames | None = None
) -> str:
    """Restore one statement from its tokens.

    Raises:
        UnsupportedSqlError: a statement that is not known here, or one that means something else in this sql_mode.
    """
    _check_mode(tokens, sql_mode)
    cursor = Cursor(tokens, names)
    for words, restorer in _STATEMENTS:
        if cursor.accept(*words):
            text = restorer(cursor, charset.upper() or _CHARSET_DEFAULT)
            if not cursor.at_end():
                raise cursor.unsupported("the end")
            return text
    raise cursor.unsupported("a statement")


def _check_mode(tokens: list[SqlToken], sql_mode: int) -> None:
    """Refuse what is restored as if none of these modes were set."""
    pipes = SqlToken(TokenKind.SYMBOL, "||")
    for token, after in pairwise([*tokens, SqlToken(TokenKind.END, "")]):
        if (
            (sql_mode & MODE_PIPES_AS_CONCAT and token == pipes)
            or (sql_mode & MODE_REAL_AS_FLOAT and token.upper == "REAL")
            or (sql_mode & MODE_HIGH_NOT_PRECEDENCE and token.upper == "NOT" and after.upper not in _AFTER_PLAIN_NOT)
        ):
            raise UnsupportedSqlError(f"{token.text} in sql_mode {sql_mode}")


def _database(verb: str) -> Callable[[Cursor, str], str]:
    def restorer(cursor: Cursor, charset: str) -> str:
        exists = ""
        if verb == "CREATE" and cursor.accept("IF", "NOT", "EXISTS"):
            exists = "IF NOT EXISTS "
        if verb == "DROP" and cursor.accept("IF", "EXISTS"):
            exists = "IF EXISTS "
        if verb == "ALTER" and cursor.peek().upper in _DATABASE_OPTIONS:
            raise cursor.unsupported("a schema")  # it is the session's
        return f"{verb} DATABASE {exists}{cursor.schema_name()}" + _database_options(cursor)

    return restorer


def _database_options(cursor: Cursor) -> str:
    options = ""
    while not cursor.at_end():
        cursor.accept("DEFAULT")
        if cursor.accept("CHARACTER", "SET") or cursor.accept("CHARSET"):
            cursor.accept_symbol("=")
            options += f" CHARACTER SET = {cursor.plain_word(TokenKind.WORD, TokenKind.STRING).lower()}"
        elif cursor.accept("COLLATE"):
            cursor.accept_symbol("=")
            options += f" COLLATE = {cursor.plain_word(TokenKind.WORD, TokenKind.STRING).lower()}"
        elif cursor.accept("ENCRYPTION"):
            cursor.accept_symbol("=")
            options += f" ENCRYPTION = {quote_string(cursor.expect_kind(TokenKind.STRING).text)}"
        else:
            raise cursor.unsupported("a database option")
    return options


def _create_table(cursor: Cursor, charset: str) -> str:
    text = "CREATE TABLE " + ("IF NOT EXISTS " if cursor.accept("IF", "NOT", "EXISTS") else "")
    text += cursor.table_name()
    parenthesised = cursor.at_symbol("(") and cursor.peek(1).upper == "LIKE"
    if parenthesised:
        cursor.take()
    if cursor.accept("LIKE"):
        text += f" LIKE {cursor.table_name()}"
        if parenthesised:
            cursor.expect_symbol(")")
        return text
    text += f" ({_elements(cursor, charset)})"
    text += "".join(f" {option}" for option in table_options(cursor))
    if cursor.accept("PARTITION", "BY"):
        text += " " + partition_by(cursor, charset)
    return text


def _elements(cursor: Cursor, charset: str) -> str:
    """Columns first, then constraints, whatever their order was."""
    columns, constraints = list[str](), list[str]()
    cursor.expect_symbol("(")
    while True:
        if cursor.peek().upper in CONSTRAINT_STARTS:
            constraints.append(constraint(cursor, charset))
        else:
            columns.append(column_definition(cursor, charset))
        if not cursor.accept_symbol(","):
            break
    cursor.expect_symbol(")")
    return ",".join(columns + constraints)


def _create_index(kind: str) -> Callable[[Cursor, str], str]:
    def restorer(cursor: Cursor, charset: str) -> str:
        exists = "/*T! IF NOT EXISTS  */" if cursor.accept("IF", "NOT", "EXISTS") else ""
        name = cursor.name()
        index_type = cursor.plain_word(TokenKind.WORD).upper() if cursor.accept_any("USING", "TYPE") else ""
        cursor.expect("ON")
        table = cursor.table_name()
        parts = key_parts(cursor, charset)
        return f"CREATE {kind}INDEX {exists}{name} ON {table} {parts}{index_options(cursor, index_type)}"

    return restorer


def _drop_index(cursor: Cursor, charset: str) -> str:
    exists = "/*T! IF EXISTS  */" if cursor.accept("IF", "EXISTS") else ""
    name = cursor.name()
    cursor.expect("ON")
    return f"DROP INDEX {exists}{name} ON {cursor.table_name()}"


def _drop(what: str) -> Callable[[Cursor, str], str]:
    def restorer(cursor: Cursor, charset: str) -> str:
        exists = "IF EXISTS " if cursor.accept("IF", "EXISTS") else ""
        names = [cursor.table_name()]
        while cursor.accept_symbol(","):
            names.append(cursor.table_name())
        cursor.accept_any("RESTRICT", "CASCADE")
        return f"DROP {what} {exists}{', '.join(names)}"

    return restorer


def _rename_table(cursor: Cursor, charset: str) -> str:
    renames = list[str]()
    while True:
        old = cursor.table_name()
        cursor.expect("TO")
        renames.append(f"{old} TO {cursor.table_name()}")
        if not cursor.accept_symbol(","):
            return "RENAME TABLE " + ", ".join(renames)


def _truncate(cursor: Cursor, charset: str) -> str:
    cursor.accept("TABLE")
    return f"TRUNCATE TABLE {cursor.table_name()}"


def _recover_table(cursor: Cursor, charset: str) -> str:
    if cursor.accept("BY", "JOB"):
        return f"RECOVER TABLE BY JOB {cursor.integer()}"
    name = cursor.table_name()
    return f"RECOVER TABLE {name}" + ("" if cursor.at_end() else f" {cursor.integer()}")


def _flashback_table(cursor: Cursor, charset: str) -> str:
    name = cursor.table_name()
    return f"FLASHBACK TABLE {name}" + (f" TO {cursor.name()}" if cursor.accept("TO") else "")


def _flashback_database(cursor: Cursor, charset: str) -> str:
    name = cursor.schema_name()
    return f"FLASHBACK DATABASE {name}" + (f" TO {cursor.schema_name()}" if cursor.accept("TO") else "")


def _alter_table(cursor: Cursor, charset: str) -> str:
    return f"ALTER TABLE {cursor.table_name()}{alter_specs(cursor, charset)}"


def _create_view(cursor: Cursor, charset: str) -> str:
    replace = "OR REPLACE " if cursor.accept("OR", "REPLACE") else ""
    head = f"CREATE {replace}{_view_options(cursor)} VIEW {cursor.table_name()}"
    if cursor.accept_symbol("("):
        names = [cursor.name()]
        while cursor.accept_symbol(","):
            names.append(cursor.name())
        cursor.expect_symbol(")")
        head += f" ({','.join(names)})"
    cursor.expect("AS", "SELECT")
    if cursor.names is None or not cursor.names.view_select:
        return f"{head} AS {select(cursor, charset)}{_check_option(cursor)}"
    # Without a schema a table is of the session's, which only what TiDB stored still says.
    stored = Cursor(tokenize(cursor.names.view_select, MODE_NO_BACKSLASH_ESCAPES), cursor.names)
    stored.expect("SELECT")
    text = select(stored, charset)
    if not stored.at_end():
        raise stored.unsupported("the end")
    while not cursor.at_end() and not any(cursor.at_words("WITH", *words) for words, _ in _CHECK_OPTIONS):
        cursor.take()
    return f"{head} AS {text}{_check_option(cursor)}"


def _view_options(cursor: Cursor) -> str:
    """Take what stands before VIEW, and that word."""
    algorithm, definer, security = "UNDEFINED", "CURRENT_USER", "DEFINER"
    if cursor.accept("ALGORITHM"):
        cursor.expect_symbol("=")
        algorithm = cursor.accept_any("UNDEFINED", "MERGE", "TEMPTABLE")
    if cursor.accept("DEFINER"):
        cursor.expect_symbol("=")
        definer = _definer(cursor)
    if cursor.accept("SQL", "SECURITY"):
        security = cursor.accept_any("DEFINER", "INVOKER")
    cursor.expect("VIEW")
    if not (algorithm and security):
        raise cursor.unsupported("an option of a view")
    return f"ALGORITHM = {algorithm} DEFINER = {definer} SQL SECURITY {security}"


def _definer(cursor: Cursor) -> str:
    if cursor.accept("CURRENT_USER"):
        if cursor.accept_symbol("("):
            cursor.expect_symbol(")")
        return "CURRENT_USER"
    kinds = TokenKind.WORD, TokenKind.NAME, TokenKind.STRING
    user = quote_name(cursor.expect_kind(*kinds).text)
    host = quote_name(cursor.expect_kind(*kinds).text if cursor.accept_symbol("@") else "%")
    return f"{user}@{host}"


def _check_option(cursor: Cursor) -> str:
    """Take the check option; a cascaded one, which is the default, is not written."""
    if not cursor.accept("WITH"):
        return ""
    for words, text in _CHECK_OPTIONS:
        if cursor.accept(*words):
            return text
    raise cursor.unsupported("a check option")


_STATEMENTS: tuple[tuple[tuple[str, ...], Callable[[Cursor, str], str]], ...] = (
    (("CREATE", "DATABASE"), _database("CREATE")),
    (("CREATE", "SCHEMA"), _database("CREATE")),
    (("ALTER", "DATABASE"), _database("ALTER")),
    (("ALTER", "SCHEMA"), _database("ALTER")),
    (("DROP", "DATABASE"), _database("DROP")),
    (("DROP", "SCHEMA"), _database("DROP")),
    (("CREATE", "TABLE"), _create_table),
    (("CREATE", "UNIQUE", "INDEX"), _create_index("UNIQUE ")),
    (("CREATE", "FULLTEXT", "INDEX"), _create_index("FULLTEXT ")),
    (("CREATE", "INDEX"), _create_index("")),
    (("DROP", "INDEX"), _drop_index),
    (("DROP", "TABLE"), _drop("TABLE")),
    (("DROP", "VIEW"), _drop("VIEW")),
    (("RENAME", "TABLE"), _rename_table),
    (("TRUNCATE",), _truncate),
    (("RECOVER", "TABLE"), _recover_table),
    (("FLASHBACK", "TABLE"), _flashback_table),
    (("FLASHBACK", "DATABASE"), _flashback_database),
    (("FLASHBACK", "SCHEMA"), _flashback_database),
    (("ALTER", "TABLE"), _alter_table),
    (("CREATE",), _create_view),
)
"""The first words of a statement and what restores the rest; the first that fits is taken."""
