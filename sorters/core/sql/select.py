"""The SELECT of a view, restored as TiDB does: tables and joins, without subqueries."""

from sorters.core.sql.expression import expression, expressions
from sorters.core.sql.tokens import MODE_NO_BACKSLASH_ESCAPES, Cursor, SqlToken, TokenKind, tokenize

_JOINS = (
    (("JOIN",), "JOIN"),
    (("INNER", "JOIN"), "JOIN"),
    (("CROSS", "JOIN"), "JOIN"),
    (("LEFT", "JOIN"), "LEFT JOIN"),
    (("LEFT", "OUTER", "JOIN"), "LEFT JOIN"),
    (("RIGHT", "JOIN"), "RIGHT JOIN"),
    (("RIGHT", "OUTER", "JOIN"), "RIGHT JOIN"),
)
_CLAUSES = frozenset({"WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "ON", "USING", "WITH", "UNION", "FOR", "NATURAL"})
_FROM_A_VALUE = frozenset({"EXTRACT", "TRIM"})
"""Functions in whose parentheses FROM names no table."""
_BEFORE_TABLES = frozenset({"FROM", "JOIN", "STRAIGHT_JOIN"})
_OPEN, _CLOSE, _DOT = (SqlToken(TokenKind.SYMBOL, symbol) for symbol in "().")
_NAMES = (TokenKind.WORD, TokenKind.NAME)
_JOIN_WORDS = frozenset({"JOIN", "INNER", "CROSS", "LEFT", "RIGHT", "STRAIGHT_JOIN"})


def select(cursor: Cursor, charset: str) -> str:
    """Restore a SELECT; the cursor stands after that word.

    Raises:
        UnsupportedSqlError: a construct that is not known here.
    """
    text = "SELECT " + ("DISTINCT " if cursor.accept("DISTINCT") else "")
    fields = [_field(cursor, charset)]
    while cursor.accept_symbol(","):
        fields.append(_field(cursor, charset))
    text += ",".join(fields)
    if cursor.accept("FROM"):
        text += f" FROM {_tables(cursor, charset)}"
    if cursor.accept("WHERE"):
        text += f" WHERE {expression(cursor, charset)}"
    if cursor.accept("GROUP", "BY"):
        text += f" GROUP BY {_items(cursor, charset)}"
    if cursor.accept("HAVING"):
        text += f" HAVING {expression(cursor, charset)}"
    if cursor.accept("ORDER", "BY"):
        text += f" ORDER BY {_items(cursor, charset)}"
    if cursor.accept("LIMIT"):
        text += f" LIMIT {expressions(cursor, charset, ',')}"
    return text


def tables_read(stored: str) -> set[tuple[str, str]]:
    """Return schema and table of all that the SELECT of a view reads, also in subqueries.

    Args:
        stored: the SELECT as TiDB stores it, any SELECT: a table has its schema there, only a CTE's name has none.

    Raises:
        UnsupportedSqlError: text that is no token, or an open quote.
    """
    tokens = tokenize(stored, MODE_NO_BACKSLASH_ESCAPES)
    read: set[tuple[str, str]] = set()
    opened: list[str] = []
    for at, token in enumerate(tokens):
        if token == _OPEN:
            opened.append(tokens[at - 1].upper if at else "")
        elif token == _CLOSE and opened:
            opened.pop()
        elif token.upper in _BEFORE_TABLES and not (opened and opened[-1] in _FROM_A_VALUE):
            first = at + 1
            while first < len(tokens) and tokens[first] == _OPEN:
                first += 1
            name = tokens[first : first + 3]
            if [part.kind in _NAMES for part in name[::2]] == [True, True] and name[1] == _DOT:
                read.add((name[0].text, name[2].text))
    return read


def _field(cursor: Cursor, charset: str) -> str:
    if cursor.accept_symbol("*"):
        return "*"
    text = expression(cursor, charset)
    return f"{text} AS {cursor.name()}" if cursor.accept("AS") else text


def _tables(cursor: Cursor, charset: str) -> str:
    """Each join but the last stands in parentheses, and so does the first table of a list."""
    text, is_join = _table(cursor, charset), False
    while True:
        comma = cursor.accept_symbol(",")
        kind = "JOIN" if comma else next((restored for words, restored in _JOINS if cursor.accept(*words)), "")
        if not kind:
            break
        text = f"({text})" if is_join or comma else text
        text, is_join = f"{text} {kind} {_table(cursor, charset)}", True
        if not comma and cursor.accept("ON"):
            text += f" ON {expression(cursor, charset)}"
    if cursor.peek().upper in _JOIN_WORDS:
        raise cursor.unsupported("a join")
    return text


def _table(cursor: Cursor, charset: str) -> str:
    if cursor.accept_symbol("("):
        with cursor.nested():
            text = _tables(cursor, charset)
        cursor.expect_symbol(")")
        return f"({text})"
    name = cursor.table_name(aliased=True)
    if cursor.accept("AS"):
        return f"{name} AS {cursor.name()}"
    word = cursor.peek()
    if word.kind.value in {"word", "name"} and word.upper not in _CLAUSES | _JOIN_WORDS:
        return f"{name} AS {cursor.name()}"
    cursor.without_alias()
    return name


def _items(cursor: Cursor, charset: str) -> str:
    items = list[str]()
    while True:
        item = expression(cursor, charset)
        items.append(item + (" DESC" if cursor.accept_any("ASC", "DESC") == "DESC" else ""))
        if not cursor.accept_symbol(","):
            return ",".join(items)
