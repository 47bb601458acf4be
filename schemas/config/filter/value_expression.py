"""The conditions of event filters (``ignore-…-value-expr``): SQL text to a tree, as far as we evaluate it.

::

    or       = xor { ("OR" | "||") xor }
    xor      = and { "XOR" and }
    and      = not { ("AND" | "&&") not }
    not      = "NOT" not | test
    test     = range { compare range | "IS" ["NOT"] (NULL | TRUE | FALSE) }
    compare  = "=" | "<=>" | "<>" | "!=" | "<" | "<=" | ">" | ">="
    range    = bits [ ["NOT"] ( "IN" "(" or {"," or} ")" | "BETWEEN" bits "AND" range
                              | "LIKE" sign ["ESCAPE" string] | ("REGEXP" | "RLIKE") sign ) ]
    bits     = and_bits { "|" and_bits }
    and_bits = shift { "&" shift }
    shift    = sum { ("<<" | ">>") sum }
    sum      = product { ("+" | "-") (product | interval) }
    product  = xor_bits { ("*" | "/" | "DIV" | "%" | "MOD") xor_bits }
    xor_bits = sign { "^" sign }
    sign     = ("-" | "+" | "!" | "~" | "BINARY") sign | simple { "COLLATE" name }
    simple   = "(" or ")" | literal | part | function "(" [or {"," or}] ")" | case | cast | dateadd
    part     = [table "."] column [ ("->" | "->>") string ]
    case     = "CASE" [or] {"WHEN" or "THEN" or} ["ELSE" or] "END"
    cast     = "CAST" "(" or "AS" type ")" | "CONVERT" "(" or "," type ")"
    type     = "SIGNED" | "UNSIGNED" | "CHAR" ["(" n ")"] | "BINARY" | "DECIMAL" ["(" n ["," n] ")"] | "DOUBLE" | "DATE"
    dateadd  = ("DATE_ADD" | "DATE_SUB") "(" or "," interval ")"
    interval = "INTERVAL" or unit
    literal  = number | string | bits | "NULL" | "TRUE" | "FALSE" | ("DATE" | "TIMESTAMP") string

TiCDC reads all of TiDB's SQL here. What is left out is refused by its name and position: other functions, what asks the
clock or the session, subqueries, variables. Source of the grammar: MySQL's manual on expressions and
operator precedence, in the default sql_mode.
"""

from collections.abc import Callable
from typing import Final

from schemas.config.filter.expression_casts import cast_to
from schemas.config.filter.expression_functions import DATE_ADDS, FUNCTIONS, NEVER, SYNONYMS, UNITS
from schemas.config.filter.expression_nodes import (
    Binary,
    Bits,
    Call,
    Case,
    Cast,
    Collate,
    ColumnName,
    DateAdd,
    Is,
    Like,
    Literal,
    Node,
    OneOf,
    Regexp,
    TimeLiteral,
    Unary,
    minus,
)
from schemas.config.filter.expression_tokens import ExpressionTextError, ExpressionToken, expression_tokens, number_of

DEPTH_MAX: Final = 20
"""Of brackets and signs, so that no text exhausts the stack."""
OPERATORS_MAX: Final = 200
"""Of one expression, for the same reason: chains are trees as deep as they are long."""
_COMPARISONS = {"=": "=", "<=>": "<=>", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_RESERVED = frozenset(
    {
        *("AND", "OR", "XOR", "NOT", "IN", "IS", "BETWEEN", "LIKE", "ILIKE", "ESCAPE", "DIV", "MOD", "NULL", "TRUE"),
        *("FALSE", "CASE", "WHEN", "THEN", "ELSE", "INTERVAL", "BINARY", "COLLATE", "REGEXP", "RLIKE", "SELECT"),
        *("EXISTS", "MATCH", "CAST", "CONVERT", "END", "AS", "USING", "FROM"),
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
        node, token = self._bits(), self._peek()
        negated = token.word == "NOT" and self._peek(1).word in {"IN", "BETWEEN", "LIKE", "REGEXP", "RLIKE"}
        if negated:
            self._take()
        match self._peek().word:
            case "IN":
                self._take()
                return _negated(negated, OneOf(token.at, node, self._items()))
            case "BETWEEN":
                self._take()
                low = self._bits()
                self._expect("AND")
                high = self._range()
                inside = Binary(token.at, "AND", Binary(token.at, ">=", node, low), Binary(token.at, "<=", node, high))
                return _negated(negated, inside)
            case "LIKE":
                self._take()
                pattern = self._sign()
                return _negated(negated, Like(token.at, node, pattern, self._escape()))
            case "REGEXP" | "RLIKE":
                self._take()
                return _negated(negated, Regexp(token.at, node, self._sign()))
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

    def _bits(self) -> Node:
        return self._chain(lambda: self._chain(self._shift, {"&": "&"}), {"|": "|"})

    def _shift(self) -> Node:
        return self._chain(self._sum, {"<<": "<<", ">>": ">>"})

    def _sum(self) -> Node:
        node = self._product()
        while (token := self._peek()).word in {"+", "-"}:
            self._operator()
            if self._accept("INTERVAL"):
                node = DateAdd(token.at, node, *self._interval(), token.word == "-")
            else:
                node = Binary(token.at, token.word, node, self._product())
        return node

    def _product(self) -> Node:
        operators = {"*": "*", "/": "/", "DIV": "DIV", "%": "%", "MOD": "%"}
        return self._chain(lambda: self._chain(self._sign, {"^": "^"}), operators)

    def _sign(self) -> Node:
        token = self._peek()
        match token.word:
            case "-":
                return self._deeper(lambda at: minus(at, self._sign()))
            case "+":
                return self._deeper(lambda at: self._sign())
            case "!":
                return self._deeper(lambda at: Unary(at, "NOT", self._sign()))
            case "~":
                return self._deeper(lambda at: Unary(at, "~", self._sign()))
            case "BINARY":
                return self._deeper(lambda at: Cast(at, self._sign(), "BINARY"))
            case _:
                return self._collated(self._simple())

    def _collated(self, node: Node) -> Node:
        while self._peek().word == "COLLATE":
            at = self._take().at
            name = self._take()
            if name.kind not in {"word", "string", "name"}:
                raise self._unexpected(name)
            node = Collate(at, node, name.text.lower())
        return node

    def _simple(self) -> Node:
        token, following = self._peek(), self._peek(1)
        if token.word == "(":
            node = self._deeper(lambda at: self.disjunction())
            if self._peek().word == ",":
                raise ExpressionTextError("rows of values are not supported", token.at)
            self._expect(")")
            return node
        if token.kind != "word":
            return self._operand()
        if token.word == "CASE":
            return self._deeper(self._case)
        if following.word == "(" and token.word in {"CAST", "CONVERT"}:
            return self._deeper(lambda at: self._cast(at, token.word))
        if following.word == "(" and token.word not in {"AND", "OR", "XOR", "IN", "IS", "LIKE", "NOT"}:
            return self._deeper(lambda at: self._call(at, token.word))
        return self._operand()

    def _call(self, at: int, word: str) -> Node:
        name = SYNONYMS.get(word, word)
        if name in NEVER:
            raise ExpressionTextError(f"function {word} is not supported: a repeated row would see another value", at)
        if name in DATE_ADDS:
            return self._date_add(at, is_back=DATE_ADDS[name])
        if name not in FUNCTIONS:
            raise ExpressionTextError(f"function {word} is not supported", at)
        self._expect("(")
        arguments = [] if self._peek().word == ")" else [self._deeper_in(self.disjunction)]
        separators = ("FROM", "FOR") if name == "SUBSTRING" and self._peek().word == "FROM" else (",", ",")
        while self._accept(separators[min(len(arguments), 2) - 1]):
            arguments.append(self._deeper_in(self.disjunction))
        self._expect(")")
        low, high = FUNCTIONS[name]
        if not low <= len(arguments) <= high:
            raise ExpressionTextError(f"function {word} takes another number of arguments than {len(arguments)}", at)
        return Call(at, name, tuple(arguments))

    def _date_add(self, at: int, *, is_back: bool) -> Node:
        self._expect("(")
        operand = self._deeper_in(self.disjunction)
        self._expect(",")
        self._expect("INTERVAL")
        count, unit = self._interval()
        self._expect(")")
        return DateAdd(at, operand, count, unit, is_back)

    def _interval(self) -> tuple[Node, str]:
        count, unit = self._deeper_in(self.disjunction), self._take()
        if unit is self._end:
            raise self._unexpected(unit)
        if unit.word not in UNITS:
            raise ExpressionTextError(f"INTERVAL in `{unit.text}` is not supported", unit.at)
        return count, unit.word

    def _case(self, at: int) -> Node:
        operand = None if self._peek().word == "WHEN" else self.disjunction()
        branches = []
        while self._accept("WHEN"):
            self._operators += 1
            held = self.disjunction()
            self._expect("THEN")
            branches.append((held, self.disjunction()))
        if not branches:
            raise self._unexpected(wanted=", wanted WHEN")
        otherwise = self.disjunction() if self._accept("ELSE") else None
        self._expect("END")
        return Case(at, operand, tuple(branches), otherwise)

    def _cast(self, at: int, word: str) -> Node:
        self._expect("(")
        operand = self.disjunction()
        self._expect("AS" if word == "CAST" else ",")
        kind, numbers = self._take(), list[int]()
        if self._accept("("):
            numbers.append(self._whole())
            while self._accept(","):
                numbers.append(self._whole())
            self._expect(")")
        if kind.word in {"SIGNED", "UNSIGNED"}:
            self._accept("INTEGER")
        self._expect(")")
        return cast_to(at, word, operand, kind, numbers)

    def _whole(self) -> int:
        token = self._take()
        if token.kind != "number" or not isinstance(value := number_of(token.text), int):
            raise self._unexpected(token)
        return value

    def _operand(self) -> Node:
        token = self._take()
        at = token.at
        match token.kind:
            case "number":
                return Literal(at, number_of(token.text))
            case "string":
                text = token.text
                while self._peek().kind == "string":  # neighbouring strings are one
                    text += self._take().text
                return Literal(at, text)
            case "bits":
                return Bits(at, bytes.fromhex(token.text))
            case "name":
                return self._column(token)
            case "word" if token.word in {"NULL", "TRUE", "FALSE"}:
                return Literal(at, {"NULL": None, "TRUE": True, "FALSE": False}[token.word])
            case "word" if token.word in {"DATE", "TIMESTAMP"} and self._peek().kind == "string":
                return TimeLiteral(at, self._take().text)
            case "word" if token.word in {"INTERVAL", "EXISTS", "MATCH", "SELECT"}:
                raise ExpressionTextError(f"{token.word} is not supported", at)
            case "word" if token.word not in _RESERVED:
                return self._column(token)
            case _:
                raise self._unexpected(token)

    def _column(self, token: ExpressionToken) -> Node:
        column, arrow = self._column_name(token), self._peek()
        if arrow.word not in {"->", "->>"}:
            return column
        self._take()
        path = self._take()
        if path.kind != "string":
            raise self._unexpected(path)
        part = Call(arrow.at, "JSON_EXTRACT", (column, Literal(path.at, path.text)))
        return part if arrow.word == "->" else Call(arrow.at, "JSON_UNQUOTE", (part,))

    def _column_name(self, token: ExpressionToken) -> Node:
        if not self._accept("."):
            return ColumnName(token.at, token.text)
        name = self._take()
        if name.kind not in {"word", "name"}:
            raise self._unexpected(name)
        if self._peek().word == ".":
            raise ExpressionTextError(f"write column names without their schema, `{token.text}.`", token.at)
        return ColumnName(token.at, name.text, token.text)

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
        if token.word in {"->", "->>", ":=", "@", "?"}:
            return ExpressionTextError(f"operator {token.word} is not supported", token.at)
        return ExpressionTextError(f"unexpected `{token.text}`{wanted}", token.at)


def _negated(negated: bool, node: Node) -> Node:
    return Unary(node.at, "NOT", node) if negated else node
