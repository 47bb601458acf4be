"""Expressions of DDL statements, restored as TiDB does: no spaces around operators that are no words, names quoted,
functions in capitals, string literals with their character set.

An expression is written out in the order in which it stands, so operator precedence does not matter.
"""

import math

from sorters.core.sql.tokens import Cursor, SqlToken, TokenKind, UnsupportedSqlError, quote_string

_WORD_OPERATORS = {"AND": "AND", "OR": "OR", "XOR": "XOR", "DIV": "DIV"}
_SYMBOL_WORD_OPERATORS = {"&&": "AND", "||": "OR"}
_SYMBOL_OPERATORS = frozenset({"+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "=", "<=>", "<", ">", "<=", ">="})
_UNEQUAL = frozenset({"!=", "<>"})
_NOW = frozenset({"CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP"})
_CLOCKS = frozenset(_NOW | {"CURRENT_DATE", "CURRENT_TIME", "CURRENT_USER", "UTC_DATE", "UTC_TIME", "UTC_TIMESTAMP"})
"""Functions that need no parentheses; they get them. Only in a DEFAULT are they all CURRENT_TIMESTAMP."""
_CONSTANTS = frozenset({"NULL", "TRUE", "FALSE", "MAXVALUE"})
_OTHER_GRAMMAR = frozenset({"SELECT", "CONVERT", "BINARY", "EXISTS", "MATCH", "TRIM", "EXTRACT", "VALUES", "POSITION"})
"""Words that start an operand whose inside is no list of expressions."""
_UNIT_CALLS = frozenset({"TIMESTAMPADD", "TIMESTAMPDIFF"})
_AGGREGATES = frozenset({"AVG", "COUNT", "MAX", "MIN", "SUM"})
_CAST_TYPES = frozenset(
    {"BINARY", "CHAR", "DATE", "DATETIME", "DECIMAL", "DOUBLE", "FLOAT", "JSON", "SIGNED", "TIME", "UNSIGNED", "YEAR"}
)
_UNITS = frozenset(
    {"MICROSECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR", "DAY_HOUR", "YEAR_MONTH"}
)


def expression(cursor: Cursor, charset: str) -> str:
    """Restore an expression.

    Args:
        cursor: at its first token.
        charset: the character set of string literals (the job's), in capitals; it becomes their introducer.

    Raises:
        UnsupportedSqlError: a construct that is not known here.
    """
    text = _operand(cursor, charset)
    while True:
        operator = _operator(cursor)
        if operator:
            text += operator + _operand(cursor, charset)
            continue
        tail = _predicate(cursor, charset)
        if not tail:
            return text
        text += tail


def expressions(cursor: Cursor, charset: str, separator: str = ", ") -> str:
    """Restore expressions with commas between them."""
    items = [expression(cursor, charset)]
    while cursor.accept_symbol(","):
        items.append(expression(cursor, charset))
    return separator.join(items)


def current_timestamp(cursor: Cursor) -> str:
    """Restore the clock of DEFAULT and ON UPDATE, under any name, as ``CURRENT_TIMESTAMP([fsp])``; '': none comes."""
    word = cursor.peek().upper
    if word not in _NOW and not (word == "NOW" and cursor.peek(1) == SqlToken(TokenKind.SYMBOL, "(")):
        return ""
    cursor.take()
    fsp = ""
    if cursor.accept_symbol("("):
        fsp = "" if cursor.at_symbol(")") else str(cursor.integer())
        cursor.expect_symbol(")")
    return f"CURRENT_TIMESTAMP({fsp})"


def number(text: str) -> str:
    """Restore a number: integers without leading zeros, floats as Go's ``%e`` with the shortest digits.

    >>> number("007"), number("1.50"), number("1e3")
    ('7', '1.50', '1e+03')
    """
    if text.isdecimal():
        return str(int(text))
    if "e" not in text.lower():
        whole, _, part = text.partition(".")
        return f"{int(whole or '0')}.{part}" if part else str(int(whole))
    if not math.isfinite(float(text)):
        raise UnsupportedSqlError(f"{text} is no double")
    mantissa = exponent = ""
    for digits in range(18):
        mantissa, _, exponent = f"{float(text):.{digits}e}".partition("e")
        if float(f"{mantissa}e{exponent}") == float(text):
            break
    return f"{mantissa}e{exponent}"


def _operator(cursor: Cursor) -> str:
    token = cursor.peek()
    if token.upper in _WORD_OPERATORS:
        return f" {cursor.take().upper} "
    if token.upper == "MOD":
        cursor.take()
        return "%"
    if token.kind is not TokenKind.SYMBOL:
        return ""
    if token.text in _SYMBOL_WORD_OPERATORS:
        return f" {_SYMBOL_WORD_OPERATORS[cursor.take().text]} "
    if token.text in _UNEQUAL:
        cursor.take()
        return "!="
    return cursor.take().text if token.text in _SYMBOL_OPERATORS else ""


def _predicate(cursor: Cursor, charset: str) -> str:
    """Restore what may follow an operand: IS, IN, BETWEEN, LIKE, COLLATE and JSON's arrows."""
    if cursor.accept("IS"):
        negated = " NOT" if cursor.accept("NOT") else ""
        return f" IS{negated} {_one_of(cursor, 'NULL', 'TRUE', 'FALSE')}"
    negated = " NOT" if cursor.peek(1).upper in {"IN", "BETWEEN", "LIKE"} and cursor.accept("NOT") else ""
    if cursor.accept("IN"):
        cursor.expect_symbol("(")
        items = expressions(cursor, charset, ",")
        cursor.expect_symbol(")")
        return f"{negated} IN ({items})"
    if cursor.accept("BETWEEN"):
        low = _operand(cursor, charset)
        cursor.expect("AND")
        return f"{negated} BETWEEN {low} AND {_operand(cursor, charset)}"
    if cursor.accept("LIKE"):
        return f"{negated} LIKE {_operand(cursor, charset)}"
    if cursor.accept("COLLATE"):
        return f" COLLATE {cursor.plain_word(TokenKind.WORD).lower()}"
    return ""


def _one_of(cursor: Cursor, *words: str) -> str:
    word = cursor.accept_any(*words)
    if not word:
        raise cursor.unsupported(" or ".join(sorted(words)))
    return word


def _operand(cursor: Cursor, charset: str) -> str:
    with cursor.nested():
        match cursor.peek().kind:
            case TokenKind.STRING:
                return (f"_{charset}" if charset else "") + quote_string(cursor.take().text)
            case TokenKind.NUMBER:
                return number(cursor.take().text)
            case TokenKind.BITS:
                return cursor.take().text
            case TokenKind.NAME:
                return _column(cursor, charset)
            case TokenKind.SYMBOL:
                return _symbol_operand(cursor, charset)
            case TokenKind.WORD:
                return _word_operand(cursor, charset)
            case _:
                raise cursor.unsupported("an expression")


def _symbol_operand(cursor: Cursor, charset: str) -> str:
    if cursor.accept_symbol("("):
        inner = expression(cursor, charset)
        cursor.expect_symbol(")")
        return f"({inner})"
    for sign in ("-", "+", "~", "!"):
        if cursor.accept_symbol(sign):
            return sign + _operand(cursor, charset)
    raise cursor.unsupported("an expression")


def _word_operand(cursor: Cursor, charset: str) -> str:
    token = cursor.peek()
    if token.upper in _CONSTANTS:
        return cursor.take().upper
    if token.upper == "NOT":
        cursor.take()
        return "NOT " + _operand(cursor, charset)
    if token.upper == "INTERVAL":
        cursor.take()
        amount = expression(cursor, charset)
        return f"INTERVAL {amount} {_one_of(cursor, *_UNITS)}"
    if token.text.startswith("_") and cursor.peek(1).kind is TokenKind.STRING:
        introducer = cursor.plain_word(TokenKind.WORD).upper()
        return introducer + quote_string(cursor.take().text)
    if token.upper == "CASE":
        return _case(cursor, charset)
    if token.upper in _OTHER_GRAMMAR:
        raise cursor.unsupported("a simple expression")
    is_call = cursor.peek(1) == SqlToken(TokenKind.SYMBOL, "(")
    if token.upper in _CLOCKS and not is_call:
        return f"{cursor.take().upper}()"
    return _call(cursor, charset) if is_call else _column(cursor, charset)


def _call(cursor: Cursor, charset: str) -> str:
    name = cursor.plain_word(TokenKind.WORD).upper()
    cursor.expect_symbol("(")
    if name == "CAST":
        operand = expression(cursor, charset)
        cursor.expect("AS")
        text = f"CAST({operand} AS {_cast_type(cursor)})"
        cursor.expect_symbol(")")
        return text
    head = ""
    if name in _AGGREGATES:
        head = "DISTINCT " if cursor.accept("DISTINCT") else ""
        if name == "COUNT" and cursor.accept_symbol("*"):
            cursor.expect_symbol(")")
            return "COUNT(1)"
    if name in _UNIT_CALLS:
        head = _one_of(cursor, *_UNITS) + ", "
        cursor.expect_symbol(",")
    arguments = "" if cursor.at_symbol(")") else expressions(cursor, charset)
    cursor.expect_symbol(")")
    return f"{name}({head}{arguments})"


def _cast_type(cursor: Cursor) -> str:
    """Restore a CAST's type; lengths of 0 mean none."""
    name = _one_of(cursor, *_CAST_TYPES)
    cursor.accept_any("INTEGER", "INT")
    lengths = list[str]()
    if cursor.accept_symbol("("):
        lengths.append(str(cursor.integer()))
        while cursor.accept_symbol(","):
            lengths.append(str(cursor.integer()))
        cursor.expect_symbol(")")
    text = name + (f"({', '.join(lengths)})" if lengths else "")
    return text + (" ARRAY" if cursor.accept("ARRAY") else "")


def _case(cursor: Cursor, charset: str) -> str:
    cursor.expect("CASE")
    text = "CASE" if cursor.at_words("WHEN") else f"CASE {expression(cursor, charset)}"
    while cursor.accept("WHEN"):
        condition = expression(cursor, charset)
        cursor.expect("THEN")
        text += f" WHEN {condition} THEN {expression(cursor, charset)}"
    if cursor.accept("ELSE"):
        text += f" ELSE {expression(cursor, charset)}"
    cursor.expect("END")
    return f"{text} END"


def _column(cursor: Cursor, charset: str) -> str:
    """Restore a column; its JSON arrows become functions."""
    column = cursor.column_name()
    if cursor.accept_symbol("->"):
        return f"JSON_EXTRACT({column}, {_operand(cursor, charset)})"
    if cursor.accept_symbol("->>"):
        return f"JSON_UNQUOTE(JSON_EXTRACT({column}, {_operand(cursor, charset)}))"
    return column
