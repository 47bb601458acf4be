"""The conditions of event filters (``ignore-…-value-expr``): SQL text to a tree, as far as we evaluate it.

::

    or       = xor { ("OR" | "||") xor }
    xor      = and { "XOR" and }
    and      = not { ("AND" | "&&") not }
    not      = "NOT" not | test
    test     = range { compare range | "IS" ["NOT"] (NULL | TRUE | FALSE) }
    compare  = "=" | "<=>" | "<>" | "!=" | "<" | "<=" | ">" | ">="
    range    = sum [ ["NOT"] ( "IN" "(" or {"," or} ")" | "BETWEEN" sum "AND" range | "LIKE" sign ["ESCAPE" string] ) ]
    sum      = product { ("+" | "-") product }
    product  = sign { ("*" | "DIV" | "%" | "MOD") sign }
    sign     = ("-" | "+" | "!") sign | "(" or ")" | literal | column
    literal  = number | string | "NULL" | "TRUE" | "FALSE" | ("DATE" | "TIMESTAMP") string

TiCDC reads all of TiDB's SQL here. What is left out is refused by its name and position: functions, CASE, casts, ``/``,
bit operations, regular expressions, COLLATE, subqueries, names with a table. Source of the grammar: MySQL's manual on
expressions and operator precedence, in the default sql_mode.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from schemas.config.filter.expression_tokens import ExpressionTextError, ExpressionToken, expression_tokens

DEPTH_MAX: Final = 20
"""Of brackets and signs, so that no text exhausts the stack."""
OPERATORS_MAX: Final = 200
"""Of one expression, for the same reason: chains are trees as deep as they are long."""
UINT64_MAX: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Literal:
    """A value. str: a text; Decimal: a number with a point; float: one with an exponent; bool does not occur."""

    at: int
    value: int | Decimal | float | str | None


@dataclass(frozen=True, slots=True)
class TimeLiteral:
    """``DATE '…'`` or ``TIMESTAMP '…'``."""

    at: int
    text: str


@dataclass(frozen=True, slots=True)
class ColumnName:
    """A column, by its name."""

    at: int
    name: str


@dataclass(frozen=True, slots=True)
class Unary:
    """``NOT`` or ``-``."""

    at: int
    operator: str
    operand: "Node"


@dataclass(frozen=True, slots=True)
class Binary:
    """AND, OR, XOR, a comparison or an arithmetic operator, in one spelling each: ``<>`` and ``%``."""

    at: int
    operator: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class OneOf:
    """``IN``."""

    at: int
    operand: "Node"
    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Like:
    """``LIKE``."""

    at: int
    operand: "Node"
    pattern: "Node"
    escape: str
    """One character, or none."""


@dataclass(frozen=True, slots=True)
class Is:
    """``IS NULL``, ``IS TRUE`` or ``IS FALSE``."""

    at: int
    operand: "Node"
    what: str


Node = Literal | TimeLiteral | ColumnName | Unary | Binary | OneOf | Like | Is

_COMPARISONS = {"=": "=", "<=>": "<=>", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_RESERVED = frozenset(
    {
        *("AND", "OR", "XOR", "NOT", "IN", "IS", "BETWEEN", "LIKE", "ILIKE", "ESCAPE", "DIV", "MOD", "NULL", "TRUE"),
        *("FALSE", "CASE", "WHEN", "THEN", "ELSE", "INTERVAL", "BINARY", "COLLATE", "REGEXP", "RLIKE", "SELECT"),
        *("EXISTS", "MATCH", "CAST", "CONVERT"),
    }
)


def parse_expression(text: str) -> Node:
    """Parse a condition.

    Raises:
        ExpressionTextError: what is wrong or not supported, and where.
    """
    parser = _ExpressionParser(expression_tokens(text), len(text) + 1)
    node = parser.disjunction()
    parser.end()
    return node


class _ExpressionParser:
    def __init__(self, tokens: list[ExpressionToken], end: int) -> None:
        self._tokens, self._at, self._depth, self._operators = tokens, 0, 0, 0
        self._end = ExpressionToken("end", "", end)

    def end(self) -> None:
        if self._peek() is not self._end:
            raise self._unexpected()

    def disjunction(self) -> Node:
        return self._chain(lambda: self._chain(self._conjunction, {"XOR": "XOR"}), {"OR": "OR", "||": "OR"})

    def _conjunction(self) -> Node:
        return self._chain(self._negation, {"AND": "AND", "&&": "AND"})

    def _negation(self) -> Node:
        if self._peek().word != "NOT":
            return self._test()
        return self._deeper(lambda at: Unary(at, "NOT", self._negation()))

    def _test(self) -> Node:
        node = self._range()
        while True:
            token = self._peek()
            if token.word in _COMPARISONS:
                self._operator()
                node = Binary(token.at, _COMPARISONS[token.word], node, self._range())
            elif token.word == "IS":
                self._operator()
                negated = self._accept("NOT")
                what = self._take()
                if what.word not in {"NULL", "TRUE", "FALSE"}:
                    raise self._unexpected(what)
                node = _negated(negated, Is(token.at, node, what.word))
            else:
                return node

    def _range(self) -> Node:
        node, token = self._sum(), self._peek()
        negated = token.word == "NOT" and self._peek(1).word in {"IN", "BETWEEN", "LIKE"}
        if negated:
            self._take()
        match self._peek().word:
            case "IN":
                self._take()
                return _negated(negated, OneOf(token.at, node, self._items()))
            case "BETWEEN":
                self._take()
                low = self._sum()
                self._expect("AND")
                high = self._range()
                inside = Binary(token.at, "AND", Binary(token.at, ">=", node, low), Binary(token.at, "<=", node, high))
                return _negated(negated, inside)
            case "LIKE":
                self._take()
                pattern = self._sign()
                return _negated(negated, Like(token.at, node, pattern, self._escape()))
            case _:
                return node

    def _items(self) -> tuple[Node, ...]:
        self._expect("(")
        items = [self._deeper_in(self.disjunction)]
        while self._accept(","):
            items.append(self._deeper_in(self.disjunction))
        self._expect(")")
        return tuple(items)

    def _escape(self) -> str:
        if not self._accept("ESCAPE"):
            return "\\"
        token = self._take()
        if token.kind != "string" or len(token.text) > 1:
            raise ExpressionTextError("ESCAPE takes a string of one character", token.at)
        return token.text

    def _sum(self) -> Node:
        return self._chain(
            lambda: self._chain(self._sign, {"*": "*", "DIV": "DIV", "%": "%", "MOD": "%"}), {"+": "+", "-": "-"}
        )

    def _sign(self) -> Node:
        token = self._peek()
        match token.word:
            case "-":
                return self._deeper(lambda at: _minus(at, self._sign()))
            case "+":
                return self._deeper(lambda at: self._sign())
            case "!":
                return self._deeper(lambda at: Unary(at, "NOT", self._sign()))
            case "(":
                node = self._deeper(lambda at: self.disjunction())
                if self._peek().word == ",":
                    raise ExpressionTextError("rows of values are not supported", token.at)
                self._expect(")")
                return node
            case _:
                return self._operand()

    def _operand(self) -> Node:
        token = self._take()
        at = token.at
        match token.kind:
            case "number":
                return Literal(at, _number(token.text))
            case "string":
                text = token.text
                while self._peek().kind == "string":  # neighbouring strings are one
                    text += self._take().text
                return Literal(at, text)
            case "name":
                return self._column(token)
            case "word" if token.word in {"NULL", "TRUE", "FALSE"}:
                return Literal(at, {"NULL": None, "TRUE": 1, "FALSE": 0}[token.word])
            case "word" if token.word in {"DATE", "TIMESTAMP"} and self._peek().kind == "string":
                return TimeLiteral(at, self._take().text)
            case "word" if self._peek().word == "(" and token.word not in {"AND", "OR", "XOR", "IN", "IS", "LIKE"}:
                raise ExpressionTextError(f"function {token.word} is not supported", at)
            case "word" if token.word in {"CASE", "INTERVAL", "BINARY", "EXISTS", "MATCH", "SELECT"}:
                raise ExpressionTextError(f"{token.word} is not supported", at)
            case "word" if token.word not in _RESERVED:
                return self._column(token)
            case _:
                raise self._unexpected(token)

    def _column(self, token: ExpressionToken) -> Node:
        if self._peek().word == ".":
            raise ExpressionTextError(f"write column names alone, without `{token.text}.`", token.at)
        return ColumnName(token.at, token.text)

    def _chain(self, operand: Callable[[], Node], operators: dict[str, str]) -> Node:
        node = operand()
        while (token := self._peek()).word in operators:
            self._operator()
            node = Binary(token.at, operators[token.word], node, operand())
        return node

    def _deeper(self, make: Callable[[int], Node]) -> Node:
        token = self._take()
        return self._deeper_in(lambda: make(token.at))

    def _deeper_in(self, make: Callable[[], Node]) -> Node:
        if self._depth >= DEPTH_MAX:
            raise ExpressionTextError(f"more than {DEPTH_MAX} levels", self._peek().at)
        self._depth += 1
        node = make()
        self._depth -= 1
        return node

    def _peek(self, ahead: int = 0) -> ExpressionToken:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else self._end

    def _take(self) -> ExpressionToken:
        token = self._peek()
        self._at += 1
        return token

    def _operator(self) -> None:
        token = self._take()
        self._operators += 1
        if self._operators > OPERATORS_MAX:
            raise ExpressionTextError(f"more than {OPERATORS_MAX} operators; IN takes a list of any length", token.at)

    def _accept(self, word: str) -> bool:
        is_next = self._peek().word == word
        self._at += is_next
        return is_next

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._unexpected(wanted=f", wanted {word}")

    def _unexpected(self, token: ExpressionToken | None = None, wanted: str = "") -> ExpressionTextError:
        token = token or self._peek()
        if token is self._end:
            return ExpressionTextError(f"the expression ends too early{wanted}", token.at)
        if token.word in {
            "/",
            "|",
            "&",
            "^",
            "~",
            "<<",
            ">>",
            "->",
            "->>",
            ":=",
            "@",
            "?",
            "REGEXP",
            "RLIKE",
            "COLLATE",
        }:
            return ExpressionTextError(f"operator {token.word} is not supported", token.at)
        return ExpressionTextError(f"unexpected `{token.text}`{wanted}", token.at)


def _negated(negated: bool, node: Node) -> Node:
    return Unary(node.at, "NOT", node) if negated else node


def _minus(at: int, node: Node) -> Node:
    if isinstance(node, Literal) and isinstance(node.value, int | Decimal | float):
        return Literal(at, -node.value)
    return Unary(at, "-", node)


def _number(text: str) -> int | Decimal | float:
    if text.isdecimal():
        value = int(text)
        return value if value <= UINT64_MAX else Decimal(text)
    return float(text) if "e" in text.lower() else Decimal(text)
