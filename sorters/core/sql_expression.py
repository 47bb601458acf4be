"""Expressions of DDL statements, restored as TiDB does: no spaces around operators that are no words, names quoted,
functions in capitals, string literals with their character set.

An expression is written out in the order in which it stands, so operator precedence does not matter.
"""

import math

from sorters.core.sql_tokens import Cursor, Kind, UnsupportedSqlError, quote_string

_WORD_OPERATORS = {"AND": "AND", "OR": "OR", "XOR": "XOR", "DIV": "DIV"}
_SYMBOL_WORD_OPERATORS = {"&&": "AND", "||": "OR"}
_SYMBOL_OPERATORS = frozenset({"+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "=", "<=>", "<", ">", "<=", ">="})
_UNEQUAL = frozenset({"!=", "<>"})
_NOW = frozenset({"CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP"})
_CONSTANTS = frozenset({"NULL", "TRUE", "FALSE", "MAXVALUE"})
_STATEMENTS = frozenset({"CASE", "SELECT", "CAST", "CONVERT", "BINARY", "EXISTS", "MATCH", "TRIM", "EXTRACT", "VALUES"})
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
    """Restore ``CURRENT_TIMESTAMP[([fsp])]``; '' if another thing comes. All its synonyms become this one."""
    word = cursor.peek().upper
    is_call = cursor.peek(1).text == "(" and cursor.peek(1).kind is Kind.SYMBOL
    if word not in _NOW and not (word == "NOW" and is_call):
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
    if token.kind is not Kind.SYMBOL:
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
        return f" COLLATE {cursor.expect_kind(Kind.WORD).text.lower()}"
    return ""


def _one_of(cursor: Cursor, *words: str) -> str:
    word = cursor.accept_any(*words)
    if not word:
        raise cursor.unsupported(" or ".join(words))
    return word


def _operand(cursor: Cursor, charset: str) -> str:
    with cursor.nested():
        match cursor.peek().kind:
            case Kind.STRING:
                return (f"_{charset}" if charset else "") + quote_string(cursor.take().text)
            case Kind.NUMBER:
                return number(cursor.take().text)
            case Kind.BITS:
                return cursor.take().text
            case Kind.NAME:
                return _column(cursor, charset)
            case Kind.SYMBOL:
                return _symbol_operand(cursor, charset)
            case Kind.WORD:
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
    if token.text.startswith("_") and cursor.peek(1).kind is Kind.STRING:
        introducer = cursor.take().upper
        return introducer + quote_string(cursor.take().text)
    if token.upper in _STATEMENTS:
        raise cursor.unsupported("a simple expression")
    now = current_timestamp(cursor)
    if now:
        return now
    if cursor.peek(1).text == "(" and cursor.peek(1).kind is Kind.SYMBOL:
        return _call(cursor, charset)
    return _column(cursor, charset)


def _call(cursor: Cursor, charset: str) -> str:
    name = cursor.take().upper
    cursor.expect_symbol("(")
    arguments = "" if cursor.at_symbol(")") else expressions(cursor, charset)
    cursor.expect_symbol(")")
    return f"{name}({arguments})"


def _column(cursor: Cursor, charset: str) -> str:
    """Restore a column; its JSON arrows become functions."""
    column = cursor.dotted_name()
    if cursor.accept_symbol("->"):
        return f"JSON_EXTRACT({column}, {_operand(cursor, charset)})"
    if cursor.accept_symbol("->>"):
        return f"JSON_UNQUOTE(JSON_EXTRACT({column}, {_operand(cursor, charset)}))"
    return column
