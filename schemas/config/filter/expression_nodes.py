"""What a condition of an event filter is made of, once it is parsed. ``at``: the character where it stands, from 1."""

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Literal:
    """A value. str: a text; Decimal: a number with a point; float: one with an exponent; bool: TRUE or FALSE."""

    at: int
    value: int | Decimal | float | str | None


@dataclass(frozen=True, slots=True)
class TimeLiteral:
    """``DATE '…'`` or ``TIMESTAMP '…'``."""

    at: int
    text: str


@dataclass(frozen=True, slots=True)
class Bits:
    """``0x1f``, ``x'1f'``, ``0b11`` or ``b'11'``: bytes beside a text, else an integer."""

    at: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ColumnName:
    """A column, by its name."""

    at: int
    name: str
    table: str = ""
    """As it was written before the name; empty: nothing was."""


@dataclass(frozen=True, slots=True)
class Unary:
    """``NOT``, ``-`` or ``~``."""

    at: int
    operator: str
    operand: "Node"


@dataclass(frozen=True, slots=True)
class Binary:
    """AND, OR, XOR, a comparison, an operator of numbers or bits, in one spelling each: ``<>`` and ``%``."""

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


@dataclass(frozen=True, slots=True)
class Regexp:
    """``REGEXP`` or ``RLIKE``."""

    at: int
    operand: "Node"
    pattern: "Node"


@dataclass(frozen=True, slots=True)
class Call:
    """A function by its name in capitals, in one spelling each."""

    at: int
    name: str
    arguments: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class DateAdd:
    """``DATE_ADD(…, INTERVAL … unit)`` or ``DATE_SUB``."""

    at: int
    operand: "Node"
    count: "Node"
    unit: str
    """One of :data:`schemas.config.filter.expression_functions.UNITS`."""
    is_back: bool
    """DATE_SUB."""


@dataclass(frozen=True, slots=True)
class Case:
    """``CASE``; with an operand its branches are values that it may equal, without one conditions."""

    at: int
    operand: "Node | None"
    branches: tuple[tuple["Node", "Node"], ...]
    """What is held against, and the result."""
    otherwise: "Node | None"


@dataclass(frozen=True, slots=True)
class Cast:
    """``CAST(… AS …)``, ``CONVERT(…, …)`` or ``BINARY …``."""

    at: int
    operand: "Node"
    type: str
    """SIGNED, UNSIGNED, CHAR, BINARY, DECIMAL, DOUBLE or DATE."""
    length: int | None = None
    """Of CHAR in characters, of DECIMAL in digits."""
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Collate:
    """``COLLATE``."""

    at: int
    operand: "Node"
    collation: str


_Value = Literal | TimeLiteral | Bits | ColumnName
_Condition = Unary | Binary | OneOf | Like | Is | Regexp
Node = _Value | _Condition | Call | DateAdd | Case | Cast | Collate


def minus(at: int, node: Node) -> Node:
    """Return what ``-`` stands before; a number takes the sign itself."""
    if isinstance(node, Literal) and isinstance(node.value, int | Decimal | float):
        return Literal(at, -node.value)
    return Unary(at, "-", node)
