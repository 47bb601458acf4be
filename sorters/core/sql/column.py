"""Column definitions of DDL statements, restored as TiDB does: type names in capitals, synonyms replaced."""

from sorters.core.sql.expression import current_timestamp, expression
from sorters.core.sql.tokens import Cursor, TokenKind, quote_string

TYPE_NAMES = {
    "BOOL": "TINYINT(1)",
    "BOOLEAN": "TINYINT(1)",
    "TINYINT": "TINYINT",
    "INT1": "TINYINT",
    "SMALLINT": "SMALLINT",
    "INT2": "SMALLINT",
    "MEDIUMINT": "MEDIUMINT",
    "INT3": "MEDIUMINT",
    "MIDDLEINT": "MEDIUMINT",
    "INT": "INT",
    "INTEGER": "INT",
    "INT4": "INT",
    "BIGINT": "BIGINT",
    "INT8": "BIGINT",
    "FLOAT": "FLOAT",
    "FLOAT4": "FLOAT",
    "DOUBLE": "DOUBLE",
    "FLOAT8": "DOUBLE",
    "REAL": "DOUBLE",
    "DECIMAL": "DECIMAL",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
    "FIXED": "DECIMAL",
    "BIT": "BIT",
    "CHAR": "CHAR",
    "CHARACTER": "CHAR",
    "VARCHAR": "VARCHAR",
    "VARCHARACTER": "VARCHAR",
    "BINARY": "BINARY",
    "VARBINARY": "VARBINARY",
    "TINYBLOB": "TINYBLOB",
    "BLOB": "BLOB",
    "MEDIUMBLOB": "MEDIUMBLOB",
    "LONGBLOB": "LONGBLOB",
    "TINYTEXT": "TINYTEXT",
    "TEXT": "TEXT",
    "MEDIUMTEXT": "MEDIUMTEXT",
    "LONGTEXT": "LONGTEXT",
    "JSON": "JSON",
    "ENUM": "ENUM",
    "SET": "SET",
    "DATE": "DATE",
    "DATETIME": "DATETIME",
    "TIMESTAMP": "TIMESTAMP",
    "TIME": "TIME",
    "YEAR": "YEAR",
    "VECTOR": "VECTOR",
}
_BARE_CLOCKS = frozenset({"(CURRENT_TIMESTAMP())", "(NOW())", "(LOCALTIME())", "(LOCALTIMESTAMP())"})
"""A clock in parentheses loses them as a DEFAULT."""
_NO_SPECIFIC_FLEN = frozenset({"BOOL", "BOOLEAN"})


def column_definition(cursor: Cursor, charset: str) -> str:
    """Restore ``name type option…``.

    Raises:
        UnsupportedSqlError: a type or an option that is not known here.
    """
    name = cursor.column_name()
    parts = [name, column_type(cursor)]
    while option := _option(cursor, charset):
        parts.append(option)
    return " ".join(parts)


def column_type(cursor: Cursor) -> str:
    """Restore a type with its length and attributes."""
    word = cursor.peek().upper
    if word not in TYPE_NAMES:
        raise cursor.unsupported("a column type")
    cursor.take()
    if word in {"CHAR", "CHARACTER"} and cursor.accept("VARYING"):
        word = "VARCHAR"
    if word == "DOUBLE":
        cursor.accept("PRECISION")
    text = TYPE_NAMES[word]
    if word in {"ENUM", "SET"}:
        text += "(" + ",".join(quote_string(elem) for elem in _strings(cursor)) + ")"
    elif word not in _NO_SPECIFIC_FLEN:
        text += _length(cursor) or ("(1)" if word == "BIT" else "")
    return text + _attributes(cursor)


def _length(cursor: Cursor) -> str:
    if not cursor.accept_symbol("("):
        return ""
    numbers = [str(cursor.integer())]
    while cursor.accept_symbol(","):
        numbers.append(str(cursor.integer()))
    cursor.expect_symbol(")")
    return f"({','.join(numbers)})"


def _strings(cursor: Cursor) -> list[str]:
    cursor.expect_symbol("(")
    strings = [cursor.expect_kind(TokenKind.STRING).text]
    while cursor.accept_symbol(","):
        strings.append(cursor.expect_kind(TokenKind.STRING).text)
    cursor.expect_symbol(")")
    return strings


def _attributes(cursor: Cursor) -> str:
    """Restore UNSIGNED, ZEROFILL (which implies it), BINARY and CHARACTER SET, in TiDB's order."""
    unsigned = zerofill = binary = False
    charset = ""
    while True:
        if cursor.accept("UNSIGNED"):
            unsigned = True
        elif cursor.accept("SIGNED"):
            pass
        elif cursor.accept("ZEROFILL"):
            zerofill = unsigned = True
        elif cursor.accept("BINARY"):
            binary = True
        elif cursor.accept("CHARACTER", "SET") or cursor.accept("CHARSET"):
            charset = cursor.plain_word(TokenKind.WORD, TokenKind.STRING).upper()
        else:
            break
    marks = (" UNSIGNED" if unsigned else "", " ZEROFILL" if zerofill else "", " BINARY" if binary else "")
    return "".join(marks) + (f" CHARACTER SET {charset}" if charset else "")


def _option(cursor: Cursor, charset: str) -> str:
    if cursor.accept("NOT", "NULL"):
        return "NOT NULL"
    if cursor.accept("NULL"):
        return "NULL"
    if cursor.accept("DEFAULT"):
        return "DEFAULT " + default_value(cursor, charset)
    if cursor.accept("AUTO_INCREMENT"):
        return "AUTO_INCREMENT"
    if cursor.accept("ON", "UPDATE"):
        now = current_timestamp(cursor)
        if not now:
            raise cursor.unsupported("CURRENT_TIMESTAMP")
        return f"ON UPDATE {now}"
    if cursor.accept("COMMENT"):
        return "COMMENT " + quote_string(cursor.expect_kind(TokenKind.STRING).text)
    if cursor.accept("COLLATE"):
        return "COLLATE " + cursor.plain_word(TokenKind.WORD, TokenKind.STRING).lower()
    if cursor.accept("AUTO_RANDOM"):
        return f"/*T![auto_rand] AUTO_RANDOM{_length(cursor).replace(',', ', ')} */"
    return _key_option(cursor) or _expression_option(cursor, charset)


def default_value(cursor: Cursor, charset: str) -> str:
    """Restore a DEFAULT; functions other than CURRENT_TIMESTAMP stand in parentheses."""
    now = current_timestamp(cursor)
    if now:
        return now
    if cursor.at_symbol("("):
        inner = expression(cursor, charset)
        return "CURRENT_TIMESTAMP()" if inner in _BARE_CLOCKS else inner
    for sign in ("-", "+"):
        if cursor.accept_symbol(sign):
            return sign + _literal(cursor, charset)
    return _literal(cursor, charset)


def _literal(cursor: Cursor, charset: str) -> str:
    """Restore one literal only: what follows a DEFAULT is the next option, such as NOT NULL."""
    has_introducer = cursor.peek().upper.startswith("_") and cursor.peek(1).kind is TokenKind.STRING
    tokens = [cursor.take() for _ in range(1 + has_introducer)]
    return expression(Cursor(tokens), charset)


def _key_option(cursor: Cursor) -> str:
    if cursor.accept("UNIQUE"):
        cursor.accept("KEY")
        return "UNIQUE KEY"
    if not (cursor.accept("PRIMARY", "KEY") or cursor.accept("PRIMARY") or cursor.accept("KEY")):
        return ""
    clustered = cursor.accept_any("CLUSTERED", "NONCLUSTERED")
    return "PRIMARY KEY" + (f" /*T![clustered_index] {clustered} */" if clustered else "")


def _expression_option(cursor: Cursor, charset: str) -> str:
    if cursor.accept("GENERATED", "ALWAYS", "AS") or cursor.accept("AS"):
        cursor.expect_symbol("(")
        inner = expression(cursor, charset)
        cursor.expect_symbol(")")
        kind = "STORED" if cursor.accept("STORED") or cursor.accept("PERSISTENT") else "VIRTUAL"
        cursor.accept("VIRTUAL")
        return f"GENERATED ALWAYS AS({inner}) {kind}"
    name = ""
    if cursor.at_words("CONSTRAINT"):
        cursor.take()
        name = "" if cursor.at_words("CHECK") else cursor.name()
    if cursor.accept("CHECK"):
        cursor.expect_symbol("(")
        inner = expression(cursor, charset)
        cursor.expect_symbol(")")
        enforced = "NOT ENFORCED" if cursor.accept("NOT", "ENFORCED") else "ENFORCED"
        cursor.accept("ENFORCED")
        return (f"CONSTRAINT {name} " if name else "") + f"CHECK({inner}) {enforced}"
    if name:
        raise cursor.unsupported("CHECK")
    return ""
