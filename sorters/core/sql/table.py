"""Parts of CREATE TABLE and ALTER TABLE, restored as TiDB does: constraints, table options, partitions.

What only TiDB knows is put into special comments (``/*T![feature] … */``), so that MySQL reads the statement too.
Placement policies are left out, and TTL_ENABLE is always OFF, as TiCDC wants it downstream.
"""

from sorters.core.sql.expression import expression, expressions
from sorters.core.sql.tokens import Cursor, SqlToken, TokenKind, UnsupportedSqlError, quote_string

_INT_OPTIONS = frozenset(
    {"AVG_ROW_LENGTH", "CHECKSUM", "DELAY_KEY_WRITE", "KEY_BLOCK_SIZE", "MAX_ROWS", "MIN_ROWS", "TABLE_CHECKSUM"}
)
_STRING_OPTIONS = frozenset({"COMMENT", "COMPRESSION", "CONNECTION", "ENCRYPTION", "PASSWORD"})
_TIDB_OPTIONS = {
    "SHARD_ROW_ID_BITS": "/*T!",
    "PRE_SPLIT_REGIONS": "/*T!",
    "AUTO_ID_CACHE": "/*T![auto_id_cache]",
    "AUTO_RANDOM_BASE": "/*T![auto_rand_base]",
}
CONSTRAINT_STARTS = frozenset({"CONSTRAINT", "PRIMARY", "UNIQUE", "INDEX", "KEY", "FULLTEXT", "FOREIGN", "CHECK"})
_ACTIONS = (("CASCADE",), ("RESTRICT",), ("SET", "NULL"), ("SET", "DEFAULT"), ("NO", "ACTION"))


def constraint(cursor: Cursor, charset: str) -> str:
    """Restore an index, key or check of a table.

    Raises:
        UnsupportedSqlError: a kind or an option that is not known here.
    """
    symbol = ""
    if cursor.accept("CONSTRAINT") and cursor.peek().upper not in CONSTRAINT_STARTS:
        symbol = cursor.name()
    if cursor.accept("PRIMARY", "KEY"):
        return "PRIMARY KEY" + _key(cursor, symbol, charset)
    if cursor.accept("UNIQUE"):
        cursor.accept_any("KEY", "INDEX")
        return "UNIQUE" + _key(cursor, symbol, charset)
    if cursor.accept_any("INDEX", "KEY"):
        return "INDEX" + _key(cursor, symbol, charset)
    if cursor.accept("FULLTEXT"):
        cursor.accept_any("KEY", "INDEX")
        return "FULLTEXT" + _key(cursor, symbol, charset)
    if cursor.accept("FOREIGN", "KEY"):
        return _foreign_key(cursor, symbol, charset)
    if cursor.accept("CHECK"):
        cursor.expect_symbol("(")
        inner = expression(cursor, charset)
        cursor.expect_symbol(")")
        enforced = "NOT ENFORCED" if cursor.accept("NOT", "ENFORCED") else "ENFORCED"
        cursor.accept("ENFORCED")
        return (f"CONSTRAINT {symbol} " if symbol else "") + f"CHECK({inner}) {enforced}"
    raise cursor.unsupported("a constraint")


def key_parts(cursor: Cursor, charset: str) -> str:
    """Restore ``(column[(length)] | (expression) [DESC], …)`` with its parentheses."""
    cursor.expect_symbol("(")
    parts = [_key_part(cursor, charset)]
    while cursor.accept_symbol(","):
        parts.append(_key_part(cursor, charset))
    cursor.expect_symbol(")")
    return "(" + ", ".join(parts) + ")"


def index_options(cursor: Cursor, index_type: str = "") -> str:
    """Restore what may follow an index, with a leading space if there is anything, in TiDB's order."""
    clustered = size = comment = visibility = glob = ""
    while True:
        if word := cursor.accept_any("CLUSTERED", "NONCLUSTERED"):
            clustered = f"/*T![clustered_index] {word} */"
        elif cursor.accept("KEY_BLOCK_SIZE"):
            cursor.accept_symbol("=")
            size = f"KEY_BLOCK_SIZE={cursor.integer()}"
        elif cursor.accept_any("USING", "TYPE"):
            index_type = cursor.plain_word(TokenKind.WORD).upper()
        elif cursor.accept("COMMENT"):
            comment = "COMMENT " + quote_string(cursor.expect_kind(TokenKind.STRING).text)
        elif word := cursor.accept_any("VISIBLE", "INVISIBLE"):
            visibility = word
        elif cursor.accept("GLOBAL"):
            glob = "/*T![global_index] GLOBAL */"
        else:
            break
    using = f"USING {index_type}" if index_type else ""
    return "".join(f" {part}" for part in (clustered, size, using, comment, glob, visibility) if part)


def _key(cursor: Cursor, symbol: str, charset: str) -> str:
    exists = "/*T!  IF NOT EXISTS */" if cursor.accept("IF", "NOT", "EXISTS") else ""
    name = "" if cursor.at_symbol("(") or cursor.at_words("USING") else cursor.name()
    index_type = cursor.plain_word(TokenKind.WORD).upper() if cursor.accept_any("USING", "TYPE") else ""
    name = symbol or name
    parts = key_parts(cursor, charset)
    return exists + (f" {name}" if name else "") + parts + index_options(cursor, index_type)


def _key_part(cursor: Cursor, charset: str) -> str:
    if cursor.accept_symbol("("):
        text = f"({expression(cursor, charset)})"
        cursor.expect_symbol(")")
    else:
        text = cursor.name()
        if cursor.accept_symbol("("):
            text += f"({cursor.integer()})"
            cursor.expect_symbol(")")
    return text + (" DESC" if cursor.accept_any("ASC", "DESC") == "DESC" else "")


def _foreign_key(cursor: Cursor, symbol: str, charset: str) -> str:
    exists = "/*T! IF NOT EXISTS  */" if cursor.accept("IF", "NOT", "EXISTS") else ""
    name = "" if cursor.at_symbol("(") else cursor.name()
    name = symbol or name
    text = "CONSTRAINT " + (f"{name} " if name else "") + "FOREIGN KEY " + exists + key_parts(cursor, charset)
    cursor.expect("REFERENCES")
    text += f" REFERENCES {cursor.table_name()}{key_parts(cursor, charset)}"
    on = dict[str, str]()
    while cursor.accept("ON"):
        event = cursor.accept_any("DELETE", "UPDATE")
        action = next((words for words in _ACTIONS if cursor.accept(*words)), None)
        if not event or not action:
            raise cursor.unsupported("a referential action")
        on[event] = " ".join(action)
    return text + "".join(f" ON {event} {on[event]}" for event in ("DELETE", "UPDATE") if event in on)


def table_options(cursor: Cursor) -> list[str]:
    """Restore table options, with or without commas between them; a placement policy becomes ''."""
    options = list[str]()
    while True:
        option = table_option(cursor)
        if option is None:
            return options
        options += option
        if cursor.at_symbol(",") and _is_option(cursor.peek(1).upper):
            cursor.take()


def table_option(cursor: Cursor) -> list[str] | None:
    """Restore one table option (TTL gives two, TTL_ENABLE none); None if something else comes."""
    word = cursor.peek().upper
    if not _is_option(word):
        return None
    if word == "DEFAULT":
        cursor.take()
        word = cursor.peek().upper
    if cursor.accept("CHARACTER", "SET") or cursor.accept_any("CHARSET"):
        cursor.accept_symbol("=")
        return ["DEFAULT CHARACTER SET = " + cursor.plain_word(TokenKind.WORD, TokenKind.STRING).upper()]
    cursor.take()
    if word == "PLACEMENT":
        cursor.expect("POLICY")
        cursor.accept_symbol("=")
        cursor.expect_kind(TokenKind.WORD, TokenKind.NAME, TokenKind.STRING)
        return [""]
    cursor.accept_symbol("=")
    match word:
        case "COLLATE":
            return ["DEFAULT COLLATE = " + cursor.plain_word(TokenKind.WORD, TokenKind.STRING).upper()]
        case "ENGINE":
            if cursor.peek() == SqlToken(TokenKind.STRING, ""):
                return ["ENGINE = " + quote_string(cursor.take().text)]
            # TiDB looks at the engine of a table and never at a partition's, so that may be any string.
            return ["ENGINE = " + cursor.plain_word(TokenKind.WORD, TokenKind.STRING)]
        case "AUTO_INCREMENT":
            return [f"AUTO_INCREMENT = {cursor.integer()}"]
        case "ROW_FORMAT":
            return [f"ROW_FORMAT = {cursor.plain_word(TokenKind.WORD).upper()}"]
        case "TTL":
            return _ttl(cursor)
        case "TTL_ENABLE":
            cursor.expect_kind(TokenKind.STRING)
            return []
        case "TTL_JOB_INTERVAL":
            return [f"/*T![ttl] TTL_JOB_INTERVAL = {quote_string(cursor.expect_kind(TokenKind.STRING).text)} */"]
    if word in _TIDB_OPTIONS:
        return [f"{_TIDB_OPTIONS[word]} {word} = {cursor.integer()} */"]
    if word in _STRING_OPTIONS:
        return [f"{word} = {quote_string(cursor.expect_kind(TokenKind.STRING).text)}"]
    return [f"{word} = {cursor.integer()}"]


def _is_option(word: str) -> bool:
    named = {"DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "ENGINE", "AUTO_INCREMENT", "ROW_FORMAT", "PLACEMENT"}
    ttl = {"TTL", "TTL_ENABLE", "TTL_JOB_INTERVAL"}
    return word in named | ttl | _INT_OPTIONS | _STRING_OPTIONS or word in _TIDB_OPTIONS


def _ttl(cursor: Cursor) -> list[str]:
    column = cursor.name()
    cursor.expect_symbol("+")
    interval = expression(cursor, "")
    if not interval.startswith("INTERVAL "):
        raise UnsupportedSqlError("TTL without INTERVAL")
    return [f"/*T![ttl] TTL = {column} + {interval} */", "/*T![ttl] TTL_ENABLE = 'OFF' */"]


def partition_by(cursor: Cursor, charset: str) -> str:
    """Restore ``PARTITION BY …``; the cursor stands after these two words."""
    linear = "LINEAR " if cursor.accept("LINEAR") else ""
    method = cursor.accept_any("RANGE", "LIST", "HASH", "KEY")
    if not method:
        raise cursor.unsupported("a partition method")
    if cursor.accept("COLUMNS") or method == "KEY":
        columns = "COLUMNS " if method != "KEY" else ""
        cursor.expect_symbol("(")
        names = [] if cursor.at_symbol(")") else [cursor.name()]
        while cursor.accept_symbol(","):
            names.append(cursor.name())
        of = f"{columns}({','.join(names)})"
    else:
        cursor.expect_symbol("(")
        of = f"({expression(cursor, charset)})"
    cursor.expect_symbol(")")
    count = cursor.integer() if cursor.accept("PARTITIONS") else 0
    text = f"PARTITION BY {linear}{method} {of}"
    if cursor.at_symbol("("):
        return f"{text} ({','.join(partition_definitions(cursor, charset))})"
    if method in {"HASH", "KEY"}:
        return f"{text} PARTITIONS {count or 1}"
    raise cursor.unsupported("partition definitions")


def partition_definitions(cursor: Cursor, charset: str) -> list[str]:
    """Restore ``(PARTITION …, PARTITION …)``, one text each."""
    cursor.expect_symbol("(")
    definitions = [_partition_definition(cursor, charset)]
    while cursor.accept_symbol(","):
        definitions.append(_partition_definition(cursor, charset))
    cursor.expect_symbol(")")
    return definitions


def _partition_definition(cursor: Cursor, charset: str) -> str:
    cursor.expect("PARTITION")
    text = f"PARTITION {cursor.name()}"
    if cursor.accept("VALUES", "LESS", "THAN"):
        if cursor.accept("MAXVALUE"):
            text += " VALUES LESS THAN (MAXVALUE)"
        else:
            cursor.expect_symbol("(")
            text += f" VALUES LESS THAN ({expressions(cursor, charset)})"
            cursor.expect_symbol(")")
    elif cursor.accept("VALUES", "IN"):
        cursor.expect_symbol("(")
        items = [_list_value(cursor, charset)]
        while cursor.accept_symbol(","):
            items.append(_list_value(cursor, charset))
        cursor.expect_symbol(")")
        text += " DEFAULT" if items == ["DEFAULT"] else f" VALUES IN ({', '.join(items)})"
    elif cursor.accept("DEFAULT"):
        text += " DEFAULT"
    return text + "".join(f" {option}" for option in table_options(cursor))


def _list_value(cursor: Cursor, charset: str) -> str:
    if cursor.accept("DEFAULT"):
        return "DEFAULT"
    if not cursor.accept_symbol("("):
        return expression(cursor, charset)
    items = expressions(cursor, charset)
    cursor.expect_symbol(")")
    return f"({items})"
